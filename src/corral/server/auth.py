"""Authentication and authorization: checks tokens, and decides role x verb x queue in one table.

Knows accounts and names of queues. Knows nothing about requests or answers: it gets the value of a header, a verb, a
queue and an owner, and returns allowed, forbidden (the user may know that the thing exists) or hidden (may not know).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from enum import Enum, StrEnum

from msgspec import Struct

from corral.core.accounts.accounts import Accounts, Role, User
from corral.core.intake.refusal import Refusal


class Verb(StrEnum):
    """What a request does. A token with a scope is valid only for the verbs it names."""

    JOBS_READ = "jobs.read"
    JOBS_SUBMIT = "jobs.submit"
    JOBS_CHANGE = "jobs.change"
    JOBS_UNBOUNDED = "jobs.unbounded"  # priority and grace beyond the limits of the site, where a queue has none
    LOGS_READ = "logs.read"
    EVENTS_READ = "events.read"
    USAGE_READ = "usage.read"
    QUEUES_READ = "queues.read"
    QUEUES_CHANGE = "queues.change"
    QUEUES_GIVE = "queues.give"  # guarantees and limits beyond those of the parent queue
    NODES_READ = "nodes.read"
    NODES_CHANGE = "nodes.change"
    FLEETS_READ = "fleets.read"
    FLEETS_CHANGE = "fleets.change"
    FLEETS_PROGRAMS = "fleets.programs"  # set what the server executes for a fleet, and where it logs in
    USERS_READ = "users.read"
    USERS_CHANGE = "users.change"
    ROLES_CHANGE = "roles.change"
    TOKENS_READ = "tokens.read"
    TOKENS_CHANGE = "tokens.change"
    SECRETS_READ = "secrets.read"
    SECRETS_CHANGE = "secrets.change"
    METRICS_READ = "metrics.read"
    INTAKE = "intake.submit"  # hand over messages of a broker, each as the user that it names
    NODE_JOIN = "node.join"  # the scope of a join token
    NODE_SYNC = "node.sync"  # the scope of the credential of a node


class Reach(Enum):
    """The extent of a role's right to a verb, within the queue it is bound to and all queues below it."""

    OWN = "own"  # what belongs to the user
    BELOW = "below"  # queues below the queue of the role, not that queue itself
    ANY = "any"


class Access(Enum):
    ALLOWED = "allowed"
    FORBIDDEN = "forbidden"
    HIDDEN = "hidden"


A = Role.ADMINISTRATOR
O = Role.OPERATOR  # noqa: E741
L = Role.LEAD
M = Role.MEMBER
V = Role.VIEWER
_EVERYBODY = {A: Reach.ANY, O: Reach.ANY, L: Reach.ANY, M: Reach.ANY, V: Reach.ANY}

#: The rights of each role. What belongs to no queue (nodes, users, metrics) belongs to the root: "" in the calls below.
TABLE: dict[Verb, dict[Role, Reach]] = {
    Verb.JOBS_READ: _EVERYBODY,
    Verb.JOBS_SUBMIT: {A: Reach.ANY, O: Reach.ANY, L: Reach.ANY, M: Reach.ANY},
    Verb.JOBS_CHANGE: {A: Reach.ANY, O: Reach.ANY, L: Reach.ANY, M: Reach.OWN},
    Verb.JOBS_UNBOUNDED: {A: Reach.ANY, O: Reach.ANY},  # checked for the root: for all queues or for none
    Verb.LOGS_READ: _EVERYBODY,
    Verb.EVENTS_READ: _EVERYBODY,
    Verb.USAGE_READ: _EVERYBODY,
    Verb.QUEUES_READ: _EVERYBODY,
    Verb.QUEUES_CHANGE: {A: Reach.BELOW, L: Reach.BELOW},  # the root, which cannot be changed, is above all others
    Verb.QUEUES_GIVE: {A: Reach.ANY},  # checked for the root
    Verb.NODES_READ: _EVERYBODY,
    Verb.NODES_CHANGE: {A: Reach.ANY, O: Reach.ANY},
    Verb.FLEETS_READ: {A: Reach.ANY, O: Reach.ANY},  # settings of providers are confidential
    Verb.FLEETS_CHANGE: {A: Reach.ANY, O: Reach.ANY},
    Verb.FLEETS_PROGRAMS: {A: Reach.ANY},
    Verb.USERS_READ: {A: Reach.ANY, O: Reach.OWN, L: Reach.ANY, M: Reach.OWN, V: Reach.OWN},
    Verb.USERS_CHANGE: {A: Reach.ANY},
    Verb.ROLES_CHANGE: {A: Reach.ANY, L: Reach.ANY},
    Verb.TOKENS_READ: {A: Reach.ANY, O: Reach.OWN, L: Reach.OWN, M: Reach.OWN, V: Reach.OWN},
    Verb.TOKENS_CHANGE: {A: Reach.ANY, O: Reach.OWN, L: Reach.OWN, M: Reach.OWN, V: Reach.OWN},
    Verb.SECRETS_READ: {A: Reach.ANY, O: Reach.ANY, L: Reach.ANY, M: Reach.ANY},
    Verb.SECRETS_CHANGE: {A: Reach.ANY, L: Reach.ANY},
    Verb.METRICS_READ: {A: Reach.ANY, O: Reach.ANY},
    Verb.INTAKE: {A: Reach.ANY},  # checked for the root
    Verb.NODE_JOIN: {},  # of no role: by a token of a user who may change nodes
    Verb.NODE_SYNC: {},
}

#: The verb that lets a user know that a thing exists. Without it the answer is 404.
SIGHT: dict[Verb, Verb] = {
    Verb.JOBS_SUBMIT: Verb.QUEUES_READ,
    Verb.JOBS_CHANGE: Verb.JOBS_READ,
    Verb.LOGS_READ: Verb.JOBS_READ,
    Verb.QUEUES_CHANGE: Verb.QUEUES_READ,
    Verb.NODES_CHANGE: Verb.NODES_READ,
    Verb.FLEETS_CHANGE: Verb.FLEETS_READ,
    Verb.FLEETS_PROGRAMS: Verb.FLEETS_READ,
    Verb.USERS_CHANGE: Verb.USERS_READ,
    Verb.ROLES_CHANGE: Verb.USERS_READ,
    Verb.TOKENS_CHANGE: Verb.TOKENS_READ,
    Verb.SECRETS_CHANGE: Verb.SECRETS_READ,
}

#: The roles that each role may grant, in its own queue and below it: never more than it has itself.
GRANTS: dict[Role, frozenset[Role]] = {A: frozenset(Role), L: frozenset({L, M, V})}


class Principal(Struct, frozen=True, gc=False):
    """The requesting user and the token used."""

    user: str
    token: str
    scope: tuple[str, ...] = ()
    expires_ms: int | None = None
    is_session: bool = False


class NewToken(Struct, frozen=True, gc=False):
    """A new token: ``text`` goes to its user, ``digest`` into the journal."""

    id: str
    text: str
    digest: str


# ---- tokens ----------------------------------------------------------------------------------------------

PREFIX = "corral"
_WHOLE = re.compile(rf"{PREFIX}_([0-9a-f]{{4,32}})_[A-Za-z0-9_-]{{8,}}")
_NO_DIGEST = hashlib.sha256(b"").hexdigest()


def new_token() -> NewToken:
    """``corral_<id>_<secret>``: 64 random bits for the id, 256 for the secret."""
    number, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    return NewToken(number, f"{PREFIX}_{number}_{secret}", digest_of(secret))


def redacted(text: str) -> str:
    """The text with secrets of tokens removed; only their ids are shown."""
    return _WHOLE.sub(rf"{PREFIX}_\1_...", text) if PREFIX in text else text


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def known_token(accounts: Accounts, authorization: str | None) -> str:
    """The id of the token in a header, if a token with that id exists. Does not check its secret."""
    parts = (authorization or "").partition(" ")[2].strip().split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == PREFIX and parts[1] in accounts.tokens else ""


def authenticate(
    accounts: Accounts, authorization: str | None, now_ms: int, *, is_cookie: bool = False
) -> Principal | Refusal:
    """The user of a token. Unknown, revoked and wrong tokens get the same answer in the same time. Sessions are
    accepted from cookies only, and nothing else is."""
    if not authorization:
        return Refusal("no_token", "this request needs a token", "send the header `Authorization: Bearer corral_...`")
    scheme, _, text = authorization.partition(" ")
    parts = text.strip().split("_", 2)
    if scheme.lower() != "bearer" or len(parts) != 3 or parts[0] != PREFIX or not text.isascii():
        return Refusal(
            "bad_token",
            "this is not a token of Corral",
            "tokens look like corral_<id>_<secret>; store yours with: corral login",
        )
    token = accounts.tokens.get(parts[1])
    is_right = hmac.compare_digest(token.digest if token else _NO_DIGEST, digest_of(parts[2]))
    if token is None or not is_right or bool(token.session_of) != is_cookie:
        return Refusal("bad_token", "the token is unknown or was revoked", "ask an administrator for a new one")
    if token.expires_ms is not None and token.expires_ms <= now_ms:
        return Refusal("token_expired", "the token has expired", "ask an administrator for a new one")
    user = accounts.users.get(token.user)
    if user is None or user.disabled:
        return Refusal("user_disabled", f"user {token.user} is disabled", "ask an administrator")
    if token.session_of and token.session_of not in accounts.tokens:
        return Refusal("session_over", "the token that this session was signed in with was revoked", "sign in again")
    return Principal(token.user, token.id, token.scope, token.expires_ms, bool(token.session_of))


def token_owner(accounts: Accounts, text: str) -> str:
    """The user of a token whose secret is right, even if it may no longer be used; empty: there is none."""
    parts = text.strip().split("_", 2)
    token = accounts.tokens.get(parts[1]) if len(parts) == 3 and parts[0] == PREFIX and text.isascii() else None
    is_right = hmac.compare_digest(token.digest if token else _NO_DIGEST, digest_of(parts[-1]))
    return token.user if token is not None and is_right and not token.session_of else ""


def csrf_of(secret: str) -> str:
    """What a page of a session sends with every change: another site cannot know it."""
    return digest_of(f"csrf {secret}")[:32]


def is_alive(accounts: Accounts, principal: Principal, now_ms: int) -> bool:
    """Whether a token that was valid when a stream began still is."""
    user = accounts.users.get(principal.user)
    is_over = principal.expires_ms is not None and principal.expires_ms <= now_ms
    token = accounts.tokens.get(principal.token)
    if user is None or user.disabled or token is None or is_over:
        return False
    return not token.session_of or token.session_of in accounts.tokens


def may_mint(principal: Principal, scope: tuple[str, ...], expires_ms: int | None) -> Refusal | None:
    """Refuse a new token with more rights, or a later expiry, than the token that creates it."""
    unknown = [each for each in scope if each not in list(Verb)]
    if unknown:
        hint = f"verbs: {', '.join(Verb)}"
        return Refusal("no_such_verb", f"there is no verb {unknown[0]!r}", hint, "scope")
    if principal.scope and not set(scope or Verb) <= set(principal.scope):
        why = "the new token would have more rights than the one that creates it"
        return Refusal("wider_token", why, "give it a narrower scope", "scope")
    mine = principal.expires_ms
    if mine is not None and (expires_ms is None or expires_ms > mine):
        why = "the new token would expire later than the one that creates it"
        return Refusal("wider_token", why, "let it expire earlier", "expires_in_ms")
    return None


# ---- rights ----------------------------------------------------------------------------------------------


def authorize(accounts: Accounts, principal: Principal, verb: Verb, queue: str = "", owner: str = "") -> Access:
    """Whether a user may do this to a thing of this queue and owner. Users always see what is their own."""
    user = accounts.users.get(principal.user)
    if user is None:
        return Access.HIDDEN
    if is_in_scope(principal, verb) and may(user, verb, queue, owner):
        return Access.ALLOWED
    return Access.FORBIDDEN if may(user, SIGHT.get(verb, verb), queue, owner) else Access.HIDDEN


def is_in_scope(principal: Principal, verb: Verb) -> bool:
    return not principal.scope or verb in principal.scope


_KEPT = frozenset({Verb.JOBS_READ, Verb.LOGS_READ, Verb.EVENTS_READ, Verb.USERS_READ, Verb.TOKENS_READ})
_KEPT_CHANGE = frozenset({Verb.TOKENS_CHANGE})


def may(user: User, verb: Verb, queue: str, owner: str = "") -> bool:
    is_own = owner == user.name
    if is_own and (verb in _KEPT or verb in _KEPT_CHANGE):
        return True
    rights = TABLE[verb]
    for bound, role in user.roles:
        if not bound or queue == bound or queue.startswith(bound + "/"):
            reach = rights.get(role)
            if reach is Reach.ANY or (reach is Reach.OWN and is_own) or (reach is Reach.BELOW and queue != bound):
                return True
    return False


def may_somewhere(accounts: Accounts, principal: Principal, verb: Verb) -> bool:
    """Whether the user has the right in any queue."""
    user = accounts.users.get(principal.user)
    if user is None or not is_in_scope(principal, verb):
        return False
    return verb in _KEPT_CHANGE or verb in _KEPT or any(role in TABLE[verb] for _, role in user.roles)


def seen_queues(accounts: Accounts, principal: Principal, verb: Verb) -> tuple[str, ...] | None:
    """The queues, each with all below it, in which the user may do this to everything; None: all queues."""
    user = accounts.users.get(principal.user)
    if user is None or not is_in_scope(principal, verb):
        return ()
    rights = TABLE[verb]
    bounds = sorted({bound for bound, role in user.roles if rights.get(role) is Reach.ANY})
    return None if "" in bounds else tuple(bounds)


def is_among(queue: str, seen: tuple[str, ...] | None) -> bool:
    return seen is None or any(queue == each or queue.startswith(each + "/") for each in seen)


def may_grant(accounts: Accounts, principal: Principal, role: Role, queue: str) -> bool:
    """Whether the user may grant this role in this queue: only roles they have, and only where they have them."""
    user = accounts.users.get(principal.user)
    return user is not None and any(
        role in GRANTS.get(mine, ()) and (not bound or queue == bound or queue.startswith(bound + "/"))
        for bound, mine in user.roles
    )
