"""How the server comes to know what it knows: from the newest image and the records after it, or from nothing.

Knows the journal and what a first start needs. Runs before anything is served.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import structlog

from corral.backends.base import Backend, TaskKey
from corral.backends.fleet.backend import FleetBackend
from corral.core import events as e
from corral.core import facts as f
from corral.core.cluster.topology import NodeSpec
from corral.core.fleets.fleets import Fleets
from corral.core.intake.commands import add_node
from corral.core.intake.refusal import Refusal
from corral.core.laws import violations
from corral.core.model import FailureClass, Gang, GangState, QueueSpec, Settings
from corral.core.people.accounts import AccountEvent, Role, RoleGranted, TokenIssued, UserSet
from corral.core.state import State
from corral.server.loop import Loop
from corral.server.saved import IMAGE_FORMAT, Known
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
from corral.store.projection import job_of
from corral.wire.codec import FORMAT, Unreadable, decode, kind_of

log = structlog.get_logger(__name__)

EARLIER_ATTEMPTS = 4  # of a gang that is being repaired, some of which may still be being ended
NUMBERS_AHEAD = 10_000
LEFT_OUT_MAX = 8  # records that cannot be applied
_CANNOT_BE = "does not follow from what is before it and was not applied."
_WHAT_TO_DO = "Use the version of Corral that wrote it, or restore a backup (corral db restore)."
FOUNDER = "founder"  # the actor of a first start


def load(journal: RecordSource) -> Known:
    """All that the journal says."""
    return load_with_place(journal)[0]


def load_with_place(journal: RecordSource) -> tuple[Known, int]:
    """All that the journal says, and the number of the record after which it says that. Raises `JournalUnusable`, with
    what to do, where the journal cannot be read whole."""
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
    """A record that cannot be applied to what the records before it say."""

    def __init__(self, record: Record) -> None:
        super().__init__(f"record {record.seq}")
        self.seq, self.kind = record.seq, kind_of(record.body)


def _folded(journal: RecordSource, left_out: Sequence[int]) -> tuple[Known, int]:
    """From the newest image that can be used. Without the records that are left out, what remains must obey the laws:
    then it is as if they had been refused when they were made."""
    known, after = _from_image(journal)
    epoch = 0
    for record in _records(journal, after):
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


def _from_image(journal: RecordSource) -> tuple[Known, int]:
    """What the newest image says that can be used, and its record; nothing, if there is none: the records say the same.
    Images are few, so all of them are tried before all records are read."""
    image, unusable = journal.newest_image(), tuple[int, ...]()
    while image is not None:
        if image.format == IMAGE_FORMAT:
            try:
                known = Known.unpack(image.body)
                known.unusable = unusable
                return known, image.seq
            except Exception as wrong:
                log.error("image_unusable", seq=image.seq, error=str(wrong)[:300])
        unusable += (image.seq,)
        image = journal.newest_image(image.seq)
    return Known.nothing(Settings()), 0


def _records(journal: RecordSource, after: int) -> Iterator[Record]:
    """All above a number, from archives where they are not here any more, and none missing."""
    here = journal.read(after, 1)
    if not here or here[0].seq > after + 1:
        try:
            for record in journal.archived(after):
                yield _next(record, after)
                after = record.seq
        except JournalBroken as wrong:
            raise JournalUnusable(
                f"no image of the state can be used, and an archive with records from {after + 1} on cannot be read: "
                f"{wrong}. Put the archive back where it was, or restore a backup (corral db restore)."
            ) from None
    for record in all_records(journal, after):
        yield _next(record, after)
        after = record.seq


def _next(record: Record, after: int) -> Record:
    if record.seq != after + 1:
        raise JournalUnusable(
            f"no image of the state can be used, and the records {after + 1} to {record.seq - 1} are neither in the "
            "journal nor in an archive that it knows. Put the images or the archive back, or restore a backup "
            "(corral db restore)."
        )
    return record


def skip_numbers(state: State) -> None:
    """A journal that was restored or copied has lost count of the jobs that came after the backup: nodes may still have
    their tasks, and folders their logs. New jobs get numbers that none of them can have had."""
    state.next_job = (state.next_job // NUMBERS_AHEAD + 2) * NUMBERS_AHEAD


def is_restored(journal: Journal) -> bool:
    """Whether nothing was written since it was restored or copied."""
    last = journal.read(journal.head.seq - 1, 1) if journal.head.seq else []
    return bool(last) and journal.epoch - last[0].epoch >= EPOCHS_AHEAD


def retold(journal: Journal, known: Known) -> tuple[bytes, list[bytes]] | None:
    """The same for somebody else who is to know it: an image, and the events after it.

    Equivalent to packing what was loaded; for speed it is taken as it lies in the journal. None: it does not lie there
    in the present form.
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
    """What is loaded stays: to look for garbage in it again and again while it grows takes longer than loading it."""
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
    """What a new journal begins with. ``account``: of the machine, that the administrator's jobs run as."""
    return [
        e.Founded(now_ms, settings),
        UserSet(now_ms, administrator, account),
        RoleGranted(now_ms, administrator, Role.ADMINISTRATOR),
        token,
        *(e.QueueSet(now_ms, queue) for queue in queues),
    ]


def set_logs_aside(data: Path, now_ms: int) -> None:
    """Logs of a journal that is not here any more: its jobs had the numbers that those to come will have."""
    for logs in (data / "tasks" / "logs", data / "fleet" / "logs"):
        if logs.is_dir() and any(logs.iterdir()):
            aside = logs.with_name(f"logs.before-{now_ms}")
            logs.rename(aside)
            log.warning("logs_set_aside", of="a journal that is not here any more", now=str(aside))


async def bring_nodes(loop: Loop, nodes: Sequence[NodeSpec]) -> None:
    """Let the state know the machines that there are, as they are now, and no others."""
    here = {spec.name: spec for spec in nodes}
    state = loop.known.state
    for name in set(state.nodes) - set(here):
        loop.tell(f.NodeGone(name))
    for name, spec in here.items():
        known = state.nodes.get(name)
        if known is not None and known.lost:
            loop.tell(f.NodeBack(name))
        await admit(loop, spec)


def _added(state: State, now_ms: int, *, spec: NodeSpec, fleets: Fleets) -> list[e.Event] | Refusal:
    """A machine that is lent joins with its end: nothing is placed on it that could not be done by then."""
    events = add_node(state, spec, now_ms)
    until_ms = fleets.end_ms(spec.name, now_ms)
    if isinstance(events, Refusal) or until_ms is None or spec.name in state.nodes:
        return events
    return [*events, e.NodeEndSet(now_ms, spec.name, until_ms)]


def expect_fleet(state: State, fleet: FleetBackend, lookup: Lookup) -> None:
    """What an earlier server knew of the machines. What has become of it since, their agents will tell: of these tasks,
    and of no others."""
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
    """A gang that was repaired goes on while its earlier attempts are still being ended."""
    for row in lookup.attempts(gang.job):
        if row.gang == gang.id and gang.attempt - EARLIER_ATTEMPTS <= row.attempt < gang.attempt:
            for task, seat in enumerate(row.seats[: len(row.seats) - row.spares]):
                yield seat.node, TaskKey(row.gang, row.attempt, task)


def was_given(lookup: Lookup, node: str, key: TaskKey) -> bool:
    """Whether a server, now or earlier, ordered this task on this node: the record of attempts says so."""
    for row in lookup.attempts(job_of(key.gang)):
        if (row.gang, row.attempt) == (key.gang, key.attempt):
            return key.task < len(row.seats) - row.spares and row.seats[key.task].node == node
    return False


async def admit(loop: Loop, spec: NodeSpec) -> Refusal | None:
    """Let the state know a machine that has joined, or has changed."""
    known = loop.known.state.nodes.get(spec.name)
    if known is not None and known.spec == spec:
        return None
    answer = await loop.change(FOUNDER, partial(_added, spec=spec, fleets=loop.known.fleets))
    if isinstance(answer, Refusal):
        log.warning("node_not_updated", node=spec.name, why=str(answer))
        return answer
    return None


def miss_tasks(loop: Loop, backend: Backend) -> None:
    """Tasks that should run and of which the backend has nothing are gone, and nobody else would ever say so."""
    there = set(backend.known())
    for gang in list(loop.known.state.holders.values()):
        if gang.state is GangState.STARTING:
            continue  # it is owed, and will be launched
        for task, seat in enumerate(gang.seats):
            key = TaskKey(gang.id, gang.attempt, task)
            if key not in there and not gang.ended >> task & 1:
                log.warning("task_missing", gang=gang.id, attempt=gang.attempt, task=task)
                fact = f.TasksDown(gang.id, gang.attempt, 1 << task, 0, FailureClass.NODE_LOST, seat.node)
                loop.tell(fact)
