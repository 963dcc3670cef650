"""The agent's main class: renews the lease of its node, reports the state of its tasks, and fetches orders.

It has four threads: one only renews the lease, one reports, one fetches orders, one transfers logs. None of them
trusts an answer. The agent ignores an answer of an older epoch or term than it knows, orders that leave out a version,
and any order after the lease has expired. Knows the runtime of this machine as a `Backend`, and the server as a
`ServerConnection`.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeGuard

from msgspec import structs

from corral.agent.log_transfer import LogTransfer
from corral.agent.observed import Observed
from corral.agent.server_connection import NoAnswer, Refused, ServerConnection
from corral.agent.task_reconciler import TaskReconciler
from corral.core.model import FailureClass
from corral.io.backoff import Backoff
from corral.remote.messages import (
    AgentAnswer,
    AgentReport,
    DesiredAnswer,
    DesiredAsk,
    LeaseAnswer,
    Renewal,
    StreamAsk,
)
from corral.runtime.base import (
    ActivityReport,
    Backend,
    Capabilities,
    PaceReport,
    Phase,
    Report,
    StaleEpoch,
    TaskReport,
)
from corral.runtime.fence import Fence
from corral.runtime.local.task import lease

_log = logging.getLogger(__name__)
_SETTLE_S = 0.003  # changes come in bursts: wait for the rest of one before reporting
_POLL_MS = 20_000
_STOP_TRIES = 50
_LEAVE_LOOK_S = 0.1
_SAME_S = 0.3  # a provider's signal reaches all processes of a machine within this time
_CALM_HEARTBEATS = 4  # without changes, one report is sent for this many renewals
_UNLEASED_S = 0.5  # between renewals while there is no lease


class Agent:
    """The supervisors of tasks watch ``lease_file``. ``session`` must be larger than that of any earlier agent."""

    def __init__(
        self,
        node: str,
        backend: Backend,
        server: ServerConnection,
        fence: Fence,
        lease_file: Path,
        session: int,
        boot_ms: Callable[[], int] = lease.now_ms,
        poll_ms: int = _POLL_MS,
    ) -> None:
        self.node = node
        self.backend = backend
        self.server = server
        self.fence = fence
        self.session = session
        self.observed = Observed()
        self.reconciler = TaskReconciler(backend, self.observed)
        self.log_transfer = LogTransfer(node, backend, server, self.observed, self.reconciler.on_log_delivered)
        self.term = -1  # of the server's last answer; -1 before the first one
        self.failed: Refused | None = None  # set when the server has refused this agent for good
        self._lease_file = str(lease_file)
        self._boot_ms = boot_ms
        self._poll_ms = poll_ms
        self._until_ms = lease.read(self._lease_file)
        self._seq = 0
        self._known = 0  # version of the observed state that the server has
        self._has = 0  # version of the desired state that is applied
        self._refused = 0
        self._is_full = True
        self._heartbeat_s = 0.5
        self._renewals, self._sent_ms = 0, 0  # number of renewals, and when the last one was sent
        self._is_lost = False
        self._complaint = ""
        self._last_ignored = (-1, -1)  # epoch and term of the last orders that were too old
        self._lacks: dict[str, str] = {}
        self._separation: dict[str, str] = {}
        self._leave_by_ms: int | None = None
        self.is_lent = False
        self.on_streams: Callable[[Sequence[StreamAsk]], None] = _drop_streams  # connections to tasks that are wanted
        self._leaving = threading.Event()
        self._is_leaving_known = False
        self._news = threading.Event()
        self._leased = threading.Event()
        self._over = threading.Event()
        self._lock = threading.RLock()  # guards what answers change; never held for long
        self._applying = threading.Lock()  # held while orders are applied
        self._threads: list[threading.Thread] = []

    # --- start and stop -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.backend.open(self._on_report, self.fence.epoch)
        for key in self.backend.known():
            self.observed.expect(key)
        self.server.when_granted(self._on_lease)
        works = (("lease", self._renew), ("report", self._report), ("ask", self._ask), ("logs", self.log_transfer.run))
        for name, what in works:
            thread = threading.Thread(target=what, name=f"agent-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the agent has stopped because the server refused it. False: the timeout passed first."""
        return self._over.wait(timeout_s)

    def expect_leave(self) -> None:
        """The machine is about to be taken away, and its owner may also end our tasks. Called by a signal handler."""
        self._leaving.set()

    def leave(self, within_ms: int) -> None:
        """Leave because the machine will be taken away: report that, so that the server preempts what runs here.

        Returns when nothing runs here any more and the server has all results, or when the time is over.
        """
        self._leave_by_ms = end = self._boot_ms() + within_ms
        while self._boot_ms() < end and not self._over.is_set():
            self._news.set()
            has_reported = self._is_leaving_known and self._known >= self.observed.version
            if has_reported and not self.observed.live() and not self.log_transfer.is_busy:
                return
            self._over.wait(_LEAVE_LOOK_S)

    def stop(self) -> None:
        """Tasks keep running until the lease expires; an agent that starts before then adopts them."""
        self._over.set()
        self._news.set()
        self._leased.set()
        self.log_transfer.stop()
        for _ in range(_STOP_TRIES):  # a thread that was about to send a request sends one more
            self.server.hang_up()
            for thread in self._threads:
                thread.join(0.1)
            if not any(thread.is_alive() for thread in self._threads):
                break
        self.server.hang_up()
        self.backend.close()

    def _on_report(self, report: Report) -> None:
        """Take a report of the backend, in the backend's thread."""
        report = self._attribute_end(report)
        self.observed.take(report)
        if isinstance(report, TaskReport) and report.phase is Phase.DOWN:
            self.log_transfer.send_log(report.key)
            self.reconciler.on_ended(report.key)
        if not isinstance(report, PaceReport | ActivityReport):  # they can wait for the next heartbeat
            self._news.set()

    def _attribute_end(self, report: Report) -> Report:
        """On a machine from a provider, attribute the death by a SIGTERM that this agent did not send to the provider.

        It is not a failure of the task. A provider that ends an allocation signals all processes at once, including
        this one.
        """
        if not self.is_lent or not _died_of_term(report) or self.reconciler.was_stopped_by_server(report.key):
            return report
        if not self._leaving.wait(_SAME_S):
            return report
        why = f"the provider is taking the machine back; {report.why}".rstrip("; ")
        return structs.replace(report, failure=FailureClass.NODE_LOST, why=why)

    # --- the lease ----------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        """Renew the lease with every heartbeat, and sooner after a renewal without an answer."""
        backoff = Backoff()
        while not self._over.is_set():
            asked_ms = self._boot_ms()
            try:
                self._on_lease(self.server.renew(self._next_renewal(asked_ms)))
            except NoAnswer as lost:
                _log.warning("lease not renewed: %s", lost)
                self.server.hang_up()  # otherwise a thread would keep waiting on the dead connection
                self._over.wait(min(backoff.failed(), self._heartbeat_s))
                continue
            except Refused as refused:
                self._on_refusal(refused)
                continue
            except Exception:  # this thread must not end: without renewals the node is lost
                _log.exception("lease renewal failed; retrying")
                self._over.wait(backoff.failed())
                continue
            backoff.succeeded()
            is_leased = self._until_ms > self._boot_ms()
            heartbeat_s = self._heartbeat_s if is_leased else min(self._heartbeat_s, _UNLEASED_S)
            self._over.wait(max(heartbeat_s - (self._boot_ms() - asked_ms) / 1000, 0))

    def _next_renewal(self, now_ms: int) -> Renewal:
        with self._lock:
            self._renewals += 1
            self._sent_ms = now_ms
            return Renewal(
                seq=self._renewals,
                epoch=self.fence.epoch,
                term=max(self.term, 0),
                session=self.session,
                left_ms=max(self._until_ms - now_ms, 0),
            )

    def _on_lease(self, answer: LeaseAnswer) -> None:
        """Extend the lease, counted from when the last renewal was sent.

        An answer to an earlier renewal is ignored: a server trusts what the last renewal says is left of the lease,
        so the lease must not turn out longer than that.
        """
        with self._lock:
            if answer.seq != self._renewals or not self._is_newest(answer.epoch, answer.term):
                return
            self._heartbeat_s = answer.heartbeat_ms / 1000
            if answer.is_gone:
                self._on_lost()
            elif answer.lease_ms > 0:
                self.server.answer_s = max(answer.lease_ms / 4000, 1.0)  # leaves time to resend a lost renewal
                self._prolong(self._sent_ms + answer.lease_ms)

    def _prolong(self, until_ms: int) -> None:
        """Extend the lease, never shorten it: an answer that took long grants less than one that did not."""
        if until_ms > self._until_ms:
            lease.write(self._lease_file, until_ms)
            self._until_ms = until_ms
        if self._is_lost:
            self._is_lost = False
            self._news.set()
        self._leased.set()

    def _on_lost(self) -> None:
        """The server has declared this node lost. The report thread ends the tasks, because that takes time."""
        self._leased.clear()
        if not self._is_lost:
            self._is_lost = self._is_full = True
            self._news.set()

    # --- reporting ----------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        backoff = Backoff()
        while not self._over.is_set():
            sent_ms = self._boot_ms()
            if self._is_lost:
                self._end_all()
            try:
                answer = self.server.report(self._next_report())
            except NoAnswer as lost:
                _log.warning("no answer to a report: %s", lost)
                self._over.wait(backoff.failed())
                continue
            except Refused as refused:
                self._on_refusal(refused)
                continue
            except Exception:  # this thread must not end: without reports the node is lost
                _log.exception("report loop failed; retrying")
                self._over.wait(backoff.failed())
                continue
            backoff.succeeded()
            self._on_answer(answer)
            self._news.wait(self._pause_s(sent_ms))
            if self._news.is_set():
                self._over.wait(_SETTLE_S)

    def _pause_s(self, sent_ms: int) -> float:
        """Nearly none while a full report is due; otherwise the time until the next heartbeat."""
        if self._is_full and self.term >= 0:
            return 0.02 if self._until_ms > self._boot_ms() or not self.observed.live() else 0.1
        return max(_CALM_HEARTBEATS * self._heartbeat_s - (self._boot_ms() - sent_ms) / 1000, 0)

    def _end_all(self) -> None:
        with self._applying:
            self.reconciler.end_all("the server has declared this node lost")

    def _next_report(self) -> AgentReport:
        self._news.clear()
        self._check_capabilities()
        with self._lock:
            self._seq += 1
            base, is_full = self._known, self._is_full
            version, tasks, health = self.observed.after(-1 if is_full else base)
            return AgentReport(
                node=self.node,
                session=self.session,
                seq=self._seq,
                epoch=self.fence.epoch,
                term=max(self.term, 0),
                base=base,
                version=version,
                is_full=is_full,
                tasks=tasks,
                health=health,
                details=self.observed.details_after(-1 if is_full else base),
                activity=self.observed.pop_activity(),
                spec=self.backend.nodes()[0] if is_full else None,
                refused=self._refused,
                lacks=self._lacks if is_full else {},
                separation=self._separation if is_full else {},
                leaves_in_ms=None if self._leave_by_ms is None else max(self._leave_by_ms - self._boot_ms(), 0),
            )

    def _check_capabilities(self) -> None:
        """Send a full report after a change of what this node can run: a container runtime may come and go."""
        if not isinstance(self.backend, Capabilities):
            return
        lacks, separation = dict(self.backend.lacks(self.node)), dict(self.backend.separation(self.node))
        if (lacks, separation) != (self._lacks, self._separation):
            self._lacks, self._separation = lacks, separation
            self._is_full = True

    def _on_answer(self, answer: AgentAnswer) -> None:
        with self._lock:
            if not self._is_newest(answer.epoch, answer.term):
                return
            self._known = answer.version
            self._is_full, self._is_leaving_known = answer.wants_full, answer.is_leaving
            if answer.session > self.session:  # the session counter on disk was lost
                self.session, self._is_full = answer.session + 1, True
            if answer.refused:
                _log.warning("the server recorded: %s", answer.refused)
            if answer.complaint != self._complaint:
                self._complaint = answer.complaint
                problem = f"cannot use this node: {answer.complaint}" if answer.complaint else "can use this node again"
                _log.warning("the server %s", problem)
            if answer.is_gone:
                self._on_lost()

    def _is_newest(self, epoch: int, term: int) -> bool:
        """Whether no newer server or term is known. A newer one does not know yet what this node runs."""
        if (epoch, term) < (self.fence.epoch, self.term):
            self._refused += 1
            _log.warning("ignoring a late answer of epoch %d, term %d", epoch, term)
            return False
        if (epoch, term) > (self.fence.epoch, self.term):
            self.fence.pass_through(epoch)
            self.term, self._has = term, 0
            self._is_full = True
            self._news.set()
        return True

    def _on_refusal(self, refused: Refused) -> None:
        """Retry if another server may answer; stop the agent if its credential or its node is not valid any more."""
        _log.error("the server refuses this agent: %s", refused)
        if refused.status in (401, 403, 404):
            self.failed = refused
            self._over.set()
            self._leased.set()
        else:
            self._over.wait(1.0)

    # --- orders -------------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        backoff = Backoff()
        while not self._over.is_set():
            if not self._leased.wait(1.0) or self._over.is_set():
                continue
            with self._lock:
                ask = DesiredAsk(
                    node=self.node, epoch=self.fence.epoch, term=self.term, version=self._has, wait_ms=self._poll_ms
                )
            try:
                answer = self.server.desired(ask)
            except NoAnswer:
                self._over.wait(backoff.failed())
                continue
            except Refused as refused:
                _log.warning("the server refused to send orders: %s", refused)
                self._over.wait(1.0)
                continue
            except Exception:
                _log.exception("fetching orders failed; retrying")
                self._over.wait(backoff.failed())
                continue
            backoff.succeeded()
            if answer is not None and not self._apply(answer):
                self._over.wait(0.05)

    def _apply(self, answer: DesiredAnswer) -> bool:
        """Apply orders. False: they were ignored.

        Orders of a new leader wait until it has this agent's report, but do not count as refused. Leases are renewed
        in the meantime, however long this takes.
        """
        with self._applying:
            with self._lock:
                theirs = (answer.epoch, answer.term)
                ours = (self.fence.epoch, self.term)
                if theirs > ours:
                    self._news.set()
                    return False
                is_old = theirs < ours or answer.base > self._has or self._is_lost
                if is_old or self._boot_ms() >= self._until_ms:
                    self._refused += 1 if answer.tasks else 0
                    self._news.set()  # the answer to a report brings the present epoch, term and version
                    self._log_ignored(theirs)
                    return False
                self.log_transfer.answer(answer.logs)
                self.on_streams(answer.streams)
                if answer.version <= self._has:
                    return True
                epoch = self.fence.epoch
            try:
                self.reconciler.apply(answer.tasks, epoch)
            except StaleEpoch as stale:
                self._refused += 1
                _log.warning("%s", stale)
                return False
            with self._lock:
                if (answer.epoch, answer.term) == (self.fence.epoch, self.term):
                    self._has = answer.version
                self._news.set()
        return True

    def _log_ignored(self, theirs: tuple[int, int]) -> None:
        """Log it once for each epoch and term: the agent asks again until both sides agree."""
        if theirs != self._last_ignored:
            self._last_ignored = theirs
            _log.info("ignoring orders of epoch %d, term %d: too old", *theirs)


def _died_of_term(report: Report) -> TypeGuard[TaskReport]:
    if not isinstance(report, TaskReport) or report.phase is not Phase.DOWN:
        return False
    return report.failure is None and report.exit_code == 128 + signal.SIGTERM


def urls_of(stated: Sequence[str]) -> tuple[str, ...]:
    """Addresses in the form in which they are stored."""
    return tuple(dict.fromkeys(url.rstrip("/") for url in stated))


def _drop_streams(_asks: Sequence[StreamAsk]) -> None:
    """No relay has been started."""
