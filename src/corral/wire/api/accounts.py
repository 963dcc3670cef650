"""Users, roles, tokens, secrets: bodies and responses. Values of tokens are returned once, of secrets never.

Types and units only, not HTTP, rights, or how an answer is computed.
"""

from __future__ import annotations

from msgspec import Struct

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
    """``session_of``: the token with which a session of a browser was signed in; empty: it is no session."""

    id: str
    user: str
    name: str
    scope: tuple[str, ...]
    issued_ms: int
    expires_ms: int | None = None
    session_of: str = ""


class TokenList(Answer, frozen=True):
    tokens: tuple[TokenView, ...]


class TokenMade(TokenView, frozen=True, kw_only=True):
    """A new token. ``token`` is the Bearer token: it is returned only here and not stored."""

    token: str


class ProviderView(Answer, frozen=True):
    """An identity provider with which people sign in."""

    name: str
    issuer: str


class IssuerView(Answer, frozen=True):
    """An issuer whose tokens programs exchange. ``audience``: what its tokens must name."""

    name: str
    issuer: str
    audience: str


class SignInView(Answer, frozen=True):
    """The ways to sign in. Tokens of Corral are always accepted."""

    providers: tuple[ProviderView, ...]
    issuers: tuple[IssuerView, ...]


class DeviceBody(Body, frozen=True):
    """``provider`` empty: the only one."""

    provider: str = ""


class DeviceView(Answer, frozen=True):
    """A sign-in that was begun: the user opens ``page``, on any device, and types ``code``. ``whole_page`` has the code
    filled in. Ask for the result every ``interval_ms``."""

    id: str
    provider: str
    code: str
    page: str
    whole_page: str
    interval_ms: int
    expires_in_ms: int


class DeviceResultBody(Body, frozen=True):
    id: str


class BrowserBody(Body, frozen=True):
    """``provider`` empty: the only one."""

    provider: str = ""


class BrowserView(Answer, frozen=True):
    """A sign-in that was begun: the browser goes to ``page``, and comes back to the dashboard with a code."""

    provider: str
    page: str


class BrowserResultBody(Body, frozen=True):
    """What the provider added to the address: ``state``, ``code``, and ``iss`` if it says who it is."""

    state: str
    code: str
    iss: str = ""


class PageParameters(Struct, frozen=True):
    """The page of the dashboard reads its own address; providers add to it whatever they like."""


class ExchangeBody(Body, frozen=True):
    """``token``: a JSON Web Token of one of the issuers."""

    token: str


class RefreshBody(Body, frozen=True):
    provider: str
    refresh_token: str


class SignOutBody(Body, frozen=True):
    """``refresh_token``: revoked at the provider too, if it can do that."""

    provider: str = ""
    refresh_token: str = ""


class SignedInView(TokenMade, frozen=True, kw_only=True):
    """``refresh_token``: signs in again after the token has expired; empty: the provider gives none."""

    provider: str
    refresh_token: str = ""


class DeviceResult(Answer, frozen=True):
    """``signed_in`` None: the user has not finished; ask again."""

    signed_in: SignedInView | None


class LinkBody(Body, frozen=True):
    """``provider`` empty: the user signs in with tokens only."""

    provider: str = ""


class SessionBody(Body, frozen=True):
    """What to sign in with: a token, or a code for one use."""

    token: str = ""
    code: str = ""


class SessionView(Answer, frozen=True):
    """A session of a browser. ``csrf``: the value of the header Corral-CSRF, which every change must have."""

    id: str
    user: str
    csrf: str
    expires_ms: int | None = None


class SessionCode(Answer, frozen=True):
    """A code with which its user can sign in once, until it expires."""

    code: str
    expires_ms: int


class SecretBody(Body, frozen=True):
    value: str


class SecretView(Answer, frozen=True):
    """A secret for jobs of a queue and its children. Its value is never returned."""

    name: str
    queue: str
    set_ms: int


class SecretList(Answer, frozen=True):
    secrets: tuple[SecretView, ...]


class TemplateBody(Body, frozen=True):
    """A job file, in YAML."""

    text: str


class TemplateView(Answer, frozen=True):
    """A job file to begin with. ``site``: for all users."""

    name: str
    site: bool
    text: str
    set_ms: int


class TemplateList(Answer, frozen=True):
    """Templates of the site and of the user."""

    templates: tuple[TemplateView, ...]


class WhoAmI(Answer, frozen=True):
    """The user of a token, with roles. ``verbs``: what the user may do in at least one queue."""

    user: str
    account: str
    token: str
    roles: tuple[RoleView, ...]
    scope: tuple[str, ...]
    verbs: tuple[str, ...]
    expires_ms: int | None = None
