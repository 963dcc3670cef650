"""Who there is and what they were given: users, roles on queues, tokens and the names of secrets, folded from events.

Knows nothing of jobs, of requests or of how a token is checked. What a role may do is decided by the server. Values
of tokens and secrets are never in an event: of a token there is the digest, of a secret only its name.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from msgspec import Struct, field


class Role(StrEnum):
    """What somebody may do in a queue and below it, from most to least."""

    ADMINISTRATOR = "administrator"  # everything, users and queues among it
    OPERATOR = "operator"  # nodes, drains, everybody's jobs
    LEAD = "lead"  # everybody's jobs in the queue, its quota below its own
    MEMBER = "member"  # own jobs
    VIEWER = "viewer"  # look, do not touch


class _Event(Struct, frozen=True, gc=False, tag=True):
    at_ms: int


class UserSet(_Event, frozen=True, gc=False, tag=True):
    """A user was made or changed. ``account``: the account of the machine that jobs run as; empty: the server's."""

    user: str
    account: str = ""
    disabled: bool = False


class UserRemoved(_Event, frozen=True, gc=False, tag=True):
    """The user is gone, with all roles and tokens. What was done in that name stays done in that name."""

    user: str


class RoleGranted(_Event, frozen=True, gc=False, tag=True):
    """A role in a queue and all below it; the queue ``""`` is the whole cluster."""

    user: str
    role: Role
    queue: str = ""


class RoleRevoked(_Event, frozen=True, gc=False, tag=True):
    user: str
    role: Role
    queue: str = ""


class TokenIssued(_Event, frozen=True, gc=False, tag=True):
    """``digest`` is the SHA-256 of the secret part. ``scope``: the verbs it is good for; empty: all its user may do."""

    token: str
    user: str
    digest: str
    name: str = ""
    scope: tuple[str, ...] = ()
    expires_ms: int | None = None


class TokenRevoked(_Event, frozen=True, gc=False, tag=True):
    token: str


class TokensExpired(_Event, frozen=True, gc=False, tag=True):
    """These had expired and were let go."""

    tokens: tuple[str, ...]


class SecretSet(_Event, frozen=True, gc=False, tag=True):
    """There is a secret of this name for jobs of this queue and below it, or it has a new value."""

    secret: str
    queue: str


class SecretRemoved(_Event, frozen=True, gc=False, tag=True):
    secret: str
    queue: str


class AccessRefused(_Event, frozen=True, gc=False, tag=True):
    """Somebody with a good token tried what is not theirs. Changes nothing; it is there to be found."""

    user: str
    what: str


class Read(_Event, frozen=True, gc=False, tag=True):
    """Somebody looked at this, where reads are audited. Changes nothing. ``left_out``: reads of theirs before it that
    were the same again, or too many."""

    user: str
    what: str
    left_out: int = 0


AccountEvent = (
    UserSet
    | UserRemoved
    | RoleGranted
    | RoleRevoked
    | TokenIssued
    | TokenRevoked
    | SecretSet
    | SecretRemoved
    | AccessRefused
    | TokensExpired
    | Read
)


class User(Struct):
    name: str
    account: str = ""
    disabled: bool = False
    roles: dict[tuple[str, Role], None] = field(default_factory=dict)  # (queue, role)


class Token(Struct, frozen=True, gc=False):
    id: str
    user: str
    digest: str
    name: str
    scope: tuple[str, ...]
    issued_ms: int
    expires_ms: int | None


class Accounts:
    """The fold of all account events."""

    def __init__(self) -> None:
        self.users: dict[str, User] = {}
        self.tokens: dict[str, Token] = {}
        self.secrets: dict[tuple[str, str], int] = {}  # (queue, name) -> when it was set
        self.version = 0  # moves with every change of who may what

    def apply(self, event: AccountEvent) -> None:
        _FOLDS[type(event)](self, event)
        if not isinstance(event, SecretSet | SecretRemoved | AccessRefused | Read):
            self.version += 1


def _user_set(accounts: Accounts, event: UserSet) -> None:
    user = accounts.users.setdefault(event.user, User(event.user))
    user.account, user.disabled = event.account, event.disabled


def _user_removed(accounts: Accounts, event: UserRemoved) -> None:
    del accounts.users[event.user]
    accounts.tokens = {name: token for name, token in accounts.tokens.items() if token.user != event.user}


def _role_granted(accounts: Accounts, event: RoleGranted) -> None:
    accounts.users[event.user].roles[event.queue, event.role] = None


def _role_revoked(accounts: Accounts, event: RoleRevoked) -> None:
    accounts.users[event.user].roles.pop((event.queue, event.role), None)


def _token_issued(accounts: Accounts, event: TokenIssued) -> None:
    accounts.tokens[event.token] = Token(
        event.token, event.user, event.digest, event.name, event.scope, event.at_ms, event.expires_ms
    )


def _token_revoked(accounts: Accounts, event: TokenRevoked) -> None:
    accounts.tokens.pop(event.token, None)


def _tokens_expired(accounts: Accounts, event: TokensExpired) -> None:
    for token in event.tokens:
        accounts.tokens.pop(token, None)


def _secret_set(accounts: Accounts, event: SecretSet) -> None:
    accounts.secrets[event.queue, event.secret] = event.at_ms


def _secret_removed(accounts: Accounts, event: SecretRemoved) -> None:
    accounts.secrets.pop((event.queue, event.secret), None)


def _only_told(_accounts: Accounts, _event: AccessRefused | Read) -> None:
    """For those who read the record."""


_FOLDS: dict[type, Callable[[Accounts, Any], None]] = {
    UserSet: _user_set,
    UserRemoved: _user_removed,
    RoleGranted: _role_granted,
    RoleRevoked: _role_revoked,
    TokenIssued: _token_issued,
    TokenRevoked: _token_revoked,
    SecretSet: _secret_set,
    SecretRemoved: _secret_removed,
    AccessRefused: _only_told,
    TokensExpired: _tokens_expired,
    Read: _only_told,
}
