"""A small mixed day on the live system, shown as it happens: `make demo`.

Starts a server of its own on eight simulated GPUs (nothing but their number is made up: jobs are real processes),
submits a gang, an array, a borrower that is reclaimed, an urgent job that preempts, one that crashes and is tried
again, and one that could never run; then ends by itself with a summary. `make demo KEEP=1` leaves the server running.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corral import Client
from corral.client import Problem
from corral.client.credentials import read_credentials
from corral.wire.api import EventView, QueueBody

#: Saves when it is warned, says so, and asks to be run again; otherwise works for the given number of seconds.
CAREFUL = """
trap 'echo "{\\"step\\": $step}" >> $CORRAL_CHECKPOINT_FILE; echo saved at step $step; exit 85' TERM
step=${CORRAL_ATTEMPT}00; end=$((SECONDS + %d))
while [ $SECONDS -lt $end ]; do step=$((step + 1)); sleep 0.05; done
"""
CRASHES_ONCE = 'if [ "$CORRAL_ATTEMPT" = 1 ]; then echo no such tensor >&2; exit 3; fi; echo fine this time'


def careful(seconds: int) -> list[str]:
    return ["bash", "-c", CAREFUL % seconds]


def main() -> None:
    keeps = os.environ.get("KEEP") == "1"
    folder = Path(tempfile.mkdtemp(prefix="corral-demo-"))
    with server(folder, keeps) as client:
        say(f"a server is up at {client.url}, with 8 simulated H100")
        jobs = submit_the_day(client)
        tell_until_over(client, jobs)
        sum_up(client, jobs)
        if keeps:
            print(f"\nIt is still running. In another terminal:\n  export XDG_CONFIG_HOME={folder}\n  corral ps")
            print(f"To end it: corral down --data {folder}/data")
            code = client.make_session_code().code
            print(f"In a browser, within a minute (later: corral open):\n  {client.url}/#/sign-in?code={code}")


def submit_the_day(client: Client) -> dict[str, str]:
    """Everything at once, or as soon as it makes sense. Names of the jobs by their numbers."""
    client.set_queue("research", QueueBody(guarantee={"gpu_milli": 4000}))
    client.set_queue("product", QueueBody(guarantee={"gpu_milli": 4000}))
    jobs: dict[str, str] = {}

    def submit(name: str, **document: object) -> None:
        answer = client.submit({"name": name, **document})
        jobs[answer.id] = name

    try:
        client.submit({"name": "impossible", "queue": "research", "gpus": 16, "command": "true"})
    except Problem as problem:
        say(f"impossible is refused: {problem}")
    submit("borrower", queue="research", gpus=6, checkpoints=True, grace="5s", command=careful(4), restart_cost="1s")
    wait_for(client, "borrower", "running")
    submit("owner", queue="product", tasks=2, gpus=2, command="echo rank $RANK of $WORLD_SIZE; sleep 1")
    submit("sweep", queue="research", gpus=1, array="0-5", command="echo point $CORRAL_ARRAY_INDEX; sleep 0.4")
    submit(
        "flaky",
        queue="research",
        gpus=1,
        retries={"user_error": {"count": 2, "backoff": "500ms"}},
        command=CRASHES_ONCE,
    )
    submit("nightly", queue="product", gpus=4, checkpoints=True, grace="5s", command=careful(3), restart_cost="1s")
    wait_for(client, "nightly", "running")
    submit("urgent", queue="product", gpus=6, priority=100, command="echo at last; sleep 1")
    return jobs


def tell_until_over(client: Client, jobs: dict[str, str]) -> None:
    over: set[str] = set()
    for event in client.events(follow=True):
        tell(event, jobs)
        if event.type == "JobEnded":
            over.add(event.job)
        if over >= set(jobs):
            return


#: What is shown; the rest is in `corral events`.
TOLD = {"JobSubmitted", "GangPlaced", "GangEvicted", "CheckpointCommitted", "GangRequeued", "JobEnded"}


def tell(event: EventView, jobs: dict[str, str]) -> None:
    if event.type in TOLD and event.job in jobs:
        say(f"{jobs[event.job]:<10} {event.text}", event.at_ms)


def sum_up(client: Client, jobs: dict[str, str]) -> None:
    print(f"\n  {'job':<10} {'state':<10} {'gpus':>4} {'runs':>4} {'waited':>8} {'took':>8}")
    for number, name in jobs.items():
        job = client.job(number)
        began, ended = job.started_ms or job.submitted_ms, job.ended_ms or job.submitted_ms
        waited, took = (began - job.submitted_ms) / 1000, (ended - began) / 1000
        print(f"  {name:<10} {job.state:<10} {job.gpus:>4} {job.attempts:>4} {waited:>7.2f}s {took:>7.2f}s")
    used = client.usage()
    print(f"\n  {used.gpu_ms / 1000:.1f} GPU-seconds, {used.lost_gpu_ms / 1000:.1f} of them lost to preemption")


def wait_for(client: Client, name: str, state: str) -> None:
    for _ in range(400):
        if any(job.name == name and job.state == state for job in client.jobs()):
            return
        time.sleep(0.025)
    sys.exit(f"{name} is not {state} after 10 s; see the log of the server")


def say(text: str, at_ms: int | None = None) -> None:
    now_ms = time.time_ns() // 1_000_000 if at_ms is None else at_ms
    print(f"  {(now_ms - BEGAN_MS) / 1000:6.2f}s  {text}", flush=True)


@contextmanager
def server(folder: Path, keeps: bool) -> Iterator[Client]:
    """A server of our own on a free port, with its data in a folder that goes with it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder)}
    arguments = ["up", "--data", str(folder / "data"), "--listen", f"127.0.0.1:{port}", "--fake-gpus", "8xH100"]
    arguments += ["--account", pwd.getpwuid(os.getuid()).pw_name]  # jobs run as the user who runs this, also as root
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "corral", *arguments],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=keeps,
        )
    try:
        credentials = folder / "corral" / "credentials.json"
        for _ in range(600):
            if (folder / "data" / "server.json").exists() or process.poll() is not None:
                break
            time.sleep(0.025)
        found = read_credentials(credentials)
        if process.poll() is not None or found is None:
            sys.exit(f"the server did not start:\n{(folder / 'server.log').read_text()}")
        with Client(found.url, found.token) as client:
            yield client
    finally:
        if not keeps:
            process.send_signal(signal.SIGTERM)
            process.wait(20)
            shutil.rmtree(folder, ignore_errors=True)


BEGAN_MS = time.time_ns() // 1_000_000

if __name__ == "__main__":
    main()
