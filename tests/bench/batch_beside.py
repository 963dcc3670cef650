"""What users might pick instead of a batching queue, under the same load: LitServe and Celery.

Each is installed into an environment of its own beside the checkout, by this benchmark and not by `make test`; where
that is impossible it says so. 2 * item is computed for each item, 500 at once; in a second run the process that
computes is killed after half of them, and items without a result in the end are lost. Ray Serve is in ``batch``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.e2e.live import free_port
from tests.intake.brokers import NoBroker, PrivateRedis

ROOT = Path(__file__).resolve().parents[2]
LITSERVE = ("litserve==0.2.19",)
CELERY = ("celery[redis]==5.6.3",)
_RUN_S = 300

LITSERVE_SERVER = """
import sys, litserve as ls

class Twice(ls.LitAPI):
    def setup(self, device): pass
    def decode_request(self, request): return request["item"]
    def batch(self, items): return list(items)
    def predict(self, items): return [2 * item for item in items]
    def unbatch(self, output): return output
    def encode_response(self, output): return {"out": output}

if __name__ == "__main__":
    api = Twice(max_batch_size=64, batch_timeout=float(sys.argv[2]))
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=1, track_requests=False)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="error")
"""

LITSERVE_LOAD = """
import asyncio, json, os, signal, subprocess, sys, time
items, wait_s, port = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
server = subprocess.Popen([sys.executable, sys.argv[4], str(port), wait_s], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, start_new_session=True)

async def ask(connection, number):
    reader, writer = connection
    body = json.dumps({"item": number}).encode()
    head = "POST /predict HTTP/1.1\\r\\nHost: x\\r\\nContent-Type: application/json\\r\\nContent-Length: "
    writer.write(head.encode() + b"%d\\r\\n\\r\\n%s" % (len(body), body))
    head = (await reader.readuntil(b"\\r\\n\\r\\n")).lower()
    length = int(head.split(b"content-length:")[1].split(b"\\r\\n")[0])
    answer = await reader.readexactly(length)
    return head.split()[1] == b"200" and json.loads(answer)["out"] == 2 * number

def workers():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            group = os.getpgid(int(pid))
            words = open(f"/proc/{pid}/cmdline").read()
        except OSError:
            continue
        if group == server.pid and "spawn_main" in words:
            found.append(int(pid))
    return found

async def run(numbers, kills):
    left, latencies, lost = list(numbers)[::-1], [], []
    async def sender():
        connection = None
        while left:
            number, since = left.pop(), time.monotonic()
            try:
                connection = connection or await asyncio.open_connection("127.0.0.1", port)
                good = await asyncio.wait_for(ask(connection, number), 20)
            except Exception:
                good, connection = False, None
            latencies.append(time.monotonic() - since)
            if not good:
                lost.append(number)
    async def killer():
        while kills and len(left) > len(numbers) // 2:
            await asyncio.sleep(0.01)
        if kills:
            for pid in workers():
                os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    await asyncio.gather(killer(), *(sender() for _ in range(500)))
    return time.monotonic() - began, sorted(latencies), len(lost)

async def main():
    for _ in range(300):
        try:
            if await ask(await asyncio.open_connection("127.0.0.1", port), 1):
                break
        except Exception:
            await asyncio.sleep(0.2)
    took, latencies, _ = await run(range(items), False)
    _, _, lost = await run(range(items), True)
    print(json.dumps({"items_per_s": round(items / took), "p95_ms": round(latencies[int(items * .95)] * 1000, 1),
                      "lost_when_killed": lost}), flush=True)

try:
    asyncio.run(asyncio.wait_for(main(), 240))
finally:
    os.killpg(server.pid, signal.SIGKILL)
"""

CELERY_LOAD = """
import json, os, signal, subprocess, sys, time
items, url, folder = int(sys.argv[1]), os.environ["BENCH_BROKER"], sys.argv[2]
sys.path.insert(0, folder)
open(folder + "/twice_app.py", "w").write('''
import os
from celery import Celery
app = Celery("twice_app", broker=os.environ["BENCH_BROKER"], backend=os.environ["BENCH_BROKER"])

@app.task
def twice(item):
    return 2 * item
''')
from celery import Celery
from redis import Redis
sending, results = Celery("sending", broker=url), Redis.from_url(url)  # without a backend: it subscribes for each task

def worker():
    return subprocess.Popen([sys.executable, "-m", "celery", "-A", "twice_app", "worker", "-c", "1", "-l", "ERROR"],
                            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

def run(kills):
    global running
    began, sent, waiting, latencies = time.monotonic(), 0, {}, []
    killed = not kills
    silent = time.monotonic()
    while sent < items or waiting:
        while sent < items and len(waiting) < 500:
            result = sending.send_task("twice_app.twice", [sent])
            waiting[result.id] = time.monotonic()
            sent += 1
        time.sleep(0.005)
        found = results.mget(["celery-task-meta-" + id for id in waiting])
        for (id, since), value in zip(list(waiting.items()), found):
            if value is not None:
                latencies.append(time.monotonic() - since)
                del waiting[id]
                silent = time.monotonic()
        if not killed and sent > items // 2:
            killed = True
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            running = worker()
        if time.monotonic() - silent > 30:
            break
    return time.monotonic() - began, sorted(latencies), len(waiting)

running = worker()
try:
    first = sending.send_task("twice_app.twice", [1])
    while not results.exists("celery-task-meta-" + first.id):
        time.sleep(0.1)
    took, latencies, _ = run(False)
    _, _, lost = run(True)
    p95_ms = round(latencies[int(len(latencies) * .95)] * 1000, 1)
    print(json.dumps({"items_per_s": round(items / took), "p95_ms": p95_ms,
                      "lost_when_killed": lost}), flush=True)
finally:
    os.killpg(running.pid, signal.SIGKILL)
"""


def environment_of(name: str, packages: Sequence[str]) -> Path | str:
    """The Python of an environment that has these; or why there is none."""
    folder = ROOT / f".venv-{name}"
    stamp, wanted = folder / ".installed", "\n".join(packages)
    if not stamp.exists() or stamp.read_text() != wanted:
        words = ["-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet", *packages]
        try:
            if not (folder / "bin" / "python").exists():
                subprocess.run(
                    [sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True, timeout=_RUN_S
                )
            subprocess.run([str(folder / "bin" / "python"), *words], check=True, capture_output=True, timeout=_RUN_S)
        except (OSError, subprocess.SubprocessError) as wrong:
            return f"cannot be installed: {wrong}"[:200]
        stamp.write_text(wanted)
    return folder / "bin" / "python"


def litserve(items: int, wait_s: float) -> Any:
    python = environment_of("litserve", LITSERVE)
    if isinstance(python, str):
        return python
    with tempfile.TemporaryDirectory() as scratch:
        server = Path(scratch) / "server.py"
        server.write_text(LITSERVE_SERVER)
        return _result([str(python), "-c", LITSERVE_LOAD, str(items), str(wait_s), str(free_port()), str(server)], {})


def celery(items: int) -> Any:
    python = environment_of("celery", CELERY)
    if isinstance(python, str):
        return python
    try:
        broker = PrivateRedis(durable=False)
    except NoBroker as missing:
        return str(missing)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            return _result([str(python), "-c", CELERY_LOAD, str(items), scratch], {"BENCH_BROKER": broker.url})
    finally:
        broker.close()


def _result(words: list[str], more: dict[str, str]) -> Any:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_RUN_S, env=os.environ | more, check=False)
    except subprocess.TimeoutExpired:
        return f"does not end within {_RUN_S} s"
    with suppress(ValueError, IndexError):
        return json.loads(done.stdout.strip().splitlines()[-1])
    return "does not run: " + (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
