"""The backend for tasks on many machines: called by the server on one side and by the agents of nodes on the other.

It never waits for a machine and never connects to one: agents send reports and fetch orders. It is called from the
server's thread and from the threads that pass on messages of agents. One lock guards its state, and no callback is
called while the lock is held. Leases are extended and expire elsewhere (`LeaseKeeper`). Knows tasks and nodes, not
gangs, and not how agents are reached.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from corral.core.cluster.topology import NodeSpec
from corral.core.work import Work
from corral.remote.border import (
    BadReport,
    CheckedReport,
    Given,
    checked_ask,
    checked_delivery,
    checked_report,
)
from corral.remote.capabilities import why_not_as, why_nowhere
from corral.remote.counters import RemoteCounters
from corral.remote.leases import LeaseStatus
from corral.remote.logs import KeptLogs, LogRequests, waited
from corral.remote.messages import (
    AgentAnswer,
    AgentReport,
    DesiredAnswer,
    DesiredAsk,
    EndpointAnswer,
    LogDelivery,
    LogReceipt,
)
from corral.remote.node_session import NodeSession, ObservedTaskState, lost_before_start, stopped_before_start
from corral.remote.settings import RemoteSettings
from corral.remote.streams import StreamRequests
from corral.runtime.base import (
    LogPart,
    NodePhase,
    NodeReport,
    Report,
    StaleEpoch,
    TaskKey,
    TaskOrder,
    Tell,
)
from corral.runtime.fence import Fence, earlier_attempts, refuse_stale
from corral.runtime.local.logs import STREAMS

_log = logging.getLogger(__name__)
_ALARM_MS = 60_000  # at most one log line about bad messages of one node in this time


STREAM_WAIT_MS = 15_000


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class LeaseKeeper(Protocol):
    """Extends leases and decides when they have expired. It asks `lease_statuses` for all nodes, and calls `give_up`
    when a lease has expired. Its methods must not wait: they are called with the lock held."""

    def admit(self, node: str, status: LeaseStatus) -> None: ...

    def drop(self, node: str) -> None: ...


class RemoteBackend:
    """``data``: the server's data directory. ``wall_ms``: the clock of the server's deadlines. The component that keeps
    the leases sets ``keeper``."""

    def __init__(
        self,
        data: Path,
        settings: RemoteSettings | None = None,
        monotonic_ms: Callable[[], int] = _monotonic_ms,
        wall_ms: Callable[[], int] = _wall_ms,
    ) -> None:
        self.settings = settings or RemoteSettings()
        self.wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self.keeper: LeaseKeeper = _NoKeeper()
        self.endpoint = EndpointAnswer(0)  # the address of this server for agents
        self._folder = data / "fleet"
        self._logs = KeptLogs(self._folder / "logs")
        self._members: dict[str, NodeSession] = {}
        self._given = Given()
        #: Whether an earlier server gave a node this task. Called in reader threads, for logs that come late.
        self.was_given: Callable[[str, TaskKey], bool] = _never_given
        #: The user of a task, called there too: when logs take too much space, those of the user with most go first.
        self.user_of: Callable[[TaskKey], str] = _no_user
        self._alarm_ms: dict[str, int] = {}
        self._unheard: set[str] = set()  # nodes that have not sent this server a full report yet
        self._held: list[TaskOrder] = []  # orders that wait for those reports
        self._to_end: set[TaskKey] = set()  # to be ended once it is known whether their node has them
        self._log_requests = LogRequests(self.settings.log_wait_ms)
        self._stream_requests = StreamRequests(STREAM_WAIT_MS)
        self.kept_log, self.log_wait_s = self._logs.read, self.settings.log_wait_ms / 1000
        self._epoch = 0
        self._tell: Tell = _drop
        self._lock = threading.RLock()
        self.counts = RemoteCounters()

    # --- called by the server -----------------------------------------------------------------------------------------

    def expect(
        self, node: NodeSpec, is_gone: bool, tasks: Sequence[TaskKey] = (), maybe: Sequence[TaskKey] = ()
    ) -> None:
        """Before `open`: add a node that an earlier server knew. It has one lease to report. ``maybe``: tasks that the
        earlier server may have ordered there."""
        member = self._members[node.name] = NodeSession(node.name, node, is_gone)
        for key in tasks:
            member.seen[key] = ObservedTaskState()
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
        refuse_stale(orders, self._epoch)
        with self._lock:
            reports = [report for order in orders for report in self._launch(order)]
        self._pass_on(reports)

    def _launch(self, order: TaskOrder) -> Sequence[Report]:
        """After a restart of the server, attempts after the first wait until every node has reported (see `fence`)."""
        self._given.give(order.key, order.node)
        member = self._members.get(order.node)
        if member is not None:
            member.drop_stray(order.key)
        if member is None or member.is_gone:
            return [lost_before_start(order, self.wall_ms())]
        if order.key in member.seen:
            return member.repeat_reports(order.key)
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
            reports = self._end_unstarted(key)
        self._pass_on(reports)

    def stop_at(self, key: TaskKey, step: int) -> None:
        with self._lock:
            member = self._live(key)
            if member is not None:
                member.want(key).stop_at = step
                member.wake()

    def kill(self, key: TaskKey) -> None:
        with self._lock:
            member = self._live(key)
            if member is not None:
                member.want(key).kill = True
                member.wake()
                return
            reports = self._end_unstarted(key)
        self._pass_on(reports)

    def _end_unstarted(self, key: TaskKey) -> list[Report]:
        """Report the end of a task that is to stop or be killed but was never ordered: its order was held back, or
        dropped in favour of an older attempt. If its node has not sent a full report yet, it may still have the task.
        """
        member = self._members.get(self._given.live.get(key, ""))
        if member is None or member.is_gone or key in member.seen or key in member.wanted:
            return []
        if not member.is_heard:
            self._to_end.add(key)
            return []
        self._held = [order for order in self._held if order.key != key]
        self._given.let_go(key)
        return [stopped_before_start(key, member.name, self.wall_ms())]

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
        """Like ``ask_log``, but waits for the answer."""
        asked = self.ask_log(key, stream, offset, limit)
        return waited(asked, self.log_wait_s) or self.kept_log(key, stream, offset, limit)

    def ask_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> Future[LogPart | None] | None:
        """Request a part of a log from the agent. None: all of it is here, or no agent can be asked. Equal requests
        share one answer. If none comes in time, the caller can still read what is here."""
        if stream not in STREAMS or self._logs.is_whole(key, stream):
            return None
        with self._lock:
            member = self._members.get(self._given.ever(key) or "")
            return self._log_requests.ask(member, (key, stream, offset, limit), self._monotonic_ms())

    def ask_stream(self, key: TaskKey) -> Future[Any] | None:
        """Ask for a connection to a task. None: no agent can be asked."""
        with self._lock:
            member = self._members.get(self._given.ever(key) or "")
            return self._stream_requests.ask(member, key, self._monotonic_ms())

    def redeem(self, node: str, ticket: str) -> Future[Any] | None:
        """The agent of this node has connected. None: no request waits for it."""
        with self._lock:
            return self._stream_requests.redeem(node, ticket)

    def cannot_run(self, work: Work) -> str:
        """Why no machine can run this work, by what their agents report. Empty: one can."""
        with self._lock:
            return why_nowhere(work, [each for each in self._members.values() if each.is_heard])

    def cannot_run_as(self, account: str) -> str:
        with self._lock:
            return why_not_as(account, [each for each in self._members.values() if each.is_heard])

    def lacks(self, node: str) -> Mapping[str, str]:
        with self._lock:
            return self._members[node].lacks if node in self._members else {}

    def separation(self, node: str) -> Mapping[str, str]:
        with self._lock:
            return self._members[node].separation if node in self._members else {}

    def close(self) -> None:
        """Release all that wait; tasks keep running."""
        self.let_go()
        with self._lock:
            self._log_requests.close()
            self._members = {}
            self._unheard = set()
            self._held = []
            self.keeper = _NoKeeper()

    # --- called for agents --------------------------------------------------------------------------------------------

    def report(self, message: AgentReport) -> AgentAnswer:
        """Take a report of an agent whose identity was checked. Raises `StaleEpoch` when the agent has spoken to a
        newer server, and `BadReport` when the report is invalid."""
        with self._lock:
            checked = self._checked(message)
            message = checked.report
            if message.epoch > self._epoch:
                raise StaleEpoch(self._epoch, message.epoch)
            self.counts.reports += 1
            member = self._members.get(message.node) or self._add_node(message.node)
            reports: list[Report] = []
            wants_full, refused = not member.is_heard, ""
            if not member.is_news(message):
                self.counts.late_reports += 1
            elif member.is_heard and message.epoch < self._epoch:
                return self._refused(member, message)
            else:
                refused = self._refused_orders(member, message)
                reports, wants_full = self._take(member, checked)
            answer = self._answer(member, wants_full, refused)
        self._pass_on(reports)
        return answer

    def _add_node(self, node: str) -> NodeSession:
        """Add a node that is new to this server."""
        member = self._members[node] = NodeSession(node, None, False)
        self.keeper.admit(node, member.status)
        return member

    def _answer(self, member: NodeSession, wants_full: bool, refused: str) -> AgentAnswer:
        return AgentAnswer(
            epoch=self._epoch,
            term=member.term,
            version=member.known,
            session=member.session,
            is_gone=member.is_gone,
            is_leaving=member.is_leaving,
            wants_full=wants_full,
            complaint=member.fault or member.complaint,
            refused=refused,
        )

    def _refused(self, member: NodeSession, message: AgentReport) -> AgentAnswer:
        """Refuse a report of an old epoch. An agent never goes back to an earlier epoch, so this is another agent, or
        one that has lost its files. The answer names the present epoch and asks for a full report."""
        self.counts.old_reports += 1
        why = f"node {message.node} reports for epoch {message.epoch}, but has already reported for epoch {self._epoch}"
        return self._answer(member, True, why)

    def _refused_orders(self, member: NodeSession, message: AgentReport) -> str:
        """What to record about orders that the agent has refused since its last report."""
        count = member.refused_since(message)
        self.counts.refused_orders += count
        return f"node {message.node} refused {count} late orders" if count else ""

    def _checked(self, message: AgentReport) -> CheckedReport:
        """The valid part of a report. Raises `BadReport` if nothing of it is valid."""
        member = self._members.get(message.node)
        gpus = 0 if member is None or member.spec is None else len(member.spec.gpus)
        with self._refusing(message.node):
            checked = checked_report(message, self._given, gpus, self.wall_ms())
        self.counts.bad_items += checked.dropped
        if checked.fault:
            self._alarm(message.node, f"refused the description of node {message.node}: {checked.fault}")
        elif checked.dropped:
            self._alarm(
                message.node, f"{checked.dropped} items in a report of node {message.node} were corrected or dropped"
            )
        return checked

    @contextmanager
    def _refusing(self, node: str) -> Iterator[None]:
        """Count messages that are refused as a whole, and log some of them."""
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

    def _take(self, member: NodeSession, checked: CheckedReport) -> tuple[list[Report], bool]:
        message = checked.report
        if member.is_gone:
            if not member.may_return(message, self._epoch):
                self.counts.late_reports += 1
                member.note(message)
                return [], True
            member.is_gone = False
            self.keeper.admit(member.name, member.status)
            reports: list[Report] = [NodeReport(member.name, NodePhase.BACK)]
        else:
            reports = []
        if message.is_full or checked.fault:
            member.fault = checked.fault
        reports += member.describe(message, self._monotonic_ms())
        reports += member.note_leaving(message, self.wall_ms())
        news, wants_full = member.observe(message, self._epoch, self.wall_ms())
        if checked.strays:
            self.counts.stray_tasks += len(checked.strays)
            wants_full = member.end_strays(checked.strays) or wants_full
        if member.is_heard:
            news += self._on_heard(member.name)
        return reports + news, wants_full

    def _on_heard(self, node: str) -> list[Report]:
        """A node has sent a full report, or was declared lost. After the last one, launch the orders that waited."""
        self._unheard.discard(node)
        reports = [each for key in self._to_end.copy() for each in self._end_late(key)]
        if self._unheard or not self._held:
            return reports
        held, self._held = self._held, []
        live: dict[str, list[TaskKey]] = {}
        for each in self._members.values():
            for key, seen in each.seen.items():
                if seen.down is None:
                    live.setdefault(key.gang, []).append(key)
        return reports + [
            report
            for order in held
            # Otherwise it is dropped: the server orders it again when those have ended.
            if not earlier_attempts(order.key, live.get(order.key.gang, ()))
            for report in self._launch(order)
        ]

    def _end_late(self, key: TaskKey) -> list[Report]:
        """End a task that was to stop before its node had reported whether it has it."""
        member = self._members.get(self._given.live.get(key, ""))
        if member is not None and not member.is_heard and not member.is_gone:
            return []
        self._to_end.discard(key)
        live = self._live(key)
        if live is None:
            return self._end_unstarted(key)
        live.want(key).kill = True
        live.wake()
        return []

    def desired(self, ask: DesiredAsk) -> DesiredAnswer | None:
        """What changed for an agent. None: nothing yet."""
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
            streams = tuple(member.stream_asks.values())
            if not tasks and not asks and not streams and is_current:
                return None
            member.log_asks.clear()
            member.stream_asks.clear()
            return DesiredAnswer(
                epoch=self._epoch,
                term=member.term,
                base=base,
                version=member.version,
                tasks=tasks,
                logs=asks,
                streams=streams,
            )

    def when_desired(self, node: str, wake: Callable[[], None]) -> None:
        """Call ``wake`` when there may be something new for the node. An earlier caller is woken, and asks again."""
        with self._lock:
            member = self._members.get(node)
            if member is not None:
                member.wake()
                member.wake = wake

    def let_go(self) -> None:
        """The server stops: answer all that wait."""
        with self._lock:
            for member in self._members.values():
                member.wake()

    def take_logs(self, delivery: LogDelivery) -> LogReceipt:
        """Store logs. May take long: it writes files."""
        with self._lock, self._refusing(delivery.node):
            delivery = checked_delivery(delivery)
            for reply in delivery.replies:
                self._log_requests.answer(delivery.node, reply)
            owners = {chunk.key: self._given.ever(chunk.key) for chunk in delivery.chunks}
        own = {
            key
            for key, owner in owners.items()
            if owner == delivery.node or (owner is None and self.was_given(delivery.node, key))
        }
        return LogReceipt(
            tuple(
                self._logs.keep(chunk, self.user_of) if chunk.key in own else chunk.offset + len(chunk.data)
                for chunk in delivery.chunks
            )
        )

    # --- time ---------------------------------------------------------------------------------------------------------

    def lease_statuses(self) -> dict[str, LeaseStatus]:
        """The status of every node, as this server sees it."""
        with self._lock:
            return {name: member.status for name, member in self._members.items()}

    def give_up(self, node: str, term: int) -> None:
        """The lease that the node had in this term has expired: its tasks are lost."""
        reports: list[Report] = []
        with self._lock:
            member = self._members.get(node)
            if member is not None and not member.is_gone and member.term == term:
                _log.warning("node %s is lost: its lease has expired", node)
                reports.append(NodeReport(node, NodePhase.GONE))
                reports += member.lose_all(self.wall_ms())
                reports += self._on_heard(node)
                self.keeper.admit(node, member.status)
        self._pass_on(reports)

    def prune_logs(self) -> None:
        """Delete old logs. May take long."""
        self._logs.prune()

    def remove(self, node: str) -> None:
        """Remove a node from the cluster."""
        with self._lock:
            member = self._members.pop(node, None)
            self.keeper.drop(node)
            self._given.remove(node)
            if member is not None:
                member.wake()

    def is_heard(self, node: str) -> bool:
        """Whether its agent has sent a full report to this server."""
        with self._lock:
            return node in self._members and self._members[node].is_heard

    def is_leaving(self, node: str) -> bool:
        """Whether its agent says that the machine will be taken away."""
        return node in self._members and self._members[node].is_leaving

    def complain(self, node: str, why: str) -> None:
        """Set why the node cannot be used; its agent logs it. Empty: it can be used."""
        if (member := self._members.get(node)) is not None:
            member.complaint = why

    # --- internal -----------------------------------------------------------------------------------------------------

    def _live(self, key: TaskKey) -> NodeSession | None:
        """The node of a task that is ordered or running."""
        member = self._members.get(self._given.live.get(key, ""))
        if member is None or member.is_gone:
            return None
        seen, wanted = member.seen.get(key), member.wanted.get(key)
        is_over = (seen is None and wanted is None) or (seen is not None and seen.down is not None)
        return None if is_over or (wanted is not None and wanted.forget) else member

    def _pass_on(self, reports: Sequence[Report]) -> None:
        for report in reports:
            self._tell(report)


def _no_user(_key: TaskKey) -> str:
    return ""


def _never_given(_node: str, _key: TaskKey) -> bool:
    return False


def _drop(_: Report) -> None:
    """Reports before `open` are dropped."""


class _NoKeeper:
    """Before leases are kept, and after."""

    def admit(self, node: str, status: LeaseStatus) -> None:
        del node, status

    def drop(self, node: str) -> None:
        del node
