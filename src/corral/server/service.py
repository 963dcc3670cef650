"""Everything that the API needs of the server, in one class.

Knows the loop, the store and the backend, and nothing about HTTP or rights. All changes go through the loop; reading
never waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import structlog

from corral.core import events as e
from corral.core.accounts import identity
from corral.core.accounts.accounts import Accounts
from corral.core.fleets.fleets import Fleets
from corral.core.fleets.outlook import could_come
from corral.core.intake.commands import submit_many
from corral.core.intake.refusal import Refusal
from corral.core.intake.site import SiteRules
from corral.core.model import After, Dependency, JobSpec, QueueSpec, unfulfilled
from corral.core.state import State
from corral.remote.backend import RemoteBackend
from corral.runtime.base import Backend, Capabilities
from corral.server.activity.store import Activities
from corral.server.durability import Batch
from corral.server.ha.vitals import Vitals
from corral.server.loop import AccountCommand, Command, FleetCommand, Loop
from corral.server.planner.client import PlannerError, PlannerLost
from corral.server.planner.planning import Planning
from corral.server.planner.questions import DryRunOutcome, PlannerAnswer, QueueOutcome, StartOutlook, WhyAnswer
from corral.server.vault.secret_store import SecretStore
from corral.store.journal import Journal, Record
from corral.store.lookup import Lookup
from corral.store.rings import Rings
from corral.wire.details import NodeDetails

if TYPE_CHECKING:
    from corral.server.batches.child import BatchChild
    from corral.server.batches.scaler import WorkerScaler

log = structlog.get_logger(__name__)

_FEED_AT_ONCE = 500
_OUTLOOK_KEPT_S = 1.0
_OUTLOOK_WAIT_S = 1.0
_OUTLOOKS_MAX = 20_000
_OUTLOOKS_AT_ONCE = 1_000
_OUTLOOK_PAUSES = 9  # the pause after an answer, in times that the answer took
_OUTLOOK_PAUSE_S_MAX = 30.0
_ASKED_AGAIN, _ASK_AGAIN_S = 100, 0.1


class EventHub:
    """Notifies feeds that there are new records, or that the server stops. ``leader``: URL of the leading server, if
    another one leads."""

    leads = True

    def __init__(self, read: Callable[[int, int], list[Record]]) -> None:
        self.read = read
        self.leader = ""
        self.is_ending = False
        self.rules = SiteRules()  # limits of the site, where a queue has none
        self.details: dict[str, NodeDetails] = {}  # the hardware that nodes last reported
        self.slow_ranks: Callable[[str], Sequence[str]] = lambda _: ()  # of a gang, in words
        self.activities = Activities()
        self.series = Rings()  # figures over time
        self.batches: tuple[BatchChild, WorkerScaler] | None = None  # batching queues; only the leader has them
        self.news = asyncio.Event()
        self._reads: dict[tuple[int, asyncio.Event], asyncio.Future[list[Record]]] = {}

    async def read_on(self, after: int, news: asyncio.Event) -> list[Record]:
        """Records after a number. Equivalent to one read for each feed; feeds at the same position that were notified
        together share one read, so that hundreds of them cost no more than one."""
        key = (after, news)
        reading = self._reads.get(key)
        if reading is None:
            reading = self._reads[key] = asyncio.ensure_future(asyncio.to_thread(self.read, after, _FEED_AT_ONCE))
            reading.add_done_callback(lambda _: self._reads.pop(key, None))
        return await asyncio.shield(reading)

    def account_for(self, user: str) -> str | Refusal:
        """The account that jobs of this user run as if submitted now."""
        return Refusal("not_leading", f"only the leader knows the account of {user}", "send the request to the leader")

    def vitals(self) -> Vitals:
        """The health of this server."""
        return Vitals()

    def lacks(self, node: str) -> Mapping[str, str]:
        """What a node cannot run or limit, and why; only the leader knows."""
        del node
        return {}

    def separation(self, node: str) -> Mapping[str, str]:
        """What isolates tasks from each other on a node; only the leader knows."""
        del node
        return {}

    def end_feeds(self) -> None:
        """End all feeds: the server stops."""
        self.is_ending = True
        self.wake()

    def wake(self) -> None:
        """Wake everything that waits for new records."""
        news, self.news = self.news, asyncio.Event()
        news.set()


class ServerService(EventHub):
    def __init__(self, loop: Loop, planning: Planning, lookup: Lookup, backend: Backend, secrets: SecretStore) -> None:
        self.loop = loop
        self.planning = planning
        self.lookup = lookup
        self.backend = backend
        self.secrets = secrets
        super().__init__(loop.durability.journal.read)
        self._knowing = backend if isinstance(backend, Capabilities) else None
        self.is_ready = False
        #: gang -> when it was asked for, and the answer
        self._outlooks: dict[str, tuple[float, StartOutlook | None]] = {}
        self._outlooks_wanted: dict[str, None] = {}
        self._looking_out: asyncio.Task[None] | None = None
        self._look_out_s = 0.0  # when the planner may be asked again
        self.closed: Refusal | None = None  # why no new jobs are accepted now
        if self._knowing is not None:
            loop.cannot_run_as = self._knowing.cannot_run_as
        self.leading: Callable[[], Vitals] = Vitals  # the state of this server's leadership
        loop.durability.watchers.append(self._notice)

    @property
    def state(self) -> State:
        return self.loop.known.state

    @property
    def accounts(self) -> Accounts:
        return self.loop.known.accounts

    @property
    def fleets(self) -> Fleets:
        return self.loop.known.fleets

    @property
    def fleet(self) -> RemoteBackend | None:
        return self.backend if isinstance(self.backend, RemoteBackend) else None

    @property
    def journal(self) -> Journal:
        return self.loop.durability.journal

    @property
    def epoch(self) -> int:
        return self.journal.epoch

    @property
    def has_failed(self) -> bool:
        """Whether the journal can no longer be written."""
        return self.loop.durability.failure is not None

    def vitals(self) -> Vitals:
        return msgspec.structs.replace(self.leading(), seq=self.durable_seq)

    def now_ms(self) -> int:
        return self.loop.clock.now_ms()

    def lacks(self, node: str) -> Mapping[str, str]:
        return self._knowing.lacks(node) if self._knowing is not None else {}

    def separation(self, node: str) -> Mapping[str, str]:
        return self._knowing.separation(node) if self._knowing is not None else {}

    # ---- changes -----------------------------------------------------------------------------------------------

    async def change(self, actor: str, command: Command, request: str = "") -> Batch | Refusal:
        return await self.loop.change(actor, command, request)

    async def change_accounts(self, actor: str, command: AccountCommand) -> Batch | Refusal:
        return await self.loop.change_accounts(actor, command)

    async def change_fleets(self, actor: str, command: FleetCommand) -> Batch | Refusal:
        return await self.loop.change_fleets(actor, command)

    async def submit(self, user: str, specs: Sequence[JobSpec], request: str = "") -> Batch | Refusal:
        """Submit jobs, all or none. The server numbers them; one may depend on another of them as ``#0``, ``#1``..."""
        over = self.closed or self._impossible(specs) or await self._over(specs)
        if isinstance(over, Refusal):
            return over

        def command(state: State, now_ms: int) -> Sequence[e.Event] | Refusal:
            account = self.account_for(user)
            if isinstance(account, Refusal):
                return account
            named, may_come = self._numbered(specs, over), could_come(state, self.fleets)
            return submit_many(state, named, user, now_ms, may_come, account, self.rules)

        return await self.change(user, command, request)

    def account_for(self, user: str) -> str | Refusal:
        return identity.account_for(self.accounts, user, self.loop.account_rules, self.loop.cannot_run_as)

    def _numbered(self, specs: Sequence[JobSpec], over: Container[str]) -> dict[str, JobSpec]:
        """The jobs by their numbers, without dependencies on jobs that have ended and left memory."""
        ids = self.new_job_ids(len(specs))
        if not any(spec.after for spec in specs):
            return dict(zip(ids, specs, strict=True))
        siblings = {f"#{n}": number for n, number in enumerate(ids)}

        def resolved(spec: JobSpec) -> JobSpec:
            left = (d for d in spec.after if d.job not in over)
            after = tuple(Dependency(siblings.get(d.job, d.job), d.after) for d in left)
            return msgspec.structs.replace(spec, after=after)

        return {number: resolved(spec) for number, spec in zip(ids, specs, strict=True)}

    def new_job_ids(self, count: int) -> list[str]:
        """The next job numbers. Use them immediately, within a command, before another command gets the same ones."""
        first = self.state.next_job
        return [str(number) for number in range(first, first + count)]

    def _impossible(self, specs: Sequence[JobSpec]) -> Refusal | None:
        """Refuse what no node can run, such as an image where there is no container runtime."""
        if self._knowing is None:
            return None
        for work in (gang.work for spec in specs for gang in spec.gangs if gang.work is not None):
            why = self._knowing.cannot_run(work) if work.image or work.mounts else ""  # plain work runs everywhere
            if why:
                return Refusal("cannot_run_here", why, field="image")
        return None

    async def _over(self, specs: Sequence[JobSpec]) -> set[str] | Refusal:
        """Dependencies that are fulfilled and no longer in memory; a refusal if one can no longer be fulfilled."""
        named = {d.job for spec in specs for d in spec.after if d.job not in self.state.jobs}
        rows = {job: await asyncio.to_thread(self.lookup.job, job) for job in named if not job.startswith("#")}
        ended = {job: row.state == "succeeded" for job, row in rows.items() if row is not None and row.is_over}
        for spec in specs:
            for dependency in spec.after:
                ok = ended.get(dependency.job)
                if ok is not None and dependency.after is not After.ANY and ok != (dependency.after is After.OK):
                    why = f"the job {unfulfilled(dependency.job, dependency.after)}"
                    return Refusal("dependency_failed", why, "remove the dependency", "after")
        return set(ended)

    # ---- answers of the planner --------------------------------------------------------------------------------

    async def explain(self, gang: str) -> WhyAnswer | Refusal:
        """Why a gang waits, what blocks it, and what would help."""
        answer = await self._thought(lambda: self.planning.planner.why(gang, self.now_ms()))
        return answer.refusal or answer.why or Refusal("no_such_gang", f"there is no gang {gang!r}")

    async def outlooks(self, gangs: Sequence[str]) -> Mapping[str, StartOutlook]:
        """In short why these gangs wait, and when they are expected to start, as of the last few seconds. The planner
        may be busy: then what is known is returned, and the rest is missing."""
        now_s = time.monotonic()
        stale = [gang for gang in gangs if self._outlooks.get(gang, (0.0, None))[0] < now_s - _OUTLOOK_KEPT_S]
        if stale:
            room = max(0, _OUTLOOKS_AT_ONCE - len(self._outlooks_wanted))
            self._outlooks_wanted.update(dict.fromkeys(stale[:room]))
            if self._looking_out is None:
                self._looking_out = asyncio.ensure_future(self._look_out())
            with suppress(TimeoutError):
                async with asyncio.timeout(_OUTLOOK_WAIT_S):
                    await asyncio.shield(self._looking_out)
        found = {gang: self._outlooks[gang][1] for gang in gangs if gang in self._outlooks}
        return {gang: outlook for gang, outlook in found.items() if outlook is not None}

    async def _look_out(self) -> None:
        """Ask for all that is wanted, of all requests together. Takes a small part of the planner's time: after an
        answer there is a pause several times as long."""
        await asyncio.sleep(max(0.0, self._look_out_s - time.monotonic()))
        gangs, self._outlooks_wanted = tuple(self._outlooks_wanted), {}
        began_s = time.monotonic()
        try:
            with suppress(PlannerLost, PlannerError):
                answer = await self.planning.planner.outlooks(gangs, self.now_ms())
                known = {each.hold.gang: each for each in answer.outlooks}
                if len(self._outlooks) > _OUTLOOKS_MAX:
                    self._outlooks.clear()
                for gang in gangs:
                    self._outlooks[gang] = (time.monotonic(), known.get(gang))
        finally:
            now_s = time.monotonic()
            self._look_out_s = now_s + min(_OUTLOOK_PAUSE_S_MAX, _OUTLOOK_PAUSES * (now_s - began_s))
            self._looking_out = None

    async def line(self, most: int) -> Sequence[str] | Refusal:
        """The first waiting gangs, in the order of their turns."""
        answer = await self._thought(lambda: self.planning.planner.line(most, self.now_ms()))
        return answer.refusal or answer.line

    def reserved_start_ms(self, gang: str) -> int | None:
        """The start time that the last plan reserved for it, if it did."""
        return self.planning.reserved_ms.get(gang)

    async def dry_run(self, specs: Sequence[JobSpec], user: str) -> Sequence[DryRunOutcome] | Refusal:
        """What would happen to these jobs if they were submitted now, with the numbers they would get."""
        account = self.account_for(user)
        over = account if isinstance(account, Refusal) else self._impossible(specs) or await self._over(specs)
        if isinstance(over, Refusal):
            return over
        answer = await self._thought(
            lambda: self.planning.planner.prospects(self._numbered(specs, over), user, self.now_ms())
        )
        return answer.refusal or answer.prospects

    async def try_queue(self, spec: QueueSpec) -> QueueOutcome | Refusal:
        """What the next plan would do with these settings of a queue. The settings must have been checked."""
        answer = await self._thought(lambda: self.planning.planner.with_settings(spec, self.now_ms()))
        return answer.refusal or answer.queue or QueueOutcome()

    async def _thought(self, ask: Callable[[], Awaitable[PlannerAnswer]]) -> PlannerAnswer:
        """The answer of the planner. If it has ended, the loop restarts it, and it is asked again."""
        for _ in range(_ASKED_AGAIN):
            with suppress(PlannerLost):
                try:
                    return await ask()
                except PlannerError as failed:
                    log.error("planner_failed", error=str(failed))
                    why = "the planner failed on this request; details are in the server log"
                    return PlannerAnswer(refusal=Refusal("planner_failed", why))
            self.planning.want()
            await asyncio.sleep(_ASK_AGAIN_S)
        return PlannerAnswer(refusal=Refusal("planner_away", "the planner is starting", "try again in a few seconds"))

    # ---- the feed ----------------------------------------------------------------------------------------------

    @property
    def durable_seq(self) -> int:
        return self.loop.durability.durable_seq

    def subscribe(self) -> EventFeed:
        """A feed of the records that become durable from now on."""
        return EventFeed(self, self.durable_seq)

    def _notice(self, event: object) -> None:  # noqa: ARG002 - feeds read the records themselves
        self.wake()

    def end_feeds(self) -> None:
        super().end_feeds()
        if self.fleet is not None:
            self.fleet.let_go()


class EventFeed:
    """Durable records after a number, as they come. It ends when it is closed, or when the server stops."""

    def __init__(self, service: EventHub, after: int) -> None:
        self._service = service
        self._after = after
        self._is_open = True

    async def __aiter__(self) -> AsyncIterator[Record]:
        while self._is_open and not self._service.is_ending:
            news = self._service.news  # taken before reading: every later record sets it
            found = await self._service.read_on(self._after, news)
            for record in found:
                self._after = record.seq
                yield record
            if not found:
                await news.wait()

    def close(self) -> None:
        self._is_open = False
        self._service.wake()
