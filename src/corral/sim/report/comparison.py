"""The rows of a comparison, as data: label, value, format, and whether more or less is better.

The terminal table and the page show the same rows; neither knows a measure by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from corral.sim.report.measures import Distribution, Group, Measures
from corral.sim.report.result import Result
from corral.sim.report.wording import count, duration, index, ratio, share

REASONS_MAX = 4
Better = Literal["less", "more", ""]


class ReportRow(Struct, frozen=True):
    """One line of the comparison. ``better`` is empty if neither more nor less is better."""

    label: str
    value: Callable[[Measures], float | None]
    write: Callable[[float | None], str]
    better: Better = ""


class GroupColumn(Struct, frozen=True):
    """One column of the tables by team and by size."""

    label: str
    value: Callable[[Group], float | None]
    write: Callable[[float | None], str]


def _mean(found: Distribution | None) -> float | None:
    return None if found is None else found.mean


def _p50(found: Distribution | None) -> float | None:
    return None if found is None else found.p50


def _p95(found: Distribution | None) -> float | None:
    return None if found is None else found.p95


def _p99(found: Distribution | None) -> float | None:
    return None if found is None else found.p99


#: Sections of the comparison.
SECTIONS: tuple[tuple[str, tuple[ReportRow, ...]], ...] = (
    (
        "Jobs",
        (
            ReportRow("completion, mean", lambda m: _mean(m.total.completion_ms), duration, "less"),
            ReportRow("completion, median", lambda m: _p50(m.total.completion_ms), duration, "less"),
            ReportRow("completion, 95\N{NO-BREAK SPACE}%", lambda m: _p95(m.total.completion_ms), duration, "less"),
            ReportRow("completion, 99\N{NO-BREAK SPACE}%", lambda m: _p99(m.total.completion_ms), duration, "less"),
            ReportRow("wait for first seats, mean", lambda m: _mean(m.total.waiting_ms), duration, "less"),
            ReportRow(
                "wait for first seats, 95\N{NO-BREAK SPACE}%", lambda m: _p95(m.total.waiting_ms), duration, "less"
            ),
            ReportRow("queue time in total, mean", lambda m: _mean(m.total.in_line_ms), duration, "less"),
            ReportRow(
                "queue time in total, 99\N{NO-BREAK SPACE}%", lambda m: _p99(m.total.in_line_ms), duration, "less"
            ),
            ReportRow("bounded slowdown, mean", lambda m: _mean(m.total.slowdown), ratio, "less"),
            ReportRow("bounded slowdown, 95\N{NO-BREAK SPACE}%", lambda m: _p95(m.total.slowdown), ratio, "less"),
            ReportRow("effective training time", lambda m: m.total.effective_time_ratio, share, "more"),
        ),
    ),
    (
        "GPUs",
        (
            ReportRow("makespan", lambda m: m.cluster.makespan_ms, duration, "less"),
            ReportRow("GPU uptime, window", lambda m: m.cluster.uptime_in_window, share, "more"),
            ReportRow("GPU uptime, span", lambda m: m.cluster.uptime_in_span, share, "more"),
            ReportRow("GPU uptime while jobs wait", lambda m: m.cluster.uptime_while_waiting, share, "more"),
            ReportRow("utilisation, window", lambda m: m.cluster.utilisation_in_window, share, "more"),
            ReportRow("utilisation, span", lambda m: m.cluster.utilisation_in_span, share, "more"),
            ReportRow("fragmentation", lambda m: m.cluster.fragmentation, share, "less"),
            ReportRow("GPU hours starting up", lambda m: m.total.starting_gpu_hours, ratio, "less"),
            ReportRow("GPU hours lost", lambda m: m.total.lost_gpu_hours, ratio, "less"),
            ReportRow("energy, kWh", lambda m: m.energy.kwh if m.energy else None, ratio, "less"),
            ReportRow("energy, cost", lambda m: m.energy.cost if m.energy else None, ratio, "less"),
        ),
    ),
    (
        "Fairness",
        (
            ReportRow("share deficit", lambda m: m.shares.deficit, share, "less"),
            ReportRow("share deviation", lambda m: m.shares.deviation, share, "less"),
            ReportRow("Jain's index", lambda m: m.shares.jain, index, "more"),
            ReportRow("finish-time ratio, mean", lambda m: _mean(m.total.finish_time_ratio), ratio, "less"),
            ReportRow(
                "finish-time ratio, 99\N{NO-BREAK SPACE}%", lambda m: _p99(m.total.finish_time_ratio), ratio, "less"
            ),
        ),
    ),
    (
        "What happened",
        (
            ReportRow("jobs accepted", lambda m: m.total.jobs, count),
            ReportRow("jobs succeeded", lambda m: m.total.succeeded, count, "more"),
            ReportRow("jobs failed", lambda m: m.total.failed, count),
            ReportRow("jobs cancelled", lambda m: m.total.cancelled, count),
            ReportRow("jobs refused", lambda m: m.total.refused, count),
            ReportRow("jobs unfinished", lambda m: m.total.unfinished, count, "less"),
            ReportRow("preemptions", lambda m: m.total.preemptions, count, "less"),
            ReportRow("other evictions", lambda m: m.total.evictions, count),
            ReportRow("failures", lambda m: m.total.failures, count),
        ),
    ),
)

GROUP_COLUMNS: tuple[GroupColumn, ...] = (
    GroupColumn("jobs", lambda g: g.jobs, count),
    GroupColumn("unfinished", lambda g: g.unfinished, count),
    GroupColumn("refused", lambda g: g.refused, count),
    GroupColumn("completion, mean", lambda g: _mean(g.completion_ms), duration),
    GroupColumn("completion, 95\N{NO-BREAK SPACE}%", lambda g: _p95(g.completion_ms), duration),
    GroupColumn("wait, mean", lambda g: _mean(g.waiting_ms), duration),
    GroupColumn("wait, 95\N{NO-BREAK SPACE}%", lambda g: _p95(g.waiting_ms), duration),
    GroupColumn("slowdown, mean", lambda g: _mean(g.slowdown), ratio),
    GroupColumn("finish-time ratio", lambda g: _mean(g.finish_time_ratio), ratio),
    GroupColumn("effective", lambda g: g.effective_time_ratio, share),
    GroupColumn("preempted", lambda g: g.preemptions, count),
    GroupColumn("GPU h kept", lambda g: g.kept_gpu_hours, ratio),
    GroupColumn("GPU h lost", lambda g: g.lost_gpu_hours, ratio),
)


class Written(Struct, frozen=True):
    """A row as it is shown: one text per result, and which of them are the best."""

    label: str
    texts: tuple[str, ...]
    best: frozenset[int]


def comparison(results: Sequence[Result]) -> list[tuple[str, list[Written]]]:
    """The sections of the comparison. Rows that no result has a number for are left out.

    A run that is incomplete or leaves more jobs unfinished than another is never marked best: long jobs may be missing
    from its numbers. Nothing is marked best if another run has a better number.
    """
    competing = comparable(results)
    found = []
    for title, rows in SECTIONS:
        written = [_written(row, [row.value(result.measures) for result in results], competing) for row in rows]
        found.append((title, [row for row in written if row is not None]))
    return [(title, written) for title, written in found if written]


def comparable(results: Sequence[Result]) -> list[int]:
    """The runs whose averages can be compared: complete, and with the fewest unfinished jobs of all runs."""
    unfinished = [result.measures.total.unfinished for result in results]
    fewest = min(unfinished, default=0)
    return [n for n, result in enumerate(results) if result.cut_ms is None and unfinished[n] == fewest]


def _written(row: ReportRow, values: Sequence[float | None], competing: Sequence[int]) -> Written | None:
    if all(value is None for value in values):
        return None
    texts = tuple(row.write(value) for value in values)
    best: frozenset[int] = frozenset()
    ranked = sorted((value, n) for n, value in enumerate(values) if value is not None)
    if row.better and len(values) > 1 and ranked:
        leader = texts[ranked[0 if row.better == "less" else -1][1]]  # equal texts are equally good
        best = frozenset(n for n in competing if texts[n] == leader)
    return Written(row.label, texts, best if len(best) < len(values) else frozenset())


def remarks(results: Sequence[Result]) -> list[str]:
    """What a reader must know before comparing: which jobs are not in the numbers."""
    found: dict[str, list[str]] = {}  # note -> its policies
    for result in results:
        if result.cut_ms is not None:
            remark = f"INCOMPLETE: the run was ended {duration(result.cut_ms)} after the first submission."
            found.setdefault(remark, []).append(result.policy)
        for remark in (*_remarks(result.measures.total), *_refusals(result)):
            found.setdefault(remark, []).append(result.policy)
    return [f"{', '.join(policies)}: {remark}" for remark, policies in found.items()]


def _remarks(total: Group) -> Iterator[str]:
    if total.unfinished:
        yield (
            f"UNFINISHED: {total.unfinished:,} jobs at the end ({total.never_started:,} of them never started; "
            f"longest queue time {duration(total.oldest_in_line_ms)}). They are in no distribution, so the averages "
            "are not comparable with those of a run that left fewer."
        )
    if total.cancelled:
        yield f"{total.cancelled:,} cancelled jobs are in no distribution."


def _refusals(result: Result) -> Iterator[str]:
    """How many jobs were refused, and why; the most frequent reasons."""
    refused, reasons = result.measures.total.refused, result.history.refusals
    if not refused:
        return
    ranked = sorted(reasons.items(), key=lambda each: (-each[1], each[0]))
    shown = [f"{count(many)}: {why.rstrip('.')}" for why, many in ranked[:REASONS_MAX]]
    left = sum(many for _, many in ranked[REASONS_MAX:])
    more = [f"{count(left)} for other reasons"] if left else []
    yield (
        f"REFUSED: {count(refused)} jobs when they were submitted. {'; '.join([*shown, *more])}".strip().rstrip(".")
        + "."
    )
