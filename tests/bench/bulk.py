"""How long ``corral cancel --all`` and its kind take with many jobs: ``python -m tests.bench.bulk``. Starts a server.

While each command runs, another client asks for ``/v1/health`` again and again: its longest wait shows how long the
server was busy with one slice. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import threading
import time

from corral.client.blocking import Client
from tests.cli.typed import command, environment, free_port

BATCH = 2_000
COMMANDS = {
    "release": ("release", "--all", "--yes"),
    "hold": ("hold", "--name", "many*", "--yes"),
    "priority": ("priority", "1", "--all", "--yes"),
    "cancel": ("cancel", "--all", "--yes"),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=6_000)
    jobs = parser.parse_args().jobs
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"XDG_CONFIG_HOME": folder, "CORRAL_DATA": os.path.join(folder, "data")}
        for name in ("CORRAL_URL", "CORRAL_TOKEN"):
            os.environ.pop(name, None)
        words = ("up", "--detach", "--listen", f"127.0.0.1:{free_port()}", "--fake-gpus", "8xH100")
        subprocess.run(command(*words), env=environment(), check=True, capture_output=True)
        try:
            figures = measured(jobs)
        finally:
            subprocess.run(command("down"), env=environment(), check=True, capture_output=True)
    print(json.dumps({"jobs": jobs, **figures}))


def measured(jobs: int) -> dict[str, float]:
    """Seconds of each command, and the longest wait of others meanwhile in milliseconds."""
    figures: dict[str, float] = {}
    with Client() as client:
        blocker = client.submit({"command": "sleep 600", "gpus": 8, "name": "blocker", "priority": 9}).id
        document = {"command": "true", "gpus": 8, "name": "many", "hold": True}
        for first in range(0, jobs, BATCH):
            client.submit_many([document] * min(BATCH, jobs - first))
        for name, words in COMMANDS.items():
            seconds, wait_ms, said = _timed(words)
            figures[f"{name}_s"], figures[f"{name}_others_wait_ms"] = round(seconds, 2), round(wait_ms)
            print(f"{name:<10} {seconds:6.2f} s, others waited at most {wait_ms:4.0f} ms: {said}")
        assert client.job(blocker).state != "waiting"
    return figures


def _timed(words: tuple[str, ...]) -> tuple[float, float, str]:
    done = threading.Event()
    waits: list[float] = [0.0]
    asking = threading.Thread(target=_ask_on, args=(done, waits))
    asking.start()
    began = time.monotonic()
    said = subprocess.run(command(*words), env=environment(), check=True, capture_output=True, text=True).stdout
    took = time.monotonic() - began
    done.set()
    asking.join()
    return took, max(waits) * 1000, said.strip()


def _ask_on(done: threading.Event, waits: list[float]) -> None:
    with Client() as client:
        while not done.wait(0.005):
            began = time.monotonic()
            client.health()
            waits.append(time.monotonic() - began)


if __name__ == "__main__":
    main()
