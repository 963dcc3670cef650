"""Many seeds of the random driver, every law checked after every event.

Even seeds drive a cluster that stays as it is, odd ones one whose nodes and queues change. Each seed ends with
everything coming to rest and a replay of its journal. The last line is JSON; the status is 1 if a law broke.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from corral.sim.research.published import POLICIES
from tests.simulation.changing_cluster import ChangingDriver, check_replay
from tests.simulation.driver import Driver

ALL = "all"
LINES_MAX = 12  # of a failure's trace


@dataclass(frozen=True)
class Run:
    seed: int
    steps: int
    policy: str


@dataclass(frozen=True)
class Result:
    run: Run
    events: int
    cpu_s: float
    error: str = ""
    trace: str = ""


def drive(run: Run) -> Result:
    """One seed from its first event to its replay. Any exception is a finding, not only a broken law."""
    began = time.process_time()
    driver = (ChangingDriver if run.seed % 2 else Driver)(run.seed, run.policy)
    error = trace = ""
    try:
        driver.run(run.steps)
        driver.calm()
        check_replay(driver)
    except Exception as broken:
        error = f"{type(broken).__name__}: {broken}"
        trace = "\n".join(traceback.format_exc().splitlines()[-LINES_MAX:])
    return Result(run, len(driver.journal), time.process_time() - began, error, trace)


def runs(arguments: argparse.Namespace) -> Iterator[Run]:
    names = sorted(POLICIES) if arguments.policy == ALL else [arguments.policy]
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        # two seeds of each policy in turn, so that each meets both kinds of cluster
        yield Run(seed, arguments.steps, names[seed // 2 % len(names)])


def results(arguments: argparse.Namespace) -> Iterator[Result]:
    if arguments.jobs == 1:
        yield from map(drive, runs(arguments))
        return
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for done in as_completed([pool.submit(drive, run) for run in runs(arguments)]):
            yield done.result()


def how_to_repeat(run: Run) -> str:
    return (
        f"python -m tests.simulation.soak --first {run.seed} --seeds 1 --steps {run.steps}"
        f" --policy {run.policy} --jobs 1"
    )


def main(words: list[str] | None = None) -> int:
    arguments = _parsed(words)
    broken: list[Result] = []
    events, cpu_s, done = 0, 0.0, 0
    for result in results(arguments):
        done, events, cpu_s = done + 1, events + result.events, cpu_s + result.cpu_s
        if result.error:
            broken.append(result)
            print(f"seed {result.run.seed} under {result.run.policy} broke: {result.error[:2000]}")
            print(f"{result.trace[-2000:]}\n  repeat: {how_to_repeat(result.run)}", flush=True)
        if done % max(1, arguments.seeds // 20) == 0:
            so_far = f"{done} of {arguments.seeds} seeds, {events} events, {cpu_s:.0f} s of CPU"
            print(f"{so_far}, {len(broken)} broken", flush=True)
    found = [
        {"seed": each.run.seed, "policy": each.run.policy, "error": each.error[:300]}
        for each in sorted(broken, key=lambda each: each.run.seed)
    ]
    steps = done * arguments.steps
    figures = {"steps": steps, "seeds": done, "events": events, "broken": found, "cpu_s": round(cpu_s, 1)}
    print(json.dumps(figures))
    return 1 if broken else 0


def _parsed(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.soak", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--policy", choices=[ALL, *sorted(POLICIES)], default="standard")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
