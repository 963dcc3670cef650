"""The state, accounts and fleets of the server, and how they are packed into one image.

Knows how an image is packed. Knows nothing about where it is stored.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TypeGuard, cast, get_args

import msgspec
from msgspec import Struct, structs

from corral.core.accounts.accounts import AccountEvent, Accounts, JobTemplate, Role, Token, User
from corral.core.apply import apply
from corral.core.events import Event, JobSubmitted
from corral.core.fleets.fleets import Fleet, FleetEvent, Fleets
from corral.core.image import Image, from_image, take_image
from corral.core.model import Settings
from corral.core.state import State
from corral.wire.codec import AnyEvent

#: Changes with the structure of the image. An image of another format is ignored: the journal gives the same state.
IMAGE_FORMAT = 1


_OF_ENGINE = frozenset(get_args(Event))


def are_of_engine(events: Sequence[AnyEvent]) -> TypeGuard[Sequence[Event]]:
    """Whether events that belong together are the engine's, and not of accounts or fleets."""
    return not events or type(events[0]) in _OF_ENGINE


class _Packed(Struct, frozen=True, gc=False):
    state: Image
    users: list[User]
    roles: list[tuple[str, str, Role]]
    tokens: list[Token]
    secrets: list[tuple[str, str, int]]
    fleets: list[Fleet] = []
    fleet_numbers: dict[str, int] = {}
    cluster: str = ""
    farewell: tuple[int, int] = (0, 0)
    given_roles: list[tuple[str, str, Role, str]] = []  # those of identity providers, and of which
    proofs: dict[str, int] = {}
    templates: list[JobTemplate] = []


class JournalState:
    """Everything that is folded from the journal."""

    def __init__(self, state: State, accounts: Accounts, fleets: Fleets | None = None) -> None:
        self.state, self.accounts = state, accounts
        self.fleets = Fleets() if fleets is None else fleets
        self.left_out: tuple[int, ...] = ()  # records of the journal that could not be applied
        self.unusable: tuple[int, ...] = ()  # records whose images could not be used

    @classmethod
    def nothing(cls, settings: Settings) -> JournalState:
        return cls(State(settings), Accounts())

    def apply(self, event: AnyEvent) -> None:
        if type(event) is JobSubmitted and event.account is None:
            event = self._with_account(event)
        if type(event) in _OF_ENGINE:  # most are; isinstance with a long union takes longer than applying the event
            apply(self.state, cast(Event, event))
        elif isinstance(event, AccountEvent):
            self.accounts.apply(event)
        else:
            self.fleets.apply(cast(FleetEvent, event))

    def _with_account(self, event: JobSubmitted) -> JobSubmitted:
        """An event of an older version has no account: use the one its user had at that time."""
        user = self.accounts.users.get(event.user)
        return event if user is None else structs.replace(event, account=user.account)

    def become(self, other: JournalState) -> None:
        """Take over the content of another one, in place: all references to the state and the accounts stay valid."""
        for mine, theirs in ((self.state, other.state), (self.accounts, other.accounts), (self.fleets, other.fleets)):
            mine.__dict__.clear()
            mine.__dict__.update(theirs.__dict__)

    def pack(self) -> bytes:
        accounts = self.accounts
        users = [structs.replace(user, roles={}) for user in accounts.users.values()]
        roles = [(user.name, queue, role) for user in accounts.users.values() for queue, role in user.roles]
        given = [(user.name, *key, by) for user in accounts.users.values() for key, by in user.roles.items() if by]
        secrets = [(queue, name, at_ms) for (queue, name), at_ms in accounts.secrets.items()]
        packed = _Packed(
            take_image(self.state),
            users,
            roles,
            list(accounts.tokens.values()),
            secrets,
            list(self.fleets.fleets.values()),
            self.fleets.numbers,
            self.fleets.cluster,
            self.fleets.farewell,
            given,
            accounts.proofs,
            list(accounts.templates.values()),
        )
        return zlib.compress(msgspec.json.encode(packed), 1)

    @classmethod
    def unpack(cls, body: bytes) -> JournalState:
        packed = msgspec.json.decode(zlib.decompress(body), type=_Packed)
        accounts = Accounts()
        accounts.users = {user.name: user for user in packed.users}
        for name, queue, role in packed.roles:
            accounts.users[name].roles[queue, role] = ""
        for name, queue, role, by in packed.given_roles:
            accounts.users[name].roles[queue, role] = by
        accounts.proofs = packed.proofs
        accounts.tokens = {token.id: token for token in packed.tokens}
        accounts.secrets = {(queue, name): at_ms for queue, name, at_ms in packed.secrets}
        accounts.templates = {(each.user, each.name): each for each in packed.templates}
        fleets = Fleets()
        fleets.fleets = {fleet.spec.name: fleet for fleet in packed.fleets}
        fleets.by_node = {pilot: name for name, fleet in fleets.fleets.items() for pilot in fleet.pilots}
        fleets.numbers = packed.fleet_numbers
        fleets.cluster = packed.cluster
        fleets.farewell = packed.farewell
        state = from_image(packed.state)
        for job in state.jobs.values():
            if job.account is None and job.user in accounts.users:  # an image of an older version
                job.account = accounts.users[job.user].account
        return cls(state, accounts, fleets)
