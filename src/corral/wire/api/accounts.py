"""Users, roles, tokens, secrets: bodies and responses. Values of tokens are returned once, of secrets never.

Types and units only, not HTTP, rights, or how an answer is computed.
"""

from __future__ import annotations

from corral.wire.api.answers import Answer, Body
from corral.wire.api.constraints import AccountName, JoinMs, NodeName, QueueName, TokenMs, TokenName, UserName
from corral.wire.api.words import RoleWord


class RoleView(Answer, frozen=True):
    """A role in a queue and all below it; the queue ``""`` is the whole cluster."""

    role: RoleWord
    queue: str = ""


class RoleBody(Body, frozen=True):
    role: RoleWord
    queue: QueueName = ""


class UserBody(Body, frozen=True):
    """What is not given does not change. ``account``: Unix account that runs the user's jobs; empty: the default of the
    site, if there is one."""

    account: AccountName | None = None
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
    """``user`` empty: the caller. ``scope``: verbs it allows; empty: as the caller's token. None: does not expire."""

    user: UserName = ""
    name: TokenName = ""
    scope: tuple[str, ...] = ()
    expires_in_ms: TokenMs | None = None


class JoinTokenBody(Body, frozen=True):
    """``node``: the only node that may use the token; empty: any new one."""

    node: NodeName = ""
    expires_in_ms: JoinMs = 3_600_000


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
    """A new token. ``token`` is the Bearer token: it is returned only here and not stored."""

    token: str


class SecretBody(Body, frozen=True):
    value: str


class SecretView(Answer, frozen=True):
    """A secret for jobs of a queue and its children. Its value is never returned."""

    name: str
    queue: str
    set_ms: int


class SecretList(Answer, frozen=True):
    secrets: tuple[SecretView, ...]


class WhoAmI(Answer, frozen=True):
    """The user of a token, with roles. ``verbs``: what the user may do in at least one queue."""

    user: str
    account: str
    token: str
    roles: tuple[RoleView, ...]
    scope: tuple[str, ...]
    verbs: tuple[str, ...]
    expires_ms: int | None = None
