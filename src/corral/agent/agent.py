"""The agent at work: keeps the lease of its tasks, reports what the node has, and asks what it shall have.

Four threads: one renews the lease and does nothing else, one reports, one asks, one carries logs. None of them trusts
an answer: one of an older epoch or term than was heard of, one that does not follow on what is known, and any order
while the lease is over, is left aside. Knows the backend of this machine by its seam, and the server by a `Line`.
"""

from __future__ import annotations

import logging
import random
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeGuard

from msgspec import structs

from corral.agent.line import Line, NoAnswer, Refused
from corral.agent.logs import LogCarrier
from corral.agent.observed import Observed
from corral.agent.pace import Pace
from corral.agent.work import Work
from corral.backends.base import Backend, KnowsBeforehand, PaceReport, Phase, Report, StaleEpoch, TaskReport
from corral.backends.fleet.fence import Fence
from corral.backends.fleet.messages import AgentAnswer, AgentReport, DesiredAnswer, DesiredAsk, LeaseAnswer, Renewal
from corral.backends.local.task import lease
from corral.core.model import FailureClass

_log = logging.getLogger(__name__)
_SETTLE_S = 0.003  # news come in bursts
_POLL_MS = 20_000
_STOP_TRIES = 50
_LEAVE_LOOK_S = 0.1
_SAME_S = 0.3  # within which an engine's signal reaches all processes of a machine
_CALM_HEARTBEATS = 4  # without news, one report goes with this many renewals
_UNLEASED_S = 0.5  # between renewals while there is no lease


class Agent:
    """``lease_file`` is what the supervisors of the backend watch. ``session`` must be larger than any before."""

    def __init__(
        self,
        node: str,
        backend: Backend,
        line: Line,
        fence: Fence,
        lease_file: Path,
        session: int,
        boot_ms: Callable[[], int] = lease.now_ms,
        poll_ms: int = _POLL_MS,
    ) -> None:
        self.node, self.backend, self.line, self.fence, self.session = node, backend, line, fence, session
        self.observed = Observed()
        self.work = Work(backend, self.observed)
        self.carrier = LogCarrier(node, backend, line, self.observed, self.work.let_go)
        self.term = -1  # of the server's last answer; before it, none
        self.failed: Refused | None = None  # the server does not want this agent
        self._lease_file, self._boot_ms, self._poll_ms = str(lease_file), boot_ms, poll_ms
        self._until_ms = lease.read(self._lease_file)
        self._seq, self._known, self._has, self._refused = 0, 0, 0, 0
        self._is_full = True
        self._heartbeat_s = 0.5
        self._renewals, self._sent_ms = 0, 0  # how many there were, and when the last was sent
        self._is_given_up = False
        self._complaint = ""
        self._left_aside = (-1, -1)  # whose orders were last found too old
        self._lacks: dict[str, str] = {}
        self._leave_by_ms: int | None = None
        self.is_lent = False
        self._leaving = threading.Event()
        self._is_leaving_known = False
        self._news, self._leased, self._over = threading.Event(), threading.Event(), threading.Event()
        self._lock = threading.RLock()  # of what answers change; nothing that takes long happens under it
        self._working = threading.Lock()  # while orders are carried out
        self._threads: list[threading.Thread] = []

    # --- its life -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.backend.open(self._hear, self.fence.epoch)
        for key in self.backend.known():
            self.observed.expect(key)
        self.line.when_granted(self._on_lease)
        works = (("lease", self._renew), ("report", self._report), ("ask", self._ask), ("logs", self.carrier.run))
        for name, what in works:
            thread = threading.Thread(target=what, name=f"agent-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until it has ended by itself: the server does not want it."""
        return self._over.wait(timeout_s)

    def expect_leave(self) -> None:
        """The machine is about to be taken away: whoever takes it may end our tasks, too. From a signal handler."""
        self._leaving.set()

    def leave(self, within_ms: int) -> None:
        """The machine will be taken away. The server is told so and has its work leave; returns when nothing runs here
        any more and the server knows how it ended, or when the time is over."""
        self._leave_by_ms = end = self._boot_ms() + within_ms
        while self._boot_ms() < end and not self._over.is_set():
            self._news.set()
            is_told = self._is_leaving_known and self._known >= self.observed.version
            if is_told and not self.observed.live() and not self.carrier.is_busy:
                return
            self._over.wait(_LEAVE_LOOK_S)

    def stop(self) -> None:
        """Tasks go on for as long as the lease lasts; an agent that begins meanwhile takes them up."""
        self._over.set()
        self._news.set()
        self._leased.set()
        self.carrier.stop()
        for _ in range(_STOP_TRIES):  # one that was just about to ask does so once more
            self.line.hang_up()
            for thread in self._threads:
                thread.join(0.1)
            if not any(thread.is_alive() for thread in self._threads):
                break
        self.line.hang_up()
        self.backend.close()

    def _hear(self, report: Report) -> None:
        """From the backend, in its thread."""
        report = self._by_whom(report)
        self.observed.take(report)
        if isinstance(report, TaskReport) and report.phase is Phase.DOWN:
            self.carrier.bring(report.key)
            self.work.ended(report.key)
        if not isinstance(report, PaceReport):  # that can wait for the next heartbeat
            self._news.set()

    def _by_whom(self, report: Report) -> Report:
        """A task that died of a SIGTERM which nobody here sent, on a machine that is lent, was ended by whoever takes
        the machine away: that is no failure of its own. An engine signals all processes at once, us among them."""
        if not self.is_lent or not _died_of_term(report) or self.work.was_asked(report.key):
            return report
        if not self._leaving.wait(_SAME_S):
            return report
        why = f"the machine is being taken away; {report.why}".rstrip("; ")
        return structs.replace(report, failure=FailureClass.NODE_LOST, why=why)

    # --- the lease ----------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        """With every heartbeat, and soon again when nobody answered."""
        pace = Pace(random.random)
        while not self._over.is_set():
            asked_ms = self._boot_ms()
            try:
                self._on_lease(self.line.renew(self._next_renewal(asked_ms)))
            except NoAnswer as lost:
                _log.warning("the lease was not renewed: %s", lost)
                self.line.hang_up()  # a thread that waits on a dead connection would wait for long
                self._over.wait(min(pace.failed(), self._heartbeat_s))
                continue
            except Refused as refused:
                self._on_refusal(refused)
                continue
            except Exception:  # an agent that falls silent costs the node
                _log.exception("renewing met a fault and goes on")
                self._over.wait(pace.failed())
                continue
            pace.succeeded()
            is_leased = self._until_ms > self._boot_ms()
            heartbeat_s = self._heartbeat_s if is_leased else min(self._heartbeat_s, _UNLEASED_S)
            self._over.wait(max(heartbeat_s - (self._boot_ms() - asked_ms) / 1000, 0))

    def _next_renewal(self, now_ms: int) -> Renewal:
        with self._lock:
            self._renewals += 1
            self._sent_ms = now_ms
            return Renewal(
                seq=self._renewals, epoch=self.fence.epoch, term=max(self.term, 0), session=self.session,
                left_ms=max(self._until_ms - now_ms, 0),
            )  # fmt: skip

    def _on_lease(self, answer: LeaseAnswer) -> None:
        """Counted from when the last renewal was sent. An answer to an earlier one does not count: whoever gets the
        last one believes what that says is left of the lease, and must not be wrong."""
        with self._lock:
            if answer.seq != self._renewals or not self._is_newest(answer.epoch, answer.term):
                return
            self._heartbeat_s = answer.heartbeat_ms / 1000
            if answer.is_gone:
                self._be_given_up()
            elif answer.lease_ms > 0:
                self.line.answer_s = max(answer.lease_ms / 4000, 1.0)  # lost ones are sent again well within the lease
                self._prolong(self._sent_ms + answer.lease_ms)

    def _prolong(self, until_ms: int) -> None:
        """Never shortened: an answer that was long under way grants less than one that was not."""
        if until_ms > self._until_ms:
            lease.write(self._lease_file, until_ms)
            self._until_ms = until_ms
        if self._is_given_up:
            self._is_given_up = False
            self._news.set()
        self._leased.set()

    def _be_given_up(self) -> None:
        """What runs here ends; that takes its time, and another thread does it."""
        self._leased.clear()
        if not self._is_given_up:
            self._is_given_up = self._is_full = True
            self._news.set()

    # --- reporting ----------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        pace = Pace(random.random)
        while not self._over.is_set():
            sent_ms = self._boot_ms()
            if self._is_given_up:
                self._end_all()
            try:
                answer = self.line.report(self._next_report())
            except NoAnswer as lost:
                _log.warning("no answer to a report: %s", lost)
                self._over.wait(pace.failed())
                continue
            except Refused as refused:
                self._on_refusal(refused)
                continue
            except Exception:  # an agent that falls silent costs the node
                _log.exception("reporting met a fault and goes on")
                self._over.wait(pace.failed())
                continue
            pace.succeeded()
            self._on_answer(answer)
            self._news.wait(self._pause_s(sent_ms))
            if self._news.is_set():
                self._over.wait(_SETTLE_S)

    def _pause_s(self, sent_ms: int) -> float:
        """Nothing, where everything is to be told; else until the next heartbeat is due."""
        if self._is_full and self.term >= 0:
            return 0.02 if self._until_ms > self._boot_ms() or not self.observed.live() else 0.1
        return max(_CALM_HEARTBEATS * self._heartbeat_s - (self._boot_ms() - sent_ms) / 1000, 0)

    def _end_all(self) -> None:
        with self._working:
            self.work.end_all("the server has given this node up")

    def _next_report(self) -> AgentReport:
        self._news.clear()
        self._look_what_lacks()
        with self._lock:
            self._seq += 1
            base, is_full = self._known, self._is_full
            version, tasks, health = self.observed.after(-1 if is_full else base)
            return AgentReport(
                node=self.node, session=self.session, seq=self._seq, epoch=self.fence.epoch, term=max(self.term, 0),
                base=base, version=version, is_full=is_full, tasks=tasks, health=health,
                details=self.observed.details_after(-1 if is_full else base),
                spec=self.backend.nodes()[0] if is_full else None, refused=self._refused,
                lacks=self._lacks if is_full else {},
                leaves_in_ms=None if self._leave_by_ms is None else max(self._leave_by_ms - self._boot_ms(), 0),
            )  # fmt: skip

    def _look_what_lacks(self) -> None:
        """A container engine may come and go: then everything is told again."""
        lacks = dict(self.backend.lacks(self.node)) if isinstance(self.backend, KnowsBeforehand) else {}
        if lacks != self._lacks:
            self._lacks, self._is_full = lacks, True

    def _on_answer(self, answer: AgentAnswer) -> None:
        with self._lock:
            if not self._is_newest(answer.epoch, answer.term):
                return
            self._known = answer.version
            self._is_full, self._is_leaving_known = answer.wants_full, answer.is_leaving
            if answer.session > self.session:  # our own count was lost
                self.session, self._is_full = answer.session + 1, True
            if answer.refused:
                _log.warning("the server has written down: %s", answer.refused)
            if answer.complaint != self._complaint:
                self._complaint = answer.complaint
                _log.warning("the server cannot use this node as it is: %s", answer.complaint or "now it can")
            if answer.is_gone:
                self._be_given_up()

    def _is_newest(self, epoch: int, term: int) -> bool:
        """Whether the speaker is the newest there is. A new one knows nothing of what we have."""
        if (epoch, term) < (self.fence.epoch, self.term):
            self._refused += 1
            _log.warning("an answer of epoch %d, term %d came late and is left aside", epoch, term)
            return False
        if (epoch, term) > (self.fence.epoch, self.term):
            self.fence.pass_through(epoch)
            self.term, self._has = term, 0
            self._is_full = True
            self._news.set()
        return True

    def _on_refusal(self, refused: Refused) -> None:
        """Not the newest server: another will answer. Not ours any more: there is nothing left to do here."""
        _log.error("the server refuses this agent: %s", refused)
        if refused.status in (401, 403, 404):
            self.failed = refused
            self._over.set()
            self._leased.set()
        else:
            self._over.wait(1.0)

    # --- asking -------------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        pace = Pace(random.random)
        while not self._over.is_set():
            if not self._leased.wait(1.0) or self._over.is_set():
                continue
            with self._lock:
                ask = DesiredAsk(
                    node=self.node, epoch=self.fence.epoch, term=self.term, version=self._has, wait_ms=self._poll_ms
                )
            try:
                answer = self.line.desired(ask)
            except NoAnswer:
                self._over.wait(pace.failed())
                continue
            except Refused as refused:
                _log.warning("the server does not say what it wants: %s", refused)
                self._over.wait(1.0)
                continue
            except Exception:
                _log.exception("asking met a fault and goes on")
                self._over.wait(pace.failed())
                continue
            pace.succeeded()
            if answer is not None and not self._obey(answer):
                self._over.wait(0.05)

    def _obey(self, answer: DesiredAnswer) -> bool:
        """Whether it was to be obeyed. That of a new leader is not, before it has heard from us; nor is it refused.
        Leases are renewed meanwhile, however long it takes."""
        with self._working:
            with self._lock:
                theirs, ours = (answer.epoch, answer.term), (self.fence.epoch, self.term)
                if theirs > ours:
                    self._news.set()
                    return False
                is_old = theirs < ours or answer.base > self._has or self._is_given_up
                if is_old or self._boot_ms() >= self._until_ms:
                    self._refused += 1 if answer.tasks else 0
                    self._news.set()  # a report tells us where we stand
                    self._leave_aside(theirs)
                    return False
                self.carrier.answer(answer.logs)
                if answer.version <= self._has:
                    return True
                epoch = self.fence.epoch
            try:
                self.work.carry_out(answer.tasks, epoch)
            except StaleEpoch as stale:
                self._refused += 1
                _log.warning("%s", stale)
                return False
            with self._lock:
                if (answer.epoch, answer.term) == (self.fence.epoch, self.term):
                    self._has = answer.version
                self._news.set()
        return True

    def _leave_aside(self, theirs: tuple[int, int]) -> None:
        """Said once for each who ordered: it is asked again until both sides know where they stand."""
        if theirs != self._left_aside:
            self._left_aside = theirs
            _log.info("orders of epoch %d, term %d are too old and are left aside", *theirs)


def _died_of_term(report: Report) -> TypeGuard[TaskReport]:
    if not isinstance(report, TaskReport) or report.phase is not Phase.DOWN:
        return False
    return report.failure is None and report.exit_code == 128 + signal.SIGTERM


def urls_of(stated: Sequence[str]) -> tuple[str, ...]:
    """Addresses as they are kept."""
    return tuple(dict.fromkeys(url.rstrip("/") for url in stated))
