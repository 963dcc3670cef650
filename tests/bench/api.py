"""How fast a whole server is, over HTTP, with real processes: submissions, starts, trivial jobs, restarts, history.

`make bench-api` (`QUICK=1`: under a minute, smaller numbers). One server on simulated GPUs, all of them taken by one
job, so that jobs that want a GPU wait; the load comes from a light process of its own. Prints what it finds as it finds
it and ends with one line of JSON. How each number is obtained is described in docs/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the root of the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import slurm
from tests.bench.history import measure_history
from tests.bench.load import share
from tests.e2e.live import ROOT, Live, environment

WAITING = {"command": ["python", "train.py"], "gpus": 1}
TRIVIAL = {"command": ["true"], "name": "trivial"}
CLIENTS = 64
BATCH = 1_000
TURNS = 5
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Size:
    """How much of everything."""

    def __init__(self, is_quick: bool) -> None:
        self.submits = 1_500 if is_quick else 10_000
        self.starts = 30 if is_quick else 200
        self.trivial = 500 if is_quick else 5_000
        self.some_pending = 5_000 if is_quick else 35_000
        self.many_pending = 20_000 if is_quick else 100_000
        self.history = 10_000 if is_quick else 1_000_000


class Bench:
    def __init__(self, live: Live, size: Size) -> None:
        self.live, self.size, self.figures = live, size, dict[str, Any]()
        self.pending, self.marks = 0, 0

    def run(self) -> dict[str, Any]:
        self.live.start()
        self.say("cold_start_ms", self.live.ready_ms)
        self.starts()
        self.blocker = self.live.submit({"command": ["sleep", "100000"], "gpus": self.live.gpus})
        self.submits("submits_per_s", "submit_p99_ms")
        self.fill(self.size.some_pending)
        self.trivial()
        self.fill(self.size.many_pending)
        self.submits("submits_per_s_with_pending", "submit_p99_ms_with_pending")
        self.restart()
        self.live.ask("POST", f"/v1/jobs/{self.blocker}/cancel")
        self.live.stop()
        return self.figures

    def say(self, name: str, value: Any) -> None:
        self.figures[name] = round(value, 1) if isinstance(value, float) else value
        print(f"{name:32} {self.figures[name]}", flush=True)

    # ---- the parts ---------------------------------------------------------------------------------------------

    def starts(self) -> None:
        """One job at a time on an idle machine; the task itself prints when it runs."""
        took = []
        for _ in range(self.size.starts):
            sent = time.time()
            job = self.live.submit({"command": ["date", "+%s.%N"]})
            self.live.until_over([job])
            took.append((float(self.log(job)) - sent) * 1000)
        took.sort()
        self.say("start_p50_ms", share(took, 0.5))
        self.say("start_p99_ms", share(took, 0.99))

    def log(self, job: str) -> bytes:
        with self.live.connection() as connection:
            headers = {"Authorization": f"Bearer {self.live.token}"}
            connection.request("GET", f"/v1/jobs/{job}/logs", headers=headers)
            return connection.getresponse().read()

    def submits(self, rate: str, slowest: str) -> None:
        """One job a request from 64 clients, each with a key of its own, as the client library sends it."""
        self.marks += 1
        before = self.cpu()
        found = self.load(WAITING, "--count", str(self.size.submits), "--mark", f"m{self.marks}")
        self.say(rate, found["per_s"])
        self.say(slowest, found["p99_ms"])
        self.say(f"{rate}_cpu_ms_each", self.cpu_each(before, self.size.submits))
        self.pending += self.size.submits

    def fill(self, upto: int) -> None:
        """Many jobs a request, from 4 clients."""
        batches = max(1, (upto - self.pending) // BATCH)
        found = self.load(WAITING, "--count", str(batches), "--batch", str(BATCH), "--connections", "4")
        self.say("bulk_jobs_per_s", found["per_s"] * BATCH)
        self.pending += batches * BATCH
        self.say("pending", self.pending)

    def trivial(self) -> None:
        """Submitted, run and finished, with the line that there is now and on a second server that has none: in turns,
        so that what else this machine does falls on both. The middle one of each."""
        beside = Bench(Live(self.live.data.parent / "empty"), self.size)
        beside.live.start()
        rounds: dict[str, list[tuple[float, dict[str, float]]]] = {"jobs_per_s": [], "jobs_per_s_with_pending": []}
        for turn in range(TURNS + 1):
            for name, bench in zip(rounds, (beside, self), strict=True):
                done = bench.run_trivial(self.size.trivial // TURNS)
                if turn:  # the first only warms up
                    rounds[name].append(done)
        for name, found in rounds.items():
            rate, cpu_ms = sorted(found, key=lambda each: each[0])[TURNS // 2]
            self.say(name, rate)
            self.say(f"{name}_cpu_ms_each", cpu_ms)
            self.say(f"{name}_rounds", [round(each, 1) for each, _ in found])
        beside.live.stop()

    def run_trivial(self, count: int) -> tuple[float, dict[str, float]]:
        """Jobs a second, from the first request until nothing of them is left, and what each cost."""
        before, began = self.cpu(), time.monotonic()
        self.load(TRIVIAL, "--count", str(count))
        active = "/v1/jobs?limit=1&name=trivial&states=waiting,starting,running,stopping"
        while self.live.ask("GET", active)["jobs"]:
            time.sleep(0.05)
        return count / (time.monotonic() - began), self.cpu_each(before, count)

    def restart(self) -> None:
        self.live.kill()
        self.live.start()
        self.say("back_in_service_ms", self.live.ready_ms)

    # ---- measuring ---------------------------------------------------------------------------------------------

    def load(self, document: dict[str, Any], *words: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "tests.bench.load", str(self.live.port), self.live.token]
        command += ["--document", json.dumps(document), "--connections", str(CLIENTS), *words]
        done = subprocess.run(command, cwd=ROOT, env=environment(), check=True, capture_output=True)
        found: dict[str, Any] = json.loads(done.stdout)
        assert set(found["statuses"]) == {"201"}, found
        return found

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU so far: the server, its planner, and all that has to do with tasks."""
        assert self.live.process is not None
        planner, spawner = self.live.planner(), self.live.spawner()
        return {
            "server": _cpu_s(self.live.process.pid)[0],
            "planner": 0.0 if planner is None else _cpu_s(planner)[0],
            "tasks": 0.0 if spawner is None else sum(map(sum, map(_cpu_s, [spawner, *_below(spawner)]))),
        }

    def cpu_each(self, before: dict[str, float], count: int) -> dict[str, float]:
        return {name: round((spent - before[name]) / count * 1000, 2) for name, spent in self.cpu().items()}


def _cpu_s(pid: int) -> tuple[float, float]:
    """Of the process, and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    own, children = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return own * TICK_S, children * TICK_S


def _below(pid: int) -> list[int]:
    """Supervisors that are there now: they serve one task after another."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["server", "history", "slurm"])
    asked = parser.parse_args()
    size, figures = Size(asked.quick), dict[str, Any]()
    figures["load_average_before"] = round(os.getloadavg()[0], 1)
    folder = Path(tempfile.mkdtemp(prefix="corral-bench-"))
    try:
        if asked.only in (None, "server"):
            figures |= Bench(Live(folder / "data"), size).run()
        if asked.only in (None, "history"):
            figures |= measure_history(folder / "history", size.history)
        if asked.only in (None, "slurm"):
            figures |= slurm.measure(size.submits, size.trivial, size.some_pending)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures["load_average_after"] = round(os.getloadavg()[0], 1)
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
