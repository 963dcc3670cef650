"""What jobs, ranks and nodes do, as lines and cells of text. Knows the answers of the API and widths; asks nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from corral.cli.render import Field, count, print_line, ranges, style, table, width
from corral.duration_text import span

if TYPE_CHECKING:
    from corral.wire.api.activity import (
        ActivityTotals,
        ClusterActivity,
        JobActivity,
        JobActivityLine,
        NodeActivityLine,
        RankActivityView,
        TaskActivityView,
    )

UNKNOWN = "-"
SIMULATED = "(simulated)"
_LEFT = Field[Any](str)
_RIGHT = Field[Any](str, right=True)
_NAME = Field[Any](str, shrinks=True)

#: (title, column, how soon it is left out where space is short: the highest number first, 0 never)
Column = tuple[str, Field[Any], int]


# ---- single figures ------------------------------------------------------------------------------------


def percent(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value}%"


def watts(milliwatts: int | None) -> str:
    """640 W, 5.1 kW."""
    if milliwatts is None:
        return UNKNOWN
    return f"{milliwatts / 1000:.0f} W" if milliwatts < 1_000_000 else f"{milliwatts / 1_000_000:.1f} kW"


def cpus(used: int | None, given: int | None = None) -> str:
    """1.2/8."""
    if used is None:
        return UNKNOWN
    return f"{used / 1000:.1f}" + ("" if given is None else f"/{given / 1000:g}")


def memory(used: int | None, given: int | None = None) -> str:
    """12/80 GiB; the unit is that of the larger one."""
    if used is None:
        return UNKNOWN
    unit, size = ("GiB", 1024) if max(used, given or 0) >= 1024 else ("MiB", 1)
    return f"{used / size:.0f}" + ("" if given is None else f"/{given / size:.0f}") + f" {unit}"


def number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"


def step_time(ms: int | None) -> str:
    if ms is None:
        return UNKNOWN
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s" if ms < 60_000 else span(ms)


def loss_of(rank: RankActivityView) -> str:
    if "loss" not in rank.metrics:
        return UNKNOWN
    value = rank.metrics["loss"]
    return "nan" if value is None else number(value)


# ---- one line ------------------------------------------------------------------------------------------


def total_text(total: ActivityTotals) -> str:
    """8 GPUs 92% busy, 480/640 GiB, 5.1 kW; CPU 12.0/64; memory 100/512 GiB."""
    parts = []
    if total.gpus:
        fake = f" {SIMULATED}" if total.gpus_simulated else ""
        busy = "no readings" if total.utilisation_percent is None else f"{total.utilisation_percent}% busy"
        gpu = [f"{count(total.gpus, 'GPU')} {busy}{fake}"]
        if total.gpu_memory_used_mib is not None:
            gpu.append(memory(total.gpu_memory_used_mib, total.gpu_memory_mib))
        if total.power_mw is not None:
            gpu.append(watts(total.power_mw))
        parts.append(", ".join(gpu))
    if total.cpu_milli is not None:
        parts.append(f"CPU {cpus(total.cpu_milli, total.cpu_given_milli)}")
    if total.memory_mib is not None:
        parts.append(f"memory {memory(total.memory_mib, total.memory_given_mib)}")
    return "; ".join(parts)


def progress_text(activity: JobActivity) -> str:
    """step 1200, 1.2 s each, loss 0.31, lr 0.0001: of the lowest rank that reports it."""
    ranks = [rank for task in activity.tasks for rank in task.ranks if rank.step is not None]
    if not ranks:
        return ""
    first = min(ranks, key=lambda rank: rank.rank)
    each = "" if first.step_ms is None else f", {step_time(first.step_ms)} each"
    ago = "" if first.since_step_ms is None else f", {span(first.since_step_ms)} ago"
    metrics = "".join(
        f", {name} {'nan' if value is None else number(value)}" for name, value in sorted(first.metrics.items())
    )
    return f"step {first.step}{each}{ago}{metrics}"


def has_figures(activity: JobActivity) -> bool:
    return any(task.age_ms is not None for task in activity.tasks)


def print_activity(activity: JobActivity) -> None:
    """The lines about it in ``corral show``."""
    lines = {"doing": total_text(activity.total), "progress": progress_text(activity)} if has_figures(activity) else {}
    for title, text in lines.items():
        if text:
            print_line(f"{style(title, dim=True)}{' ' * (11 - len(title))}{text}")
    for note in activity.notes:
        print_line(style(f"{'note':<11}{note}", fg="yellow"))


# ---- tables --------------------------------------------------------------------------------------------


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int) -> list[str]:
    """A table no wider than ``room``: the least important columns are left out, and empty ones."""
    kept = [n for n in range(len(columns)) if columns[n][2] == 0 or any(row[n] not in ("", UNKNOWN) for row in rows)]
    while True:
        chosen = [columns[n] for n in kept]
        lines = table(
            [title for title, _, _ in chosen], [[row[n] for n in kept] for row in rows], [kind for _, kind, _ in chosen]
        )
        spare = [n for n in kept if columns[n][2] > 0]
        if not spare or max(map(width, lines)) <= room:
            return lines
        kept.remove(max(spare, key=lambda n: (columns[n][2], n)))


_NODE_COLUMNS: tuple[Column, ...] = (
    ("NODE", _NAME, 0),
    ("GPUS", _RIGHT, 0),
    ("BUSY", _RIGHT, 0),
    ("GPU MEMORY", _RIGHT, 2),
    ("POWER", _RIGHT, 4),
    ("CPU", _RIGHT, 1),
    ("MEMORY", _RIGHT, 3),
)


def node_lines(nodes: Sequence[NodeActivityLine], room: int) -> list[str]:
    rows = [
        (
            line.node,
            f"{line.gpus_used}/{line.total.gpus}",
            _busy(line.total),
            memory(line.total.gpu_memory_used_mib, line.total.gpu_memory_mib),
            watts(line.total.power_mw),
            cpus(line.total.cpu_milli, line.total.cpu_given_milli),
            memory(line.total.memory_mib, line.total.memory_given_mib),
        )
        for line in nodes
    ]
    return fitted(_NODE_COLUMNS, rows, room)


_JOB_COLUMNS: tuple[Column, ...] = (
    ("JOB", _RIGHT, 0),
    ("NAME", _NAME, 0),
    ("USER", _LEFT, 5),
    ("GPUS", _RIGHT, 0),
    ("BUSY", _RIGHT, 0),
    ("GPU MEMORY", _RIGHT, 6),
    ("POWER", _RIGHT, 7),
    ("CPU", _RIGHT, 1),
    ("MEMORY", _RIGHT, 4),
    ("STEP", _RIGHT, 2),
    ("STEP TIME", _RIGHT, 3),
    ("LOSS", _RIGHT, 2),
)


def job_lines(jobs: Sequence[JobActivityLine], room: int) -> list[str]:
    rows = [
        (
            line.job,
            line.name or UNKNOWN,
            line.user,
            str(line.total.gpus),
            _busy(line.total),
            memory(line.total.gpu_memory_used_mib, line.total.gpu_memory_mib),
            watts(line.total.power_mw),
            cpus(line.total.cpu_milli),
            memory(line.total.memory_mib),
            UNKNOWN if line.step is None else str(line.step),
            step_time(line.step_ms),
            number(line.loss),
        )
        for line in jobs
    ]
    return fitted(_JOB_COLUMNS, rows, room)


def _busy(total: ActivityTotals) -> str:
    return percent(total.utilisation_percent) if total.gpus else UNKNOWN


_RANK_COLUMNS: tuple[Column, ...] = (
    ("GANG", _LEFT, 6),
    ("RANK", _RIGHT, 0),
    ("NODE", _LEFT, 0),
    ("GPU", _RIGHT, 1),
    ("BUSY", _RIGHT, 0),
    ("GPU MEMORY", _RIGHT, 5),
    ("POWER", _RIGHT, 7),
    ("CPU", _RIGHT, 0),
    ("MEMORY", _RIGHT, 8),
    ("STEP", _RIGHT, 2),
    ("STEP TIME", _RIGHT, 3),
    ("AGO", _RIGHT, 4),
    ("LOSS", _RIGHT, 3),
)


def rank_lines(activity: JobActivity, room: int) -> list[str]:
    has_gangs = len({task.gang for task in activity.tasks}) > 1
    rows = [row for task in activity.tasks for row in _rank_rows(task, has_gangs)]
    return fitted(_RANK_COLUMNS, rows, room)


def _rank_rows(task: TaskActivityView, has_gangs: bool) -> Iterator[tuple[str, ...]]:
    """One row per rank, with its part of the task's GPUs; one row for a task of which no rank is known."""
    ranks: list[RankActivityView | None] = list(task.ranks) or [None]
    each, rest = divmod(len(task.gpus), len(ranks))
    for n, rank in enumerate(ranks):
        gpus = task.gpus[n * each : (n + 1) * each] if not rest else (task.gpus if n == 0 else ())
        cpu_milli = task.cpu_milli if rank is None or (rank.cpu_milli is None and len(ranks) == 1) else rank.cpu_milli
        yield (
            task.gang if has_gangs else "",
            UNKNOWN if rank is None else str(rank.rank),
            task.node,
            ranges(gpu.slot for gpu in gpus) or UNKNOWN,
            percent(_mean(gpu.utilisation_percent for gpu in gpus)),
            memory(_sum(gpu.memory_used_mib for gpu in gpus), _sum(gpu.memory_mib for gpu in gpus)),
            watts(_sum(gpu.power_mw for gpu in gpus)),
            cpus(cpu_milli),
            memory(task.memory_mib) if n == 0 else "",
            UNKNOWN if rank is None or rank.step is None else str(rank.step),
            step_time(None if rank is None else rank.step_ms),
            UNKNOWN if rank is None or rank.since_step_ms is None else span(rank.since_step_ms),
            UNKNOWN if rank is None else loss_of(rank),
        )


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known)) if known else None


def cluster_text(activity: ClusterActivity) -> str:
    """3 nodes, 18 of 24 GPUs used, 2 running jobs."""
    kind = "simulated GPU" if activity.total.gpus_simulated else "GPU"
    held = f"{activity.gpus_used} of {count(activity.total.gpus, kind)} used" if activity.total.gpus else "no GPUs"
    return f"{count(activity.nodes_total, 'node')}, {held}, {count(activity.jobs_total, 'running job')}"
