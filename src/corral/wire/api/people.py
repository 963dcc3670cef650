"""Users, roles, tokens, secrets: bodies and answers. Values of tokens are told once, of secrets never.

Shapes and units only: nothing of HTTP, of rights, or of how an answer is found.
"""

from __future__ import annotations

from corral.wire.api.answers import Answer, Body
from corral.wire.api.words import RoleWord


class RoleView(Answer, frozen=True):
    """A role in a queue and all below it; the queue ``""`` is the whole cluster."""

    role: RoleWord
    queue: str = ""


class RoleBody(Body, frozen=True):
    role: RoleWord
    queue: str = ""


class UserBody(Body, frozen=True):
    """What is not stated stays as it is. ``account``: the account of the machine that jobs run as; empty: that of the
    site, if it has one for everybody."""

    account: str | None = None
    disabled: bool | None = None


class UserView(Answer, frozen=True):
    name: str
    account: str
    disabled: bool
    roles: tuple[RoleView, ...]
    tokens: int


class UserList(Answer, frozen=True):
    users: tuple[UserView, ...]


class TokenBody(Body, frozen=True):
    """``user`` empty: oneself. ``scope``: verbs it is good for; empty: as its maker's. None: does not expire."""

    user: str = ""
    name: str = ""
    scope: tuple[str, ...] = ()
    expires_in_ms: int | None = None


class JoinTokenBody(Body, frozen=True):
    """``node``: the only node that the token is good for; empty: any new one."""

    node: str = ""
    expires_in_ms: int = 3_600_000


class TokenView(Answer, frozen=True):
    id: str
    user: str
    name: str
    scope: tuple[str, ...]
    issued_ms: int
    expires_ms: int | None = None


class TokenList(Answer, frozen=True):
    tokens: tuple[TokenView, ...]


class TokenMade(TokenView, frozen=True, kw_only=True):
    """A new token. ``token`` is what to send as Bearer: it is told this once and kept nowhere."""

    token: str


class SecretBody(Body, frozen=True):
    value: str


class SecretView(Answer, frozen=True):
    """That there is a secret, for jobs of a queue and below it. Its value is never told."""

    name: str
    queue: str
    set_ms: int


class SecretList(Answer, frozen=True):
    secrets: tuple[SecretView, ...]


class WhoAmI(Answer, frozen=True):
    """Who asks, by which token, and what was given to them. ``verbs``: what they may do somewhere."""

    user: str
    account: str
    token: str
    roles: tuple[RoleView, ...]
    scope: tuple[str, ...]
    verbs: tuple[str, ...]
    expires_ms: int | None = None
