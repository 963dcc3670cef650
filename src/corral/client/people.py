"""What can be asked about users, roles, tokens and secrets. Each method describes its request; see ``call``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from corral.client.call import Call, call, path
from corral.wire.api.jobs import ChangeAnswer
from corral.wire.api.people import (
    RoleBody,
    SecretBody,
    SecretList,
    TokenBody,
    TokenList,
    TokenMade,
    UserBody,
    UserList,
    UserView,
    WhoAmI,
)
from corral.wire.api.words import RoleWord


class PeopleCalls:
    """Users, roles, tokens, secrets."""

    @call
    def whoami(self) -> Call[WhoAmI]:
        """Who asks, and what they may do."""
        return Call("GET", path("whoami"), WhoAmI)

    @call
    def users(self) -> Call[UserList]:
        """Everybody, with their roles."""
        return Call("GET", path("users"), UserList)

    @call
    def user(self, name: str) -> Call[UserView]:
        """One user."""
        return Call("GET", path("users", name), UserView)

    @call
    def set_user(self, name: str, *, account: str | None = None, disabled: bool | None = None) -> Call[ChangeAnswer]:
        """Make a user, or change one; None: as it is. ``account``: of the machine, that their jobs run as."""
        return Call("PUT", path("users", name), ChangeAnswer, body=UserBody(account=account, disabled=disabled))

    @call
    def remove_user(self, name: str) -> Call[ChangeAnswer]:
        """Remove a user with all roles and tokens."""
        return Call("DELETE", path("users", name), ChangeAnswer)

    @call
    def grant(self, user: str, role: str, queue: str = "") -> Call[ChangeAnswer]:
        """Give a role in a queue and all below it; no queue: everywhere."""
        body = RoleBody(role=cast(RoleWord, role), queue=queue)
        return Call("PUT", path("users", user, "roles"), ChangeAnswer, body=body)

    @call
    def revoke(self, user: str, role: str, queue: str = "") -> Call[ChangeAnswer]:
        """Take a role away."""
        return Call("DELETE", path("users", user, "roles"), ChangeAnswer, {"role": role, "queue": queue})

    @call
    def tokens(self, user: str = "") -> Call[TokenList]:
        """Somebody's tokens; one's own."""
        return Call("GET", path("tokens"), TokenList, {"user": user})

    @call
    def make_token(
        self, name: str = "", *, user: str = "", scope: Sequence[str] = (), expires_in_ms: int | None = None
    ) -> Call[TokenMade]:
        """A new token; its text is told this once."""
        body = TokenBody(user=user, name=name, scope=tuple(scope), expires_in_ms=expires_in_ms)
        return Call("POST", path("tokens"), TokenMade, body=body, repeatable=False)

    @call
    def revoke_token(self, token: str) -> Call[ChangeAnswer]:
        """End a token by its id."""
        return Call("DELETE", path("tokens", token), ChangeAnswer)

    @call
    def secrets(self) -> Call[SecretList]:
        """Names of secrets; values are never told."""
        return Call("GET", path("secrets"), SecretList)

    @call
    def set_secret(self, name: str, value: str, queue: str = "") -> Call[ChangeAnswer]:
        """Keep a value for jobs of a queue and all below it."""
        return Call("PUT", path("secrets", name), ChangeAnswer, {"queue": queue}, SecretBody(value=value))

    @call
    def remove_secret(self, name: str, queue: str = "") -> Call[ChangeAnswer]:
        """Forget it."""
        return Call("DELETE", path("secrets", name), ChangeAnswer, {"queue": queue})
