"""Everything the interface may ask of the server, in one place.

Knows the loop, the store and the backend, and nothing of HTTP or of who may ask what. Everything that changes goes
through the loop; reading never waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from contextlib import suppress

import msgspec
import structlog

from corral.backends.base import Backend, KnowsBeforehand
from corral.backends.fleet.backend import FleetBackend
from corral.core import events as e
from corral.core.fleets.fleets import Fleets
from corral.core.fleets.outlook import could_come
from corral.core.intake.commands import submit_many
from corral.core.intake.refusal import Refusal
from corral.core.intake.site import SiteRules
from corral.core.model import After, Dependency, JobSpec
from corral.core.people import identity
from corral.core.people.accounts import Accounts
from corral.core.state import State
from corral.server.loop import AccountCommand, Command, Done, FleetCommand, Loop
from corral.server.planning.planner import PlannerLost, ThoughtFailed
from corral.server.planning.thinking import Answer, Prospect, Why
from corral.server.standing.vitals import Vitals
from corral.server.vault.store import SecretStore
from corral.store.journal import Journal, Record
from corral.store.lookup import Lookup
from corral.wire.details import NodeDetails

log = structlog.get_logger(__name__)

_FEED_AT_ONCE = 500
_ASKED_AGAIN, _ASK_AGAIN_S = 100, 0.1


class Newsroom:
    """Where feeds learn that there is something new to read, or that it is over. ``leader``: where another server
    answers that leads."""

    leads = True

    def __init__(self, read: Callable[[int, int], list[Record]]) -> None:
        self.read = read
        self.leader = ""
        self.is_ending = False
        self.rules = SiteRules()  # what the site allows where no queue says otherwise
        self.details: dict[str, NodeDetails] = {}  # what nodes have last told about what they are made of
        self.news = asyncio.Event()
        self._reads: dict[tuple[int, asyncio.Event], asyncio.Future[list[Record]]] = {}

    async def read_on(self, after: int, news: asyncio.Event) -> list[Record]:
        """Records after a number. Equivalent to reading for each feed by itself; feeds that are equally far and have
        heard the same news share one look, so that hundreds of them cost no more than one."""
        key = (after, news)
        reading = self._reads.get(key)
        if reading is None:
            reading = self._reads[key] = asyncio.ensure_future(asyncio.to_thread(self.read, after, _FEED_AT_ONCE))
            reading.add_done_callback(lambda _: self._reads.pop(key, None))
        return await asyncio.shield(reading)

    @property
    def account_rules(self) -> identity.AccountRules:
        """What the site says about accounts of machines."""
        return identity.AccountRules()

    def vitals(self) -> Vitals:
        """How this server is doing."""
        return Vitals()

    def lacks(self, node: str) -> Mapping[str, str]:
        """What a machine cannot run or limit, and why; known where its tasks are."""
        del node
        return {}

    def end_feeds(self) -> None:
        """The server stops: whoever listens is let go."""
        self.is_ending = True
        self.wake()

    def wake(self) -> None:
        """Let whoever waits for news look again."""
        news, self.news = self.news, asyncio.Event()
        news.set()


class Service(Newsroom):
    def __init__(self, loop: Loop, lookup: Lookup, backend: Backend, secrets: SecretStore) -> None:
        self.loop, self.lookup, self.backend, self.secrets = loop, lookup, backend, secrets
        super().__init__(loop.journal.read)
        self._knowing = backend if isinstance(backend, KnowsBeforehand) else None
        self.is_ready = False
        self.closed: Refusal | None = None  # why no new work is taken in at present
        if self._knowing is not None:
            loop.cannot_run_as = self._knowing.cannot_run_as
        self.leading: Callable[[], Vitals] = Vitals  # what is known of the right to write
        loop.watchers.append(self._notice)

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
    def fleet(self) -> FleetBackend | None:
        return self.backend if isinstance(self.backend, FleetBackend) else None

    @property
    def journal(self) -> Journal:
        return self.loop.journal

    @property
    def epoch(self) -> int:
        return self.journal.epoch

    @property
    def has_failed(self) -> bool:
        """Whether the journal can no longer be written."""
        return self.loop.failure is not None

    def vitals(self) -> Vitals:
        return msgspec.structs.replace(self.leading(), seq=self.durable_seq)

    def now_ms(self) -> int:
        return self.loop.clock.now_ms()

    def lacks(self, node: str) -> Mapping[str, str]:
        return self._knowing.lacks(node) if self._knowing is not None else {}

    # ---- changes -----------------------------------------------------------------------------------------------

    async def change(self, actor: str, command: Command, request: str = "") -> Done | Refusal:
        return await self.loop.change(actor, command, request)

    async def change_accounts(self, actor: str, command: AccountCommand) -> Done | Refusal:
        return await self.loop.change_accounts(actor, command)

    async def change_fleets(self, actor: str, command: FleetCommand) -> Done | Refusal:
        return await self.loop.change_fleets(actor, command)

    async def submit(self, user: str, specs: Sequence[JobSpec], request: str = "") -> Done | Refusal:
        """Take in jobs, all or none. The server numbers them; one may wait for another of them as ``#0``, ``#1``..."""
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

    @property
    def account_rules(self) -> identity.AccountRules:
        return self.loop.account_rules

    def account_for(self, user: str) -> str | Refusal:
        """What jobs that this user submits now will run as."""
        return identity.account_for(self.accounts, user, self.loop.account_rules, self.loop.cannot_run_as)

    def _numbered(self, specs: Sequence[JobSpec], over: Container[str]) -> dict[str, JobSpec]:
        """The jobs by their numbers; they wait for nobody who is over and forgotten."""
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
        """The next numbers. To be used at once, within a command: nobody else is given them before it is taken."""
        first = self.state.next_job
        return [str(number) for number in range(first, first + count)]

    def _impossible(self, specs: Sequence[JobSpec]) -> Refusal | None:
        """What the machines are known not to be able to run, as an image where there is no container engine."""
        if self._knowing is None:
            return None
        for work in (gang.work for spec in specs for gang in spec.gangs if gang.work is not None):
            why = self._knowing.cannot_run(work) if work.image or work.mounts else ""  # plain work runs everywhere
            if why:
                return Refusal("cannot_run_here", why, field="image")
        return None

    async def _over(self, specs: Sequence[JobSpec]) -> set[str] | Refusal:
        """Jobs that are waited for, ended as they should, and were let go by the state."""
        named = {d.job for spec in specs for d in spec.after if d.job not in self.state.jobs}
        rows = {job: await asyncio.to_thread(self.lookup.job, job) for job in named if not job.startswith("#")}
        ended = {job: row.state == "succeeded" for job, row in rows.items() if row is not None and row.is_over}
        for spec in specs:
            for dependency in spec.after:
                ok = ended.get(dependency.job)
                if ok is not None and dependency.after is not After.ANY and ok != (dependency.after is After.OK):
                    why = f"job {dependency.job} is over and did not end {dependency.after}"
                    return Refusal("dependency_failed", why, field="after")
        return set(ended)

    # ---- thought -----------------------------------------------------------------------------------------------

    async def explain(self, gang: str) -> Why | Refusal:
        """Why a gang waits, who is in its way, and what would help."""
        answer = await self._thought(lambda: self.loop.planner.why(gang, self.now_ms()))
        return answer.refusal or answer.why or Refusal("no_such_gang", f"there is no gang {gang!r}")

    def promised_ms(self, gang: str) -> int | None:
        """When the last plan promised it a start, if it did."""
        return self.loop.promised.get(gang)

    async def dry_run(self, specs: Sequence[JobSpec], user: str) -> Sequence[Prospect] | Refusal:
        """What would become of these jobs if they were submitted now, with the numbers they would get."""
        account = self.account_for(user)
        over = account if isinstance(account, Refusal) else self._impossible(specs) or await self._over(specs)
        if isinstance(over, Refusal):
            return over
        answer = await self._thought(
            lambda: self.loop.planner.prospects(self._numbered(specs, over), user, self.now_ms())
        )
        return answer.refusal or answer.prospects

    async def _thought(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """What the planner answers. One that has ended is begun anew by the loop, and asked again."""
        for _ in range(_ASKED_AGAIN):
            with suppress(PlannerLost):
                try:
                    return await ask()
                except ThoughtFailed as failed:
                    log.error("planner_failed", error=str(failed))
                    why = "the planner failed on this question; details are in the server log"
                    return Answer(refusal=Refusal("planner_failed", why))
            self.loop.want_plan()
            await asyncio.sleep(_ASK_AGAIN_S)
        return Answer(refusal=Refusal("planner_away", "the planner is being started", "try again in a moment"))

    # ---- the feed ----------------------------------------------------------------------------------------------

    @property
    def durable_seq(self) -> int:
        return self.loop.durable_seq

    def subscribe(self) -> Feed:
        """Everything that becomes durable from now on."""
        return Feed(self, self.durable_seq)

    def _notice(self, event: object) -> None:  # noqa: ARG002 - that there is one is all it needs
        self.wake()

    def end_feeds(self) -> None:
        super().end_feeds()
        if self.fleet is not None:
            self.fleet.let_go()


class Feed:
    """Durable records after a number, as they come. It ends when it is closed, or when the server stops."""

    def __init__(self, service: Newsroom, after: int) -> None:
        self._service, self._after, self._is_open = service, after, True

    async def __aiter__(self) -> AsyncIterator[Record]:
        while self._is_open and not self._service.is_ending:
            news = self._service.news  # before reading: whatever is written from now on will set it
            found = await self._service.read_on(self._after, news)
            for record in found:
                self._after = record.seq
                yield record
            if not found:
                await news.wait()

    def close(self) -> None:
        self._is_open = False
        self._service.wake()
