"""Tasks on many machines: the seam of the server on one side, reports and questions of agents on the other.

Nothing here waits for a machine or speaks to one: agents ask, and are answered with what is wanted. Called from the
server's thread and from those of whoever passes on what agents say; one lock keeps them apart, and nobody is told
anything while it is held. Who has a lease, and whose is over, is decided elsewhere (`LeaseKeeper`). Knows tasks and
nodes, not gangs; nothing of how agents are reached.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from corral.backends.base import (
    LogPart,
    NodePhase,
    NodeReport,
    Report,
    StaleEpoch,
    TaskKey,
    TaskOrder,
    Tell,
)
from corral.backends.fleet.ability import why_not_as, why_nowhere
from corral.backends.fleet.border import (
    BadReport,
    Checked,
    Given,
    checked_ask,
    checked_delivery,
    checked_report,
)
from corral.backends.fleet.counts import FleetCounts
from corral.backends.fleet.fence import Fence
from corral.backends.fleet.leases import Standing
from corral.backends.fleet.logs import KeptLogs, LogDesk, waited
from corral.backends.fleet.member import Member, Seen, never_began, not_there
from corral.backends.fleet.messages import (
    AgentAnswer,
    AgentReport,
    DesiredAnswer,
    DesiredAsk,
    EndpointAnswer,
    LogDelivery,
    LogReceipt,
)
from corral.backends.fleet.settings import FleetSettings
from corral.backends.local.logs import STREAMS
from corral.core.cluster.topology import NodeSpec
from corral.core.work import Work

_log = logging.getLogger(__name__)
_ALARM_MS = 60_000  # between two lines in the log about what one node gets wrong


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class LeaseKeeper(Protocol):
    """Who extends leases and says when they are over, told how this server sees a node. It asks `standings` for all of
    them, and tells `give_up` whose lease is over. Must not wait: it is called with the lock."""

    def admit(self, node: str, standing: Standing) -> None: ...

    def drop(self, node: str) -> None: ...


class FleetBackend:
    """``data``: the server's data directory. ``wall_ms``: the clock in which the server states deadlines. ``keeper``
    is set by whoever keeps the leases."""

    def __init__(
        self,
        data: Path,
        settings: FleetSettings | None = None,
        monotonic_ms: Callable[[], int] = _monotonic_ms,
        wall_ms: Callable[[], int] = _wall_ms,
    ) -> None:
        self.settings = settings or FleetSettings()
        self.wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self.keeper: LeaseKeeper = _NoKeeper()
        self.endpoint = EndpointAnswer(0)  # where agents speak to this server
        self._folder = data / "fleet"
        self._logs = KeptLogs(self._folder / "logs")
        self._members: dict[str, Member] = {}
        self._given = Given()
        #: Whether an earlier server gave a node this task: asked in reader threads, for logs that come late.
        self.was_given: Callable[[str, TaskKey], bool] = _never_given
        self._alarm_ms: dict[str, int] = {}
        self._unheard: set[str] = set()
        self._held: list[TaskOrder] = []
        self._doomed: set[TaskKey] = set()
        self._desk = LogDesk(self.settings.log_wait_ms)
        self.kept_log, self.log_wait_s = self._logs.read, self.settings.log_wait_ms / 1000
        self._epoch = 0
        self._tell: Tell = _tell_nobody
        self._lock = threading.RLock()
        self.counts = FleetCounts()

    # --- the seam of the server ---------------------------------------------------------------------------------------

    def expect(
        self, node: NodeSpec, is_gone: bool, tasks: Sequence[TaskKey] = (), maybe: Sequence[TaskKey] = ()
    ) -> None:
        """Before `open`: what an earlier server knew of a node. It has a whole lease to speak up. ``maybe``: tasks that
        the earlier server may have ordered there."""
        member = self._members[node.name] = Member(node.name, node, is_gone)
        for key in tasks:
            member.seen[key] = Seen()
            self._given.give(key, node.name)
        for key in maybe:
            self._given.give(key, node.name)
        if not is_gone:
            self._unheard.add(node.name)

    def nodes(self) -> Sequence[NodeSpec]:
        return [member.spec for member in self._members.values() if member.spec is not None]

    def open(self, tell: Tell, epoch: int) -> None:
        Fence(self._folder / "epoch").pass_through(epoch)
        self._tell, self._epoch = tell, epoch

    def launch(self, orders: Sequence[TaskOrder]) -> None:
        for order in orders:
            if order.epoch < self._epoch:
                raise StaleEpoch(order.epoch, self._epoch)
        with self._lock:
            told = [report for order in orders for report in self._launch(order)]
        self._tell_all(told)

    def _launch(self, order: TaskOrder) -> Sequence[Report]:
        """After a start of the server, a further attempt waits until every node has told what it still runs: the server
        would begin it too early if it did not know of an older one that is being ended."""
        self._given.give(order.key, order.node)
        member = self._members.get(order.node)
        if member is not None:
            member.end_stray(order.key)
        if member is None or member.is_gone:
            return [not_there(order, self.wall_ms())]
        if order.key in member.seen:
            return member.told_again(order.key)
        if self._unheard and order.key.attempt > 1:
            self._held.append(order)
            return []
        member.want(order.key).order = order
        member.wake()
        return []

    def warn(self, key: TaskKey, deadline_ms: int, why: str) -> None:
        with self._lock:
            member = self._live(key)
            if member is not None:
                wanted = member.want(key)
                is_earlier = wanted.deadline_ms is None or deadline_ms < wanted.deadline_ms
                wanted.deadline_ms, wanted.why = (deadline_ms if is_earlier else wanted.deadline_ms), why
                member.wake()
                return
            told = self._never_began(key)
        self._tell_all(told)

    def kill(self, key: TaskKey) -> None:
        with self._lock:
            member = self._live(key)
            if member is not None:
                member.want(key).kill = True
                member.wake()
                return
            told = self._never_began(key)
        self._tell_all(told)

    def _never_began(self, key: TaskKey) -> list[Report]:
        """It is to leave or to end, and its order was held back, or let go for the sake of an older attempt: nobody
        else would say that it is over. Where its node has not told everything yet, it may be there after all."""
        member = self._members.get(self._given.live.get(key, ""))
        if member is None or member.is_gone or key in member.seen or key in member.wanted:
            return []
        if not member.is_heard:
            self._doomed.add(key)
            return []
        self._held = [order for order in self._held if order.key != key]
        self._given.let_go(key)
        return [never_began(key, member.name, self.wall_ms())]

    def known(self) -> Sequence[TaskKey]:
        with self._lock:
            found = {order.key: None for order in self._held}
            for member in self._members.values():
                found.update(dict.fromkeys(member.seen))
                found.update({key: None for key, wanted in member.wanted.items() if not wanted.forget})
            return list(found)

    def forget(self, key: TaskKey) -> None:
        with self._lock:
            member = self._members.get(self._given.live.get(key, ""))
            if member is None:
                self._given.let_go(key)
            elif key in member.seen and member.seen[key].down is not None:
                self._given.let_go(key)
                del member.seen[key]
                member.want(key).forget = True
                member.wake()

    def read_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None:
        """As ``ask_log``, and wait for it."""
        asked = self.ask_log(key, stream, offset, limit)
        return waited(asked, self.log_wait_s) or self.kept_log(key, stream, offset, limit)

    def ask_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> Future[LogPart | None] | None:
        """Ask the agent for a part of a log. None: all of it is here, or there is nobody to ask. Whoever asks for the
        same while it is under way waits for the same answer; if none comes in time, there is still what is here."""
        if stream not in STREAMS or self._logs.is_whole(key, stream):
            return None
        with self._lock:
            member = self._members.get(self._given.ever(key) or "")
            return self._desk.ask(member, (key, stream, offset, limit), self._monotonic_ms())

    def cannot_run(self, work: Work) -> str:
        """What no machine can that has told what it lacks."""
        with self._lock:
            return why_nowhere(work, [each for each in self._members.values() if each.is_heard])

    def cannot_run_as(self, account: str) -> str:
        with self._lock:
            return why_not_as(account, [each for each in self._members.values() if each.is_heard])

    def lacks(self, node: str) -> Mapping[str, str]:
        with self._lock:
            return self._members[node].lacks if node in self._members else {}

    def close(self) -> None:
        """Whoever waits is let go; tasks go on."""
        self.let_go()
        with self._lock:
            self._desk.close()
            self._members, self._unheard, self._held = {}, set(), []
            self.keeper = _NoKeeper()

    # --- the agents' side ---------------------------------------------------------------------------------------------

    def report(self, said: AgentReport) -> AgentAnswer:
        """What an agent tells. Its identity was checked. Raises `StaleEpoch` when the agent has spoken to a newer
        server, and `BadReport` when what it says cannot be so."""
        with self._lock:
            checked = self._let_in(said)
            said = checked.said
            if said.epoch > self._epoch:
                raise StaleEpoch(self._epoch, said.epoch)
            self.counts.reports += 1
            member = self._members.get(said.node) or self._welcome(said.node)
            told: list[Report] = []
            wants_full, refused = not member.is_heard, ""
            if not member.is_news(said):
                self.counts.late_reports += 1
            elif member.is_heard and said.epoch < self._epoch:
                return self._refused(member, said)
            else:
                refused = self._refused_orders(member, said)
                told, wants_full = self._take(member, checked)
            answer = self._answer(member, wants_full, refused)
        self._tell_all(told)
        return answer

    def _welcome(self, node: str) -> Member:
        """A node that nobody has heard of before."""
        member = self._members[node] = Member(node, None, False)
        self.keeper.admit(node, member.standing)
        return member

    def _answer(self, member: Member, wants_full: bool, refused: str) -> AgentAnswer:
        return AgentAnswer(
            epoch=self._epoch, term=member.term, version=member.known, session=member.session,
            is_gone=member.is_gone, is_leaving=member.is_leaving, wants_full=wants_full,
            complaint=member.fault or member.complaint, refused=refused,
        )  # fmt: skip

    def _refused(self, member: Member, said: AgentReport) -> AgentAnswer:
        """An agent never goes back behind an epoch that it has heard of; this one is another, or has lost its memory.
        It hears of the present one, and says everything in that."""
        self.counts.old_reports += 1
        why = f"node {said.node} speaks of epoch {said.epoch}, which is over; it had heard of {self._epoch}"
        return self._answer(member, True, why)

    def _refused_orders(self, member: Member, said: AgentReport) -> str:
        """What the agent has refused since it last told; for the record."""
        count = member.refused_since(said)
        self.counts.refused_orders += count
        return f"node {said.node} has refused {count} orders that came too late" if count else ""

    def _let_in(self, said: AgentReport) -> Checked:
        """What may be believed of a report. Raises `BadReport` where that is nothing."""
        member = self._members.get(said.node)
        gpus = 0 if member is None or member.spec is None else len(member.spec.gpus)
        with self._refusing(said.node):
            checked = checked_report(said, self._given, gpus, self.wall_ms())
        self.counts.bad_items += checked.dropped
        if checked.fault:
            self._alarm(said.node, f"the description of node {said.node} is not taken: {checked.fault}")
        elif checked.dropped:
            self._alarm(said.node, f"{checked.dropped} items in a report of node {said.node} were cut or left out")
        return checked

    @contextmanager
    def _refusing(self, node: str) -> Iterator[None]:
        """What is refused as a whole is counted, and written to the log now and then."""
        try:
            yield
        except BadReport as wrong:
            self.counts.bad_reports += 1
            self._alarm(node, str(wrong))
            raise

    def _alarm(self, node: str, what: str) -> None:
        now_ms = self._monotonic_ms()
        if now_ms - self._alarm_ms.get(node, -_ALARM_MS) >= _ALARM_MS:
            self._alarm_ms[node] = now_ms
            _log.warning("bad_report: %s", what)

    def _take(self, member: Member, checked: Checked) -> tuple[list[Report], bool]:
        said = checked.said
        if member.is_gone:
            if not member.may_return(said, self._epoch):
                self.counts.late_reports += 1
                member.note(said)
                return [], True
            member.is_gone = False
            self.keeper.admit(member.name, member.standing)
            told: list[Report] = [NodeReport(member.name, NodePhase.BACK)]
        else:
            told = []
        if said.is_full or checked.fault:
            member.fault = checked.fault
        told += member.describe(said, self._monotonic_ms())
        told += member.hear_of_end(said, self.wall_ms())
        news, wants_full = member.observe(said, self._epoch, self.wall_ms())
        if checked.strays:
            self.counts.stray_tasks += len(checked.strays)
            wants_full = member.send_away(checked.strays) or wants_full
        if member.is_heard:
            news += self._hear(member.name)
        return told + news, wants_full

    def _hear(self, node: str) -> list[Report]:
        """A node has told everything, or was given up. The last of them lets go what waited for it."""
        self._unheard.discard(node)
        told = [each for key in self._doomed.copy() for each in self._end_doomed(key)]
        if self._unheard or not self._held:
            return told
        held, self._held = self._held, []
        alive = {(key.gang, key.attempt) for each in self._members.values() for key, seen in each.seen.items()
                 if seen.down is None}  # fmt: skip
        return told + [
            report
            for order in held
            # an older attempt is being ended: when it is, the server orders this one again
            if not any(gang == order.key.gang and attempt < order.key.attempt for gang, attempt in alive)
            for report in self._launch(order)
        ]

    def _end_doomed(self, key: TaskKey) -> list[Report]:
        """A task that was to end before its node had told whether it has it."""
        member = self._members.get(self._given.live.get(key, ""))
        if member is not None and not member.is_heard and not member.is_gone:
            return []
        self._doomed.discard(key)
        live = self._live(key)
        if live is None:
            return self._never_began(key)
        live.want(key).kill = True
        live.wake()
        return []

    def desired(self, ask: DesiredAsk) -> DesiredAnswer | None:
        """What is new for an agent; None: nothing at present."""
        with self._lock:
            with self._refusing(ask.node):
                ask = checked_ask(ask)
            member = self._members.get(ask.node)
            if member is None:
                return None
            is_current = ask.epoch == self._epoch and ask.term == member.term and ask.version <= member.version
            base = ask.version if is_current else 0
            if is_current:
                member.has(ask.version)
            if member.is_gone:
                return None
            tasks = member.desired_after(base, self.wall_ms())
            asks = tuple(member.log_asks.values())
            if not tasks and not asks and is_current:
                return None
            member.log_asks.clear()
            return DesiredAnswer(
                epoch=self._epoch, term=member.term, base=base, version=member.version, tasks=tasks, logs=asks
            )

    def when_desired(self, node: str, wake: Callable[[], None]) -> None:
        """Call this when there may be something new for the node. Who waited before is woken, and asks again."""
        with self._lock:
            member = self._members.get(node)
            if member is not None:
                member.wake()
                member.wake = wake

    def let_go(self) -> None:
        """The server stops: whoever waits is answered."""
        with self._lock:
            for member in self._members.values():
                member.wake()

    def take_logs(self, delivery: LogDelivery) -> LogReceipt:
        """May take its time: it writes files."""
        with self._lock, self._refusing(delivery.node):
            delivery = checked_delivery(delivery)
            for reply in delivery.replies:
                self._desk.answer(delivery.node, reply)
            owners = {chunk.key: self._given.ever(chunk.key) for chunk in delivery.chunks}
        own = {
            key
            for key, owner in owners.items()
            if owner == delivery.node or (owner is None and self.was_given(delivery.node, key))
        }
        return LogReceipt(
            tuple(
                self._logs.keep(chunk) if chunk.key in own else chunk.offset + len(chunk.data)
                for chunk in delivery.chunks
            )
        )

    # --- time ---------------------------------------------------------------------------------------------------------

    def standings(self) -> dict[str, Standing]:
        """How this server sees every node."""
        with self._lock:
            return {name: member.standing for name, member in self._members.items()}

    def give_up(self, node: str, term: int) -> None:
        """The lease that it had in this term is over: what ran there is lost."""
        told: list[Report] = []
        with self._lock:
            member = self._members.get(node)
            if member is not None and not member.is_gone and member.term == term:
                _log.warning("node %s is given up: its lease is over", node)
                told.append(NodeReport(node, NodePhase.GONE))
                told += member.lose_all(self.wall_ms())
                told += self._hear(node)
                self.keeper.admit(node, member.standing)
        self._tell_all(told)

    def prune_logs(self) -> None:
        """May take its time."""
        self._logs.prune()

    def remove(self, node: str) -> None:
        """It is no part of the fleet any more."""
        with self._lock:
            member = self._members.pop(node, None)
            self.keeper.drop(node)
            self._given.remove(node)
            if member is not None:
                member.wake()

    def is_heard(self, node: str) -> bool:
        """Whether its agent has told everything to this server."""
        with self._lock:
            return node in self._members and self._members[node].is_heard

    def is_leaving(self, node: str) -> bool:
        """Whether its agent says that the machine will be taken away."""
        return node in self._members and self._members[node].is_leaving

    def complain(self, node: str, why: str) -> None:
        """Why the node cannot be used as it is; its agent shows it. Empty: it can."""
        if (member := self._members.get(node)) is not None:
            member.complaint = why

    # --- within -------------------------------------------------------------------------------------------------------

    def _live(self, key: TaskKey) -> Member | None:
        """The node of a task that is ordered or up."""
        member = self._members.get(self._given.live.get(key, ""))
        if member is None or member.is_gone:
            return None
        seen, wanted = member.seen.get(key), member.wanted.get(key)
        is_over = (seen is None and wanted is None) or (seen is not None and seen.down is not None)
        return None if is_over or (wanted is not None and wanted.forget) else member

    def _tell_all(self, told: Sequence[Report]) -> None:
        for report in told:
            self._tell(report)


def _never_given(_node: str, _key: TaskKey) -> bool:
    return False


def _tell_nobody(_: Report) -> None:
    """Before `open`."""


class _NoKeeper:
    """Nobody keeps leases yet, or any more."""

    def admit(self, node: str, standing: Standing) -> None:
        del node, standing

    def drop(self, node: str) -> None:
        del node
