"""The parts of the server put together, and their life: begin, go on, end.

Knows in which order things must begin and end. Knows nothing of HTTP; that is served beside it. What it is given
(journal, backend) is already open for it and is closed by it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from corral.backends.base import Backend, DetailsReport, HealthReport, NodeReport, PaceReport, Phase, Report, TaskReport
from corral.backends.fleet.backend import FleetBackend
from corral.core import events as e
from corral.core.cluster.topology import NodeSpec
from corral.core.intake.commands import cancel
from corral.core.intake.refusal import Refusal
from corral.core.people import commands as people
from corral.core.people import identity
from corral.core.state import State
from corral.server import garbage
from corral.server.carrying.carrying import Carrying
from corral.server.clock import Clock
from corral.server.dispatch import Dispatch
from corral.server.ending import ServerStopped
from corral.server.gateway.attached import Attached
from corral.server.gateway.gateway import AgentGateway
from corral.server.loop import SCHEDULER, AnyEvent, Loop
from corral.server.planning.planner import Planner, PlannerLost, ThoughtFailed
from corral.server.saved import IMAGE_FORMAT, Known
from corral.server.service import Service
from corral.server.start import (
    admit,
    bring_nodes,
    expect_fleet,
    is_restored,
    load,
    miss_tasks,
    retold,
    skip_numbers,
    was_given,
)
from corral.server.vault.attesting import Attester
from corral.server.vault.first_token import FirstToken
from corral.server.vault.store import SecretStore
from corral.server.watch.disk import DiskWatch
from corral.server.watch.history import EndHistory
from corral.server.watch.past import recalled
from corral.server.watch.verdicts import FleetWatch
from corral.store.attest import signer_of
from corral.store.journal import Head, Journal, JournalFailed, JournalUnusable, StoredImage
from corral.store.lookup import Lookup
from corral.wire.config import PolicyChoice
from corral.wire.keeping import AttestRules
from corral.wire.topology import Places

log = structlog.get_logger(__name__)

#: An image is taken after so many records: a restart folds no more than about twice as many.
RECORDS_PER_IMAGE = 20_000
RECORDS_WORTH_AN_IMAGE = 2_000  # fewer are folded again at the next start sooner than an image is made at this stop
ADMIT_S = 5.0
IMAGE_S = 30.0
JUDGE_S = 10.0
SUSPENDED_S = 1.0
EXPIRED_S = 60.0
SYSTEM = "system"  # acts by itself


class Running:
    """A server without its interface."""

    def __init__(
        self,
        known: Known,
        journal: Journal,
        lookup: Lookup,
        backend: Backend,
        secrets: SecretStore,
        policy: PolicyChoice = PolicyChoice(),  # noqa: B008 - frozen
        urls: tuple[str, ...] = (),
        gateway: AgentGateway | None = None,
    ) -> None:
        self._journal, self._backend = journal, backend
        self._planner = Planner(policy)
        self._dispatch = Dispatch(
            known.state, backend, journal.epoch,
            lambda queue, name: secrets.reveal(known.accounts, queue, name),
        )  # fmt: skip
        clock = Clock(known.state.now_ms)
        self.loop = Loop(known, journal, self._planner, clock, self._dispatch.carry_out)
        self.loop.reload = lambda: load(journal)
        self.loop.patience_s = policy.timeout_ms / 1000
        self.loop.watchers.append(self._let_go)
        self.service = Service(self.loop, lookup, backend, secrets)
        if self.service.fleet is not None:
            self._dispatch.judge_ms = self.service.fleet.settings.loss_known_ms
        self._reports: deque[Report] = deque()
        self._secrets = secrets
        self.attest = AttestRules()
        self.first_token: FirstToken | None = None
        self.disk: DiskWatch | None = None
        self.places = Places()
        self.watch = FleetWatch(EndHistory(known.state.holders.values()))
        self._urls, self._gateway = urls, gateway  # where agents find this server, and what they speak to
        self._joined: dict[str, NodeSpec] = {}
        self._has_joined = asyncio.Event()
        self._attached: Attached | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._image_seq = 0  # of the newest image
        self.quarantined_reports = 0  # that could not be taken, and changed nothing

    async def begin(self) -> None:
        """From here on everything that is owed is carried out, and everything that happens is known."""
        thread = asyncio.get_running_loop()
        told = retold(self._journal, self.loop.known)
        is_new_line = is_restored(self._journal)
        if is_new_line:
            skip_numbers(self.loop.known.state)
            log.warning("numbers_skipped", next_job=self.loop.known.state.next_job)
        if told is not None:
            self._image_seq = self._journal.head.seq - len(told[1])
        if is_new_line or self.loop.known.left_out:
            told = None  # what lies in the journal is not all that is known
        await self._planner.begin(*(told or (self.loop.known.pack(),)))
        fleet = self.service.fleet
        if fleet is not None:
            await self._recall()
        if fleet is None:
            self._dispatch.to_wall = self.loop.clock.to_wall
            await bring_nodes(self.loop, [self._placed(spec, is_here=True) for spec in self._backend.nodes()])
        else:
            fleet.wall_ms = self.service.now_ms
            fleet.was_given = partial(was_given, self.service.lookup)
            expect_fleet(self.service.state, fleet, self.service.lookup)

        def tell(report: Report) -> None:
            self._reports.append(report)
            if len(self._reports) == 1:
                with suppress(RuntimeError):  # the server has ended meanwhile; tasks are told again to the next one
                    thread.call_soon_threadsafe(self._take_reports)

        self._dispatch.tell = tell
        self._backend.open(tell, self._journal.epoch)
        self._take_reports()
        if fleet is not None and self._gateway is not None:
            self._attached = Attached(self.service, fleet, self._gateway)
        if fleet is None:
            miss_tasks(self.loop, self._backend)
        self.loop.review_accounts()
        self.loop.resume()
        garbage.set_survivors_aside()
        begun = (
            self.loop.run(), self.loop.timers.run(), self._take_images(), self._end_suspended(),
            self._drop_expired_tokens(), _look_for_garbage(),
        )  # fmt: skip
        self._tasks = [asyncio.create_task(each) for each in begun]
        if self.disk is not None:
            self._tasks.append(asyncio.create_task(self.disk.run()))
        await self._protect_what_is_kept()
        if fleet is not None:
            self.carrying = Carrying(self.service, fleet, self._urls)
            self.loop.watchers.append(self.carrying.notice)
            more = (self._admit(fleet), self._judge(), self.carrying.run())
            self._tasks += [asyncio.create_task(each) for each in more]
        for task in self._tasks:
            task.add_done_callback(self._notice_end)
        self.service.is_ready = True

    async def _protect_what_is_kept(self) -> None:
        """Secrets are sealed with the newest key, the first token is replaced in time, and heads of the journal are
        attested where that is asked for."""
        if sealed := await asyncio.to_thread(self._secrets.seal_again, self.loop.known.accounts):
            log.info("secrets_sealed", count=sealed)
        if self.first_token is not None:
            self._tasks.append(asyncio.create_task(self.first_token.run(self.service)))
        if self.attest.is_on:
            signer = signer_of(Path(self.attest.key_file))
            attester = Attester(self.attest, signer, self._durable_head)
            log.info("attesting", public_key=signer.public)
            self._tasks.append(asyncio.create_task(attester.run(self.service.now_ms)))

    def _durable_head(self) -> Head:
        last = self._journal.read(self.loop.durable_seq - 1, 1)[0]
        return Head(last.seq, last.hash)

    def _take_reports(self) -> None:
        while self._reports:
            report, head = self._reports.popleft(), self._journal.head
            try:
                self._take_report(report)
            except Exception as fault:
                if self._journal.head != head:  # it is written, and perhaps not known: only a new start brings order
                    self.loop.stop(fault)
                    return
                self.quarantined_reports += 1
                log.error("report_quarantined", report=str(report)[:1_000], error=str(fault), exc_info=fault)

    def _take_report(self, report: Report) -> None:
        if isinstance(report, DetailsReport):
            self.service.details[report.node] = report.details
        if isinstance(report, HealthReport):
            report = self.watch.heard(report)
        if isinstance(report, PaceReport):
            self.watch.paces.take(report)
        fact = self._dispatch.fact(report)
        if isinstance(report, NodeReport) and report.spec is not None and report.spec.name == report.node:
            self._joined[report.node] = report.spec
            self._has_joined.set()
        elif fact is not None:
            self.loop.tell(fact)
        elif isinstance(report, TaskReport) and report.phase is Phase.UP:
            log.info("old_task_ended", gang=report.key.gang, attempt=report.key.attempt)

    def _notice_end(self, task: asyncio.Task[None]) -> None:
        """A server of which a part has failed would only seem to work."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            self.loop.stop(fault)

    async def _recall(self) -> None:
        """What the record says of the last while, so that a new server does not begin with a clean sheet."""
        since_ms = self.service.now_ms() - self.watch.settings.lemon_window_ms
        for event in await asyncio.to_thread(recalled, self._journal, since_ms):
            self.watch.take(event)
        self.loop.watchers.append(self.watch.take)
        self._tell_judged()

    async def _judge(self) -> None:
        while True:
            await asyncio.sleep(JUDGE_S)
            self._tell_judged()

    def _tell_judged(self) -> None:
        for report in self.watch.judge(self.service.now_ms()):
            if (fact := self._dispatch.fact(report)) is not None:
                self.loop.tell(fact)

    async def _admit(self, fleet: FleetBackend) -> None:
        """Machines that joined or changed. What is refused now, because tasks run there, is tried again."""
        while True:
            self._has_joined.clear()
            for node, spec in list(self._joined.items()):
                refusal = await admit(self.loop, self._placed(spec))
                fleet.complain(node, "" if refusal is None else str(refusal))
                if refusal is None and self._joined.get(node) == spec:
                    del self._joined[node]
            await asyncio.to_thread(fleet.prune_logs)
            with suppress(TimeoutError):
                async with asyncio.timeout(ADMIT_S):
                    await self._has_joined.wait()

    def _placed(self, spec: NodeSpec, *, is_here: bool = False) -> NodeSpec:
        is_lent = spec.name in self.service.fleets.by_node
        return self.places.placed(spec, self.loop.known.state.settings.levels, is_here=is_here, is_lent=is_lent)

    def _let_go(self, event: AnyEvent) -> None:
        """An attempt is over for good: the backend need not remember its tasks."""
        if isinstance(event, e.GangStopped):
            self._dispatch.forget(event.gang, event.attempt)

    async def _drop_expired_tokens(self) -> None:
        while True:
            if people.drop_expired_tokens(self.service.accounts, self.service.now_ms()):
                await self.service.change_accounts(SYSTEM, people.drop_expired_tokens)
            await asyncio.sleep(EXPIRED_S)

    async def _take_images(self) -> None:
        """At once where many records are owed one: a server that is killed again and again may not live for long."""
        while True:
            if self._journal.head.seq - self._image_seq >= RECORDS_PER_IMAGE:
                await self.save_image()
            await asyncio.sleep(1)

    async def _end_suspended(self) -> None:
        """Cancel what was suspended for too long."""
        while True:
            for job in identity.due(self.service.state, self.service.now_ms()):
                await self.loop.change(SCHEDULER, partial(_cancelled, job=job))
            await asyncio.sleep(SUSPENDED_S)

    async def save_image(self) -> None:
        """Write down what is known, so that the next start is quick. Failing to do so harms nothing else."""
        seq = self._journal.head.seq
        try:
            async with asyncio.timeout(IMAGE_S):  # a planner that is stuck keeps nobody from stopping
                body = await self._planner.image()
            await self.loop.durable()
            await asyncio.to_thread(self._journal.save_image, StoredImage(seq, IMAGE_FORMAT, body))
            self._image_seq = seq
        except (PlannerLost, ThoughtFailed, ServerStopped, JournalUnusable, JournalFailed, OSError) as error:
            log.warning("no_image", error=str(error))

    async def close(self) -> None:
        """Stop deciding; tasks go on. What was handed to the journal is written."""
        self.service.is_ready = False
        garbage.stop_setting_aside()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        owed = self._journal.head.seq - self._image_seq
        if self.loop.failure is None and owed > (RECORDS_WORTH_AN_IMAGE if self._image_seq else 0):
            await self.save_image()
        await self._planner.close()
        if self._attached is not None:
            await self._attached.say_farewell()
        await asyncio.to_thread(self._backend.close)
        await asyncio.to_thread(self._journal.close)


def _cancelled(state: State, now_ms: int, *, job: str) -> list[e.Event] | Refusal:
    return cancel(state, job, now_ms)


async def _look_for_garbage() -> None:
    while True:
        await asyncio.sleep(garbage.WHOLE_LOOK_S)
        garbage.look_at_everything()
