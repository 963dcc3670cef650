"""Who asks, and may they: tokens are checked here, and role x verb x queue is decided here, in one table.

Knows accounts and names of queues. Knows nothing of requests or answers: it is told a header's value, a verb, a queue
and an owner, and says allowed, forbidden (it may be known that it is there) or hidden (it may not).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from enum import Enum, StrEnum

from msgspec import Struct

from corral.core.intake.refusal import Refusal
from corral.core.people.accounts import Accounts, Role, User


class Verb(StrEnum):
    """What is asked. A token with a scope is good for the verbs it names only."""

    JOBS_READ = "jobs.read"
    JOBS_SUBMIT = "jobs.submit"
    JOBS_CHANGE = "jobs.change"
    JOBS_UNBOUNDED = "jobs.unbounded"  # priority and grace beyond what the site allows where no queue states a bound
    LOGS_READ = "logs.read"
    EVENTS_READ = "events.read"
    USAGE_READ = "usage.read"
    QUEUES_READ = "queues.read"
    QUEUES_CHANGE = "queues.change"
    QUEUES_GIVE = "queues.give"  # guarantees and bounds beyond those of the queue above
    NODES_READ = "nodes.read"
    NODES_CHANGE = "nodes.change"
    FLEETS_READ = "fleets.read"
    FLEETS_CHANGE = "fleets.change"
    FLEETS_PROGRAMS = "fleets.programs"  # to name what the server executes for a fleet, and where it logs in
    USERS_READ = "users.read"
    USERS_CHANGE = "users.change"
    ROLES_CHANGE = "roles.change"
    TOKENS_READ = "tokens.read"
    TOKENS_CHANGE = "tokens.change"
    SECRETS_READ = "secrets.read"
    SECRETS_CHANGE = "secrets.change"
    METRICS_READ = "metrics.read"
    NODE_JOIN = "node.join"  # of a token that lets one machine join
    NODE_SYNC = "node.sync"  # of the credential of a node


class Reach(Enum):
    """How far a role's right to a verb goes, within the queue it is bound to and all below it."""

    OWN = "own"  # what belongs to oneself
    BELOW = "below"  # queues below one's own, not that one itself
    ANY = "any"


class Verdict(Enum):
    ALLOWED = "allowed"
    FORBIDDEN = "forbidden"
    HIDDEN = "hidden"


A, O, L, M, V = Role.ADMINISTRATOR, Role.OPERATOR, Role.LEAD, Role.MEMBER, Role.VIEWER  # noqa: E741
_EVERYBODY = {A: Reach.ANY, O: Reach.ANY, L: Reach.ANY, M: Reach.ANY, V: Reach.ANY}

#: Who may what. Things that are of no queue (nodes, users, the metrics) belong to the root: "" in the calls below.
TABLE: dict[Verb, dict[Role, Reach]] = {
    Verb.JOBS_READ: _EVERYBODY,
    Verb.JOBS_SUBMIT: {A: Reach.ANY, O: Reach.ANY, L: Reach.ANY, M: Reach.ANY},
    Verb.JOBS_CHANGE: {A: Reach.ANY, O: Reach.ANY, L: Reach.ANY, M: Reach.OWN},
    Verb.JOBS_UNBOUNDED: {A: Reach.ANY, O: Reach.ANY},  # asked of the root: for all queues or for none
    Verb.LOGS_READ: _EVERYBODY,
    Verb.EVENTS_READ: _EVERYBODY,
    Verb.USAGE_READ: _EVERYBODY,
    Verb.QUEUES_READ: _EVERYBODY,
    Verb.QUEUES_CHANGE: {A: Reach.BELOW, L: Reach.BELOW},  # the root, which nobody changes, is above all others
    Verb.QUEUES_GIVE: {A: Reach.ANY},  # asked of the root
    Verb.NODES_READ: _EVERYBODY,
    Verb.NODES_CHANGE: {A: Reach.ANY, O: Reach.ANY},
    Verb.FLEETS_READ: {A: Reach.ANY, O: Reach.ANY},  # settings of carriers are nobody else's business
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
    Verb.NODE_JOIN: {},  # by a token of somebody who may change nodes, and by no role
    Verb.NODE_SYNC: {},
}

#: Which verb shows that a thing is there. Whoever may not even that is told "not found".
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

#: Which roles each may hand on, in the queue it holds its own for and below it: never more than it has itself.
GRANTS: dict[Role, frozenset[Role]] = {A: frozenset(Role), L: frozenset({L, M, V})}


class Principal(Struct, frozen=True, gc=False):
    """Who asks: a user, by one of their tokens."""

    user: str
    token: str
    scope: tuple[str, ...] = ()
    expires_ms: int | None = None


class NewToken(Struct, frozen=True, gc=False):
    """A token that was just drawn: ``text`` goes to its user, ``digest`` into the record."""

    id: str
    text: str
    digest: str


# ---- tokens ----------------------------------------------------------------------------------------------

PREFIX = "corral"
_WHOLE = re.compile(rf"{PREFIX}_([0-9a-f]{{4,32}})_[A-Za-z0-9_-]{{8,}}")
_NOBODY = hashlib.sha256(b"").hexdigest()


def new_token() -> NewToken:
    """``corral_<id>_<secret>``: 64 random bits to name it, 256 to prove it."""
    number, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    return NewToken(number, f"{PREFIX}_{number}_{secret}", digest_of(secret))


def redacted(text: str) -> str:
    """The text without secrets of tokens: what of them may be shown is their id."""
    return _WHOLE.sub(rf"{PREFIX}_\1_...", text) if PREFIX in text else text


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def known_token(accounts: Accounts, authorization: str | None) -> str:
    """The id of the token that a header speaks of, if there is one of that id; whether its secret is right is left
    open."""
    parts = (authorization or "").partition(" ")[2].strip().split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == PREFIX and parts[1] in accounts.tokens else ""


def authenticate(accounts: Accounts, authorization: str | None, now_ms: int) -> Principal | Refusal:
    """Whose token it is. Unknown, revoked and wrong tokens are told apart by nobody, not even by a clock."""
    if not authorization:
        return Refusal("no_token", "this needs a token", "send the header `Authorization: Bearer corral_...`")
    scheme, _, text = authorization.partition(" ")
    parts = text.strip().split("_", 2)
    if scheme.lower() != "bearer" or len(parts) != 3 or parts[0] != PREFIX or not text.isascii():
        return Refusal("bad_token", "that is not a token of this server", "tokens look like corral_<id>_<secret>")
    token = accounts.tokens.get(parts[1])
    is_right = hmac.compare_digest(token.digest if token else _NOBODY, digest_of(parts[2]))
    if token is None or not is_right:
        return Refusal("bad_token", "the token is not known or was revoked", "ask for a new one")
    if token.expires_ms is not None and token.expires_ms <= now_ms:
        return Refusal("token_expired", "the token has expired", "ask for a new one")
    user = accounts.users.get(token.user)
    if user is None or user.disabled:
        return Refusal("user_disabled", f"{token.user} may not use this server at present", "ask an administrator")
    return Principal(token.user, token.id, token.scope, token.expires_ms)


def is_alive(accounts: Accounts, principal: Principal, now_ms: int) -> bool:
    """Whether a token that was good when a stream began still is."""
    user = accounts.users.get(principal.user)
    is_over = principal.expires_ms is not None and principal.expires_ms <= now_ms
    return user is not None and not user.disabled and principal.token in accounts.tokens and not is_over


def may_mint(principal: Principal, scope: tuple[str, ...], expires_ms: int | None) -> Refusal | None:
    """A token makes no token that can do more, or lives longer, than itself."""
    unknown = [each for each in scope if each not in list(Verb)]
    if unknown:
        hint = f"verbs: {', '.join(Verb)}"
        return Refusal("no_such_verb", f"there is no verb {unknown[0]!r}", hint, "scope")
    if principal.scope and not set(scope or Verb) <= set(principal.scope):
        return Refusal("wider_token", "the new token could do more than the one that makes it", "narrow it", "scope")
    mine = principal.expires_ms
    if mine is not None and (expires_ms is None or expires_ms > mine):
        why = "the new token would live longer than the one that makes it"
        return Refusal("wider_token", why, "let it expire earlier", "expires_in_ms")
    return None


# ---- rights ----------------------------------------------------------------------------------------------


def authorize(accounts: Accounts, principal: Principal, verb: Verb, queue: str = "", owner: str = "") -> Verdict:
    """May they do this to a thing of this queue and owner. One keeps sight of what is one's own, whatever the role."""
    user = accounts.users.get(principal.user)
    if user is None:
        return Verdict.HIDDEN
    if is_in_scope(principal, verb) and may(user, verb, queue, owner):
        return Verdict.ALLOWED
    return Verdict.FORBIDDEN if may(user, SIGHT.get(verb, verb), queue, owner) else Verdict.HIDDEN


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
    """Whether there is any queue in which they may."""
    user = accounts.users.get(principal.user)
    if user is None or not is_in_scope(principal, verb):
        return False
    return verb in _KEPT_CHANGE or verb in _KEPT or any(role in TABLE[verb] for _, role in user.roles)


def seen_queues(accounts: Accounts, principal: Principal, verb: Verb) -> tuple[str, ...] | None:
    """The queues (each with all below it) in which they may do this to whatever is there; None: all of them."""
    user = accounts.users.get(principal.user)
    if user is None or not is_in_scope(principal, verb):
        return ()
    rights = TABLE[verb]
    bounds = sorted({bound for bound, role in user.roles if rights.get(role) is Reach.ANY})
    return None if "" in bounds else tuple(bounds)


def is_among(queue: str, seen: tuple[str, ...] | None) -> bool:
    return seen is None or any(queue == each or queue.startswith(each + "/") for each in seen)


def may_grant(accounts: Accounts, principal: Principal, role: Role, queue: str) -> bool:
    """Nobody hands on more than they have, nor where they do not have it."""
    user = accounts.users.get(principal.user)
    return user is not None and any(
        role in GRANTS.get(mine, ()) and (not bound or queue == bound or queue.startswith(bound + "/"))
        for bound, mine in user.roles
    )
