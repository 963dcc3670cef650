"""The text of a dry run: the job, its placement, its expected start and its effect on quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.amount_text import quantity, size
from corral.cli.render import ahead, count, print_line, ranges, style
from corral.duration_text import span

if TYPE_CHECKING:
    from corral.core.cluster.resources import Demand
    from corral.core.model import JobSpec
    from corral.wire.api.jobs import DryRunAnswer, DryRunGang

_GANGS_SHOWN = 4


def show_plan(spec: JobSpec, answer: DryRunAnswer) -> None:
    for title, lines in (
        ("what", _what(spec)),
        ("where", _where(answer)),
        ("when", _when(answer)),
        ("quota", _quota(answer)),
    ):
        for n, line in enumerate(lines):
            print_line(f"{style(title if n == 0 else '', bold=True):<{_indent(title, n)}}{line}")


def _indent(title: str, n: int) -> int:
    """Padded to eight columns, not counting colour codes."""
    shown = style(title if n == 0 else "", bold=True)
    return 8 + len(shown) - len(title if n == 0 else "")


def _what(spec: JobSpec) -> list[str]:
    array = f", {count(len(spec.array), 'element')}" if spec.array else ""
    limit = f", at most {span(spec.time_limit_ms)}" if spec.time_limit_ms else ""
    head = f"{spec.name or 'a job'} in {spec.queue}, priority {spec.priority}{array}{limit}"
    return [head, *(f"{gang.role}: {demand_text(gang.demand)}" for gang in spec.gangs)]


def demand_text(demand: Demand) -> str:
    task = demand.task
    tasks = f"{demand.tasks_min} to {demand.tasks} tasks" if demand.tasks_min else count(demand.tasks, "task")
    has = []
    if task.gpus:
        models = f" ({' or '.join(task.models)})" if task.models else ""
        has.append(count(task.gpus, "GPU") + models)
    if task.slice_mib:
        has.append(f"{size(task.slice_mib)} of a GPU")
    has += [quantity(name, value) for name, value in task.amounts]
    each = " each" if max(demand.tasks, demand.tasks_min) > 1 else ""
    return f"{tasks} with {', '.join(has)}{each}" if has else tasks


def _where(answer: DryRunAnswer) -> list[str]:
    lines = [f"{gang.gang}: {seats_text(gang)}" for gang in answer.gangs[:_GANGS_SHOWN] if gang.seats]
    left = len(answer.gangs) - _GANGS_SHOWN
    if lines and left > 0:
        lines.append(f"and {count(left, 'more gang')}")
    return lines or ["not placed yet"]


def seats_text(gang: DryRunGang) -> str:
    parts = []
    for seat in gang.seats:
        gpus = f" GPU {ranges(seat.gpus)}" if seat.gpus else ""
        parts.append(f"{seat.node}{gpus}" + (f" ({size(seat.slice_mib)})" if seat.slice_mib else ""))
    return "; ".join(dict.fromkeys(parts))


def _when(answer: DryRunAnswer) -> list[str]:
    lines = []
    for gang in answer.gangs[:_GANGS_SHOWN]:
        if gang.outcome == "starts":
            lines.append(style("it starts immediately", fg="green"))
        elif gang.outcome == "makes_room":
            victims = [*gang.victims, *(["jobs of others"] if gang.victims_hidden else [])]
            lines.append(style(f"it starts after preempting: {', '.join(victims)}", fg="yellow"))
        else:
            expected = f"; expected {ahead(gang.starts_ms, answer.at_ms)}" if gang.starts_ms else ""
            expected += f": {gang.starts_note}" if gang.starts_note else ""
            lines.append(style(f"it waits{expected}", fg="yellow"))
            lines += [f"  - {reason.text}" for reason in gang.reasons]
            lines += [f"  try: {change.text}" for change in gang.changes]
    return list(dict.fromkeys(lines))


def _quota(answer: DryRunAnswer) -> list[str]:
    lines = []
    for line in answer.quota:
        used = f"{line.queue}: {quantity(line.name, line.used)} used, {quantity(line.name, line.asked)} requested"
        terms = []
        if line.guarantee is not None:
            terms.append(f"guaranteed {quantity(line.name, line.guarantee)}")
        if line.limit is not None:
            terms.append(f"at most {quantity(line.name, line.limit)}")
        if line.borrowed:
            terms.append(f"{quantity(line.name, line.borrowed)} would be borrowed")
        lines.append(used + (f" ({', '.join(terms)})" if terms else ""))
    return lines or ["within all quotas"]
