"""All that the API needs of the server, as narrow Protocols. Tests implement a small one of their own.

Knows no implementation. Everything here is called in the thread of the event loop, except ``Lookup``, which is called
in reader threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from corral.core.accounts.accounts import Accounts
from corral.core.fleets.fleets import Fleets
from corral.core.intake.refusal import Refusal
from corral.core.intake.site import SiteRules
from corral.core.model import JobSpec, QueueSpec
from corral.core.state import State
from corral.remote.messages import EndpointAnswer
from corral.runtime.base import LogPart, TaskKey
from corral.server.activity.store import Activities
from corral.server.durability import Batch
from corral.server.ha.vitals import Vitals
from corral.server.loop import AccountCommand, Command, FleetCommand
from corral.server.planner.questions import DryRunOutcome, QueueOutcome, StartOutlook, WhyAnswer
from corral.store.journal import Journal, Record
from corral.store.lookup import Lookup
from corral.store.rings import Rings
from corral.wire.details import NodeDetails

if TYPE_CHECKING:
    from corral.server.batches.child import BatchChild
    from corral.server.batches.scaler import WorkerScaler


class FeedContract(Protocol):
    """Durable records from the moment of subscribing. It ends when it is closed or the server stops."""

    def __aiter__(self) -> AsyncIterator[Record]: ...
    def close(self) -> None: ...


class SecretsContract(Protocol):
    """Stores the values of secrets. Only tasks get the values."""

    def put(self, queue: str, name: str, value: str) -> None: ...
    def drop(self, queue: str, name: str) -> None: ...


class Logs(Protocol):
    """Logs of tasks. Reading may be slow, so it is called in threads of its own."""

    def read_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None: ...


@runtime_checkable
class DistantLogs(Logs, Protocol):
    """Logs on other nodes: requested, and answered later, without blocking a thread meanwhile."""

    @property
    def log_wait_s(self) -> float: ...
    def ask_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> Future[LogPart | None] | None: ...
    def kept_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None: ...


@runtime_checkable
class NearTasks(Protocol):
    """Tasks on this machine."""

    def step_socket(self, key: TaskKey) -> str:
        """Where the supervisor of a task listens."""


@runtime_checkable
class DistantTasks(Protocol):
    """Tasks on other nodes, whose agents connect when they are asked to."""

    def ask_stream(self, key: TaskKey) -> Future[Any] | None: ...
    def redeem(self, node: str, ticket: str) -> Future[Any] | None: ...


class AgentsContract(Protocol):
    """Nodes that join. Messages of their agents do not come through the API."""

    @property
    def endpoint(self) -> EndpointAnswer: ...
    def remove(self, node: str) -> None: ...


class Service(Protocol):
    @property
    def state(self) -> State: ...
    @property
    def accounts(self) -> Accounts: ...

    def account_for(self, user: str) -> str | Refusal:
        """The account that jobs of this user run as if submitted now."""

    @property
    def fleets(self) -> Fleets:
        """Nodes that providers allocate."""

    @property
    def lookup(self) -> Lookup: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def durable_seq(self) -> int:
        """The newest record that lookups can see. The head of the journal may be ahead of it."""

    @property
    def news(self) -> asyncio.Event:
        """Set when more records have become durable, and then replaced by a new event."""

    @property
    def backend(self) -> Logs: ...
    @property
    def fleet(self) -> AgentsContract | None:
        """The agents' side of the backend, where tasks run on many machines."""

    @property
    def secrets(self) -> SecretsContract: ...
    @property
    def is_ready(self) -> bool: ...
    @property
    def leads(self) -> bool: ...
    @property
    def leader(self) -> str:
        """The address of the server that leads, if it is known; "" if this one leads."""

    @property
    def rules(self) -> SiteRules:
        """Limits of the site that apply where a queue has none."""

    @property
    def details(self) -> Mapping[str, NodeDetails]:
        """The hardware of nodes, as far as they have reported it."""

    @property
    def slow_ranks(self) -> Callable[[str], Sequence[str]]:
        """The ranks for which the others of a gang wait, in words."""

    @property
    def activities(self) -> Activities:
        """What nodes and their tasks do now, as they last reported it."""

    @property
    def series(self) -> Rings:
        """Figures over time."""

    @property
    def batches(self) -> tuple[BatchChild, WorkerScaler] | None:
        """Batching queues; only the leader has them."""

    @property
    def has_failed(self) -> bool:
        """Whether the journal can no longer be written."""

    def now_ms(self) -> int: ...
    def vitals(self) -> Vitals: ...
    def lacks(self, node: str) -> Mapping[str, str]:
        """What a node cannot run or limit, and why."""

    def separation(self, node: str) -> Mapping[str, str]:
        """What isolates tasks from each other on a node."""

    async def submit(self, user: str, specs: Sequence[JobSpec], request: str = "") -> Batch | Refusal: ...
    async def change(self, actor: str, command: Command, request: str = "") -> Batch | Refusal: ...
    async def change_accounts(self, actor: str, command: AccountCommand) -> Batch | Refusal: ...
    async def change_fleets(self, actor: str, command: FleetCommand) -> Batch | Refusal: ...
    async def outlooks(self, gangs: Sequence[str]) -> Mapping[str, StartOutlook]:
        """In short why gangs wait, and when they are expected to start, as far as the planner says in time."""
        ...

    async def line(self, most: int) -> Sequence[str] | Refusal:
        """The first waiting gangs, in the order of their turns."""
        ...

    def reserved_start_ms(self, gang: str) -> int | None:
        """The reserved start time of a waiting gang, if it has a reservation."""

    async def explain(self, gang: str) -> WhyAnswer | Refusal: ...
    async def dry_run(self, specs: Sequence[JobSpec], user: str) -> Sequence[DryRunOutcome] | Refusal: ...
    async def try_queue(self, spec: QueueSpec) -> QueueOutcome | Refusal: ...
    def subscribe(self) -> FeedContract: ...
