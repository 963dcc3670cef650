"""Real agents and tasks keep going whatever happens to the server beside them: leases depend on the gateway alone."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from corral.cli.fleet.testbed_parts import PLANNER, SERVER
from tests.e2e.fleet import FleetTrial

pytestmark = pytest.mark.timeout(280)
LEASE_MS = 4_000
DEFAULT_LEASE_MS = 8_000  # a killed server leaves no farewell: its successor must open its gateway within a lease
SLOW_S = 20  # more than two of them

#: Put beside the server: loading what it knows takes long, as with a large journal on a slow disk.
SLOW_LOAD = f"""\
import sys
if "up" in sys.orig_argv:
    import time
    import corral.server.recovery as start
    load = start.load
    def slowly(journal):
        end = time.monotonic() + {SLOW_S}
        while time.monotonic() < end:  # busy, as the real thing
            sum(range(10_000))
        return load(journal)
    start.load = slowly
"""


@contextmanager
def running(folder: Path, lease_ms: int = LEASE_MS) -> Iterator[tuple[FleetTrial, str]]:
    """Two machines with a task each, which must be the same in the end."""
    with FleetTrial(folder, 2, lease_ms) as trial:
        job = trial.submit(gpus=8, tasks=2)
        trial.until("it begins", lambda: trial.is_whole(job, 2))
        yield trial, job
        trial.check_whole(job, 2)
        assert [run.attempt for run in trial.last_runs(job)] == [1, 1]
        assert trial.events("TasksLost", "NodeLost") == []
        trial.end_file.touch()
        trial.until("it ends well", lambda: trial.job(job).state == "succeeded")


def test_a_planner_that_is_stopped_costs_no_task(tmp_path: Path):
    with running(tmp_path) as (trial, _):
        planner = trial.bed.child(PLANNER)
        os.kill(planner, signal.SIGSTOP)
        time.sleep(3 * LEASE_MS / 1000)
        os.kill(planner, signal.SIGCONT)


def test_a_server_that_is_stopped_for_half_a_minute_costs_no_task(tmp_path: Path):
    with running(tmp_path) as (trial, job):
        trial.bed.freeze(SERVER)
        time.sleep(30)
        trial.check_whole(job, 2)
        trial.bed.thaw(SERVER)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_start_that_takes_longer_than_a_lease_costs_no_task(tmp_path: Path, how: signal.Signals):
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(SLOW_LOAD)
    with running(tmp_path, DEFAULT_LEASE_MS) as (trial, _):
        trial.bed.environment["PYTHONPATH"] = f"{slow}:{Path(__file__).parents[2] / 'src'}"
        trial.bed.send(SERVER, how)
        trial.bed.processes[SERVER].wait(60)
        began = time.monotonic()
        trial.bed.start_server()
        assert time.monotonic() - began > SLOW_S
        trial.bed.until_up(["n1", "n2"])


def test_a_server_that_was_stopped_in_order_may_stay_away_for_longer_than_a_lease(tmp_path: Path):
    with running(tmp_path) as (trial, _):
        trial.bed.send(SERVER, signal.SIGTERM)
        trial.bed.processes[SERVER].wait(60)
        time.sleep(3 * LEASE_MS / 1000)
        trial.bed.start_server()
        trial.bed.until_up(["n1", "n2"])


def test_thousands_of_idle_connections_cost_no_task_and_all_users_is_reported(tmp_path: Path):
    """They hold what the interface may hold; agents have a way in of their own, and `/v1/health` is answered."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    with running(tmp_path) as (trial, _):
        idle = [_idle(trial.bed.port) for _ in range(4_100)]
        end = time.monotonic() + 3 * LEASE_MS / 1000
        while time.monotonic() < end:
            with urllib.request.urlopen(f"{trial.bed.url}/v1/health", timeout=20) as answer:
                assert answer.status == 200
            time.sleep(0.5)
        variables = {**os.environ, "CORRAL_URL": trial.bed.url, "CORRAL_TOKEN": trial.bed.credentials().token}
        said = subprocess.run(
            [sys.executable, "-m", "corral", "ps"], env=variables, capture_output=True, text=True, timeout=120
        )
        assert said.returncode == 0 or "the server is busy" in said.stderr, said.stderr
        for each in idle:
            each.close()


def _idle(port: int) -> socket.socket:
    """Connected, and has begun to say something, so that it is not taken for one that says nothing."""
    there = socket.create_connection(("127.0.0.1", port), 20)
    there.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n")
    return there
