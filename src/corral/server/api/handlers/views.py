"""Convert rows, gangs, seats and reasons to the answer types of the API.

Pure apart from reading the state. The caller passes ``sees``, which says whether the user may see a gang.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from corral.core.cluster.resources import Seat
from corral.core.gang_id import job_of
from corral.core.model import Blocker, Gang, Job, JobSpec
from corral.policy.explain.reasons import Change, Hold, assumption
from corral.store.lookup import AttemptRow, JobRow
from corral.store.projection import state_of
from corral.wire.api import (
    ENDED,
    AttemptView,
    ChangeView,
    FirstFailureView,
    GangCounts,
    GangView,
    InTheWayView,
    JobState,
    JobSummary,
    JobView,
    ReasonView,
    SeatView,
)
from corral.wire.api.selector import Selector

#: Whether the user may see the job of a gang.
Sees = Callable[[str], bool]

HIDDEN_GANG = "another job"

S = TypeVar("S", bound=Struct)


class Present(Struct, frozen=True):
    """What a job holds now, why it waits and when it should start: the fields of a summary that are in no record."""

    gpus_held: int = 0
    nodes: tuple[str, ...] = ()
    nodes_held: int = 0
    reason: str = ""
    starts_ms: int | None = None
    starts_note: str = ""


def summary(row: JobRow, present: Present | None = None) -> JobSummary:
    return JobSummary(**_summary(row), **asdict(present or Present()))


def _summary(row: JobRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "queue": row.queue,
        "user": row.user,
        "priority": row.priority,
        "state": JobState(row.state),
        "held": row.held,
        "submitted_ms": row.submitted_ms,
        "started_ms": row.started_ms,
        "ended_ms": row.ended_ms,
        "exit_code": row.exit_code,
        "failure": row.failure,
        "why": row.why,
        "gpus": row.gpus,
        "tasks": row.tasks,
        "attempts": row.attempts,
        "array_size": row.array_size,
        "labels": dict(row.labels),
        "counts": GangCounts(
            total=row.gangs,
            starting=row.starting,
            running=row.running,
            stopping=row.stopping,
            succeeded=row.over - row.failed - row.cancelled,
            failed=row.failed,
            cancelled=row.cancelled,
        ),
    }


def job_view(
    row: JobRow, gangs: Sequence[GangView], history: Sequence[AttemptView], shows_env: bool, present: Present
) -> JobView:
    terms = {} if row.spec is None else _terms(row.spec, shows_env)
    return JobView(
        **_summary(row),
        **asdict(present),
        gangs=tuple(gangs),
        history=tuple(history),
        **terms,
    )


def narrowed(row: JobRow, selector: Selector, gangs: Sequence[GangView], history: Sequence[AttemptView]) -> JobRow:
    """The row of some gangs of a job, as if they were the whole job."""
    last = {each.gang: each for each in history}
    states = {each.gang: _end_state(each) for each in last.values()} | {gang.id: str(gang.state) for gang in gangs}
    shown, ends = list(states.values()), [each.ended_ms or 0 for each in last.values()]
    count = row.gangs if row.spec is None else len(row.spec.gangs) * (len(row.spec.array) or 1)
    unseen = 0 if gangs or not row.is_over else max(0, _size(row, selector) - len(shown))  # cancelled before they ran
    first = next((each for each in last.values() if each.failure is not None and each.ended_ms is not None), None)
    is_over = all(state in ENDED for state in shown)
    found = replace(
        row,
        id=str(selector),
        gangs=len(shown) + unseen,
        starting=shown.count("starting"),
        running=shown.count("running") + shown.count("broken"),
        stopping=shown.count("stopping"),
        failed=shown.count("failed"),
        cancelled=shown.count("cancelled") + unseen,
        over=sum(state in ENDED for state in shown) + unseen,
        attempts=len(history),
        started_ms=min((each.started_ms for each in history if each.started_ms), default=None),
        ended_ms=max(ends, default=row.ended_ms) or row.ended_ms if is_over else None,
        exit_code=(0 if first is None else first.exit_code) if is_over and last else None,
        failure=first.failure if first is not None and is_over else None,
        why="",
        gpu_milli=row.gpu_milli * (len(shown) + unseen) // max(1, count),
        tasks=row.tasks * (len(shown) + unseen) // max(1, count),
        array_size=len(states) + unseen if row.array_size and len(states) + unseen > 1 else 0,
    )
    found.state = state_of(found)
    return found


def _size(row: JobRow, selector: Selector) -> int:
    if row.spec is None:
        return 0
    return sum(selector.takes(index, gang.role) for index in row.spec.array or (None,) for gang in row.spec.gangs)


def _end_state(run: AttemptView) -> str:
    """How a gang of a job that is no longer in memory ended, by its last attempt."""
    if run.ended_ms is None:
        return "running"
    return "succeeded" if run.failure is None else "cancelled" if run.failure == "cancelled" else "failed"


def _terms(spec: JobSpec, shows_env: bool) -> dict[str, Any]:
    work = spec.gangs[0].work if spec.gangs else None
    return {
        "command": () if work is None else work.command,
        "directory": "" if work is None else work.directory,
        "env": None if work is None or not shows_env else dict(work.env),
        "after": tuple(f"{each.after}:{each.job}" for each in spec.after),
        "time_limit_ms": spec.time_limit_ms,
        "estimate_ms": spec.estimate_ms,
        "begin_ms": spec.begin_ms,
        "deadline_ms": spec.deadline_ms,
        "checkpoints": spec.checkpoints,
        "preemptible": spec.preemptible,
    }


def gang_view(gang: Gang, job: Job, slow_ranks: Sequence[str] = ()) -> GangView:
    demand, leaving = gang.demand, gang.eviction
    return GangView(
        id=gang.id,
        role=gang.role,
        index=gang.index,
        state=gang.state,
        attempt=gang.attempt,
        slow_ranks=tuple(slow_ranks),
        tasks=len(gang.seats) or demand.tasks,
        gpus=(len(gang.seats) or demand.tasks) * demand.task.gpus,
        seats=tuple(seat_views(gang.seats)),
        placed_ms=gang.placed_ms or None,
        started_ms=gang.started_ms or None,
        not_before_ms=max(gang.not_before_ms, job.spec.begin_ms or 0) or None,
        leaving=None if leaving is None else leaving.cause,
        leaves_by_ms=None if leaving is None else leaving.deadline_ms,
        saved_step=gang.saved_step if gang.saved_step >= 0 else None,
        exit_code=gang.exit_code,
        retries=dict(gang.retries),
        priority=gang.priority,
        held=bool(gang.blockers & (Blocker.HELD | Blocker.GANG_HELD)),
    )


def seat_views(seats: Sequence[Seat]) -> Iterable[SeatView]:
    for task, seat in enumerate(seats):
        slots = tuple(slot for slot in range(seat.gpus.bit_length()) if seat.gpus >> slot & 1)
        yield SeatView(task=task, node=seat.node, gpus=slots, slice_mib=seat.slice_mib)


def attempt_view(row: AttemptRow, sees: Sees, now_ms: int) -> AttemptView:
    beneficiary = row.beneficiary if not row.beneficiary or sees(row.beneficiary) else HIDDEN_GANG
    first = row.first_failure
    first_view = None if first is None else copy_fields(FirstFailureView, first)
    held_ms = max(0, (now_ms if row.ended_ms is None else row.ended_ms) - row.placed_ms)
    gpu_ms = row.gpu_milli * held_ms // 1000
    return copy_fields(AttemptView, row, beneficiary=beneficiary, first_failure=first_view, gpu_ms=gpu_ms)


# ---- reasons ---------------------------------------------------------------------------------------------


def start_note(assumed_ms: int) -> str:
    """What an expected start assumes."""
    return assumption(assumed_ms, of=" by a job in the way")


def reason_views(hold: Hold, now_ms: int, sees: Sees) -> Iterable[ReasonView]:
    for reason in hold.reasons:
        shown = without_strangers(reason, sees)
        numbers = msgspec.to_builtins(shown)
        code = numbers.pop("type")
        yield ReasonView(code=code, text=shown.text(now_ms), numbers=numbers)


def without_strangers(reason: Any, sees: Sees) -> Any:
    """The same reason without the names of gangs that the user may not see."""
    fields = reason.__struct_fields__
    hidden: dict[str, Any] = {}
    for name in ("gang", "beneficiary"):
        if name in fields and getattr(reason, name) and not sees(getattr(reason, name)):
            hidden[name] = HIDDEN_GANG
    for name in ("gangs", "victims"):
        if name in fields:
            hidden[name] = tuple(gang if sees(gang) else HIDDEN_GANG for gang in getattr(reason, name))
    return replace(reason, **hidden) if hidden else reason


def in_the_way_views(hold: Hold, now_ms: int, sees: Sees) -> Iterable[InTheWayView]:
    for each in hold.in_the_way:
        assumed = assumption(each.assumed_ms) if each.assumed_ms else ""
        if sees(each.gang):
            yield InTheWayView(
                gpu_milli=each.gpu_milli,
                ends_ms=each.ends_ms,
                text=each.text(now_ms),
                gang=each.gang,
                job=job_of(each.gang),
                queue=each.queue,
                user=each.user,
                assumption=assumed,
            )
        else:
            stranger = replace(each, gang=HIDDEN_GANG, user="another user", queue="another queue")
            yield InTheWayView(
                gpu_milli=each.gpu_milli, ends_ms=each.ends_ms, text=stranger.text(now_ms), assumption=assumed
            )


def change_views(changes: Iterable[Change]) -> Iterable[ChangeView]:
    return (ChangeView(field=each.field, value=each.value, text=each.text) for each in changes)


def copy_fields(kind: type[S], /, *sources: object, **others: Any) -> S:
    """A struct of this kind: these other fields, and the fields that the sources have under the same name."""
    for name in kind.__struct_fields__:
        if name not in others:
            source = next((each for each in sources if hasattr(each, name)), None)
            if source is not None:
                others[name] = getattr(source, name)
    return kind(**others)


def plain(amounts: Mapping[str, int | None]) -> dict[str, int]:
    """Named amounts without those that have no limit."""
    return {name: amount for name, amount in amounts.items() if amount is not None}
