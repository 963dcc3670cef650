"""Users, roles, tokens and secrets. The value of a token is shown once, to its creator; that of a secret never.

``auth`` decides what a user may change of other users; ``core.accounts`` keeps accounts consistent.
"""

from __future__ import annotations

from corral.core.accounts import commands
from corral.core.accounts.accounts import Role, User
from corral.server.api.handlers.views import copy_fields
from corral.server.api.http.problems import ApiError, forbidden, not_found
from corral.server.api.http.request import ApiRequest, Reply, accepted
from corral.server.auth import Verb, may_grant, may_mint, may_somewhere, new_token
from corral.server.vault.secret_store import NoKey
from corral.wire.api import (
    RoleView,
    SecretList,
    SecretView,
    TokenList,
    TokenMade,
    TokenView,
    UserList,
    UserView,
    WhoAmI,
)

_EXPIRES_MS_MAX = 10 * 366 * 86_400_000


async def who_am_i(request: ApiRequest) -> Reply:
    return who(request)


def who(request: ApiRequest) -> WhoAmI:
    """The user of a request, and what they may do somewhere."""
    user = request.service.accounts.users[request.user]
    verbs = tuple(str(verb) for verb in Verb if may_somewhere(request.service.accounts, request.principal, verb))
    return WhoAmI(
        user=request.user,
        account=user.account,
        token=request.principal.token,
        roles=_roles(user.roles),
        scope=request.principal.scope,
        verbs=verbs,
        expires_ms=request.principal.expires_ms,
    )


def _roles(roles: object) -> tuple[RoleView, ...]:
    return tuple(RoleView(role=role.value, queue=queue) for queue, role in sorted(roles))  # type: ignore[call-overload]


# ---- users -----------------------------------------------------------------------------------------------


async def list_users(request: ApiRequest) -> Reply:
    return UserList(users=tuple(_user_view(request, user) for user in seen_users(request)))


def seen_users(request: ApiRequest) -> list[User]:
    users = request.service.accounts.users
    return [users[name] for name in sorted(users) if _sees(request, users[name])]


async def show_user(request: ApiRequest) -> Reply:
    return _user_view(request, _seen_user(request))


def _seen_user(request: ApiRequest) -> User:
    name = request.path["user"]
    user = request.service.accounts.users.get(name)
    if user is None or not _sees(request, user):
        raise not_found("user", name)
    return user


def _sees(request: ApiRequest, user: User) -> bool:
    """Users see themselves and the users with a role in a queue they lead; administrators see all users."""
    if request.may(Verb.USERS_READ, "", user.name):
        return True
    return any(request.may(Verb.USERS_READ, queue) for queue, _ in user.roles)


def _user_view(request: ApiRequest, user: User) -> UserView:
    is_whole = request.may(Verb.USERS_READ, "", user.name)
    shown = [each for each in user.roles if is_whole or request.may(Verb.USERS_READ, each[0])]
    tokens = sum(1 for token in request.service.accounts.tokens.values() if token.user == user.name) if is_whole else 0
    account = user.account if is_whole else ""
    return UserView(name=user.name, account=account, disabled=user.disabled, roles=_roles(shown), tokens=tokens)


async def set_user(request: ApiRequest) -> Reply:
    name, body = request.path["user"], request.body
    request.require(Verb.USERS_CHANGE, "user", name, "", name)
    return await request.change_accounts(
        lambda accounts, now_ms: commands.set_user(accounts, name, body.account, body.disabled, now_ms)
    )


async def remove_user(request: ApiRequest) -> Reply:
    name = request.path["user"]
    request.require(Verb.USERS_CHANGE, "user", name, "", name)
    if name not in request.service.accounts.users:
        raise not_found("user", name)
    return await request.change_accounts(lambda accounts, now_ms: commands.remove_user(accounts, name, now_ms))


# ---- roles -----------------------------------------------------------------------------------------------


def _check_may_grant(request: ApiRequest, role: Role, queue: str) -> str:
    """The user of the path, if the requesting user may grant them this role or revoke it."""
    name = request.path["user"]
    user = request.service.accounts.users.get(name)
    is_able = may_grant(request.service.accounts, request.principal, role, queue)
    if user is None or not (is_able or _sees(request, user)):
        raise not_found("user", name)
    if not is_able:
        raise forbidden(Verb.ROLES_CHANGE)
    return name


async def grant(request: ApiRequest) -> Reply:
    role, queue = Role(request.body.role), request.body.queue
    name = _check_may_grant(request, role, queue)
    queues = request.service.state.queues.queues
    return await request.change_accounts(
        lambda accounts, now_ms: commands.grant(accounts, name, role, queue, queues, now_ms)
    )


async def revoke(request: ApiRequest) -> Reply:
    role, queue = Role(request.query.role), request.query.queue
    name = _check_may_grant(request, role, queue)
    return await request.change_accounts(lambda accounts, now_ms: commands.revoke(accounts, name, role, queue, now_ms))


# ---- tokens ----------------------------------------------------------------------------------------------


async def list_tokens(request: ApiRequest) -> Reply:
    name = request.query.user or request.user
    request.require(Verb.TOKENS_READ, "user", name, "", name)
    if name not in request.service.accounts.users:
        raise not_found("user", name)
    tokens = sorted(request.service.accounts.tokens.values(), key=lambda token: (token.issued_ms, token.id))
    return TokenList(tokens=tuple(copy_fields(TokenView, token) for token in tokens if token.user == name))


async def make_token(request: ApiRequest) -> Reply:
    body, now_ms = request.body, request.service.now_ms()
    name = body.user or request.user
    request.require(Verb.TOKENS_CHANGE, "user", name, "", name)
    span = body.expires_in_ms
    if span is not None and not 0 < span <= _EXPIRES_MS_MAX:
        why = f"a token cannot be valid for {span} ms"
        raise ApiError(422, "bad_expiry", why, "use 1 ms to 10 years", "expires_in_ms")
    mine = request.principal
    expires_ms = mine.expires_ms if span is None else now_ms + span
    scope = body.scope or mine.scope
    refusal = may_mint(mine, scope, expires_ms)
    if refusal is not None:
        raise ApiError(
            403 if refusal.code == "wider_token" else 422, refusal.code, refusal.why, refusal.hint, refusal.field
        )
    drawn = new_token()
    await request.change_accounts(
        lambda accounts, at_ms: commands.issue_token(
            accounts, drawn.id, name, drawn.digest, body.name, scope, expires_ms, at_ms
        )
    )
    return TokenMade(
        id=drawn.id, user=name, name=body.name, scope=scope, issued_ms=now_ms, expires_ms=expires_ms, token=drawn.text
    )


async def revoke_token(request: ApiRequest) -> Reply:
    number = request.path["token"]
    token = request.service.accounts.tokens.get(number)
    if token is None:
        raise not_found("token", number)
    request.require(Verb.TOKENS_CHANGE, "token", number, "", token.user)
    return await request.change_accounts(lambda accounts, now_ms: commands.revoke_token(accounts, number, now_ms))


# ---- secrets ---------------------------------------------------------------------------------------------


async def list_secrets(request: ApiRequest) -> Reply:
    await request.audit_read("the names of secrets")
    known = sorted(request.service.accounts.secrets.items())
    return SecretList(
        secrets=tuple(
            SecretView(name=name, queue=queue, set_ms=at_ms)
            for (queue, name), at_ms in known
            if request.may(Verb.SECRETS_READ, queue)
        )
    )


async def set_secret(request: ApiRequest) -> Reply:
    """Store the value, then record it, so that no record refers to a value that is missing. Changes of one secret take
    turns, so that the stored value is that of the last record."""
    name, queue = request.path["secret"], request.query.queue
    value = request.body.value
    request.require(Verb.SECRETS_CHANGE, "secret", name, queue)
    most = request.shared.settings.secret_bytes_max
    if len(value.encode("utf-8", "replace")) > most or "\0" in value:
        why = f"the value has more than {most} bytes or contains a zero byte"
        raise ApiError(422, "bad_secret", why, "use a shorter text value", "value")
    queues = request.service.state.queues.queues
    async with request.shared.turn("secret", queue, name):
        accepted(commands.set_secret(request.service.accounts, name, queue, queues, request.service.now_ms()))
        try:
            await request.shared.look(request.service.secrets.put, queue, name, value)
        except NoKey as wrong:
            raise ApiError(409, "no_secret_key", str(wrong)) from None
        return await request.change_accounts(
            lambda accounts, now_ms: commands.set_secret(accounts, name, queue, queues, now_ms)
        )


async def remove_secret(request: ApiRequest) -> Reply:
    name, queue = request.path["secret"], request.query.queue
    request.require(Verb.SECRETS_CHANGE, "secret", name, queue)
    async with request.shared.turn("secret", queue, name):
        if (queue, name) not in request.service.accounts.secrets:
            raise not_found("secret", name)
        done = await request.change_accounts(
            lambda accounts, now_ms: commands.remove_secret(accounts, name, queue, now_ms)
        )
        await request.shared.look(request.service.secrets.drop, queue, name)
    return done
