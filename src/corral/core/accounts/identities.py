"""What a sign-in with an identity provider changes: the user, the roles that its groups give, and a token.

Gets an identity that was verified already, and what the rules of the site give it. Knows nothing about JSON Web
Tokens, providers or HTTP. Ensures that no person takes over the user of another: a user belongs to one provider and one
subject, and a user who was created here signs in with a provider only once an administrator has linked them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec import Struct

from corral.core.accounts import accounts as a
from corral.core.accounts import commands
from corral.core.accounts.accounts import AccountEvent, Accounts, Role, User
from corral.core.intake.refusal import Refusal


class ProvedIdentity(Struct, frozen=True):
    """A person or a program, as a provider knows it, and what the rules of the site give to it. ``proof``: see
    ``SignedIn``."""

    provider: str
    subject: str
    user: str
    roles: frozenset[tuple[str, Role]]  # (queue, role)
    account: str = ""  # of the machines; empty: leave as it is
    proof: str = ""
    proof_until_ms: int = 0


class NewTokenTerms(Struct, frozen=True):
    """The token that the user gets."""

    id: str
    digest: str
    scope: tuple[str, ...]
    expires_ms: int


def link(accounts: Accounts, user: str, provider: str, now_ms: int) -> commands.Answer:
    """Let a user sign in with a provider, by the same user name. With no provider: with tokens only."""
    if user not in accounts.users:
        return Refusal("no_such_user", f"there is no user {user!r}")
    return [a.UserLinked(now_ms, user, provider)]


def sign_in(
    accounts: Accounts, who: ProvedIdentity, token: NewTokenTerms, queues: Collection[str], now_ms: int
) -> commands.Answer:
    """All changes of one sign-in. Roles that the provider gave before and gives no longer are revoked; roles that users
    granted stay."""
    if who.proof and accounts.proofs.get(who.proof, 0) > now_ms:
        return Refusal("token_used", "this token was used already to sign in", "request a new one from the provider")
    user = _user_of(accounts, who)
    if isinstance(user, Refusal):
        return user
    wanted = {(queue, role) for queue, role in who.roles if not queue or queue in queues}
    if not wanted and not any(not by for by in user.roles.values()):
        why = f"no rule of this site gives a role to {who.user}"
        return Refusal("no_role", why, "ask an administrator for a rule for one of your groups, or for a role")
    created = commands.set_user(accounts, user.name, who.account or None, None, now_ms)
    if isinstance(created, Refusal):
        return created
    is_new = user.name not in accounts.users or (who.account and who.account != user.account)
    events: list[AccountEvent] = created if is_new else []
    if (user.provider, user.subject) != (who.provider, who.subject):
        events.append(a.UserLinked(now_ms, user.name, who.provider, who.subject))
    events += _changed_roles(accounts, user, who.provider, wanted, now_ms)
    issued = a.TokenIssued(
        now_ms, token.id, user.name, token.digest, f"sign-in with {who.provider}", token.scope, token.expires_ms
    )
    proof = (who.proof, who.proof_until_ms)
    return [*events, *_room_for_token(accounts, user.name, now_ms), issued,
            a.SignedIn(now_ms, user.name, who.provider, who.subject, *proof)]  # fmt: skip


def _user_of(accounts: Accounts, who: ProvedIdentity) -> User | Refusal:
    """The user of an identity, as it is now; a new one, if there is none."""
    for user in accounts.users.values():  # also if the provider has another user name for them now
        if (user.provider, user.subject) == (who.provider, who.subject):
            return _enabled(user)
    known = accounts.users.get(who.user)
    if known is None:
        return User(who.user, who.account)
    if known.provider != who.provider:
        why = f"there is a user {who.user} who does not sign in with {who.provider}"
        return Refusal("user_exists", why, f"an administrator links them: corral user link {who.user} {who.provider}")
    if known.subject:
        why = f"{who.user} belongs to another person at {who.provider}"
        return Refusal("other_person", why, f"an administrator can remove the old user: corral user remove {who.user}")
    return _enabled(known)


def _enabled(user: User) -> User | Refusal:
    if user.disabled:
        return Refusal("user_disabled", f"user {user.name} is disabled", "ask an administrator")
    return user


def _changed_roles(
    accounts: Accounts, user: User, provider: str, wanted: set[tuple[str, Role]], now_ms: int
) -> Iterator[AccountEvent]:
    for queue, role in sorted(wanted - user.roles.keys()):
        yield a.RoleGranted(now_ms, user.name, role, queue, provider)
    for (queue, role), by in sorted(user.roles.items()):
        if by == provider and (queue, role) not in wanted:
            revoked = commands.revoke(accounts, user.name, role, queue, now_ms)
            if not isinstance(revoked, Refusal):  # the last administrator stays one
                yield from revoked


def _room_for_token(accounts: Accounts, user: str, now_ms: int) -> list[AccountEvent]:
    """Sign-ins never fail because of the number of earlier ones: the oldest token of a sign-in makes room."""
    theirs = [each for each in accounts.tokens.values() if each.user == user]
    if len(theirs) < commands.TOKENS_MAX:
        return []
    by_sign_in = [each for each in theirs if each.name.startswith("sign-in with ")]
    return [a.TokenRevoked(now_ms, min(by_sign_in or theirs, key=lambda each: (each.issued_ms, each.id)).id)]
