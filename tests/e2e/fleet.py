"""Cut, freeze and kill the machines of a fleet again and again, and see that no GPU ever has two tasks.

`python -m tests.e2e.fleet --trials 1000` ends with one line of JSON; with `--takeovers 50` it begins with leaders that
are killed (`failover`), and the line has the figures of both. Every task writes down, by the clock of the boot, when it
began and when it was last alive, and on which GPUs; the server writes down when it gave a machine up. Neither knows of
the other's record; here they are laid side by side.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.cli.fleet.testbed_parts import GATEWAY, SERVER, Testbed
from tests.e2e import failover

#: Begins a record with its GPUs and goes on saying that it is alive; a few microseconds of work every 5 ms.
TASK = """\
import os, sys, time
now = lambda: int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)
e = os.environ
name = "%s.%s.%s" % (e["CORRAL_JOB_ID"], e["CORRAL_ATTEMPT"], e["CORRAL_TASK"])
fd = os.open(os.path.join(sys.argv[1], name), os.O_RDWR | os.O_CREAT | os.O_EXCL)
os.write(fd, ("%s %s %d\\n" % (e["CORRAL_NODE"], e["CUDA_VISIBLE_DEVICES"], now())).encode())
at = os.lseek(fd, 0, os.SEEK_CUR)
while not os.path.exists(sys.argv[2]):
    os.pwrite(fd, b"%d" % now(), at)
    time.sleep(0.005)
"""
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Run:
    """One task of one attempt, by its own record. Times in milliseconds of the boot."""

    job: str
    attempt: int
    task: int
    node: str
    gpus: tuple[str, ...]
    begin_ms: int
    last_ms: int


def boot_ms() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)


class FleetTrial:
    """A fleet in a folder, jobs on it, and what they have written down."""

    def __init__(self, folder: Path, nodes: int, lease_ms: int, gpus: str = "8xH100", namespaces: bool = False) -> None:
        self.bed = Testbed(folder / "bed", nodes, gpus, lease_ms, namespaces)
        self.lease_ms = lease_ms
        self.ran, self.end_file, self.script = folder / "ran", folder / "end", folder / "task.py"
        self.ran.mkdir(parents=True)
        self.script.write_text(TASK)
        self.jobs: list[str] = []

    def __enter__(self) -> FleetTrial:
        self.bed.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bed.stop()

    def submit(self, **document: Any) -> str:
        command = [sys.executable, "-S", "-E", str(self.script), str(self.ran), str(self.end_file)]
        with self.bed.client() as client:
            job = client.submit({"command": command, "processes": 1, **document}).id
        self.jobs.append(job)
        return job

    def job(self, id: str) -> Any:
        with self.bed.client() as client:
            return client.job(id)

    def events(self, *types: str) -> list[Any]:
        with self.bed.client() as client:
            return list(client.events(0, types=types))

    def metric(self, name: str) -> float:
        """As Prometheus would read it."""
        asked = urllib.request.Request(
            f"{self.bed.url}/v1/metrics", headers={"Authorization": f"Bearer {self.bed.credentials().token}"}
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def runs(self) -> list[Run]:
        found = []
        for file in self.ran.iterdir():
            job, attempt, task = file.name.split(".")
            head, _, last = file.read_text().partition("\n")
            if not head:
                continue  # it is about to begin
            node, gpus, begin = head.split(" ")
            said = last.strip("\0 ")
            uuids = tuple(gpus.split(","))
            found.append(Run(job, int(attempt), int(task), node, uuids, int(begin), int(said or begin)))
        return found

    def last_runs(self, job: str) -> list[Run]:
        """Of the newest attempt that any task has written down."""
        runs = [run for run in self.runs() if run.job == job]
        newest = max((run.attempt for run in runs), default=0)
        return sorted((run for run in runs if run.attempt == newest), key=lambda run: run.task)

    def is_whole(self, job: str, tasks: int, attempt: int = 1) -> bool:
        """Whether all tasks of an attempt, this or a later one, are alive."""
        runs = self.last_runs(job)
        return len(runs) == tasks and all(run.attempt >= attempt and boot_ms() - run.last_ms < 200 for run in runs)

    def check_whole(self, job: str, tasks: int, attempt: int = 1) -> None:
        """All tasks are alive. Asked again for a while: a busy machine may keep a task from writing for 200 ms."""
        self.until(f"all {tasks} tasks of job {job} are alive", lambda: self.is_whole(job, tasks, attempt), 10)

    def until(self, what: str, is_so: Callable[[], bool], patience_s: float = PATIENCE_S) -> float:
        """How many seconds it took."""
        began = time.monotonic()
        while not is_so():
            assert time.monotonic() - began < patience_s, f"{what}: not after {patience_s:g} s"
            time.sleep(0.02)
        return time.monotonic() - began

    def is_lost(self, node: str) -> bool:
        with self.bed.client() as client:
            return bool(client.node(node).lost)

    # ---- judging -----------------------------------------------------------------------------------------------

    def overlaps(self) -> list[str]:
        """GPUs that two tasks had at one time, by the records of the tasks."""
        by_gpu: dict[str, list[Run]] = defaultdict(list)
        for run in self.runs():
            for gpu in run.gpus:
                by_gpu[gpu].append(run)
        found = []
        for gpu, runs in by_gpu.items():
            runs.sort(key=lambda run: run.begin_ms)
            found += [f"{gpu}: {a} and {b}" for a, b in itertools.pairwise(runs) if b.begin_ms <= a.last_ms]
        return found

    def too_early(self) -> list[str]:
        """Machines that the server gave up while a task was still alive there, by both records."""
        to_boot_ms = boot_ms() - time.time_ns() // 1_000_000
        runs, found = self.runs(), []
        for event in self.events("NodeLost"):
            at_ms, node = event.at_ms + to_boot_ms, event.data["node"]
            found += [
                f"{node} was given up at {at_ms}, and lived until {run.last_ms}: {run}"
                for run in runs
                if run.node == node and run.begin_ms < at_ms - 20 and run.last_ms > at_ms + 5
            ]
        return found

    def run_twice(self) -> list[str]:
        """Jobs of which two attempts were alive at one time."""
        found = []
        by_task: dict[tuple[str, int], list[Run]] = defaultdict(list)
        for run in self.runs():
            by_task[run.job, run.task].append(run)
        for runs in by_task.values():
            runs.sort(key=lambda run: run.attempt)
            found += [f"{a} and {b}" for a, b in itertools.pairwise(runs) if b.begin_ms <= a.last_ms]
        return found

    def lost_jobs(self) -> list[str]:
        return [id for id in self.jobs if self.job(id).state == "failed"]


def misfortune(trial: FleetTrial, kind: str, nodes: list[str]) -> None:
    bed = trial.bed
    act = {"partition": bed.partition, "freeze": bed.freeze, "kill": bed.kill}[kind]
    for node in nodes:
        act(node)


def recovery(trial: FleetTrial, kind: str, nodes: list[str]) -> None:
    bed = trial.bed
    act = {"partition": bed.heal, "freeze": bed.thaw, "kill": bed.start_agent}[kind]
    for node in nodes:
        act(node)
    bed.until_up(nodes)


def strike(trial: FleetTrial, kind: str, jobs: list[str], chance: random.Random) -> list[float]:
    """Where each of these jobs runs, a fault is injected; until all run again, elsewhere. Seconds it took each."""
    before = {job: trial.last_runs(job)[0] for job in jobs}
    nodes = [run.node for run in before.values()]
    began = time.monotonic()
    misfortune(trial, kind, nodes)
    took = []
    for job, run in before.items():
        what = f"job {job} after {kind} of {run.node}"
        try:
            trial.until(what, lambda job=job, run=run: trial.is_whole(job, 1, run.attempt + 1))  # type: ignore[misc]
        except AssertionError as late:
            with trial.bed.client() as client:
                nodes_now = [(node.name, node.open, node.gpus_free, node.why) for node in client.nodes().nodes]
                raise AssertionError(f"{late}; {client.why(job)}; {nodes_now}") from None
        took.append(time.monotonic() - began)
    time.sleep(chance.uniform(0, 0.3))
    recovery(trial, kind, nodes)
    return took


ROUNDS_OF_A_JOB = 3  # a job that is struck more often in so short a time counts as one that crashes in a loop


def strike_often(trial: FleetTrial, kinds: list[str], chance: random.Random) -> list[float]:
    """Two jobs at a time; others take their place now and then."""
    took, jobs = list[float](), list[str]()
    for n, kind in enumerate(kinds):
        if n % ROUNDS_OF_A_JOB == 0:
            with trial.bed.client() as client:
                for job in jobs:
                    client.cancel(job)
            jobs = [trial.submit(gpus=8, name=f"struck-{n}", grace="0s") for _ in range(2)]
            trial.until("all begin", lambda jobs=jobs: all(trial.is_whole(job, 1) for job in jobs))  # type: ignore[misc]
        took += strike(trial, kind, jobs, chance)
        if n % 50 == 49:
            print(f"{2 * n + 2} trials", flush=True)
    return took


def freeze_an_agent(trial: FleetTrial, seconds: float) -> None:
    """Its job goes on elsewhere, after the first attempt has ended by itself. Whether its late report arrives is not
    certain: the gateway tells it first that it was given up, and what it then says is no longer late."""
    job = trial.submit(gpus=8, name="frozen")
    trial.until("it begins", lambda: trial.is_whole(job, 1))
    first = trial.last_runs(job)[0]
    lost = len(trial.events("TasksLost"))
    began = time.monotonic()
    trial.bed.freeze(first.node)
    trial.until("it runs elsewhere", lambda: trial.is_whole(job, 1, 2))
    time.sleep(max(0.0, seconds - (time.monotonic() - began)))
    trial.bed.thaw(first.node)
    trial.bed.until_up([first.node])
    assert [run.attempt for run in trial.last_runs(job)] == [2]
    trial.check_whole(job, 1, 2)  # the late word of the first node changed nothing
    [before] = [run for run in trial.runs() if (run.job, run.attempt) == (job, 1)]
    assert before.last_ms <= trial.last_runs(job)[0].begin_ms, "ended by its lease before the next began"
    assert [event.data["attempt"] for event in trial.events("TasksLost")[lost:]] == [1]
    _cancel(trial, job)


def freeze_the_server(trial: FleetTrial, seconds: float) -> None:
    """This has no effect: leases are kept by its gateway. The gateway must not be frozen with it."""
    job = trial.submit(gpus=8, name="asleep")
    trial.until("it begins", lambda: trial.is_whole(job, 1))
    lost = len(trial.events("NodeLost"))
    trial.bed.freeze(SERVER)
    time.sleep(seconds)
    trial.check_whole(job, 1)
    trial.bed.thaw(SERVER)
    time.sleep(1)
    trial.check_whole(job, 1)
    assert [run.attempt for run in trial.last_runs(job)] == [1]
    assert len(trial.events("NodeLost")) == lost
    _cancel(trial, job)


def freeze_server_and_gateway(trial: FleetTrial, seconds: float) -> None:
    """Tasks end by themselves, as it is unknown whether they will wake up; when they do they blame no machine."""
    job = trial.submit(gpus=8, name="asleep")
    trial.until("it begins", lambda: trial.is_whole(job, 1))
    lost, gateway = len(trial.events("NodeLost")), trial.bed.child(GATEWAY)
    trial.bed.freeze(SERVER)
    os.kill(gateway, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(gateway, signal.SIGCONT)
    trial.bed.thaw(SERVER)
    trial.until("it runs again", lambda: trial.is_whole(job, 1, 2))
    assert len(trial.events("NodeLost")) == lost
    _cancel(trial, job)


def _cancel(trial: FleetTrial, job: str) -> None:
    with trial.bed.client() as client:
        client.cancel(job)
    trial.until("it is gone", lambda: trial.job(job).state == "cancelled")


def soak(folder: Path, trials: int, lease_ms: int, seed: int, namespaces: bool, freeze_s: float) -> dict[str, Any]:
    chance = random.Random(seed)
    kinds = [chance.choice(["partition", "partition", "freeze", "kill"]) for _ in range((trials + 1) // 2)]
    with FleetTrial(folder, 4, lease_ms, namespaces=namespaces) as trial:
        repairs = strike_often(trial, kinds, chance)
        if freeze_s:
            freeze_an_agent(trial, freeze_s)
            freeze_the_server(trial, freeze_s)
        figures = {
            "trials": len(repairs),
            "lost": len(trial.lost_jobs()),
            "run_twice": len(trial.run_twice()),
            "overlap": len(trial.overlaps()) + len(trial.too_early()),
            "repair_s": round(sorted(repairs)[len(repairs) // 2], 2),
            "repair_s_max": round(max(repairs), 2),
            "lease_s": lease_ms / 1000,
            "frozen_s": freeze_s,
            "faults": (trial.overlaps() + trial.too_early() + trial.run_twice())[:10],
        }
        trial.end_file.touch()
        return figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.fleet", description=__doc__)
    parser.add_argument("--trials", type=int, default=1_000)
    parser.add_argument("--lease-ms", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--netns", action="store_true", help="each agent in a network of its own (root)")
    parser.add_argument(
        "--freeze-s", type=float, default=0.0, help="then freeze an agent, and the server, for this long"
    )
    parser.add_argument("--takeovers", type=int, default=0, help="before that, kill the leader of two servers so often")
    asked = parser.parse_args()
    before = failover.take_over(asked.takeovers, asked.seed) if asked.takeovers else {}
    if before:
        print(json.dumps(before), flush=True)
    with tempfile.TemporaryDirectory(prefix="corral-fleet-", ignore_cleanup_errors=True) as temporary:
        figures = soak(Path(temporary), asked.trials, asked.lease_ms, asked.seed, asked.netns, asked.freeze_s)
    is_good = not (figures["lost"] or figures["run_twice"] or figures["overlap"])
    if before:
        is_good = is_good and failover.is_good(before)
        figures |= {"takeovers": before["trials"], "takeover_s": before["takeover_s"]}
        figures |= {each: figures[each] + before.get(each, 0) for each in ("lost", "run_twice")}
    print(json.dumps(figures))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
