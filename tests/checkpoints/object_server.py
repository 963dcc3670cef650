"""An S3-compatible server on loopback: moto, in a process of its own. Skipped where it is not installed."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT

PYTHON = ROOT / ".venv-objects" / "bin" / "python"
BUCKET = "checkpoints"


@dataclass
class ObjectServer:
    """``stop`` makes it unreachable."""

    process: subprocess.Popen[bytes]
    bucket: str
    env: dict[str, str] = field(default_factory=dict)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(30)


@contextlib.contextmanager
def object_server(folder: Path) -> Iterator[ObjectServer]:
    pytest.importorskip("obstore", reason="obstore is not installed")
    if not PYTHON.exists():
        pytest.skip("no S3-compatible server beside the checkout: make services")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with open(folder / "moto.log", "wb") as log:
        process = subprocess.Popen(
            [str(PYTHON), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log
        )
    env = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }
    server = ObjectServer(process, BUCKET, env)
    try:
        _make_bucket(url)
        yield server
    finally:
        server.stop()


def _make_bucket(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT"), timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
