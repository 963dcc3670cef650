"""The verdict in words: what each policy gains or loses against the baseline, and what cannot be compared.

The first of the results is the baseline. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from corral.sim.report.comparison import comparable
from corral.sim.report.measures import Distribution
from corral.sim.report.result import Result
from corral.sim.report.wording import count, duration, share

_SAME_PERCENT = 1  # differences up to this are none


def verdict(results: Sequence[Result]) -> list[str]:
    """One sentence for each policy, the baseline first."""
    if not results:
        return []
    base, fair = results[0], comparable(results)
    lines = [_summary(base, is_baseline=len(results) > 1)]
    for n, result in enumerate(results[1:], start=1):
        if n in fair and 0 in fair:
            lines.append(_against(result, base))
        else:
            lines.append(f"{result.policy}: {_not_comparable(result, base)} {_done(result)}.")
    return lines


def _summary(result: Result, *, is_baseline: bool) -> str:
    called = f"{result.policy} (baseline)" if is_baseline else result.policy
    total = result.measures.total
    figures = [
        f"mean completion {duration(_mean(total.completion_ms))}",
        f"{duration(_mean(total.in_line_ms))} of it queued",
        f"GPU uptime {share(result.measures.cluster.uptime_in_window)}",
        f"{count(total.preemptions)} preemptions",
    ]
    cut = " INCOMPLETE run:" if result.cut_ms is not None else ""
    return f"{called}:{cut} {_done(result)}; {', '.join(figures)}."


def _done(result: Result) -> str:
    """70 of 75 submitted jobs ended, 3 unfinished, 2 refused."""
    total = result.measures.total
    ended = total.succeeded + total.failed + total.cancelled
    parts = [f"{count(ended)} of {count(total.jobs + total.refused)} submitted jobs ended"]
    parts += [
        f"{count(many)} {what}" for many, what in ((total.unfinished, "unfinished"), (total.refused, "refused")) if many
    ]
    return ", ".join(parts)


def _against(result: Result, base: Result) -> str:
    mine, other = result.measures, base.measures
    changes = [
        *_change("mean completion", _mean(mine.total.completion_ms), _mean(other.total.completion_ms)),
        *_change("mean queue time in total", _mean(mine.total.in_line_ms), _mean(other.total.in_line_ms)),
        *_points("GPU uptime", mine.cluster.uptime_in_window, other.cluster.uptime_in_window),
    ]
    better = [text for is_better, text in changes if is_better]
    worse = [text for is_better, text in changes if is_better is False]
    parts = []
    if better:
        parts.append(f"better: {', '.join(better)}")
    if worse:
        parts.append(f"worse: {', '.join(worse)}")
    if not parts:
        parts.append("no difference of more than 1 % in completion, queue time and GPU uptime")
    extra = mine.total.preemptions - other.total.preemptions
    costs = f" It preempts {count(extra)} more times." if extra > 0 else ""
    return f"{result.policy} against {base.policy}: {'; '.join(parts)}.{costs}"


def _change(what: str, mine: float | None, other: float | None) -> Iterator[tuple[bool | None, str]]:
    """A time: less is better."""
    if mine is None or not other:
        return
    percent = round(100 * (mine / other - 1))
    if abs(percent) <= _SAME_PERCENT:
        return
    word = "less" if percent < 0 else "more"
    yield percent < 0, f"{what} {duration(mine)}, {abs(percent)} % {word} than {duration(other)}"


def _points(what: str, mine: float | None, other: float | None) -> Iterator[tuple[bool | None, str]]:
    """A share: more is better."""
    if mine is None or other is None or abs(mine - other) < _SAME_PERCENT / 100:
        return
    yield mine > other, f"{what} {share(mine)} instead of {share(other)}"


def _not_comparable(result: Result, base: Result) -> str:
    if result.cut_ms is not None or base.cut_ms is not None:
        whose = (
            "both runs are"
            if result.cut_ms is not None and base.cut_ms is not None
            else ("its run is" if result.cut_ms is not None else f"the run of {base.policy} is")
        )
        return f"not comparable with {base.policy} by averages, because {whose} incomplete:"
    extra = result.measures.total.unfinished - base.measures.total.unfinished
    if extra > 0:
        return f"left {count(extra)} more jobs unfinished than {base.policy}, so its averages are not comparable:"
    if extra < 0:
        return f"left {count(-extra)} fewer jobs unfinished than {base.policy}, so the averages are not comparable:"
    return f"left more jobs unfinished than another run, as {base.policy} did, so no averages are compared:"


def _mean(found: Distribution | None) -> float | None:
    return None if found is None else found.mean
