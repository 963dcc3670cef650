"""The projection: folds the records of the journal into the rows of lookups. Nothing else changes the rows.

Pure: reads and writes rows through ``Tables`` and knows neither SQL nor files. All its state is in the rows, so a
restart needs nothing else, and folding all records again gives the same rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import date
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from corral.core import events as e
from corral.core.cluster.resources import GPU_MILLI, Seat
from corral.core.cluster.topology import NodeSpec
from corral.core.gang_id import index_of, job_of, role_of
from corral.core.model import GangState
from corral.store.journal import Record
from corral.store.lookup import AttemptRow, JobRow, UsageRow, read_request_mark
from corral.wire import codec

_log = logging.getLogger(__name__)

DAY_MS = 86_400_000
_QUARANTINED = "quarantined"

Key = TypeVar("Key", contravariant=True)
Row = TypeVar("Row")


class Rows(Protocol, Generic[Key, Row]):
    """One table. A changed row must be put back."""

    def get(self, key: Key) -> Row | None: ...

    def put(self, key: Key, row: Row) -> None: ...


class Tables(Struct, frozen=True):
    """All tables."""

    jobs: Rows[str, JobRow]
    attempts: Rows[tuple[str, int], AttemptRow]  # gang, attempt
    usage: Rows[tuple[str, str, str], UsageRow]  # queue, user, day
    nodes: Rows[str, NodeSpec]


def fold(tables: Tables, records: Iterable[Record]) -> None:
    """Apply these records to the rows, in order. A record that cannot be applied is skipped and logged as an error: a
    problem of lookups must never block writing."""
    for record in records:
        if record.format == codec.FORMAT and codec.kind_of(record.body) not in _PROJECTED_NAMES:
            continue  # most records change no row: do not decode them
        try:
            event = codec.decode(record.format, record.body)
            if isinstance(event, e.JobSubmitted):
                _submitted(tables, event, record)
            elif (change := _CHANGES.get(type(event))) is not None:
                change(tables, event)
        except Exception as fault:
            _log.error("record_not_projected: record %d (%s): %s", record.seq, codec.kind_of(record.body), fault)


class _Named(Struct):
    """The fields of an encoded event that name its job; the rest is ignored."""

    job: str = ""
    gang: str = ""


_named = msgspec.json.Decoder(_Named)


def job_told_of(format: int, body: bytes) -> str:
    """The job that a record is about; "" if there is none, or the record cannot be read."""
    try:
        named = _named.decode(body) if format == codec.FORMAT else codec.decode(format, body)
    except (ValueError, RecursionError, msgspec.DecodeError):
        return ""
    gang: str = getattr(named, "gang", "")
    return job_of(gang) if gang else getattr(named, "job", "")


# ---- jobs ----------------------------------------------------------------------------------------------------------


def _submitted(tables: Tables, event: e.JobSubmitted, record: Record) -> None:
    spec = event.spec
    elements = len(spec.array) or 1
    key, fingerprint = read_request_mark(record.request)
    gpu_milli = sum([gang.demand.charge(gang.demand.tasks).get(GPU_MILLI, 0) for gang in spec.gangs])
    row = JobRow(
        seq=record.seq,
        id=event.job,
        name=spec.name,
        queue=spec.queue,
        user=event.user,
        actor=record.actor,
        request=key,
        fingerprint=fingerprint,
        priority=spec.priority,
        state="waiting",
        held=spec.held,
        submitted_ms=event.at_ms,
        started_ms=None,
        ended_ms=None,
        exit_code=None,
        failure=None,
        why="",
        gpu_milli=gpu_milli * elements,
        tasks=sum([gang.demand.tasks for gang in spec.gangs]) * elements,
        attempts=0,
        array_size=len(spec.array),
        labels=spec.labels,
        gangs=len(spec.gangs) * elements,
    )
    tables.jobs.put(row.id, row)
    _use(tables, row, event.at_ms, jobs=1)


def _held(tables: Tables, event: e.JobHeld | e.JobReleased) -> None:
    job = _job(tables, event.job)
    job.held = isinstance(event, e.JobHeld)
    if isinstance(event, e.JobHeld) and event.why:
        job.why = f"{_QUARANTINED}: planning failed because of this job ({event.why})"
    elif job.why.startswith(_QUARANTINED):
        job.why = ""
    tables.jobs.put(job.id, job)


def _priority(tables: Tables, event: e.PriorityChanged) -> None:
    job = _job(tables, event.job)
    job.priority = event.priority
    tables.jobs.put(job.id, job)


# ---- attempts ------------------------------------------------------------------------------------------------------


def _placed(tables: Tables, event: e.GangPlaced | e.GangRepaired) -> None:
    job = _job_of(tables, event.gang)
    if isinstance(event, e.GangRepaired):
        broken = _attempt(tables, event.gang, event.attempt - 1)
        if broken.started_ms is not None:  # work since the last checkpoint is lost; no event records it
            safe_ms = max(broken.started_ms, broken.saved_ms or 0)
            broken.lost_gpu_ms = broken.gpu_milli * (event.at_ms - safe_ms) // 1000
        _end_run(tables, job, broken, event.at_ms)
    role, index = role_of(event.gang), index_of(event.gang)
    seats = event.seats + event.spares
    run = AttemptRow(
        job=job.id,
        gang=event.gang,
        attempt=event.attempt,
        role=role,
        index=index,
        state="starting",
        placed_ms=event.at_ms,
        started_ms=None,
        ended_ms=None,
        gpu_milli=sum([_gpu_milli(tables, seat) for seat in seats]),
        seats=seats,
        spares=len(event.spares),
    )
    job.attempts += 1
    job.starting += 1
    _put(tables, job, run)


def _started(tables: Tables, event: e.GangStarted) -> None:
    job, run = _job_of(tables, event.gang), _attempt(tables, event.gang, event.attempt)
    _move(job, run, "running")
    run.started_ms = event.at_ms
    if job.started_ms is None:
        job.started_ms = event.at_ms
    _put(tables, job, run)


def _saved(tables: Tables, event: e.CheckpointCommitted) -> None:
    run = _attempt(tables, event.gang, event.attempt)
    run.saved_ms, run.saved_step = event.at_ms, event.step
    tables.attempts.put((run.gang, run.attempt), run)


def _lost(tables: Tables, event: e.TasksLost) -> None:
    job, run = _job_of(tables, event.gang), _attempt(tables, event.gang, event.attempt)
    if run.state != "stopping":
        _move(job, run, "broken")
    run.failure = run.failure or str(event.failure)
    _put(tables, job, run)


def _evicted(tables: Tables, event: e.GangEvicted) -> None:
    job, run = _job_of(tables, event.gang), _attempt(tables, event.gang, event.attempt)
    _move(job, run, "stopping")
    run.cause, run.beneficiary = str(event.cause), event.beneficiary
    _put(tables, job, run)


def _stopped(tables: Tables, event: e.GangStopped) -> None:
    job, run = _job_of(tables, event.gang), _attempt(tables, event.gang, event.attempt)
    run.exit_code, run.lost_gpu_ms = event.exit_code, event.lost_gpu_ms
    run.failure = str(event.failure) if event.failure is not None else None
    run.first_failure = event.first_failure
    _end_run(tables, job, run, event.at_ms)
    _put(tables, job, run)


def _finished(tables: Tables, event: e.GangFinished) -> None:
    job = _job_of(tables, event.gang)
    job.over += 1
    if event.state is not GangState.SUCCEEDED:
        job.failed += event.state is GangState.FAILED
        job.cancelled += event.state is GangState.CANCELLED
        if job.failed + job.cancelled == 1:
            run = tables.attempts.get((event.gang, event.attempt))
            job.exit_code = run.exit_code if run is not None else None
            job.failure = str(event.failure) if event.failure is not None else None
            job.why = event.why
    if job.is_over:
        job.ended_ms = event.at_ms
        if not job.failed + job.cancelled:
            job.exit_code = 0
    _put(tables, job)


def _end_run(tables: Tables, job: JobRow, run: AttemptRow, now_ms: int) -> None:
    _move(job, run, "ended")
    run.ended_ms = now_ms
    for day_ms, gpu_ms in by_day(run, now_ms):
        _use(tables, job, day_ms, gpu_ms=gpu_ms)
    if run.lost_gpu_ms:
        _use(tables, job, now_ms, lost_gpu_ms=run.lost_gpu_ms)
    tables.attempts.put((run.gang, run.attempt), run)


def by_day(run: AttemptRow, until_ms: int) -> Iterable[tuple[int, int]]:
    """GPU time of an attempt on each day: (a time on that day, GPU-milliseconds). The parts add up to the whole."""
    begin, counted = run.placed_ms, 0
    while begin < until_ms and run.gpu_milli:
        end = min(until_ms, (begin // DAY_MS + 1) * DAY_MS)
        held = run.gpu_milli * (end - run.placed_ms) // 1000
        yield begin, held - counted
        begin, counted = end, held


# ---- usage and nodes -----------------------------------------------------------------------------------------------


def _use(tables: Tables, job: JobRow, at_ms: int, *, gpu_ms: int = 0, lost_gpu_ms: int = 0, jobs: int = 0) -> None:
    key = (job.queue, job.user, day_of(at_ms))
    row = tables.usage.get(key) or UsageRow(*key)
    row.gpu_ms += gpu_ms
    row.lost_gpu_ms += lost_gpu_ms
    row.jobs += jobs
    tables.usage.put(key, row)


def day_of(at_ms: int) -> str:
    number = at_ms // DAY_MS
    known = _days.get(number)
    if known is None:
        known = _days[number] = date.fromordinal(719_163 + number).isoformat()  # of 1970-01-01
    return known


_days: dict[int, str] = {}


def _node_added(tables: Tables, event: e.NodeAdded) -> None:
    tables.nodes.put(event.spec.name, event.spec)


def _gpu_milli(tables: Tables, seat: Seat) -> int:
    """GPUs of a seat, in thousandths. A slice counts by its share of the memory of the GPU."""
    if not seat.slice_mib or not seat.gpus:
        return seat.gpus.bit_count() * 1000
    node = tables.nodes.get(seat.node)
    assert node is not None, f"{seat.node} was never added"
    return seat.slice_mib * 1000 // node.gpus[seat.gpus.bit_length() - 1].vram_mib


# ---- rows ----------------------------------------------------------------------------------------------------------


def _job(tables: Tables, id: str) -> JobRow:
    job = tables.jobs.get(id)
    assert job is not None, f"job {id} was never submitted"
    return job


def _job_of(tables: Tables, gang: str) -> JobRow:
    return _job(tables, job_of(gang))


def _attempt(tables: Tables, gang: str, number: int) -> AttemptRow:
    run = tables.attempts.get((gang, number))
    assert run is not None, f"attempt {number} of {gang} was never placed"
    return run


#: The counter of the job for an attempt in this state.
_COUNTED = {"starting": "starting", "running": "running", "broken": "running", "stopping": "stopping"}


def _move(job: JobRow, run: AttemptRow, state: str) -> None:
    for counted, change in ((_COUNTED.get(run.state), -1), (_COUNTED.get(state), 1)):
        if counted is not None:
            setattr(job, counted, getattr(job, counted) + change)
    run.state = state


def _put(tables: Tables, job: JobRow, run: AttemptRow | None = None) -> None:
    job.state = state_of(job)
    tables.jobs.put(job.id, job)
    if run is not None:
        tables.attempts.put((run.gang, run.attempt), run)


def state_of(job: JobRow) -> str:
    """The most active state of its gangs; when all have ended, the outcome."""
    if job.is_over:
        return "failed" if job.failed else "cancelled" if job.cancelled else "succeeded"
    return "running" if job.running else "starting" if job.starting else "stopping" if job.stopping else "waiting"


#: Changes by all events except submissions, which need the record itself.
_CHANGES: dict[type, Callable[[Tables, Any], None]] = {
    e.NodeAdded: _node_added,
    e.JobHeld: _held,
    e.JobReleased: _held,
    e.PriorityChanged: _priority,
    e.GangPlaced: _placed,
    e.GangRepaired: _placed,
    e.GangStarted: _started,
    e.CheckpointCommitted: _saved,
    e.TasksLost: _lost,
    e.GangEvicted: _evicted,
    e.GangStopped: _stopped,
    e.GangFinished: _finished,
}
_PROJECTED_NAMES = {kind.__name__ for kind in (e.JobSubmitted, *_CHANGES)}
