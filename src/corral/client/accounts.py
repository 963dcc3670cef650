"""Requests about users, roles, tokens and secrets. Each method describes its request; see ``call``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from corral.client.call import ApiCall, call, path
from corral.wire.api.accounts import (
    DeviceBody,
    DeviceResult,
    DeviceResultBody,
    DeviceView,
    ExchangeBody,
    LinkBody,
    RefreshBody,
    RoleBody,
    SecretBody,
    SecretList,
    SessionCode,
    SignedInView,
    SignInView,
    SignOutBody,
    TemplateBody,
    TemplateList,
    TokenBody,
    TokenList,
    TokenMade,
    UserBody,
    UserList,
    UserView,
    WhoAmI,
)
from corral.wire.api.jobs import ChangeAnswer
from corral.wire.api.words import RoleWord


class AccountCalls:
    """Users, roles, tokens, secrets."""

    @call
    def whoami(self) -> ApiCall[WhoAmI]:
        """The user of the token, with roles and rights."""
        return ApiCall("GET", path("whoami"), WhoAmI)

    @call
    def make_session_code(self) -> ApiCall[SessionCode]:
        """A code with which you can sign in to the dashboard once, within a minute."""
        return ApiCall("POST", path("session-codes"), SessionCode, repeatable=False)

    @call
    def users(self) -> ApiCall[UserList]:
        """All users you may see, with their roles."""
        return ApiCall("GET", path("users"), UserList)

    @call
    def user(self, name: str) -> ApiCall[UserView]:
        """One user."""
        return ApiCall("GET", path("users", name), UserView)

    @call
    def set_user(self, name: str, *, account: str | None = None, disabled: bool | None = None) -> ApiCall[ChangeAnswer]:
        """Create or change a user; None: unchanged. ``account``: Unix account that runs their jobs."""
        return ApiCall("PUT", path("users", name), ChangeAnswer, body=UserBody(account=account, disabled=disabled))

    @call
    def remove_user(self, name: str) -> ApiCall[ChangeAnswer]:
        """Remove a user with all roles and tokens."""
        return ApiCall("DELETE", path("users", name), ChangeAnswer)

    @call
    def grant(self, user: str, role: str, queue: str = "") -> ApiCall[ChangeAnswer]:
        """Grant a role in a queue and its children; without a queue: everywhere."""
        body = RoleBody(role=cast(RoleWord, role), queue=queue)
        return ApiCall("PUT", path("users", user, "roles"), ChangeAnswer, body=body)

    @call
    def revoke(self, user: str, role: str, queue: str = "") -> ApiCall[ChangeAnswer]:
        """Revoke a role."""
        return ApiCall("DELETE", path("users", user, "roles"), ChangeAnswer, {"role": role, "queue": queue})

    @call
    def tokens(self, user: str = "") -> ApiCall[TokenList]:
        """Tokens of a user; default: your own."""
        return ApiCall("GET", path("tokens"), TokenList, {"user": user})

    @call
    def make_token(
        self, name: str = "", *, user: str = "", scope: Sequence[str] = (), expires_in_ms: int | None = None
    ) -> ApiCall[TokenMade]:
        """Create a token. Its value is returned only here."""
        body = TokenBody(user=user, name=name, scope=tuple(scope), expires_in_ms=expires_in_ms)
        return ApiCall("POST", path("tokens"), TokenMade, body=body, repeatable=False)

    @call
    def revoke_token(self, token: str) -> ApiCall[ChangeAnswer]:
        """Revoke a token by its id."""
        return ApiCall("DELETE", path("tokens", token), ChangeAnswer)

    @call
    def templates(self) -> ApiCall[TemplateList]:
        """Job files to begin with, of the site and of the user."""
        return ApiCall("GET", path("templates"), TemplateList)

    @call
    def set_template(self, name: str, text: str, *, site: bool = False) -> ApiCall[ChangeAnswer]:
        """Store a job file to begin with; ``site``: for all users."""
        return ApiCall("PUT", path("templates", name), ChangeAnswer, {"site": site}, TemplateBody(text=text))

    @call
    def remove_template(self, name: str, *, site: bool = False) -> ApiCall[ChangeAnswer]:
        """Remove a template."""
        return ApiCall("DELETE", path("templates", name), ChangeAnswer, {"site": site})

    @call
    def secrets(self) -> ApiCall[SecretList]:
        """Names of secrets; values are never returned."""
        return ApiCall("GET", path("secrets"), SecretList)

    @call
    def set_secret(self, name: str, value: str, queue: str = "") -> ApiCall[ChangeAnswer]:
        """Store a value for jobs of a queue and its children."""
        return ApiCall("PUT", path("secrets", name), ChangeAnswer, {"queue": queue}, SecretBody(value=value))

    @call
    def remove_secret(self, name: str, queue: str = "") -> ApiCall[ChangeAnswer]:
        """Remove a secret."""
        return ApiCall("DELETE", path("secrets", name), ChangeAnswer, {"queue": queue})

    @call
    def ways_to_sign_in(self) -> ApiCall[SignInView]:
        """Identity providers for people, and issuers for programs. Needs no token."""
        return ApiCall("GET", path("sign-in"), SignInView)

    @call
    def begin_sign_in(self, provider: str = "") -> ApiCall[DeviceView]:
        """Begin to sign in with an identity provider: the page to open, and the code to type there. Needs no token."""
        return ApiCall("POST", path("sign-in", "device"), DeviceView, body=DeviceBody(provider=provider))

    @call
    def sign_in_result(self, id: str) -> ApiCall[DeviceResult]:
        """The result of a sign-in that was begun, once the user has finished."""
        body = DeviceResultBody(id=id)
        return ApiCall("POST", path("sign-in", "device", "result"), DeviceResult, body=body, repeatable=False)

    @call
    def refresh_sign_in(self, provider: str, refresh_token: str) -> ApiCall[SignedInView]:
        """Sign in again with the refresh token of a sign-in. Needs no token."""
        body = RefreshBody(provider=provider, refresh_token=refresh_token)
        return ApiCall("POST", path("sign-in", "refresh"), SignedInView, body=body, repeatable=False)

    @call
    def exchange_token(self, token: str) -> ApiCall[SignedInView]:
        """Exchange a token of a CI system, of Kubernetes or of a service account for one of Corral."""
        body = ExchangeBody(token=token)
        return ApiCall("POST", path("sign-in", "exchange"), SignedInView, body=body, repeatable=False)

    @call
    def sign_out(self, provider: str = "", refresh_token: str = "") -> ApiCall[ChangeAnswer]:
        """Revoke the token of this client, and a refresh token at its provider."""
        body = SignOutBody(provider=provider, refresh_token=refresh_token)
        return ApiCall("POST", path("sign-out"), ChangeAnswer, body=body, repeatable=False)

    @call
    def link_user(self, name: str, provider: str = "") -> ApiCall[ChangeAnswer]:
        """Let a user sign in with an identity provider; without one: with tokens only."""
        return ApiCall("PUT", path("users", name, "provider"), ChangeAnswer, body=LinkBody(provider=provider))
