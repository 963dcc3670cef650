"""A server with a batching queue whose handler is in a file, for tests, benchmarks and soaks. Knows processes and the
client; nothing of how batches are made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corral.client.blocking import Client
from corral.wire.api.batch import BatchQueueBody
from tests.e2e.live import Live

HANDLERS = """
import os, signal, time

def double(items):
    return [2 * item for item in items]

def slow(items):
    time.sleep(0.2)
    return [2 * item for item in items]

def short(items):
    time.sleep(0.05)
    return [2 * item for item in items]

def sleepy(items):
    if any(item == 13 for item in items):
        time.sleep(600)
    return items

def picky(items):
    if any(item == 13 for item in items):
        raise ValueError("thirteen")
    return items

def deadly(items):
    if any(item == 13 for item in items):
        os.kill(os.getpid(), signal.SIGKILL)
    return items
"""


@contextmanager
def batching_server(folder: Path) -> Iterator[tuple[Live, Client]]:
    live = Live(folder / "data", gpus=4)
    (folder / "handlers.py").write_text(HANDLERS, encoding="utf-8")
    live.start()
    try:
        with Client(f"http://127.0.0.1:{live.port}", live.token, patience_s=60.0) as client:
            yield live, client
    finally:
        live.stop()


def settings(folder: Path, handler: str, **more: Any) -> BatchQueueBody:
    job = {"gpus": 1, "directory": str(folder), **more.pop("job", {})}
    found: dict[str, Any] = {"max_batch_wait": "20ms", "max_batch_size": 8, "min_workers": 1, "python": _python()}
    return BatchQueueBody(queue="default", handler=f"handlers:{handler}", job=job, **found | more)


def _python() -> str:
    import sys

    return sys.executable


def until(holds: Callable[[], bool], what: str, patience_s: float = 30.0) -> None:
    end = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < end, f"{what} did not happen within {patience_s:g} s"
        time.sleep(0.05)
