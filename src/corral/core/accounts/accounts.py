"""Accounts: users, roles on queues, tokens and the names of secrets, folded from events.

Knows nothing about jobs, requests or how a token is checked. The server decides what a role may do. Values of tokens
and secrets are never in an event: a token is stored as a digest, a secret only by name.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from msgspec import Struct, field


class Role(StrEnum):
    """What a user may do in a queue and below it, from most to least."""

    ADMINISTRATOR = "administrator"  # everything, including users and queues
    OPERATOR = "operator"  # nodes, and all jobs
    LEAD = "lead"  # all jobs of the queue, and the queues below it
    MEMBER = "member"  # own jobs
    VIEWER = "viewer"  # read only


class _Event(Struct, frozen=True, gc=False, tag=True):
    at_ms: int


class UserSet(_Event, frozen=True, gc=False, tag=True):
    """A user was created or changed. ``account``: of the machine, that jobs run as; empty: the server's."""

    user: str
    account: str = ""
    disabled: bool = False


class UserRemoved(_Event, frozen=True, gc=False, tag=True):
    """A user was removed, with all roles and tokens. Earlier records keep the name."""

    user: str


class RoleGranted(_Event, frozen=True, gc=False, tag=True):
    """A user got a role in a queue and all below it; the queue ``""`` is the whole cluster. ``by``: the identity
    provider whose groups give it; empty: a user granted it."""

    user: str
    role: Role
    queue: str = ""
    by: str = ""


class RoleRevoked(_Event, frozen=True, gc=False, tag=True):
    user: str
    role: Role
    queue: str = ""


class TokenIssued(_Event, frozen=True, gc=False, tag=True):
    """``digest``: SHA-256 of the secret part. ``scope``: the verbs it is valid for; empty: all that its user may do.
    ``session_of``: it is a session of a browser, signed in with this token, and ends with it; empty: it is a token."""

    token: str
    user: str
    digest: str
    name: str = ""
    scope: tuple[str, ...] = ()
    expires_ms: int | None = None
    session_of: str = ""


class TokenRevoked(_Event, frozen=True, gc=False, tag=True):
    token: str


class TokensExpired(_Event, frozen=True, gc=False, tag=True):
    """These expired tokens were removed."""

    tokens: tuple[str, ...]


class SecretSet(_Event, frozen=True, gc=False, tag=True):
    """A secret for jobs of this queue and below it was set, or has a new value."""

    secret: str
    queue: str


class SecretRemoved(_Event, frozen=True, gc=False, tag=True):
    secret: str
    queue: str


class TemplateSet(_Event, frozen=True, gc=False, tag=True):
    """A job file was stored under a name, to begin new jobs with. ``user``: whose it is; empty: for all users."""

    template: str
    user: str
    text: str


class TemplateRemoved(_Event, frozen=True, gc=False, tag=True):
    template: str
    user: str


class UserLinked(_Event, frozen=True, gc=False, tag=True):
    """From now on the user signs in with this identity provider. ``subject``: the provider's name for the person;
    empty: the first one that signs in with this user name."""

    user: str
    provider: str
    subject: str = ""


class SignedIn(_Event, frozen=True, gc=False, tag=True):
    """A user signed in. ``proof``: digest of the token that was presented and cannot be presented again before
    ``proof_until_ms``; empty: the server got it from the provider itself."""

    user: str
    provider: str
    subject: str
    proof: str = ""
    proof_until_ms: int = 0


class SignInRefused(_Event, frozen=True, gc=False, tag=True):
    """A person or program was refused; without a provider nothing confirmed who it is. Changes nothing; kept for
    audits."""

    provider: str
    subject: str
    user: str
    why: str


class AccessRefused(_Event, frozen=True, gc=False, tag=True):
    """A user or node with a valid token tried something without the right to. Changes nothing; kept for audits."""

    user: str
    what: str


class Read(_Event, frozen=True, gc=False, tag=True):
    """A user read this, if reads are audited. Changes nothing. ``left_out``: earlier reads of the user that were not
    recorded, because they were repeated or too many."""

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
    | UserLinked
    | SignedIn
    | SignInRefused
    | TemplateSet
    | TemplateRemoved
)


class User(Struct):
    name: str
    account: str = ""
    disabled: bool = False
    roles: dict[tuple[str, Role], str] = field(default_factory=dict)  # (queue, role) -> ``RoleGranted.by``
    provider: str = ""  # that the user signs in with; empty: with tokens only
    subject: str = ""


class Token(Struct, frozen=True, gc=False):
    id: str
    user: str
    digest: str
    name: str
    scope: tuple[str, ...]
    issued_ms: int
    expires_ms: int | None
    session_of: str = ""


class JobTemplate(Struct, frozen=True, gc=False):
    """A job file to begin with. ``user``: whose it is; empty: that of the site."""

    name: str
    user: str
    text: str
    set_ms: int


class Accounts:
    """The fold of all account events."""

    def __init__(self) -> None:
        self.users: dict[str, User] = {}
        self.tokens: dict[str, Token] = {}
        self.secrets: dict[tuple[str, str], int] = {}  # (queue, name) -> when it was set
        self.proofs: dict[str, int] = {}  # digests of tokens of providers that were used -> until when they are kept
        self.templates: dict[tuple[str, str], JobTemplate] = {}  # (user, name)
        self.version = 0  # increases with every change of rights

    def apply(self, event: AccountEvent) -> None:
        _FOLDS[type(event)](self, event)
        if not isinstance(event, _NO_RIGHTS):
            self.version += 1


def _user_set(accounts: Accounts, event: UserSet) -> None:
    user = accounts.users.setdefault(event.user, User(event.user))
    user.account, user.disabled = event.account, event.disabled


def _user_removed(accounts: Accounts, event: UserRemoved) -> None:
    del accounts.users[event.user]
    accounts.tokens = {name: token for name, token in accounts.tokens.items() if token.user != event.user}
    accounts.templates = {key: each for key, each in accounts.templates.items() if key[0] != event.user}


def _role_granted(accounts: Accounts, event: RoleGranted) -> None:
    accounts.users[event.user].roles[event.queue, event.role] = event.by


def _role_revoked(accounts: Accounts, event: RoleRevoked) -> None:
    accounts.users[event.user].roles.pop((event.queue, event.role), None)


def _token_issued(accounts: Accounts, event: TokenIssued) -> None:
    accounts.tokens[event.token] = Token(
        event.token,
        event.user,
        event.digest,
        event.name,
        event.scope,
        event.at_ms,
        event.expires_ms,
        event.session_of,
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


def _template_set(accounts: Accounts, event: TemplateSet) -> None:
    accounts.templates[event.user, event.template] = JobTemplate(event.template, event.user, event.text, event.at_ms)


def _template_removed(accounts: Accounts, event: TemplateRemoved) -> None:
    accounts.templates.pop((event.user, event.template), None)


def _user_linked(accounts: Accounts, event: UserLinked) -> None:
    user = accounts.users[event.user]
    user.provider = event.provider
    user.subject = event.subject


def _signed_in(accounts: Accounts, event: SignedIn) -> None:
    if event.proof:
        accounts.proofs = {proof: until for proof, until in accounts.proofs.items() if until > event.at_ms}
        accounts.proofs[event.proof] = event.proof_until_ms


def _no_change(_accounts: Accounts, _event: AccessRefused | Read | SignInRefused) -> None:
    """These events are only for readers of the journal."""


_FOLDS: dict[type, Callable[[Accounts, Any], None]] = {
    UserSet: _user_set,
    UserRemoved: _user_removed,
    RoleGranted: _role_granted,
    RoleRevoked: _role_revoked,
    TokenIssued: _token_issued,
    TokenRevoked: _token_revoked,
    SecretSet: _secret_set,
    SecretRemoved: _secret_removed,
    AccessRefused: _no_change,
    TokensExpired: _tokens_expired,
    Read: _no_change,
    UserLinked: _user_linked,
    SignedIn: _signed_in,
    SignInRefused: _no_change,
    TemplateSet: _template_set,
    TemplateRemoved: _template_removed,
}
_NO_RIGHTS = (
    SecretSet, SecretRemoved, AccessRefused, Read, SignedIn, SignInRefused, TemplateSet, TemplateRemoved,
)  # fmt: skip
