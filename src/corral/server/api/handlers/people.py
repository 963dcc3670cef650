"""Users, roles, tokens and secrets. Values of tokens are told once, to whoever made them; of secrets never.

What a user may change of others is decided in ``auth``; that accounts stay sound is decided in ``core.people``.
"""

from __future__ import annotations

from corral.core.people import commands
from corral.core.people.accounts import Role, Token, User
from corral.server.api.entry.asking import Ask, Reply, accepted
from corral.server.api.entry.problems import Unable, forbidden, not_found
from corral.server.auth import Verb, may_grant, may_mint, may_somewhere, new_token
from corral.server.vault.store import NoKey
from corral.wire.api import (
    ChangeAnswer,
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


async def who_am_i(ask: Ask) -> Reply:
    user = ask.service.accounts.users[ask.user]
    verbs = tuple(str(verb) for verb in Verb if may_somewhere(ask.service.accounts, ask.principal, verb))
    return WhoAmI(
        user=ask.user, account=user.account, token=ask.principal.token, roles=_roles(user.roles),
        scope=ask.principal.scope, verbs=verbs, expires_ms=ask.principal.expires_ms,
    )  # fmt: skip


def _roles(roles: object) -> tuple[RoleView, ...]:
    return tuple(RoleView(role=role.value, queue=queue) for queue, role in sorted(roles))  # type: ignore[call-overload]


# ---- users -----------------------------------------------------------------------------------------------


async def list_users(ask: Ask) -> Reply:
    users = ask.service.accounts.users
    return UserList(users=tuple(_user_view(ask, users[name]) for name in sorted(users) if _sees(ask, users[name])))


async def show_user(ask: Ask) -> Reply:
    return _user_view(ask, _seen_user(ask))


def _seen_user(ask: Ask) -> User:
    name = ask.path["user"]
    user = ask.service.accounts.users.get(name)
    if user is None or not _sees(ask, user):
        raise not_found("user", name)
    return user


def _sees(ask: Ask, user: User) -> bool:
    """Oneself, whoever has a role where one is lead, and for administrators everybody."""
    if ask.may(Verb.USERS_READ, "", user.name):
        return True
    return any(ask.may(Verb.USERS_READ, queue) for queue, _ in user.roles)


def _user_view(ask: Ask, user: User) -> UserView:
    is_whole = ask.may(Verb.USERS_READ, "", user.name)
    shown = [each for each in user.roles if is_whole or ask.may(Verb.USERS_READ, each[0])]
    tokens = sum(1 for token in ask.service.accounts.tokens.values() if token.user == user.name) if is_whole else 0
    account = user.account if is_whole else ""
    return UserView(name=user.name, account=account, disabled=user.disabled, roles=_roles(shown), tokens=tokens)


async def set_user(ask: Ask) -> Reply:
    name, body = ask.path["user"], ask.body
    ask.insist(Verb.USERS_CHANGE, "user", name, "", name)
    done = accepted(
        await ask.service.change_accounts(
            ask.user, lambda accounts, now_ms: commands.set_user(accounts, name, body.account, body.disabled, now_ms)
        )
    )
    return ChangeAnswer(seq=done.seq)


async def remove_user(ask: Ask) -> Reply:
    name = ask.path["user"]
    ask.insist(Verb.USERS_CHANGE, "user", name, "", name)
    if name not in ask.service.accounts.users:
        raise not_found("user", name)
    done = accepted(
        await ask.service.change_accounts(
            ask.user, lambda accounts, now_ms: commands.remove_user(accounts, name, now_ms)
        )
    )
    return ChangeAnswer(seq=done.seq)


# ---- roles -----------------------------------------------------------------------------------------------


def _check_may_grant(ask: Ask, role: Role, queue: str) -> str:
    """The user of the path, if whoever asks may give them, or take from them, this role."""
    name = ask.path["user"]
    user = ask.service.accounts.users.get(name)
    is_able = may_grant(ask.service.accounts, ask.principal, role, queue)
    if user is None or not (is_able or _sees(ask, user)):
        raise not_found("user", name)
    if not is_able:
        raise forbidden(Verb.ROLES_CHANGE)
    return name


async def grant(ask: Ask) -> Reply:
    role, queue = Role(ask.body.role), ask.body.queue
    name = _check_may_grant(ask, role, queue)
    queues = ask.service.state.queues.queues
    done = accepted(
        await ask.service.change_accounts(
            ask.user, lambda accounts, now_ms: commands.grant(accounts, name, role, queue, queues, now_ms)
        )
    )
    return ChangeAnswer(seq=done.seq)


async def revoke(ask: Ask) -> Reply:
    role, queue = Role(ask.query.role), ask.query.queue
    name = _check_may_grant(ask, role, queue)
    done = accepted(
        await ask.service.change_accounts(
            ask.user, lambda accounts, now_ms: commands.revoke(accounts, name, role, queue, now_ms)
        )
    )
    return ChangeAnswer(seq=done.seq)


# ---- tokens ----------------------------------------------------------------------------------------------


async def list_tokens(ask: Ask) -> Reply:
    name = ask.query.user or ask.user
    ask.insist(Verb.TOKENS_READ, "user", name, "", name)
    if name not in ask.service.accounts.users:
        raise not_found("user", name)
    tokens = sorted(ask.service.accounts.tokens.values(), key=lambda token: (token.issued_ms, token.id))
    return TokenList(tokens=tuple(_token_view(token) for token in tokens if token.user == name))


def _token_view(token: Token) -> TokenView:
    return TokenView(
        id=token.id, user=token.user, name=token.name, scope=token.scope, issued_ms=token.issued_ms,
        expires_ms=token.expires_ms,
    )  # fmt: skip


async def make_token(ask: Ask) -> Reply:
    body, now_ms = ask.body, ask.service.now_ms()
    name = body.user or ask.user
    ask.insist(Verb.TOKENS_CHANGE, "user", name, "", name)
    span = body.expires_in_ms
    if span is not None and not 0 < span <= _EXPIRES_MS_MAX:
        raise Unable(422, "bad_expiry", "a token lives from 1 ms to 10 years", field="expires_in_ms")
    mine = ask.principal
    expires_ms = mine.expires_ms if span is None else now_ms + span
    scope = body.scope or mine.scope
    refusal = may_mint(mine, scope, expires_ms)
    if refusal is not None:
        raise Unable(
            403 if refusal.code == "wider_token" else 422, refusal.code, refusal.why, refusal.hint, refusal.field
        )
    drawn = new_token()
    accepted(
        await ask.service.change_accounts(
            ask.user,
            lambda accounts, at_ms: commands.issue_token(
                accounts, drawn.id, name, drawn.digest, body.name, scope, expires_ms, at_ms
            ),
        )
    )
    return TokenMade(
        id=drawn.id, user=name, name=body.name, scope=scope, issued_ms=now_ms, expires_ms=expires_ms, token=drawn.text
    )


async def revoke_token(ask: Ask) -> Reply:
    number = ask.path["token"]
    token = ask.service.accounts.tokens.get(number)
    if token is None:
        raise not_found("token", number)
    ask.insist(Verb.TOKENS_CHANGE, "token", number, "", token.user)
    done = accepted(
        await ask.service.change_accounts(
            ask.user, lambda accounts, now_ms: commands.revoke_token(accounts, number, now_ms)
        )
    )
    return ChangeAnswer(seq=done.seq)


# ---- secrets ---------------------------------------------------------------------------------------------


async def list_secrets(ask: Ask) -> Reply:
    await ask.has_read("the names of secrets")
    known = sorted(ask.service.accounts.secrets.items())
    return SecretList(
        secrets=tuple(
            SecretView(name=name, queue=queue, set_ms=at_ms)
            for (queue, name), at_ms in known
            if ask.may(Verb.SECRETS_READ, queue)
        )
    )


async def set_secret(ask: Ask) -> Reply:
    """The value is kept first, so that no record speaks of a value that is not there; one after the other, so that what
    is kept is the value of the last record."""
    name, queue, value = ask.path["secret"], ask.query.queue, ask.body.value
    ask.insist(Verb.SECRETS_CHANGE, "secret", name, queue)
    most = ask.shared.settings.secret_bytes_max
    if len(value.encode("utf-8", "replace")) > most or "\0" in value:
        raise Unable(422, "bad_secret", f"a secret has at most {most} bytes and no zero byte", field="value")
    queues = ask.service.state.queues.queues
    async with ask.shared.turn("secret", queue, name):
        accepted(commands.set_secret(ask.service.accounts, name, queue, queues, ask.service.now_ms()))
        try:
            await ask.shared.look(ask.service.secrets.put, queue, name, value)
        except NoKey as wrong:
            raise Unable(409, "no_secret_key", str(wrong)) from None
        done = accepted(
            await ask.service.change_accounts(
                ask.user, lambda accounts, now_ms: commands.set_secret(accounts, name, queue, queues, now_ms)
            )
        )
    return ChangeAnswer(seq=done.seq)


async def remove_secret(ask: Ask) -> Reply:
    name, queue = ask.path["secret"], ask.query.queue
    ask.insist(Verb.SECRETS_CHANGE, "secret", name, queue)
    async with ask.shared.turn("secret", queue, name):
        if (queue, name) not in ask.service.accounts.secrets:
            raise not_found("secret", name)
        done = accepted(
            await ask.service.change_accounts(
                ask.user, lambda accounts, now_ms: commands.remove_secret(accounts, name, queue, now_ms)
            )
        )
        await ask.shared.look(ask.service.secrets.drop, queue, name)
    return ChangeAnswer(seq=done.seq)
