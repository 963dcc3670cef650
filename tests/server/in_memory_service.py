"""A service in memory, without processes or threads of its own: what is behind the API in these tests.

Events go to a journal in memory and into the state; explanations are worked out on the spot. Times move by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from corral.core.accounts import accounts as a
from corral.core.accounts.accounts import AccountEvent, Accounts, Role
from corral.core.accounts.identity import AccountRules, account_for
from corral.core.cluster.resources import Gpu, amounts
from corral.core.cluster.topology import NodeSpec
from corral.core.commit import commit
from corral.core.engine import apply_all
from corral.core.events import Event
from corral.core.fleets.fleets import FleetEvent, Fleets
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.intake.site import SiteRules
from corral.core.model import JobSpec, QueueSpec, Settings
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.policy.catalog import policy as named_policy
from corral.policy.cycle.standard import Standard
from corral.policy.cycle.turns import turns
from corral.policy.explain.holds import explain, first_reason
from corral.runtime.base import LogPart, TaskKey
from corral.server.activity.store import Activities
from corral.server.auth import new_token
from corral.server.durability import Batch
from corral.server.ha.vitals import Vitals
from corral.server.journal_state import JournalState
from corral.server.planner.process import with_settings
from corral.server.planner.questions import DryRunOutcome, QueueOutcome, StartOutlook, WhyAnswer
from corral.store.journal import Entry, Record
from corral.store.memory import MemoryJournal
from corral.store.rings import Rings
from corral.wire.codec import AnyEvent, decode, encode
from corral.wire.details import NodeDetails
from tests.server.in_memory_batches import MemoryBatchChild, MemoryScaler

START_MS = 1_700_000_000_000


class MemorySecrets:
    def __init__(self) -> None:
        self.values: dict[tuple[str, str], str] = {}

    def put(self, queue: str, name: str, value: str) -> None:
        self.values[queue, name] = value

    def drop(self, queue: str, name: str) -> None:
        self.values.pop((queue, name), None)


class MemoryLogs:
    """Logs by gang, attempt, task and stream. A log in ``open`` may still grow."""

    def __init__(self) -> None:
        self.logs: dict[tuple[TaskKey, str], bytes] = {}
        self.open: set[tuple[TaskKey, str]] = set()

    def read_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None:
        whole = self.logs.get((key, stream))
        if whole is None:
            return None
        offset = max(0, len(whole) + offset) if offset < 0 else min(offset, len(whole))
        data = whole[offset : offset + limit]
        is_over = (key, stream) not in self.open and offset + len(data) == len(whole)
        return LogPart(offset, data, offset + len(data), is_over)


class MemoryFeed:
    def __init__(self, service: MemoryService) -> None:
        self.service, self.after, self.is_open = service, service.journal.head.seq, True

    async def __aiter__(self) -> AsyncIterator[Record]:
        while self.is_open:
            news = self.service.news
            for record in self.service.journal.read(self.after, 100):
                self.after = record.seq
                yield record
            if not self.service.journal.read(self.after, 1):
                await news.wait()

    def close(self) -> None:
        self.is_open = False
        self.service.wake()


class MemoryService:
    """Implements what the interface needs. ``delay``: an event to wait for before anything becomes durable."""

    def __init__(self, nodes: int = 1, gpus: int = 8) -> None:
        self.state, self.accounts, self.fleets = State(Settings()), Accounts(), Fleets()
        self.journal = MemoryJournal()
        self.lookup = self.journal.lookup
        self.backend, self.secrets, self.fleet = MemoryLogs(), MemorySecrets(), None
        self.is_ready, self.has_failed = True, False
        self.leads, self.leader, self.rules = True, "", SiteRules()
        self.details: dict[str, NodeDetails] = {}
        self.slow_ranks: Callable[[str], Sequence[str]] = lambda _: ()
        self.activities = Activities()
        self.series = Rings()
        self.batches: Any = (MemoryBatchChild(), MemoryScaler())
        self.time_ms = START_MS
        self.news = asyncio.Event()
        self.delay: asyncio.Event | None = None
        self.metrics: list[object] = []
        policy = named_policy("standard")
        assert not isinstance(policy, Refusal)
        self.policy = policy
        has = amounts({"cpu_milli": 64_000, "memory_mib": 512_000})
        for n in range(nodes):
            devices = tuple(Gpu(f"SIM-{n}-{slot}", "H100", 81_559) for slot in range(gpus))
            self.do("world", commands.add_node(self.state, NodeSpec(f"n{n}", devices, has), self.now_ms()))

    def account_for(self, user: str) -> str | Refusal:
        return account_for(self.accounts, user, AccountRules(), lambda _: "")

    def lacks(self, node: str) -> dict[str, str]:
        del node
        return {}

    def separation(self, node: str) -> dict[str, str]:
        return {"signals": f"account of {node}"}

    def vitals(self) -> Vitals:
        return Vitals(seq=self.durable_seq)

    def now_ms(self) -> int:
        return self.time_ms

    @property
    def durable_seq(self) -> int:
        return self.journal.head.seq

    # ---- writing -----------------------------------------------------------------------------------------------

    def _write(self, actor: str, events: Sequence[AnyEvent], request: str = "") -> Batch:
        bodies = [encode(event) for event in events]
        rows = [
            Entry(event.at_ms, actor, body, request if hasattr(event, "spec") else "")
            for event, body in zip(events, bodies, strict=True)
        ]
        self.journal.append(rows)
        self.wake()
        return Batch(actor, request, events, bodies, [], self.journal.head.seq)

    def wake(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()

    def do(self, actor: str, events: Sequence[Event] | Refusal, request: str = "") -> Batch | Refusal:
        if isinstance(events, Refusal):
            return events
        return self._write(actor, apply_all(self.state, events, self.now_ms()).events, request)

    def do_accounts(self, actor: str, events: Sequence[AccountEvent] | Refusal) -> Batch | Refusal:
        if isinstance(events, Refusal):
            return events
        for event in events:
            self.accounts.apply(event)
        return self._write(actor, events)

    def do_fleets(self, actor: str, events: Sequence[FleetEvent] | Refusal) -> Batch | Refusal:
        if isinstance(events, Refusal):
            return events
        for event in events:
            self.fleets.apply(event)
        return self._write(actor, events)

    def plan(self) -> None:
        """One cycle of the scheduler."""
        plan = self.policy(Snapshot(self.state, self.now_ms()))
        self.do("scheduler", commit(self.state, plan, self.now_ms()))

    # ---- what the interface asks -------------------------------------------------------------------------------

    def new_job_ids(self, count: int) -> list[str]:
        return [str(self.state.next_job + n) for n in range(count)]

    async def submit(self, user: str, specs: Sequence[JobSpec], request: str = "") -> Batch | Refusal:
        named = dict(zip(self.new_job_ids(len(specs)), specs, strict=True))
        return await self.change(user, lambda s, now_ms: commands.submit_many(s, named, user, now_ms), request)

    async def change(self, actor, command, request: str = "") -> Batch | Refusal:
        if self.delay is not None:
            await self.delay.wait()
        return self.do(actor, command(self.state, self.now_ms()), request)

    async def change_accounts(self, actor, command) -> Batch | Refusal:
        return self.do_accounts(actor, command(self.accounts, self.now_ms()))

    async def change_fleets(self, actor, command) -> Batch | Refusal:
        return self.do_fleets(actor, command(self.fleets, self.now_ms()))

    async def outlooks(self, gangs: Sequence[str]) -> Mapping[str, StartOutlook]:
        snapshot = Snapshot(self.state, self.now_ms())
        return {gang: StartOutlook(first_reason(snapshot, self.policy, gang)) for gang in gangs}

    def reserved_start_ms(self, gang: str) -> int | None:
        return None

    async def line(self, most: int) -> Sequence[str] | Refusal:
        assert isinstance(self.policy, Standard)
        return turns(Snapshot(self.state, self.now_ms()), self.policy.parts, most)

    async def explain(self, gang: str) -> WhyAnswer | Refusal:
        hold = explain(Snapshot(self.state, self.now_ms()), self.policy, gang)
        return hold if isinstance(hold, Refusal) else WhyAnswer(hold)

    async def dry_run(self, specs: Sequence[JobSpec], user: str) -> Sequence[DryRunOutcome] | Refusal:
        named = dict(zip(self.new_job_ids(len(specs)), specs, strict=True))
        answer = commands.submit_many(self.state, named, user, self.now_ms())
        if isinstance(answer, Refusal):
            return answer
        return [DryRunOutcome(f"{job}/{gang.role}") for job, spec in named.items() for gang in spec.gangs]

    async def try_queue(self, spec: QueueSpec) -> QueueOutcome | Refusal:
        copy = JournalState.unpack(JournalState(self.state, self.accounts, self.fleets).pack())
        return with_settings(copy.state, self.policy, spec, self.now_ms())

    def subscribe(self) -> MemoryFeed:
        return MemoryFeed(self)

    # ---- short words for tests ---------------------------------------------------------------------------------

    def queue(self, name: str, **terms: object) -> None:
        done = self.do("root", commands.set_queue(self.state, QueueSpec(name=name, **terms), self.now_ms()))  # type: ignore[arg-type]
        assert not isinstance(done, Refusal), done

    def user(self, name: str, *roles: tuple[Role, str]) -> str:
        """A user with these roles, and a token of theirs."""
        self.do_accounts("root", [a.UserSet(self.now_ms(), name)])
        self.do_accounts("root", [a.RoleGranted(self.now_ms(), name, role, queue) for role, queue in roles])
        return self.token(name)

    def token(self, user: str, scope: tuple[str, ...] = (), expires_ms: int | None = None) -> str:
        drawn = new_token()
        issued = a.TokenIssued(self.now_ms(), drawn.id, user, drawn.digest, "", scope, expires_ms)
        self.do_accounts("root", [issued])
        return drawn.text

    def events(self) -> list[object]:
        return [decode(record.format, record.body) for record in self.journal.read(0, 1_000_000)]
