"""Run every scenario, one after another or in parallel processes, and report.

An interrupt ends the current run; its results so far are reported and marked as incomplete.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import Any

from corral.cli.errors import INTERRUPTED, Complaint
from corral.cli.sim.options import Asked
from corral.cli.sim.progress import Count, Interrupt, Show, Watcher, shown
from corral.cli.sim.reports import check_places, journal, write_reports
from corral.cli.sim.scenario import SimRequest, granted, question
from corral.core import events as e
from corral.sim.experiment import Scenario, simulate
from corral.sim.report.result import Result

POLL_S = 0.1


def answer(asked: Asked, policies: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    check_places(asked, policies)
    show = shown(asked.quiet)
    try:
        posed = question(asked, policies)
        for note in _notes(posed):
            show.note(f"note: {note}")
        with Interrupt() as interrupt:
            at_once = min(asked.jobs, len(policies))
            if at_once > 1:
                results = _side_by_side(asked, posed, interrupt, show, at_once)
            else:
                results = _one_by_one(asked, posed, interrupt, show)
    finally:
        show.close()
    write_reports(asked, results, policies, _title(posed))
    if not interrupt.is_set:
        return 0
    missing = [name for name in policies if name not in {result.policy for result in results}]
    never = f" Not started: {', '.join(missing)}." if missing else ""
    raise Complaint(
        f"interrupted: the results are NOT complete.{never}",
        "the report covers the time before the interrupt",
        exit_code=INTERRUPTED,
    )


def _title(posed: SimRequest) -> str:
    cluster, trace = posed.cluster, posed.trace
    machines = f"{len(cluster.nodes):,} node{'s' * (len(cluster.nodes) != 1)}, {cluster.gpus:,} GPUs"
    return f"{trace.name}: {len(trace.jobs):,} jobs on {machines}"


def _notes(posed: SimRequest) -> list[str]:
    skipped = [f"left out {count:,}: {reason}" for reason, count in posed.trace.skipped]
    return [*posed.trace.notes, *skipped]


def _one_by_one(asked: Asked, posed: SimRequest, interrupt: Interrupt, show: Show) -> list[Result]:
    results: list[Result] = []
    for scenario in posed.scenarios:
        if interrupt.is_set:
            break
        results.append(_run(asked, posed, scenario, lambda: interrupt.is_set, show))
    return results


def _run(asked: Asked, posed: SimRequest, scenario: Scenario, is_stopped: Callable[[], bool], show: Show) -> Result:
    policies = [each.policy for each in posed.scenarios]
    count = Count()
    watch = Watcher(scenario.policy, len(posed.trace.jobs), count, is_stopped, show)
    with journal(asked, scenario.policy, policies) as write:

        def note(events: Sequence[e.Event]) -> None:
            count(events)
            if write is not None:
                write(events)

        return granted(simulate(posed.trace, posed.cluster, scenario, watch, journal=note))


# ---- in parallel processes ---------------------------------------------------------------------------------------


def _side_by_side(asked: Asked, posed: SimRequest, interrupt: Interrupt, show: Show, at_once: int) -> list[Result]:
    """Each scenario in a process; results in the order of the policies. An interrupt stops all of them."""
    context = get_context("spawn")
    stop = context.Event()
    with ProcessPoolExecutor(at_once, context, _begin, (stop,)) as pool:
        running: dict[Future[Result | None], str] = {
            pool.submit(_in_process, asked, posed, scenario): scenario.policy for scenario in posed.scenarios
        }
        left = set(running)
        while left:
            done, left = wait(left, POLL_S, FIRST_COMPLETED)
            for future in done:
                show.note(f"{running[future]}: done, {len(left)} to go")
            if interrupt.is_set:
                stop.set()
        results = [future.result() for future in running]
    return [result for result in results if result is not None]


_stop: Any = None  # in a worker process: whether all workers must stop


def _begin(stop: Any) -> None:
    global _stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process gets the signal and stops the others
    _stop = stop


def _in_process(asked: Asked, posed: SimRequest, scenario: Scenario) -> Result | None:
    return None if _stop.is_set() else _run(asked, posed, scenario, _stop.is_set, Show())
