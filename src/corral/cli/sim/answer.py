"""From the question to the answer: run every scenario, one after another or in processes of their own, and report.

An interrupt ends the run at hand; what has been counted until then is reported and said not to be the whole.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import Any

from corral.cli.complaint import INTERRUPTED, Complaint
from corral.cli.sim.options import Asked
from corral.cli.sim.progress import Count, Interrupt, Show, Watcher, shown
from corral.cli.sim.question import Question, granted, question
from corral.cli.sim.reports import check_places, journal, write_reports
from corral.core import events as e
from corral.sim.experiment import Scenario, simulate
from corral.sim.report.result import Result

POLL_S = 0.1


def answer(asked: Asked, policies: Sequence[str]) -> int:
    """Carry the command out; its exit code."""
    check_places(asked, policies)
    show = shown(asked.quiet)
    try:
        posed = question(asked, policies)
        for note in _notes(posed):
            show.say(f"note: {note}")
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
    never = f" Not begun: {', '.join(missing)}." if missing else ""
    raise Complaint(
        f"interrupted: this is NOT the whole of it.{never}",
        "the report holds what had happened until then",
        exit_code=INTERRUPTED,
    )


def _title(posed: Question) -> str:
    cluster, trace = posed.cluster, posed.trace
    machines = f"{len(cluster.nodes):,} node{'s' * (len(cluster.nodes) != 1)}, {cluster.gpus:,} GPUs"
    return f"{trace.name}: {len(trace.jobs):,} jobs on {machines}"


def _notes(posed: Question) -> list[str]:
    skipped = [f"left out {count:,}: {reason}" for reason, count in posed.trace.skipped]
    return [*posed.trace.notes, *skipped]


def _one_by_one(asked: Asked, posed: Question, interrupt: Interrupt, show: Show) -> list[Result]:
    results: list[Result] = []
    for scenario in posed.scenarios:
        if interrupt.is_set:
            break
        results.append(_run(asked, posed, scenario, lambda: interrupt.is_set, show))
    return results


def _run(asked: Asked, posed: Question, scenario: Scenario, is_stopped: Callable[[], bool], show: Show) -> Result:
    policies = [each.policy for each in posed.scenarios]
    count = Count()
    watch = Watcher(scenario.policy, len(posed.trace.jobs), count, is_stopped, show)
    with journal(asked, scenario.policy, policies) as write:

        def note(events: Sequence[e.Event]) -> None:
            count(events)
            if write is not None:
                write(events)

        return granted(simulate(posed.trace, posed.cluster, scenario, watch, journal=note))


# ---- in processes of their own ---------------------------------------------------------------------------------------


def _side_by_side(asked: Asked, posed: Question, interrupt: Interrupt, show: Show, at_once: int) -> list[Result]:
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
                show.say(f"{running[future]}: done, {len(left)} to go")
            if interrupt.is_set:
                stop.set()
        results = [future.result() for future in running]
    return [result for result in results if result is not None]


_stop: Any = None  # in a process of its own: whether all are to stop


def _begin(stop: Any) -> None:
    global _stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process hears it and tells the others
    _stop = stop


def _in_process(asked: Asked, posed: Question, scenario: Scenario) -> Result | None:
    return None if _stop.is_set() else _run(asked, posed, scenario, _stop.is_set, Show())
