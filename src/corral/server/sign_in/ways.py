"""Sign-in as a whole: which providers there are, and how a person or a program proves who they are.

The server is the client of the provider: it requests tokens from the provider itself, so that no token that was made
for another application can be presented, and the client secret stays here. A proof ends as a ``ProvedIdentity``;
``core.accounts.identities`` decides what it changes. Calls to issuers run in threads of their own: a slow issuer delays
sign-ins, and nothing else.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import secrets
import ssl
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from msgspec import Struct

from corral.core.accounts.identities import ProvedIdentity
from corral.core.intake.refusal import Refusal
from corral.server.auth import Verb
from corral.server.sign_in.claim_rules import person, program
from corral.server.sign_in.flows import FLOW_S_MAX, Flows
from corral.server.sign_in.id_tokens import BadIdToken, digest_of_token, issuer_of
from corral.server.sign_in.issuer import Issuer, IssuerAway, IssuerRefused
from corral.wire.identity_providers import SignInRules

T = TypeVar("T")

_THREADS = 4
_WAITING_MAX = 100
BROWSER_S = 600.0  # to sign in at the provider
_SECRET_BYTES_MAX = 4 << 10
_POLL_S = 5.0  # the standard's interval, if the provider states none
_PENDING = ("authorization_pending", "slow_down")


class SignInBusy(Exception):
    """Too many sign-ins wait for an issuer."""


class BadSignIn(Exception):
    """What is wrong with the settings of sign-in, and what to do."""


class Proved(Struct, frozen=True):
    """A person or program proved who it is. ``refresh``: proves it again, if the provider gives that."""

    identity: ProvedIdentity
    token_ms: int
    scope: tuple[str, ...] = ()
    refresh: str = ""


class DeviceFlow(Struct):
    """A sign-in on another device: the user opens a page of the provider there and types a code."""

    provider: str
    device_code: str
    user_code: str
    page: str
    whole_page: str  # the page with the code filled in; empty: the provider has none
    interval_s: float
    seconds: float
    next_s: float = 0.0


class BrowserFlow(Struct, frozen=True):
    """A sign-in by a redirect to the provider and back. ``verifier``: proves to the provider that the one who redeems
    the code began the sign-in (PKCE); ``browser``: so that no page can end a sign-in in another browser."""

    provider: str
    verifier: str
    nonce: str
    back: str
    browser: str


class SignIn:
    """``wall_s``, ``now_s``: the time of day, and a clock that only runs forward."""

    def __init__(
        self,
        rules: SignInRules,
        wall_s: Callable[[], float] = time.time,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.providers = dict(rules.providers)
        self.issuers = dict(rules.issuers)
        self._wall_s = wall_s
        self._now_s = now_s
        try:
            self._at = {name: Issuer(each.issuer, each.ca, now_s) for name, each in rules.providers}
            self._at |= {
                name: Issuer(each.issuer, each.ca, now_s, each.discovery, each.token_file)
                for name, each in rules.issuers
            }
        except (OSError, ssl.SSLError) as wrong:
            raise BadSignIn(f"the certificate authority of a provider cannot be read: {wrong}. Check ca") from None
        self._secrets = {name: read_client_secret(each.client_secret_file) for name, each in rules.providers}
        self._devices: Flows[DeviceFlow] = Flows(now_s)
        self._browsers: Flows[BrowserFlow] = Flows(now_s)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sign-in") if self._at else None
        self._waiting = 0

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    # ---- people: on another device -----------------------------------------------------------------------------

    async def begin_device(self, provider: str, address: str) -> tuple[str, DeviceFlow]:
        """Begin a sign-in; the id of the flow, and what the user must do."""
        rules = self.providers[provider]
        form = self._client(provider) | {"scope": " ".join(rules.scopes)}
        answer = await self._call(self._at[provider].post, "device_authorization_endpoint", form)
        texts = [answer.get(key) for key in ("device_code", "user_code", "verification_uri")]
        if not all(isinstance(each, str) and each for each in texts):
            raise IssuerAway(f"{rules.issuer} gave no code for another device")
        device_code, user_code, page = map(str, texts)
        flow = DeviceFlow(
            provider,
            device_code,
            user_code[:64],
            page[:500],
            str(answer.get("verification_uri_complete") or "")[:500],
            _seconds(answer.get("interval"), _POLL_S, 60.0),
            _seconds(answer.get("expires_in"), FLOW_S_MAX, FLOW_S_MAX),
        )
        return self._devices.begin(flow, address, flow.seconds), flow

    async def poll_device(self, id: str) -> Proved | Refusal | None:
        """The result of a sign-in on another device; None: the user has not finished. The provider is asked no more
        often than it allows, however often the client asks."""
        flow = self._devices.find(id)
        if flow is None:
            return Refusal("no_such_sign_in", "this sign-in has ended or expired", "begin again: corral login")
        now_s = self._now_s()
        if now_s < flow.next_s:
            return None
        flow.next_s = now_s + flow.interval_s
        form = self._client(flow.provider) | {
            "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
            "device_code": flow.device_code,
        }
        try:
            answer = await self._call(self._at[flow.provider].post, "token_endpoint", form)
        except IssuerRefused as refused:
            if refused.code in _PENDING:
                flow.interval_s += _POLL_S if refused.code == "slow_down" else 0.0
                return None
            self._devices.end(id)
            return _refusal(refused)
        self._devices.end(id)
        return await self._person(flow.provider, answer)

    # ---- people: in a browser ----------------------------------------------------------------------------------

    async def begin_browser(self, provider: str, address: str, back: str) -> tuple[str, str]:
        """Begin a sign-in that ends at the address ``back``: the page of the provider to go to, and what the browser
        keeps meanwhile."""
        rules = self.providers[provider]
        page = await self._call(self._at[provider].endpoint, "authorization_endpoint")
        if not page:
            raise IssuerAway(f"{rules.issuer} has no authorization_endpoint")
        drawn = (secrets.token_urlsafe(48), secrets.token_urlsafe(24), secrets.token_urlsafe(32))
        flow = BrowserFlow(provider, drawn[0], drawn[1], back, drawn[2])
        state = self._browsers.begin(flow, address, BROWSER_S)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(flow.verifier.encode()).digest()).decode().rstrip("=")
        asked = {
            "response_type": "code",
            "client_id": rules.client_id,
            "redirect_uri": back,
            "scope": " ".join(rules.scopes),
            "state": state,
            "nonce": flow.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return page + ("&" if "?" in page else "?") + urlencode(asked), flow.browser

    async def end_browser(self, state: str, code: str, browser: str, issuer: str) -> Proved | Refusal:
        """The person who signed in. A sign-in ends once, and in the browser that began it. ``issuer``: which provider
        says that it answers; empty: it does not say."""
        flow = self._browsers.find(state)
        if flow is None or not hmac.compare_digest(flow.browser.encode(), browser.encode()):
            why = "this sign-in has ended, or was begun in another browser"
            return Refusal("no_such_sign_in", why, "begin again on the page of the dashboard")
        self._browsers.end(state)
        if issuer and issuer != self.providers[flow.provider].issuer:
            return Refusal("other_issuer", "another provider answered than the one that was asked", "begin again")
        form = self._client(flow.provider) | {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": flow.back,
            "code_verifier": flow.verifier,
        }
        try:
            answer = await self._call(self._at[flow.provider].post, "token_endpoint", form)
        except IssuerRefused as refused:
            return _refusal(refused)
        return await self._person(flow.provider, answer, flow.nonce)

    # ---- people: again -----------------------------------------------------------------------------------------

    async def refresh(self, provider: str, token: str) -> Proved | Refusal:
        """Sign in again with a refresh token of the provider. Its groups are read again."""
        form = self._client(provider) | {"grant_type": "refresh_token", "refresh_token": token}
        try:
            answer = await self._call(self._at[provider].post, "token_endpoint", form)
        except IssuerRefused as refused:
            return _refusal(refused)
        return await self._person(provider, {"refresh_token": token} | answer)

    async def forget(self, provider: str, token: str) -> None:
        """Revoke a refresh token, if the provider can."""
        with suppress(IssuerAway, IssuerRefused):
            form = self._client(provider) | {"token": token, "token_type_hint": "refresh_token"}
            await self._call(self._at[provider].post, "revocation_endpoint", form)

    async def _person(self, provider: str, answer: dict[str, Any], nonce: str = "") -> Proved | Refusal:
        rules = self.providers[provider]
        token = answer.get("id_token")
        if not isinstance(token, str):
            return Refusal("no_id_token", f"{provider} gave no ID token", "is openid in the scopes of the provider?")
        try:
            claims = await self._call(self._at[provider].claims, token, rules.client_id, self._wall_s(), nonce)
        except BadIdToken as wrong:
            return Refusal("bad_id_token", f"the ID token of {provider} is refused: {wrong}")
        identity = person(provider, rules, claims)
        refresh = answer.get("refresh_token")
        if isinstance(identity, Refusal):
            return identity
        return Proved(identity, rules.token_ms, refresh=refresh if isinstance(refresh, str) else "")

    # ---- programs ----------------------------------------------------------------------------------------------

    async def exchange(self, token: str) -> Proved | Refusal:
        """Accept a token that a program presents, if a rule does. A token is accepted once."""
        try:
            issuer = issuer_of(token)
            found = [(name, each) for name, each in self.issuers.items() if each.issuer == issuer]
            refused: BadIdToken | Refusal | None = None
            for name, rules in found:  # several may have the same issuer and differ in the audience
                try:
                    claims = await self._call(self._at[name].claims, token, rules.audience, self._wall_s())
                except BadIdToken as wrong:
                    refused = refused or wrong
                    continue
                accepted = program(name, rules, claims, digest_of_token(token))
                if not isinstance(accepted, Refusal):
                    identity, rule = accepted
                    return Proved(identity, rules.token_ms, rule.scope)
                refused = accepted
        except BadIdToken as wrong:
            refused = wrong
        if isinstance(refused, Refusal):
            return refused
        why = str(refused) if refused else "its issuer is not one of sign_in.issuers"
        return Refusal("bad_id_token", f"the token is refused: {why}", "request a new one for this server")

    # ---- calls -------------------------------------------------------------------------------------------------

    def _client(self, provider: str) -> dict[str, str]:
        secret = self._secrets[provider]
        return {"client_id": self.providers[provider].client_id} | ({"client_secret": secret} if secret else {})

    async def _call(self, call: Callable[..., T], *about: Any) -> T:
        if self._threads is None or self._waiting >= _WAITING_MAX:
            raise SignInBusy
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call, *about)
        finally:
            self._waiting -= 1


def check_sign_in(rules: SignInRules) -> None:
    """Raise ``BadSignIn`` if the server could not use these settings."""
    for name, each in rules.issuers:
        unknown = sorted({verb for rule in each.rules for verb in rule.scope} - set(Verb))
        if unknown:
            raise BadSignIn(f"sign_in.issuers.{name}: there is no verb {unknown[0]!r}. Verbs: {', '.join(Verb)}")
    SignIn(rules).close()


def read_client_secret(path: str) -> str:
    """The secret in a file that only its owner can read; empty: none is configured."""
    if not path:
        return ""
    try:
        with Path(path).open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(_SECRET_BYTES_MAX).decode().strip()
    except (OSError, ValueError) as wrong:
        why = getattr(wrong, "strerror", None) or "it is not text"
        raise BadSignIn(f"the client secret in {path} cannot be read: {why}. Check client_secret_file") from None
    if mode & 0o077:
        raise BadSignIn(f"the client secret in {path} can be read by other users (mode {mode:04o}): chmod 600 {path}")
    if not text:
        raise BadSignIn(f"{path} is empty. Write the client secret into it")
    return text


def _seconds(stated: object, default: float, most: float) -> float:
    if isinstance(stated, bool) or not isinstance(stated, int | float):
        return default
    return min(max(float(stated), 0.0), most)


def _refusal(refused: IssuerRefused) -> Refusal:
    words = {
        "access_denied": "the sign-in was refused at the provider",
        "expired_token": "the code has expired",
        "invalid_grant": "the sign-in has ended at the provider",
    }
    return Refusal("sign_in_refused", words.get(refused.code, f"the provider refused: {refused}"), "corral login")
