"""How fast the engine decides: CPU time of whole cycles on thousands of nodes, as a table and as JSON.

Turns the engine from outside, as a driver does: submissions and reports go in, a cycle is planned and
carried out. How each number is obtained, and what it does not show, is described in README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, TypeVar

if not __package__:  # run as a file: the root of the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from corral.core import facts as f
from corral.core.intake import commands
from corral.core.laws import check
from corral.core.model import Gang, GangSpec, GangState, JobSpec
from corral.core.plan import MakeRoom, Place
from tests.bench.workload import CYCLE_MS, HOUR_MS, LARGE, SIZES, World, demand_of, full_cluster

Answer = TypeVar("Answer")

ENDS_A_CYCLE = 512
REFERENCE_MS = 50.0  # what the calibration loop took where the aims were set


# ---- measures ----------------------------------------------------------------------------------------------


def calibrate() -> float:
    """CPU ms of a fixed loop of plain Python (integers, a list, a dict, a call) to compare figures with."""

    def step(x: int) -> int:
        return (x * 1_103_515_245 + 12_345) & 0x7FFF_FFFF

    times = []
    for _ in range(5):
        begin, seen, column, x = process_time(), {}, [0] * 1024, 1
        for _ in range(200_000):
            x = step(x)
            column[x & 1023] += 1
            seen[x & 4095] = x
        times.append((process_time() - begin) * 1000)
    return min(times)


def timed(call: Callable[..., Answer], *given: Any) -> tuple[float, Answer]:
    """CPU ms of a call, and what it answered."""
    begin = process_time()
    answer = call(*given)
    return (process_time() - begin) * 1000, answer


def quantile(sample: Sequence[float], percent: int) -> float:
    return sorted(sample)[min(len(sample) - 1, len(sample) * percent // 100)]


def rss_mib() -> float:
    """The most memory this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def sustained(world: World, cycles: int, ends: int) -> dict[str, float]:
    """Batches of ends, a cycle for each, as many new jobs as were placed. All the engine does is counted."""
    tell_ms = submit_ms = cycle_ms = 0.0
    placed = rooms = 0
    jobs = [world.job() for _ in range(ends)]
    for _ in range(cycles):
        world.now_ms += CYCLE_MS
        tell_ms += timed(world.tell, [f.Ticked(), *world.answers(), *world.some_ends(ends)])[0]
        submit_ms += timed(world.submit, jobs)[0]
        spent, plan = timed(world.cycle)
        cycle_ms += spent
        now = sum(isinstance(decision, Place) for decision in plan.decisions)
        rooms += sum(isinstance(decision, MakeRoom) for decision in plan.decisions)
        placed += now
        jobs = [world.job() for _ in range(now)]
    return {
        "decisions_per_cpu_s": placed / (tell_ms + submit_ms + cycle_ms) * 1000,
        "decisions": placed,
        "made_room": rooms,
        "tell_ms": tell_ms / cycles,
        "submit_ms": submit_ms / cycles,
        "cycle_ms": cycle_ms / cycles,
    }


def sizes_that_end(cycles: int) -> list[int]:
    """How many GPUs the gangs have that end, one a cycle: in the proportions of ``SIZES``, in a fixed mixed order.

    What a cycle costs depends most on what became free. So that figures can be compared, the same ends at any size.
    """
    found: list[int] = []
    for gpus, count in SIZES:
        found += [gpus] * (round(cycles * count / 10_000) if gpus > 1 else 0)
    found += [1] * (cycles - len(found))
    random.Random(cycles).shuffle(found)
    return found


def single_ends(world: World, cycles: int) -> dict[str, float]:
    """One end, one cycle. The cycle alone is timed; the total has the reports too."""
    times, totals, starts = [], [], []
    for gpus in sizes_that_end(cycles):
        world.now_ms += CYCLE_MS
        before, _ = timed(world.tell, [*world.answers(), *world.an_end(gpus)])
        spent, plan = timed(world.cycle)
        times.append(spent)
        totals.append(before + spent)
        starts.append(len(plan.decisions))
    found = {f"p{percent}_ms": quantile(times, percent) for percent in (50, 90, 99)}
    most = max(starts)
    return {
        **found,
        "max_ms": max(times),
        "total_p99_ms": quantile(totals, 99),
        "decisions_max": most,
        "ms_of_that": times[starts.index(most)],
    }


def preemptions(world: World, rounds: int) -> dict[str, float]:
    """An urgent gang of 64 x 8 comes into the full cluster; the cycle must make room for it."""
    times, victims = [], []
    gangs = (GangSpec(demand_of(512, (8, 64))),)
    tree = world.state.queues
    unbounded = [name for name in world.queues if not tree.is_bounded(name)]
    for at in range(rounds):
        world.settle(2)
        queue = unbounded[(at * 37 + 30) % len(unbounded)]
        spec = JobSpec(queue=queue, gangs=gangs, priority=100 + at, time_limit_ms=HOUR_MS)
        world.submit([(f"urgent{at}", spec, "boss")])
        spent, plan = timed(world.cycle)
        times.append(spent)
        made = [d for d in plan.decisions if isinstance(d, MakeRoom) and d.gang == f"urgent{at}/main"]
        assert made, f"no room was made for the urgent gang: {[type(d).__name__ for d in plan.decisions]}"
        victims.append(len(made[0].victims))
    return {"preempt_ms": median(times), "max_ms": max(times), "victims": median(victims)}


# ---- parts: each runs in a process of its own --------------------------------------------------------------


def main_part(quick: bool) -> dict[str, Any]:
    world = full_cluster(100_000)
    found: dict[str, Any] = {"free_gpus": world.free_gpus, "running": len(world.state.holders)}
    found["buckets"], found["lines"] = (
        len(world.state.backlog.buckets),
        sum(1 for _ in world.state.backlog.entries()),
    )
    sustained(world, 3, ENDS_A_CYCLE)
    found["sustained"] = sustained(world, 8 if quick else 40, ENDS_A_CYCLE)
    for ends in (128,) if quick else (8, 32, 128):
        found[f"sustained_{ends}"] = sustained(world, 15 if quick else 100, ends)
    single_ends(world, 20)  # what the last batch has left behind
    found["single"] = single_ends(world, 200 if quick else 500)
    found["preemption"] = preemptions(world, 3 if quick else 7)
    check(world.state)
    return found


def growth_part(pending: int, cycles: int) -> dict[str, Any]:
    world = full_cluster(pending)
    single_ends(world, 20)
    return single_ends(world, cycles)


def fresh_shapes_part(cycles: int) -> dict[str, Any]:
    """As the main part, but no user has habits: nearly every gang is in a bucket of its own."""
    world = full_cluster(100_000, habits=0)
    found: dict[str, Any] = {"lines": sum(1 for _ in world.state.backlog.entries())}
    found["sustained"] = sustained(world, cycles // 4, ENDS_A_CYCLE)
    single_ends(world, 20)
    return {**found, "single": single_ends(world, cycles)}


def large_gangs_part(rounds: int) -> dict[str, Any]:
    """Nine gangs of 1,000 nodes on 5,000 empty nodes: five fit, one of the others has a reserved start."""
    world = World(LARGE)
    gangs = (GangSpec(demand_of(8_000, (8, 64))),)
    times = []
    for at in range(rounds):
        specs = [JobSpec(queue=f"o{i}/t0", gangs=gangs, time_limit_ms=24 * HOUR_MS) for i in range(9)]
        jobs = [(f"large{at}-{i}", spec, "boss") for i, spec in enumerate(specs)]
        before, _ = timed(world.submit, jobs)
        spent, plan = timed(world.cycle)
        times.append((before + spent) / len(jobs))
        fitted = sum(isinstance(decision, Place) for decision in plan.decisions)
        assert (fitted, len(plan.reservations)) == (5, 1), plan.decisions
        world.tell(world.answers())
        for name, _, _ in jobs:
            gang: Gang = world.state.gangs[f"{name}/main"]
            if gang.state is GangState.RUNNING:
                world.tell([f.TasksDown(gang.id, gang.attempt, gang.everyone)])
            else:
                world.command(commands.cancel(world.state, name, world.now_ms))
        world.now_ms += CYCLE_MS
    return {"gang_ms": median(times), "max_ms": max(times)}


def run_part(part: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """Run a part and the calibration loop before and after it."""
    before = calibrate()
    found = part(*given)
    return {**found, "calibration_ms": min(before, calibrate()), "rss_mib": rss_mib()}


def apart(part: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """The part in a fresh process, so that neither its memory nor its garbage is another's."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(run_part, (part, *given))


# ---- the report --------------------------------------------------------------------------------------------


def row(what: str, value: float, unit: str, aim: str, ratio: float | None) -> None:
    print(
        f"{what:<58} {value:>10,.2f} {unit:<7} {aim:<9} {'' if ratio is None else f'{ratio:9.4f}'}",
        flush=True,
    )


def main(quick: bool) -> None:
    load = os.getloadavg()
    print(f"load average {load[0]:.2f} {load[1]:.2f} {load[2]:.2f}; CPU time; ratio: to the calibration loop\n")
    print(f"{'what':<58} {'figure':>10} {'unit':<7} {'aim':<9} {'ratio':>9}")
    found = apart(main_part, quick)
    loop, single = found["calibration_ms"], found["single"]
    for key in [key for key in found if key.startswith("sustained")]:
        each = found[key]
        ends = key.removeprefix("sustained_") if "_" in key else str(ENDS_A_CYCLE)
        speed = each["decisions_per_cpu_s"]
        row(
            f"gang decisions, {ends} ends a cycle, 100,000 pending",
            speed,
            "/s",
            ">= 2,000",
            1000 / speed / loop,
        )
        for part in ("tell", "submit", "cycle"):
            row(f"  of which {part}, a batch", each[f"{part}_ms"], "ms", "", each[f"{part}_ms"] / loop)
    for percent, aim in ((50, ""), (90, ""), (99, "<= 20")):
        time = single[f"p{percent}_ms"]
        row(f"one cycle after one end, p{percent}, 100,000 pending", time, "ms", aim, time / loop)
    row("  with the reports, p99", single["total_p99_ms"], "ms", "", single["total_p99_ms"] / loop)
    preempt = found["preemption"]["preempt_ms"]
    row("a gang of 64 x 8 that must preempt, 1,250 full nodes", preempt, "ms", "<= 100", preempt / loop)

    cycles, most = (200, 200_000) if quick else (500, 1_000_000)
    small, large = apart(growth_part, 10_000, cycles), apart(growth_part, most, cycles)
    for pending, each in ((10_000, small), (most, large)):
        for what in ("p50", "p99"):
            time = each[f"{what}_ms"]
            name = f"one cycle after one end, {what}, {pending:,} pending"
            row(name, time, "ms", "", time / each["calibration_ms"])
        row(f"  the one with most decisions ({each['decisions_max']:,})", each["ms_of_that"], "ms", "", None)
    growth = (large["p99_ms"] / large["calibration_ms"]) / (small["p99_ms"] / small["calibration_ms"])
    row("growth of that p99, in ratios", growth, "x", "<= 2", None)
    row(f"memory at {most:,} pending", large["rss_mib"], "MiB", "<= 4,096", None)
    gangs = apart(large_gangs_part, 3 if quick else 9)
    row(
        "9 gangs x 1,000 nodes on 5,000 nodes, each",
        gangs["gang_ms"],
        "ms",
        "<= 20",
        gangs["gang_ms"] / gangs["calibration_ms"],
    )
    fresh: dict[str, Any] = {} if quick else apart(fresh_shapes_part, 100)
    if fresh:
        row(
            "gang decisions when no two jobs are alike",
            fresh["sustained"]["decisions_per_cpu_s"],
            "/s",
            "",
            None,
        )
        row("one cycle after one end then, p99", fresh["single"]["p99_ms"], "ms", "", None)
    summary = {
        "decisions_per_cpu_s": found["sustained"]["decisions_per_cpu_s"],
        "cycle_p99_ms": single["p99_ms"],
        "growth_ratio": growth,
        "gang_1000_nodes_ms": gangs["gang_ms"],
        "preempt_ms": preempt,
        "rss_mib": large["rss_mib"],
        "calibration_ratio": loop / REFERENCE_MS,
        "cycle_p50_ms": single["p50_ms"],
        "cycle_p99_by_pending": {
            "10000": small["p99_ms"],
            "100000": single["p99_ms"],
            str(most): large["p99_ms"],
        },
        "cycle_p50_by_pending": {
            "10000": small["p50_ms"],
            "100000": single["p50_ms"],
            str(most): large["p50_ms"],
        },
        "load_average": load[0],
        "is_quick": quick,
        "parts": {"main": found, "small": small, "large": large, "large_gangs": gangs, "fresh_shapes": fresh},
    }
    print()
    print(json.dumps(summary, default=float))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="under a minute: fewer cycles, 200,000 instead of 1,000,000"
    )
    main(parser.parse_args().quick)
