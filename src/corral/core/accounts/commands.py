"""Commands on accounts: each is checked against the accounts and becomes events, or a refusal that says why.

Rights are not decided here, nor how a token is created: identity, digests and times are arguments. Ensures that names
are valid, that users exist, and that an administrator always remains.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from corral.core.accounts import accounts as a
from corral.core.accounts.accounts import AccountEvent, Accounts, Role
from corral.core.intake.refusal import Refusal

Answer = list[AccountEvent] | Refusal

#: Names of users and secrets appear in paths, logs and file names, so only simple characters are allowed.
USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
SECRET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ACCOUNT = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")
NODE = SECRET
QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")  # no part is . or ..
JOIN = "join:"  # prefix of the name of a join token; after it, the only node it is valid for
NODE_MS = 90 * 86_400_000  # validity of the credential of a node
TOKENS_MAX = 1000  # of one user
TOKEN_NAME_MAX = 100
EXPIRED_KEPT_MS = 3_600_000
_AT_ONCE = 1_000


def set_user(accounts: Accounts, user: str, account: str | None, disabled: bool | None, now_ms: int) -> Answer:
    """Create or change a user. None leaves a value unchanged."""
    if not USER.fullmatch(user):
        hint = "use up to 64 letters, digits and . _ @ -; begin with a letter or digit"
        return Refusal("bad_name", f"{user!r} is not a valid user name", hint, "user")
    if account and not ACCOUNT.fullmatch(account):
        hint = "use up to 32 lower-case letters, digits and _ . -"
        return Refusal("bad_account", f"{account!r} is not a valid account name", hint, "account")
    if disabled and _is_last_administrator(accounts, user):
        return _last_administrator(user)
    known = accounts.users.get(user, a.User(user))
    account = known.account if account is None else account
    return [a.UserSet(now_ms, user, account, known.disabled if disabled is None else disabled)]


def remove_user(accounts: Accounts, user: str, now_ms: int) -> Answer:
    if user not in accounts.users:
        return _no_user(user)
    if _is_last_administrator(accounts, user):
        return _last_administrator(user)
    return [a.UserRemoved(now_ms, user)]


def grant(accounts: Accounts, user: str, role: Role, queue: str, queues: Collection[str], now_ms: int) -> Answer:
    """Grant a role. ``queues``: all that exist. Granting a role twice is not an error."""
    if user not in accounts.users:
        return _no_user(user)
    if queue and queue not in queues:
        return Refusal("no_such_queue", f"there is no queue {queue!r}", field="queue")
    if accounts.users[user].roles.get((queue, role)) == "":
        return []
    return [a.RoleGranted(now_ms, user, role, queue)]


def revoke(accounts: Accounts, user: str, role: Role, queue: str, now_ms: int) -> Answer:
    known = accounts.users.get(user)
    if known is None:
        return _no_user(user)
    if (queue, role) not in known.roles:
        return Refusal("no_such_role", f"{user} does not have the role {role} in {queue or 'the cluster'}")
    if role is Role.ADMINISTRATOR and not queue and _is_last_administrator(accounts, user):
        return _last_administrator(user)
    return [a.RoleRevoked(now_ms, user, role, queue)]


def issue_token(
    accounts: Accounts,
    token: str,
    user: str,
    digest: str,
    name: str,
    scope: tuple[str, ...],
    expires_ms: int | None,
    now_ms: int,
    session_of: str = "",
) -> Answer:
    if user not in accounts.users:
        return _no_user(user)
    if token in accounts.tokens:
        return Refusal("token_exists", "a token with this id exists already", "try again")
    if len(name) > TOKEN_NAME_MAX or not name.isprintable():
        why = "the name of the token is too long or not printable"
        return Refusal("bad_name", why, f"use up to {TOKEN_NAME_MAX} printable characters", "name")
    if expires_ms is not None and expires_ms <= now_ms:
        return Refusal("bad_expiry", "the token would expire immediately", "use a later expiry", "expires_in_ms")
    theirs = [each for each in accounts.tokens.values() if each.user == user]
    over = _expired(theirs, now_ms) if len(theirs) >= TOKENS_MAX else []
    if len(theirs) - sum(len(each.tokens) for each in over) >= TOKENS_MAX:
        return Refusal("too_many_tokens", f"{user} has {TOKENS_MAX} tokens, which is the limit", "revoke some first")
    return [*over, a.TokenIssued(now_ms, token, user, digest, name, scope, expires_ms, session_of)]


def drop_expired_tokens(accounts: Accounts, now_ms: int) -> Answer:
    """Remove tokens an hour after they expired; until then their users get the error that they have expired."""
    return [*_expired(accounts.tokens.values(), now_ms - EXPIRED_KEPT_MS, at_ms=now_ms)]


def _expired(tokens: Iterable[a.Token], until_ms: int, at_ms: int | None = None) -> list[a.TokensExpired]:
    """Events for expired tokens, each of bounded size."""
    over = [each.id for each in tokens if each.expires_ms is not None and each.expires_ms <= until_ms]
    parts = [tuple(over[n : n + _AT_ONCE]) for n in range(0, len(over), _AT_ONCE)]
    return [a.TokensExpired(until_ms if at_ms is None else at_ms, part) for part in parts]


def revoke_token(accounts: Accounts, token: str, now_ms: int) -> Answer:
    if token not in accounts.tokens:
        return Refusal("no_such_token", f"there is no token {token!r}")
    return [a.TokenRevoked(now_ms, token)]


def set_secret(_accounts: Accounts, secret: str, queue: str, queues: Collection[str], now_ms: int) -> Answer:
    """Record that a secret was set; its value is stored elsewhere."""
    if not SECRET.fullmatch(secret):
        hint = "use up to 64 letters, digits and . _ -; begin with a letter or digit"
        return Refusal("bad_name", f"{secret!r} is not a valid name of a secret", hint, "name")
    if queue and queue not in queues:
        return Refusal("no_such_queue", f"there is no queue {queue!r}", field="queue")
    return [a.SecretSet(now_ms, secret, queue)]


def remove_secret(accounts: Accounts, secret: str, queue: str, now_ms: int) -> Answer:
    if (queue, secret) not in accounts.secrets:
        return Refusal("no_such_secret", f"there is no secret {secret!r} of {queue or 'the cluster'}")
    return [a.SecretRemoved(now_ms, secret, queue)]


def part_from_queue(accounts: Accounts, queue: str, now_ms: int) -> list[AccountEvent]:
    """Revoke all roles in this queue and remove its secrets."""
    roles: list[AccountEvent] = [
        a.RoleRevoked(now_ms, user.name, role, queue)
        for user in accounts.users.values()
        for place, role in user.roles
        if place == queue
    ]
    return [*roles, *(a.SecretRemoved(now_ms, name, place) for place, name in accounts.secrets if place == queue)]


def node_user(node: str) -> str:
    """The user name of a node. No other user can have such a name."""
    return f"node:{node}"


def admit_node(accounts: Accounts, node: str, join: str, token: str, digest: str, now_ms: int) -> Answer:
    """Exchange a join token for the credential of a node. The join token is revoked. A token that names a node is valid
    only for that node, and replaces its credential if it has one."""
    if not NODE.fullmatch(node):
        hint = "use up to 64 letters, digits and . _ -; begin with a letter or digit"
        return Refusal("bad_name", f"{node!r} is not a valid node name", hint, "node")
    ticket = accounts.tokens.get(join)
    if ticket is None:
        return Refusal("no_such_token", "the token was already used", "create another one: corral node token")
    user, meant = node_user(node), ticket.name.removeprefix(JOIN)
    if meant and meant != node:
        return Refusal("other_node", f"the token is for node {meant}, not for {node}", f"join as {meant}", "node")
    if user in accounts.users and not meant:
        hint = f"if this machine replaces it, create a token for it: corral node token {node}"
        return Refusal("node_exists", f"there is already a node {node}", hint, "node")
    old = [a.TokenRevoked(now_ms, each.id) for each in accounts.tokens.values() if each.user == user]
    name = f"credential of node {node}"
    issued = a.TokenIssued(now_ms, token, user, digest, name, ("node.sync",), now_ms + NODE_MS)
    return [a.TokenRevoked(now_ms, join), *old, a.UserSet(now_ms, user), issued]


def renew_node(accounts: Accounts, presented: str, token: str, digest: str, now_ms: int) -> Answer:
    """Issue a new credential to the node that presents one. That one stays valid until it expires, in case the node
    loses the new one; its other credentials are revoked."""
    mine = accounts.tokens.get(presented)
    if mine is None:
        return Refusal("no_such_token", "the credential was revoked", "join again: corral node join --replace")
    others = [
        a.TokenRevoked(now_ms, each.id)
        for each in accounts.tokens.values()
        if each.user == mine.user and each.id != presented
    ]
    return [*others, a.TokenIssued(now_ms, token, mine.user, digest, mine.name, mine.scope, now_ms + NODE_MS)]


def replace_token(
    accounts: Accounts, old: str, token: str, digest: str, expires_ms: int, now_ms: int
) -> list[AccountEvent]:
    """Issue another token like this one, which stays valid until it expires; older ones of the same name and user are
    revoked."""
    mine = accounts.tokens[old]
    older = [
        a.TokenRevoked(now_ms, each.id)
        for each in accounts.tokens.values()
        if (each.user, each.name) == (mine.user, mine.name) and each.id != old
    ]
    return [*older, a.TokenIssued(now_ms, token, mine.user, digest, mine.name, mine.scope, expires_ms)]


def issue_ticket(
    accounts: Accounts, user: str, node: str, token: str, digest: str, until_ms: int, now_ms: int
) -> Answer:
    """Issue a token with which one machine can join as this node, once. A user may have any number of these."""
    if user not in accounts.users:
        return _no_user(user)
    issued = a.TokenIssued(now_ms, token, user, digest, f"{JOIN}{node}", ("node.join",), until_ms)
    theirs = [each for each in accounts.tokens.values() if each.user == user and each.name.startswith(JOIN)]
    return [*(_expired(theirs, now_ms) if len(theirs) >= TOKENS_MAX else []), issued]


def void_tickets(accounts: Accounts, node: str, now_ms: int) -> list[AccountEvent]:
    """Revoke all join tokens of this node."""
    return [a.TokenRevoked(now_ms, each.id) for each in accounts.tokens.values() if each.name == f"{JOIN}{node}"]


def dismiss_node(accounts: Accounts, node: str, now_ms: int) -> Answer:
    """Revoke the credential of a node."""
    user = node_user(node)
    return [a.UserRemoved(now_ms, user)] if user in accounts.users else []


def _is_last_administrator(accounts: Accounts, user: str) -> bool:
    """Whether this user is the only administrator of the cluster."""
    root = ("", Role.ADMINISTRATOR)
    able = {name for name, each in accounts.users.items() if root in each.roles and not each.disabled}
    return able == {user}


def _last_administrator(user: str) -> Refusal:
    return Refusal(
        "last_administrator", f"{user} is the last administrator of the cluster", "add another administrator first"
    )


def _no_user(user: str) -> Refusal:
    return Refusal("no_such_user", f"there is no user {user!r}")
