"""The assembled server: how its parts start, run and stop.

Knows in which order parts must start and stop. Knows nothing about HTTP. The journal and the backend that it gets are
already open; it closes them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from corral.core import events as e
from corral.core.accounts import commands as account_commands
from corral.core.accounts import identity
from corral.core.cluster.topology import NodeSpec
from corral.core.effects import effects
from corral.core.intake.commands import cancel
from corral.core.intake.refusal import Refusal
from corral.core.state import State
from corral.remote.backend import RemoteBackend
from corral.runtime.base import (
    ActivityReport,
    Backend,
    DetailsReport,
    HealthReport,
    NodeReport,
    NodeSource,
    PaceReport,
    Phase,
    Report,
    TaskReport,
)
from corral.server import gc_tuning
from corral.server.activity.sampler import Sampler
from corral.server.batches.batch_link import BatchSetup
from corral.server.batches.child import BatchChild
from corral.server.batches.scaler import WorkerScaler
from corral.server.clock import Clock
from corral.server.dispatch import Dispatch
from corral.server.durability import Durability
from corral.server.gateway.attached import Attached
from corral.server.gateway.gateway import AgentGateway
from corral.server.journal_state import IMAGE_FORMAT, JournalState
from corral.server.loop import SYSTEM, Loop
from corral.server.node_health.disk import DiskWatch
from corral.server.node_health.end_history import EndHistory
from corral.server.node_health.past_ends import read_recent
from corral.server.node_health.status import NodeStatuses
from corral.server.planner.client import Planner, PlannerError, PlannerLost
from corral.server.planner.planning import Planning
from corral.server.provisioning.controller import ProvisioningController
from corral.server.recovery import (
    admit,
    bring_nodes,
    expect_fleet,
    is_restored,
    load,
    load_raw,
    report_missing,
    skip_numbers,
    user_of,
    was_given,
)
from corral.server.service import ServerService
from corral.server.shutdown import ServerStopped
from corral.server.timers import Timers
from corral.server.vault.attesting import Attester
from corral.server.vault.first_token import FirstToken
from corral.server.vault.secret_store import SecretStore
from corral.store.attest import signer_of
from corral.store.journal import Journal, JournalFailed, JournalHead, JournalUnusable, StoredImage
from corral.store.lookup import Lookup
from corral.wire.codec import AnyEvent
from corral.wire.config import PolicyChoice
from corral.wire.site.retention import AttestRules
from corral.wire.topology import NodePlaces

log = structlog.get_logger(__name__)

#: An image is saved after this many records; a restart folds at most about twice as many.
RECORDS_PER_IMAGE = 20_000
RECORDS_WORTH_AN_IMAGE = 2_000  # at a stop with fewer new records, folding them again is faster than saving an image
ADMIT_S = 5.0
IMAGE_S = 30.0
JUDGE_S = 10.0
SUSPENDED_S = 1.0
EXPIRED_S = 60.0


class Server:
    """A server without its API."""

    def __init__(
        self,
        known: JournalState,
        journal: Journal,
        lookup: Lookup,
        backend: Backend,
        secrets: SecretStore,
        policy: PolicyChoice = PolicyChoice(),  # noqa: B008 - frozen
        urls: tuple[str, ...] = (),
        gateway: AgentGateway | None = None,
    ) -> None:
        self._journal = journal
        self._backend = backend
        self._planner = Planner(policy)
        self._dispatch = Dispatch(
            known.state,
            backend,
            journal.epoch,
            lambda queue, name: secrets.reveal(known.accounts, queue, name),
        )
        clock = Clock(known.state.now_ms)
        self.durability = Durability(journal, self._dispatch.execute)
        self.durability.watchers.append(self._forget_tasks)
        self.loop = Loop(known, self.durability, clock, lambda: load(journal))
        self.planning = Planning(self.loop, self._planner, policy.timeout_ms / 1000)
        self.timers = Timers(self.loop)
        self.service = ServerService(self.loop, self.planning, lookup, backend, secrets)
        if self.service.fleet is not None:
            self._dispatch.judge_ms = self.service.fleet.settings.loss_known_ms
        self._reports: deque[Report] = deque()
        self._secrets = secrets
        self.attest = AttestRules()
        self.first_token: FirstToken | None = None
        self.disk: DiskWatch | None = None
        self.places = NodePlaces()
        self.batch_setup: BatchSetup | None = None
        self.batch_host, self.batch_ca = "127.0.0.1", ""  # where workers of batching queues find this server
        self._batch_child: BatchChild | None = None
        self.watch = NodeStatuses(EndHistory(known.state.holders.values()))
        self.service.slow_ranks = self.watch.slow_ranks
        self._urls, self._gateway = urls, gateway  # how agents find this server, and what they connect to
        self._joined: dict[str, NodeSpec] = {}
        self._has_joined = asyncio.Event()
        self._attached: Attached | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._image_seq = 0  # of the newest image
        self.quarantined_reports = 0  # reports that could not be applied and changed nothing

    async def begin(self) -> None:
        """Start. From here on effects are executed and reports are applied."""
        await self._begin_planner()
        fleet = self.service.fleet
        if fleet is None and isinstance(self._backend, NodeSource):
            self._dispatch.to_wall = self.loop.clock.to_wall
            for node in self.service.state.nodes.values():
                self._backend.expect(node.spec, node.lost)
        elif fleet is None:
            self._dispatch.to_wall = self.loop.clock.to_wall
            await bring_nodes(self.loop, [self._placed(spec, is_here=True) for spec in self._backend.nodes()])
        else:
            await self._load_history()
            fleet.wall_ms = self.service.now_ms
            fleet.was_given = partial(was_given, self.service.lookup)
            fleet.user_of = partial(user_of, self.service.lookup)
            expect_fleet(self.service.state, fleet, self.service.lookup)
        self._open_backend()
        if fleet is None:
            report_missing(self.loop, self._backend)
        elif self._gateway is not None:
            self._attached = Attached(self.service, fleet, self._gateway)
        self.loop.review_accounts()
        for effect in effects(self.service.state):  # what the last server did not execute, or perhaps not
            self._dispatch.execute(effect)
        self.planning.want()
        gc_tuning.set_survivors_aside()
        await self._begin_tasks(fleet)
        self.service.is_ready = True

    def _open_backend(self) -> None:
        """Reports come from threads of the backend; they are applied in the thread of the loop."""
        thread = asyncio.get_running_loop()

        def tell(report: Report) -> None:
            self._reports.append(report)
            if len(self._reports) == 1:
                with suppress(RuntimeError):  # the server has ended; the next one gets these reports again
                    thread.call_soon_threadsafe(self._take_reports)

        self._dispatch.tell = tell
        self._backend.open(tell, self._journal.epoch)
        self._take_reports()

    async def _begin_tasks(self, fleet: RemoteBackend | None) -> None:
        """Start everything that runs beside requests until the server stops."""
        service = self.service
        sampler = Sampler(lambda: service.state, service.activities, service.series, service.now_ms)
        self.durability.watchers.append(sampler.take)
        self._tasks = [
            asyncio.create_task(each)
            for each in (
                self.planning.run(),
                self.timers.run(),
                self._take_images(),
                self._end_suspended(),
                self._drop_expired_tokens(),
                sampler.run(),
                _look_for_garbage(),
                *((self.disk.run(),) if self.disk is not None else ()),
            )
        ]
        if self.batch_setup is not None:
            self._batch_child = BatchChild(self.batch_setup)
            ca = self.batch_ca if self.batch_setup.tls_certificate else None
            scaler = WorkerScaler(self.service, self._batch_child, self.batch_host, ca)
            self.service.batches = (self._batch_child, scaler)
            self._tasks.append(asyncio.create_task(scaler.run()))
        await self._start_vault()
        if fleet is not None:
            self.provisioning = ProvisioningController(self.service, fleet, self._urls)
            self.durability.watchers.append(self.provisioning.notice)
            more = (self._admit(fleet), self._judge(), self.provisioning.run())
            self._tasks += [asyncio.create_task(each) for each in more]
        elif isinstance(self._backend, NodeSource):
            self._tasks.append(asyncio.create_task(self._admit(self._backend)))
        for task in self._tasks:
            task.add_done_callback(self._notice_end)

    async def _begin_planner(self) -> None:
        raw = load_raw(self._journal, self.loop.known)
        is_restored_now = is_restored(self._journal)
        if is_restored_now:
            skip_numbers(self.loop.known.state)
            log.warning("numbers_skipped", next_job=self.loop.known.state.next_job)
        if raw is not None:
            self._image_seq = self._journal.head.seq - len(raw[1])
        if is_restored_now or self.loop.known.left_out:
            raw = None  # the state differs from what the journal gives
        await self._planner.begin(*(raw or (self.loop.known.pack(),)))

    async def _start_vault(self) -> None:
        """Encrypt secrets with the newest key, renew the token of the first start, and sign heads of the journal if the
        configuration asks for it."""
        if sealed := await asyncio.to_thread(self._secrets.seal_again, self.loop.known.accounts):
            log.info("secrets_sealed", count=sealed)
        if self.first_token is not None:
            self._tasks.append(asyncio.create_task(self.first_token.run(self.service)))
        if self.attest.is_on:
            signer = signer_of(Path(self.attest.key_file))
            attester = Attester(self.attest, signer, self._durable_head)
            log.info("attesting", public_key=signer.public)
            self._tasks.append(asyncio.create_task(attester.run(self.service.now_ms)))

    def _durable_head(self) -> JournalHead:
        last = self._journal.read(self.durability.durable_seq - 1, 1)[0]
        return JournalHead(last.seq, last.hash)

    def _take_reports(self) -> None:
        while self._reports:
            report, head = self._reports.popleft(), self._journal.head
            try:
                self._take_report(report)
            except Exception as fault:
                if self._journal.head != head:  # written but perhaps not applied: only a restart repairs that
                    self.durability.stop(fault)
                    return
                self.quarantined_reports += 1
                log.error("report_quarantined", report=str(report)[:1_000], error=str(fault), exc_info=fault)

    def _take_report(self, report: Report) -> None:
        if isinstance(report, DetailsReport):
            self.service.details[report.node] = report.details
        if isinstance(report, ActivityReport):
            self.service.activities.take(report, self.service.now_ms())
        if isinstance(report, HealthReport):
            report = self.watch.take_report(report)
        if isinstance(report, PaceReport):
            self.watch.paces.take(report)
        fact = self._dispatch.fact(report)
        if isinstance(report, NodeReport) and report.spec is not None and report.spec.name == report.node:
            self._joined[report.node] = report.spec
            self._has_joined.set()
        elif fact is not None:
            node = getattr(report, "node", "")
            self.loop.take_fact(fact, f"node {node}" if node else SYSTEM)
        elif isinstance(report, TaskReport) and report.phase is Phase.UP:
            log.info("old_task_ended", gang=report.key.gang, attempt=report.key.attempt)

    def _notice_end(self, task: asyncio.Task[None]) -> None:
        """Stop the server when one of its tasks fails."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            self.durability.stop(fault)

    async def _load_history(self) -> None:
        """Read the recent history of failures, so that a restart does not forget it."""
        since_ms = self.service.now_ms() - self.watch.settings.lemon_window_ms
        for event in await asyncio.to_thread(read_recent, self._journal, since_ms):
            self.watch.take(event)
        self.durability.watchers.append(self.watch.take)
        self._report_judged()

    async def _judge(self) -> None:
        while True:
            await asyncio.sleep(JUDGE_S)
            self._report_judged()

    def _report_judged(self) -> None:
        for report in self.watch.judge(self.service.now_ms()):
            if (fact := self._dispatch.fact(report)) is not None:
                self.loop.take_fact(fact)
        for slowed in self.watch.slowed():
            self.loop.take_fact(slowed)

    async def _admit(self, source: NodeSource) -> None:
        """Add nodes that joined or changed. A change that is refused because tasks run there is tried again."""
        while True:
            self._has_joined.clear()
            for node, spec in list(self._joined.items()):
                refusal = await admit(self.loop, self._placed(spec))
                source.complain(node, "" if refusal is None else str(refusal))
                if refusal is None and self._joined.get(node) == spec:
                    del self._joined[node]
            await asyncio.to_thread(source.prune_logs)
            with suppress(TimeoutError):
                async with asyncio.timeout(ADMIT_S):
                    await self._has_joined.wait()

    def _placed(self, spec: NodeSpec, *, is_here: bool = False) -> NodeSpec:
        is_lent = spec.name in self.service.fleets.by_node
        return self.places.placed(spec, self.loop.known.state.settings.levels, is_here=is_here, is_lent=is_lent)

    def _forget_tasks(self, event: AnyEvent) -> None:
        """An attempt has ended: the backend can forget its tasks. A node was removed: what it did is of no interest."""
        if isinstance(event, e.GangStopped):
            self._dispatch.forget(event.gang, event.attempt)
        elif isinstance(event, e.NodeRemoved):
            self.service.activities.forget(event.node)

    async def _drop_expired_tokens(self) -> None:
        while True:
            if account_commands.drop_expired_tokens(self.service.accounts, self.service.now_ms()):
                await self.service.change_accounts(SYSTEM, account_commands.drop_expired_tokens)
            await asyncio.sleep(EXPIRED_S)

    async def _take_images(self) -> None:
        """Save images; immediately after a start with many new records, because the server may be killed again soon."""
        while True:
            if self._journal.head.seq - self._image_seq >= RECORDS_PER_IMAGE:
                await self.save_image()
            await asyncio.sleep(1)

    async def _end_suspended(self) -> None:
        """Cancel jobs that were suspended for too long."""
        while True:
            for job in identity.due(self.service.state, self.service.now_ms()):
                await self.loop.change(SYSTEM, partial(_cancelled, job=job))
            await asyncio.sleep(SUSPENDED_S)

    async def save_image(self) -> None:
        """Save an image of the state, so that the next start is fast. A failure has no other effect."""
        seq = self._journal.head.seq
        try:
            async with asyncio.timeout(IMAGE_S):  # a stuck planner must not block a shutdown
                body = await self._planner.image()
            await self.durability.wait()
            await asyncio.to_thread(self._journal.save_image, StoredImage(seq, IMAGE_FORMAT, body))
            self._image_seq = seq
        except (PlannerLost, PlannerError, ServerStopped, JournalUnusable, JournalFailed, OSError) as error:
            log.warning("image_not_saved", error=str(error))

    def run_beside(self, task: Coroutine[Any, Any, None]) -> None:
        """Run this too until the server stops."""
        self._tasks.append(asyncio.create_task(task))

    async def close(self) -> None:
        """Stop planning; running tasks continue. Everything passed to the journal is written."""
        self.service.is_ready = False
        gc_tuning.stop_setting_aside()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._batch_child is not None:
            await self._batch_child.close()
        new = self._journal.head.seq - self._image_seq
        if self.durability.failure is None and new > (RECORDS_WORTH_AN_IMAGE if self._image_seq else 0):
            await self.save_image()
        await self._planner.close()
        with suppress(Exception):  # figures may be lost
            await asyncio.to_thread(self.service.series.store, self.service.now_ms())
        if self._attached is not None:
            await self._attached.say_farewell()
        await asyncio.to_thread(self._backend.close)
        await asyncio.to_thread(self._journal.close)


def _cancelled(state: State, now_ms: int, *, job: str) -> list[e.Event] | Refusal:
    return cancel(state, job, now_ms)


async def _look_for_garbage() -> None:
    while True:
        await asyncio.sleep(gc_tuning.WHOLE_LOOK_S)
        gc_tuning.look_at_everything()
