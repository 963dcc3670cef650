"""Recovery at the start: the state from the newest image and the records after it, or from all records.

Knows the journal and what a first start needs. Runs before anything is served.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import structlog

from corral.core import events as e
from corral.core import facts as f
from corral.core.accounts.accounts import AccountEvent, Role, RoleGranted, TokenIssued, UserSet
from corral.core.cluster.topology import NodeSpec
from corral.core.fleets.fleets import Fleets
from corral.core.gang_id import job_of
from corral.core.intake.commands import add_node
from corral.core.intake.refusal import Refusal
from corral.core.laws import violations
from corral.core.model import FailureClass, Gang, GangState, QueueSpec, Settings
from corral.core.state import State
from corral.remote.backend import RemoteBackend
from corral.runtime.base import Backend, TaskKey
from corral.server.journal_state import IMAGE_FORMAT, JournalState
from corral.server.loop import SYSTEM, Loop
from corral.store.journal import (
    EPOCHS_AHEAD,
    Journal,
    JournalBroken,
    JournalUnusable,
    Record,
    RecordSource,
    all_records,
)
from corral.store.lookup import Lookup
from corral.wire.codec import FORMAT, Unreadable, decode, kind_of

log = structlog.get_logger(__name__)

EARLIER_ATTEMPTS = 4  # of a gang being repaired, whose tasks may still be stopping
NUMBERS_AHEAD = 10_000
LEFT_OUT_MAX = 8  # records that cannot be applied
_CANNOT_BE = "does not fit the records before it and was not applied."
_WHAT_TO_DO = "Use the version of Corral that wrote it, or restore a backup (corral db restore)."


def load(journal: RecordSource) -> JournalState:
    """The state that the journal gives."""
    return load_with_place(journal)[0]


def load_with_place(journal: RecordSource) -> tuple[JournalState, int]:
    """The state that the journal gives, and the number of its last record. Raises `JournalUnusable`, which says what to
    do, if the journal cannot be read completely."""
    with _without_collecting():
        left_out: list[int] = []
        while True:
            try:
                return _folded(journal, left_out)
            except _NotApplied as wrong:
                log.error("record_quarantined", seq=wrong.seq, kind=wrong.kind, error=str(wrong.__cause__))
                if len(left_out) >= LEFT_OUT_MAX:
                    raise JournalUnusable(f"record {wrong.seq} of the journal {_CANNOT_BE} {_WHAT_TO_DO}") from wrong
                left_out.append(wrong.seq)


class _NotApplied(Exception):
    """A record that cannot be applied to the state of the records before it."""

    def __init__(self, record: Record) -> None:
        super().__init__(f"record {record.seq}")
        self.seq, self.kind = record.seq, kind_of(record.body)


def _folded(journal: RecordSource, left_out: Sequence[int]) -> tuple[JournalState, int]:
    """The state from the newest usable image and the records after it. If records are left out, the result must obey
    the laws: then it is as if those records had been refused when they were made."""
    known, after = _from_image(journal)
    epoch = 0
    for record in _records(journal, after):
        if record.seq != after + 1:
            raise _missing(after, record.seq)
        if epoch and record.epoch - epoch >= EPOCHS_AHEAD:
            skip_numbers(known.state)
        after, epoch = record.seq, record.epoch
        if record.seq in left_out:
            continue
        try:
            event = decode(record.format, record.body)
        except Unreadable as wrong:
            raise JournalUnusable(
                f"record {record.seq} of the journal cannot be read: {wrong}. {_WHAT_TO_DO}"
            ) from None
        try:
            known.apply(event)
        except Exception as wrong:
            raise _NotApplied(record) from wrong
    if left_out and (broken := list(violations(known.state))):
        raise JournalUnusable(
            f"record {left_out[0]} of the journal {_CANNOT_BE} {_WHAT_TO_DO} (without it: {broken[0][:200]})"
        )
    known.left_out = tuple(left_out)
    return known, after


def _from_image(journal: RecordSource) -> tuple[JournalState, int]:
    """The state of the newest usable image, and its record; the empty state if there is none: the records give the
    same. Images are few, so all of them are tried before all records are read."""
    image, unusable = journal.newest_image(), tuple[int, ...]()
    while image is not None:
        if image.format == IMAGE_FORMAT:
            try:
                known = JournalState.unpack(image.body)
                known.unusable = unusable
                return known, image.seq
            except Exception as wrong:
                log.error("image_unusable", seq=image.seq, error=str(wrong)[:300])
        unusable += (image.seq,)
        image = journal.newest_image(image.seq)
    return JournalState.nothing(Settings()), 0


def _records(journal: RecordSource, after: int) -> Iterator[Record]:
    """All records above a number; those that were pruned come from archives."""
    here = journal.read(after, 1)
    if not here or here[0].seq > after + 1:
        try:
            for record in journal.archived(after):
                yield record
                after = record.seq
        except JournalBroken as wrong:
            raise JournalUnusable(
                f"no image of the state can be used, and an archive with records from {after + 1} on cannot be read: "
                f"{wrong}. Put the archive back where it was, or restore a backup (corral db restore)."
            ) from None
    yield from all_records(journal, after)


def _missing(after: int, found: int) -> JournalUnusable:
    return JournalUnusable(
        f"no image of the state can be used, and the records {after + 1} to {found - 1} are neither in the "
        "journal nor in a known archive. Put the images or the archive back, or restore a backup "
        "(corral db restore)."
    )


def skip_numbers(state: State) -> None:
    """Skip job numbers after a restore. The journal does not know the jobs submitted after the backup, but nodes may
    still have their tasks, and folders their logs. New jobs get numbers that none of those jobs can have had."""
    state.next_job = (state.next_job // NUMBERS_AHEAD + 2) * NUMBERS_AHEAD


def is_restored(journal: Journal) -> bool:
    """Whether the journal was restored or copied and nothing was written since."""
    last = journal.read(journal.head.seq - 1, 1) if journal.head.seq else []
    return bool(last) and journal.epoch - last[0].epoch >= EPOCHS_AHEAD


def load_raw(journal: Journal, known: JournalState) -> tuple[bytes, list[bytes]] | None:
    """The same state for the planner process: an image, and the encoded events after it.

    Equivalent to packing the loaded state; for speed the bytes of the journal are used as they are. None if the journal
    does not have them in the current format.
    """
    image = journal.newest_image()
    while image is not None and image.seq in known.unusable:
        image = journal.newest_image(image.seq)
    if image is None or image.format != IMAGE_FORMAT:
        return None
    records = list(all_records(journal, image.seq))
    return (image.body, [each.body for each in records]) if all(each.format == FORMAT for each in records) else None


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Disable the garbage collector while loading: nothing is garbage, and collecting takes longer than loading."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def founding(
    settings: Settings,
    queues: Sequence[QueueSpec],
    administrator: str,
    token: TokenIssued,
    now_ms: int,
    account: str = "",
) -> list[e.Event | AccountEvent]:
    """The first events of a new journal. ``account``: of the machine, that the administrator's jobs run as."""
    return [
        e.Founded(now_ms, settings),
        UserSet(now_ms, administrator, account),
        RoleGranted(now_ms, administrator, Role.ADMINISTRATOR),
        token,
        *(e.QueueSet(now_ms, queue) for queue in queues),
    ]


def set_logs_aside(data: Path, now_ms: int) -> None:
    """Move away the logs of an earlier journal: its jobs had the numbers that new jobs will get."""
    for logs in (data / "tasks" / "logs", data / "fleet" / "logs"):
        if logs.is_dir() and any(logs.iterdir()):
            aside = logs.with_name(f"logs.before-{now_ms}")
            logs.rename(aside)
            log.warning("logs_set_aside", of="an earlier journal", now=str(aside))


async def bring_nodes(loop: Loop, nodes: Sequence[NodeSpec]) -> None:
    """Bring the nodes in the state up to date: add or change the given ones, and mark all others as lost."""
    here = {spec.name: spec for spec in nodes}
    state = loop.known.state
    for name in set(state.nodes) - set(here):
        loop.take_fact(f.NodeGone(name))
    for name, spec in here.items():
        known = state.nodes.get(name)
        if known is not None and known.lost:
            loop.take_fact(f.NodeBack(name))
        await admit(loop, spec)


def _added(state: State, now_ms: int, *, spec: NodeSpec, fleets: Fleets) -> list[e.Event] | Refusal:
    """Add a node. A node of a fleet joins with its end time, so that no longer job is placed on it."""
    events = add_node(state, spec, now_ms)
    until_ms = fleets.end_ms(spec.name, now_ms)
    if isinstance(events, Refusal) or until_ms is None or spec.name in state.nodes:
        return events
    return [*events, e.NodeEndSet(now_ms, spec.name, until_ms)]


def expect_fleet(state: State, fleet: RemoteBackend, lookup: Lookup) -> None:
    """Pass the nodes and tasks of the state to the backend. Agents will report what became of these tasks; reports
    about other tasks are not believed."""
    tasks: dict[str, list[TaskKey]] = {name: [] for name in state.nodes}
    maybe: dict[str, list[TaskKey]] = {name: [] for name in state.nodes}
    for gang in state.holders.values():
        for task, seat in enumerate(gang.seats):
            key = TaskKey(gang.id, gang.attempt, task)
            is_owed = gang.state is GangState.STARTING and not gang.started >> task & 1
            if not is_owed and not gang.ended >> task & 1:
                tasks[seat.node].append(key)
            else:
                maybe[seat.node].append(key)
        if gang.state is GangState.STARTING and gang.attempt > 1:
            for name, key in _earlier_tasks(gang, lookup):
                maybe.setdefault(name, []).append(key)
    for name, node in state.nodes.items():
        fleet.expect(node.spec, node.lost, tasks[name], maybe[name])


def _earlier_tasks(gang: Gang, lookup: Lookup) -> Iterator[tuple[str, TaskKey]]:
    """Tasks of earlier attempts, which may still be stopping while a repaired gang starts again (see `fence`)."""
    for row in lookup.attempts(gang.job):
        if row.gang == gang.id and gang.attempt - EARLIER_ATTEMPTS <= row.attempt < gang.attempt:
            for task, seat in enumerate(row.seats[: len(row.seats) - row.spares]):
                yield seat.node, TaskKey(row.gang, row.attempt, task)


def was_given(lookup: Lookup, node: str, key: TaskKey) -> bool:
    """Whether this or an earlier server ordered this task on this node, according to the history of attempts."""
    for row in lookup.attempts(job_of(key.gang)):
        if (row.gang, row.attempt) == (key.gang, key.attempt):
            return key.task < len(row.seats) - row.spares and row.seats[key.task].node == node
    return False


def user_of(lookup: Lookup, key: TaskKey) -> str:
    """The user of a task; empty if the job is unknown."""
    row = lookup.job(job_of(key.gang))
    return "" if row is None else row.user


async def admit(loop: Loop, spec: NodeSpec) -> Refusal | None:
    """Add a node that has joined, or update one that has changed."""
    known = loop.known.state.nodes.get(spec.name)
    if known is not None and known.spec == spec:
        return None
    answer = await loop.change(SYSTEM, partial(_added, spec=spec, fleets=loop.known.fleets))
    if isinstance(answer, Refusal):
        log.warning("node_not_updated", node=spec.name, why=str(answer))
        return answer
    return None


def report_missing(loop: Loop, backend: Backend) -> None:
    """Report tasks as lost that should run but are unknown to the backend; no other part would report them."""
    there = set(backend.known())
    for gang in list(loop.known.state.holders.values()):
        if gang.state is GangState.STARTING:
            continue  # it will be launched
        for task, seat in enumerate(gang.seats):
            key = TaskKey(gang.id, gang.attempt, task)
            if key not in there and not gang.ended >> task & 1:
                log.warning("task_missing", gang=gang.id, attempt=gang.attempt, task=task)
                fact = f.TasksDown(gang.id, gang.attempt, 1 << task, 0, FailureClass.NODE_LOST, seat.node)
                loop.take_fact(fact)
