"""Real training on two nodes, preempted and killed at random, must compute what an undisturbed run computes.

    PYTHONPATH=src:. python -m tests.e2e.training_soak --torch PYTHON [--minutes 20] [--preemptions N] [--seed 1]

``PYTHON``: an interpreter that has torch. The job is examples/training/language_model.py, four ranks with DDP on two
nodes of a test cluster. Faults come at random moments: a job of higher priority; SIGKILL for one rank, for the agent of
a node, for the server. The last line is JSON: ``steps_lost_acked`` counts steps that were done again after a
preemption; ``deadlocks`` attempts that had to be killed at their deadline; ``bad_resumes`` attempts whose ranks began
at different steps, or not at the newest checkpoint; ``recovery_rank_s`` and ``recovery_node_s`` the longest time from a
fault to the next attempt's start of processes; ``loss_equal`` whether every step is there once, with the same loss.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corral.cli.fleet.testbed_parts import SERVER
from tests.e2e.fleet import FleetTrial

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "training" / "language_model.py"
LEASE_MS = 8_000
SAVE_EVERY = 100
TOLERANCE = 1e-5
PREEMPT, RANK, AGENT, SERVER_KILL = "preempt", "kill a rank", "kill an agent", "kill the server"
KINDS = (PREEMPT, PREEMPT, RANK, AGENT, SERVER_KILL)
_OVER = ("succeeded", "failed", "cancelled")
_PATIENCE_S = 120.0


class TrainingTrial:
    """One job on a test cluster, and what is done to it."""

    def __init__(self, trial: FleetTrial, folder: Path, python: str, steps: int, seed: int, pace_s: float) -> None:
        self.trial, self.folder, self.steps = trial, folder, steps
        self.draw = random.Random(seed)
        command = [python, str(EXAMPLE), "--folder", str(folder / "run"), "--steps", str(steps)]
        command += ["--save-every", str(SAVE_EVERY), "--pause", str(pace_s)]
        self.job = trial.submit(
            command=command, nodes=2, gpus=2, processes=2, name="train", env={"OMP_NUM_THREADS": "1"}, grace="30s"
        )
        self.preempted: list[int] = []  # attempts
        self.killed: list[int] = []
        self.recoveries: dict[str, list[float]] = {RANK: [], AGENT: []}

    def attempt(self) -> int:
        job = self.trial.job(self.job)
        return int(job.gangs[0].attempt)

    def is_over(self) -> bool:
        return self.trial.job(self.job).state in _OVER

    def begun(self, attempt: int) -> list[int]:
        """The steps at which ranks of an attempt have begun."""
        return _steps(self.log(attempt), "begins")

    def log(self, attempt: int) -> str:
        place = self.trial.bed.folder
        found = [path for path in place.rglob("stdout.*") if f"{self.job}%2Fmain@{attempt}." in str(path.parent)]
        unique = {path.parent.name + path.name: path for path in sorted(found, key=lambda path: path.stat().st_size)}
        return "".join(path.read_text(errors="replace") for path in unique.values())

    def until_trains(self, after: int = 0) -> int:
        """Wait until all ranks of an attempt later than ``after`` have begun. Returns it; 0: the job is over."""
        found = [0]

        def trains() -> bool:
            if self.is_over():
                found[0] = 0
                return True
            found[0] = self.attempt()
            return found[0] > after and len(self.begun(found[0])) == 4

        self.trial.until("all ranks train", trains, _PATIENCE_S)
        return found[0]

    def preempt(self, attempt: int) -> None:
        urgent = self.trial.submit(command=["true"], nodes=4, gpus=8, processes=1, priority=100, name="urgent")
        self.preempted.append(attempt)
        self.trial.until("the urgent job is done", lambda: self.trial.job(urgent).state in _OVER, _PATIENCE_S)

    def kill_rank(self, attempt: int) -> None:
        pids = [pid for pid in _processes() if _is_rank(pid, self.job, attempt)]
        if pids:
            self.killed.append(attempt)
            os.kill(self.draw.choice(pids), signal.SIGKILL)
            self._time_recovery(RANK, attempt)

    def kill_agent(self, attempt: int) -> None:
        nodes = [seat.node for seat in self.trial.job(self.job).gangs[0].seats]
        if not nodes:
            return  # it is between two attempts
        node = self.draw.choice(nodes)
        self.killed.append(attempt)
        self.trial.bed.kill(node)
        self._time_recovery(AGENT, attempt)
        self.trial.bed.start_agent(node)
        self.trial.until("it is back", lambda: not self.trial.is_lost(node), _PATIENCE_S)

    def kill_server(self, _attempt: int) -> None:
        self.trial.bed.kill(SERVER)
        time.sleep(self.draw.uniform(0, 2))
        self.trial.bed.start_server()

    def _time_recovery(self, kind: str, attempt: int) -> None:
        """Until the processes of the next attempt have been started; what follows is the import of torch."""
        took_s = self.trial.until(
            "the next attempt",
            lambda: self.is_over() or (self.trial.job(self.job).gangs[0].attempt > attempt and self._is_running()),
            _PATIENCE_S,
        )
        self.recoveries[kind].append(took_s)

    def _is_running(self) -> bool:
        return bool(self.trial.job(self.job).gangs[0].state == "running")

    def judge(self, expected: list[float]) -> dict[str, Any]:
        runs = {run.attempt: run for run in self.trial.job(self.job).history}
        lost, bad = 0, 0
        for attempt in sorted(runs):
            begun, ended = self.begun(attempt), _steps(self.log(attempt), "ends")
            bad += len(set(begun)) > 1
            after = self.begun(attempt + 1)
            if attempt in self.preempted and attempt not in self.killed and after:
                lost += (max(ended) if ended else max(begun, default=0)) - min(after)
        kills = [attempt for attempt in self.preempted if attempt in runs and runs[attempt].exit_code not in (0, 85)]
        try:
            losses = json.loads((self.folder / "run" / "losses.json").read_text())
        except OSError:
            losses = []
        pairs = list(zip(losses, expected, strict=False))
        is_equal = len(losses) == len(expected) and all(abs(a - b) <= TOLERANCE for a, b in pairs)
        return {
            "state": self.trial.job(self.job).state,
            "preemptions": len(self.preempted),
            "kills": len(self.killed),
            "steps_lost_acked": lost,
            "deadlocks": len([attempt for attempt in kills if attempt not in self.killed]),
            "bad_resumes": bad,
            "recovery_node_s": round(max(self.recoveries[AGENT], default=0.0), 1),
            "recovery_rank_s": round(max(self.recoveries[RANK], default=0.0), 1),
            "loss_equal": is_equal,
            "steps": len(losses),
        }


def _steps(log: str, word: str) -> list[int]:
    return [int(step) for step in re.findall(rf"rank \d+ {word} at step (\d+)", log)]


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _is_rank(pid: int, job: str, attempt: int) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    named = {f"CORRAL_JOB_ID={job}".encode(), f"CORRAL_ATTEMPT={attempt}".encode()}
    return named <= set(environment) and str(EXAMPLE).encode() in command


def undisturbed(folder: Path, python: str, steps: int) -> list[float]:
    """The losses of the same steps without Corral."""
    home = folder / "module"
    home.mkdir()
    (home / "corral_training.py").write_bytes((ROOT / "src/corral/client/training.py").read_bytes())
    command = [
        str(Path(python).parent / "torchrun"), "--nproc-per-node", "4", "--master-port", "29641", str(EXAMPLE),
        "--folder", str(folder / "alone"), "--steps", str(steps), "--save-every", str(steps),
    ]  # fmt: skip
    env = os.environ | {"PYTHONPATH": str(home), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=env, check=True, timeout=1_800, capture_output=True)
    found: list[float] = json.loads((folder / "alone" / "losses.json").read_text())
    return found


def measure(
    folder: Path,
    python: str,
    *,
    steps: int,
    seed: int = 1,
    minutes: float | None = None,
    preemptions: int | None = None,
    pace_s: float = 0.02,
    slow_ms: int = 0,
) -> dict[str, Any]:
    """Until the time is over, or that many preemptions were made; then the run completes undisturbed."""
    expected = undisturbed(folder, python, steps)
    began = time.monotonic()
    with FleetTrial(folder / "fleet", 4, LEASE_MS) as trial:
        if slow_ms:
            trial.bed.slow("n2", slow_ms)
        training = TrainingTrial(trial, folder, python, steps, seed, pace_s)
        acts: dict[str, Callable[[int], None]] = {
            PREEMPT: training.preempt,
            RANK: training.kill_rank,
            AGENT: training.kill_agent,
            SERVER_KILL: training.kill_server,
        }
        attempt, done = training.until_trains(), 0
        while attempt and (time.monotonic() - began < (minutes or 1e9) * 60) and done < (preemptions or 10**9):
            time.sleep(training.draw.uniform(0, 3))
            kind = PREEMPT if preemptions is not None else training.draw.choice(KINDS)
            print(f"{time.monotonic() - began:7.1f} s  attempt {attempt}: {kind}", file=sys.stderr, flush=True)
            acts[kind](attempt)
            done += 1
            attempt = training.until_trains(attempt if kind != SERVER_KILL else attempt - 1)
        trial.until("the run is complete", training.is_over, 3_600)
        return training.judge(expected) | {"minutes": round((time.monotonic() - began) / 60, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--torch", required=True)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--preemptions", type=int, help="only preemptions, this many")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slow-ms", type=int, default=0, help="delay of the link between the server and node n2")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the test cluster must be stopped then, too
    steps = asked.steps or (int(asked.minutes * 250) if asked.preemptions is None else asked.preemptions * 60)
    minutes = asked.minutes if asked.preemptions is None else None
    with tempfile.TemporaryDirectory(prefix="corral-soak-") as folder:
        found = measure(
            Path(folder), os.path.abspath(asked.torch), steps=steps, seed=asked.seed, minutes=minutes,
            preemptions=asked.preemptions, slow_ms=asked.slow_ms,
        )  # fmt: skip
        print(json.dumps(found))


if __name__ == "__main__":
    main()
