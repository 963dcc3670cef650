"""All that the interface needs of the server, as narrow Protocols. Tests bring a small one of their own.

Knows no implementation. Everything here is called in the event loop's thread, but for ``Lookup``, which is asked in
reader threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol, runtime_checkable

from corral.backends.base import LogPart, TaskKey
from corral.backends.fleet.messages import EndpointAnswer
from corral.core.cluster.resources import Seat
from corral.core.events import Event
from corral.core.fleets.fleets import FleetEvent, Fleets
from corral.core.intake.refusal import Refusal
from corral.core.intake.site import SiteRules
from corral.core.model import JobSpec
from corral.core.people.accounts import AccountEvent, Accounts
from corral.core.people.identity import AccountRules
from corral.core.state import State
from corral.policy.advice import Change
from corral.policy.reasons import Hold
from corral.server.standing.vitals import Vitals
from corral.store.journal import Journal, Record
from corral.store.lookup import Lookup
from corral.wire.details import NodeDetails

AnyEvent = Event | AccountEvent | FleetEvent
Command = Callable[[State, int], Sequence[Event] | Refusal]
AccountCommand = Callable[[Accounts, int], Sequence[AccountEvent] | Refusal]
FleetCommand = Callable[[Fleets, int], Sequence[FleetEvent] | Refusal]


class Done(Protocol):
    """What was asked for is durable: its events and the number of the last of them."""

    @property
    def seq(self) -> int: ...
    @property
    def events(self) -> tuple[AnyEvent, ...]: ...


class Why(Protocol):
    @property
    def hold(self) -> Hold: ...
    @property
    def changes(self) -> tuple[Change, ...]: ...


class Prospect(Protocol):
    """What would become of a gang. No hold: it starts at ``starts_ms``, after the victims have left."""

    @property
    def gang(self) -> str: ...
    @property
    def seats(self) -> tuple[Seat, ...]: ...
    @property
    def starts_ms(self) -> int | None: ...
    @property
    def victims(self) -> tuple[str, ...]: ...
    @property
    def hold(self) -> Hold | None: ...


class Feed(Protocol):
    """Durable records from when it was asked for. It ends when it is closed or the server stops."""

    def __aiter__(self) -> AsyncIterator[Record]: ...
    def close(self) -> None: ...


class SecretStore(Protocol):
    """Where values of secrets are kept. Values leave it towards tasks only."""

    def put(self, queue: str, name: str, value: str) -> None: ...
    def drop(self, queue: str, name: str) -> None: ...


class Logs(Protocol):
    """May take its time: asked in threads of its own."""

    def read_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None: ...


@runtime_checkable
class DistantLogs(Logs, Protocol):
    """Logs on other machines: asked for, and answered a moment later; nobody has to hold a thread meanwhile."""

    @property
    def log_wait_s(self) -> float: ...
    def ask_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> Future[LogPart | None] | None: ...
    def kept_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None: ...


class Fleet(Protocol):
    """Machines that join. What their agents say does not come by this interface."""

    @property
    def endpoint(self) -> EndpointAnswer: ...
    def remove(self, node: str) -> None: ...


class Service(Protocol):
    @property
    def state(self) -> State: ...
    @property
    def accounts(self) -> Accounts: ...
    @property
    def account_rules(self) -> AccountRules:
        """What the site says about accounts of machines."""
        ...

    @property
    def fleets(self) -> Fleets:
        """Machines that engines lend."""
        ...

    @property
    def lookup(self) -> Lookup: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def durable_seq(self) -> int:
        """The newest record that whoever looks something up can see. The journal's head may be ahead of it."""
        ...

    @property
    def news(self) -> asyncio.Event:
        """Set when something more has become durable, and then replaced by another."""
        ...

    @property
    def backend(self) -> Logs: ...
    @property
    def fleet(self) -> Fleet | None:
        """The agents' side of the backend, where tasks run on many machines."""
        ...

    @property
    def secrets(self) -> SecretStore: ...
    @property
    def is_ready(self) -> bool: ...
    @property
    def leads(self) -> bool: ...
    @property
    def leader(self) -> str:
        """Where another server answers that leads, if it is known; "" where this one does."""
        ...

    @property
    def rules(self) -> SiteRules:
        """What the site allows where no queue says otherwise."""
        ...

    @property
    def details(self) -> Mapping[str, NodeDetails]:
        """What nodes are made of, as far as they have told."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether the journal can no longer be written."""
        ...

    def now_ms(self) -> int: ...
    def vitals(self) -> Vitals: ...
    def lacks(self, node: str) -> Mapping[str, str]:
        """What a machine cannot run or limit, and why."""
        ...

    async def submit(self, user: str, specs: Sequence[JobSpec], request: str = "") -> Done | Refusal: ...
    async def change(self, actor: str, command: Command, request: str = "") -> Done | Refusal: ...
    async def change_accounts(self, actor: str, command: AccountCommand) -> Done | Refusal: ...
    async def change_fleets(self, actor: str, command: FleetCommand) -> Done | Refusal: ...
    def promised_ms(self, gang: str) -> int | None:
        """When a waiting gang is promised a start, if it is."""
        ...

    async def explain(self, gang: str) -> Why | Refusal: ...
    async def dry_run(self, specs: Sequence[JobSpec], user: str) -> Sequence[Prospect] | Refusal: ...
    def subscribe(self) -> Feed: ...
