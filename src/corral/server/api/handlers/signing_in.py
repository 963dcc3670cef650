"""Sign-in with identity providers, exchange of tokens of programs, and sign-out.

``server.sign_in`` finds out who it is; ``core.accounts.identities`` decides what that changes. Every refusal of an
identity that a provider confirmed is recorded, and failures of an address slow it down.
"""

from __future__ import annotations

import re
import time

from corral.core.accounts import accounts as a
from corral.core.accounts import commands
from corral.core.accounts.identities import NewTokenTerms, ProvedIdentity, link, sign_in
from corral.core.intake.refusal import Refusal
from corral.server.api.http.problems import ApiError, not_found, refused
from corral.server.api.http.request import ApiRequest, Content, Reply, WithStatus, accepted
from corral.server.api.http.session_cookie import flow_cookie, flow_secret
from corral.server.api.http.shared_views import JSON, encode_json
from corral.server.api.ui.sessions import begin_session
from corral.server.auth import Principal, Verb, new_token
from corral.server.sign_in.flows import TooManyFlows
from corral.server.sign_in.issuer import IssuerAway, IssuerRefused
from corral.server.sign_in.ways import BROWSER_S, Proved, SignInBusy
from corral.wire.api import (
    BrowserView,
    ChangeAnswer,
    DeviceResult,
    DeviceView,
    IssuerView,
    ProviderView,
    SignedInView,
    SignInView,
)

_TEXT_MAX = 16 << 10
_HOST = re.compile(r"(\[[0-9a-fA-F:]{2,45}\]|[A-Za-z0-9.-]{1,253})(:\d{1,5})?")


async def ways_to_sign_in(request: ApiRequest) -> Reply:
    ways = request.shared.sign_in
    return SignInView(
        providers=tuple(ProviderView(name=name, issuer=each.issuer) for name, each in ways.providers.items()),
        issuers=tuple(
            IssuerView(name=name, issuer=each.issuer, audience=each.audience) for name, each in ways.issuers.items()
        ),
    )


async def begin_device(request: ApiRequest) -> Reply:
    provider = _provider(request, request.body.provider)
    _check_pace(request)
    try:
        id, flow = await request.shared.sign_in.begin_device(provider, request.address)
    except (IssuerAway, IssuerRefused, SignInBusy, TooManyFlows) as wrong:
        raise _away(provider, wrong) from None
    return DeviceView(
        id=id,
        provider=provider,
        code=flow.user_code,
        page=flow.page,
        whole_page=flow.whole_page,
        interval_ms=int(flow.interval_s * 1000),
        expires_in_ms=int(flow.seconds * 1000),
    )


async def device_result(request: ApiRequest) -> Reply:
    _check_pace(request)
    try:
        proved = await request.shared.sign_in.poll_device(request.body.id[:100])
    except (IssuerAway, SignInBusy) as wrong:
        raise _away("the provider", wrong) from None
    return DeviceResult(signed_in=None if proved is None else await _end(request, proved))


async def begin_browser(request: ApiRequest) -> Reply:
    provider = _provider(request, request.body.provider)
    _check_pace(request)
    try:
        page, browser = await request.shared.sign_in.begin_browser(
            provider, request.address, _dashboard(request, provider)
        )
    except (IssuerAway, SignInBusy, TooManyFlows) as wrong:
        raise _away(provider, wrong) from None
    cookie = flow_cookie(request.headers, browser, int(BROWSER_S), request.is_secure)
    view = BrowserView(provider=provider, page=page)
    return WithStatus(201, Content(encode_json(view), JSON, (cookie,)))


async def browser_result(request: ApiRequest) -> Reply:
    """The session ends with the sign-in, after the lifetime that the site sets for it."""
    _check_pace(request)
    body = request.body
    _check_size(body.state + body.code)
    try:
        browser = flow_secret(request.headers)
        proved = await request.shared.sign_in.end_browser(body.state, body.code, browser, body.iss)
    except (IssuerAway, SignInBusy) as wrong:
        raise _away("the provider", wrong) from None
    made = await _end(request, proved)
    session = await begin_session(request, Principal(made.user, made.id, made.scope, made.expires_ms))
    gone = flow_cookie(request.headers, "", 0, request.is_secure)
    return Content(session.body, session.kind, (*session.headers, gone))


async def refresh(request: ApiRequest) -> Reply:
    provider = _provider(request, request.body.provider)
    _check_pace(request)
    _check_size(request.body.refresh_token)
    try:
        proved = await request.shared.sign_in.refresh(provider, request.body.refresh_token)
    except (IssuerAway, SignInBusy) as wrong:
        raise _away(provider, wrong) from None
    return await _end(request, proved)


async def exchange(request: ApiRequest) -> Reply:
    _check_pace(request)
    _check_size(request.body.token)
    try:
        proved = await request.shared.sign_in.exchange(request.body.token)
    except (IssuerAway, SignInBusy) as wrong:
        raise _away("the issuer", wrong) from None
    return await _end(request, proved)


async def sign_out(request: ApiRequest) -> Reply:
    """Revoke the token of this request, and the refresh token at the provider."""
    token, body = request.principal.token, request.body
    changed = await request.change_accounts(lambda accounts, now_ms: commands.revoke_token(accounts, token, now_ms))
    if body.refresh_token and body.provider in request.shared.sign_in.providers:
        await request.shared.sign_in.forget(body.provider, body.refresh_token[:_TEXT_MAX])
    return changed


async def link_user(request: ApiRequest) -> Reply:
    name, provider = request.path["user"], request.body.provider
    request.require(Verb.USERS_CHANGE, "user", name, "", name)
    if name not in request.service.accounts.users:
        raise not_found("user", name)
    if provider:
        _provider(request, provider)
    changed: ChangeAnswer = await request.change_accounts(
        lambda accounts, now_ms: link(accounts, name, provider, now_ms)
    )
    return changed


# ---- parts -----------------------------------------------------------------------------------------------


def _provider(request: ApiRequest, name: str) -> str:
    known = request.shared.sign_in.providers
    if not name and len(known) == 1:
        return next(iter(known))
    if name not in known:
        why = f"there is no identity provider {name[:40]!r}" if name else "name the identity provider"
        hint = f"providers: {', '.join(known)}" if known else "this server has none; use a token: corral login --token"
        raise ApiError(404, "no_such_provider", why, hint)
    return name


def _dashboard(request: ApiRequest, provider: str) -> str:
    """Where the provider sends the browser back to; the provider accepts only what is registered there."""
    stated = request.shared.sign_in.providers[provider].dashboard_url
    if stated:
        return stated
    host = request.header(b"host")
    if not _HOST.fullmatch(host):
        raise ApiError(422, "bad_host", "the request does not name a host", "set dashboard_url of the provider")
    return f"{'https' if request.is_secure else 'http'}://{host}/"


def _check_size(text: str) -> None:
    if not text or len(text) > _TEXT_MAX:
        raise ApiError(422, "bad_id_token", f"a token has 1 to {_TEXT_MAX} characters", "send the whole token")


def _check_pace(request: ApiRequest) -> None:
    if not request.service.is_ready or request.service.has_failed:
        raise ApiError(503, "not_ready", "the server is not ready", "try again", headers={"Retry-After": "1"})
    wait_s = request.shared.sign_in_failures.wait_s((request.address, ""), time.monotonic())
    if wait_s:
        headers = {"Retry-After": str(int(wait_s) + 1)}
        raise ApiError(429, "too_many_failures", "too many failed sign-ins from this address", "wait", headers=headers)


def _away(name: str, wrong: Exception) -> ApiError:
    if isinstance(wrong, SignInBusy | TooManyFlows):
        why = "too many sign-ins are under way"
        return ApiError(503, "sign_in_busy", why, "try again", headers={"Retry-After": "10"})
    return ApiError(502, "provider_away", f"{name} cannot be used: {wrong}", "try again later, or use a token")


async def _end(request: ApiRequest, proved: Proved | Refusal) -> SignedInView:
    """Sign the identity in: apply the rules of the site, and issue a token."""
    if isinstance(proved, Refusal):
        await _record_unconfirmed(request, proved)
        raise _refuse(request, proved)
    who, made = proved.identity, new_token()
    queues = request.service.state.queues.queues

    def command(accounts: a.Accounts, now_ms: int) -> commands.Answer:
        terms = NewTokenTerms(made.id, made.digest, proved.scope, now_ms + proved.token_ms)
        return sign_in(accounts, who, terms, queues, now_ms)

    answer = await request.service.change_accounts(who.user, command)
    if isinstance(answer, Refusal):
        await _record_refusal(request, who, answer)
        raise _refuse(request, answer)
    accepted(answer)
    request.shared.sign_in_failures.succeeded((request.address, ""))
    token = request.service.accounts.tokens[made.id]
    return SignedInView(
        id=token.id,
        user=token.user,
        name=token.name,
        scope=token.scope,
        issued_ms=token.issued_ms,
        expires_ms=token.expires_ms,
        token=made.text,
        provider=who.provider,
        refresh_token=proved.refresh,
    )


def _refuse(request: ApiRequest, refusal: Refusal) -> ApiError:
    request.shared.sign_in_failures.failed((request.address, ""), time.monotonic())
    if refusal.code in ("bad_name", "bad_account"):
        return refused(refusal)
    return ApiError(403, refusal.code, refusal.why, refusal.hint)


async def _record_unconfirmed(request: ApiRequest, refusal: Refusal) -> None:
    """Of a client of which nothing is known but its address. All of them together are bounded: 20 at once, then six a
    minute."""
    if not request.shared.refusals.take("sign-in, unconfirmed", time.monotonic()):
        why = f"{refusal.why} (from {request.address})"
        await request.service.change_accounts(
            "system", lambda _accounts, now_ms: [a.SignInRefused(now_ms, "", "", "", why)]
        )


async def _record_refusal(request: ApiRequest, who: ProvedIdentity, refusal: Refusal) -> None:
    """As far as the address has not caused many such records already."""
    if request.shared.refusals.take(f"sign-in {request.address}", time.monotonic()):
        return
    user = who.user if commands.USER.fullmatch(who.user) else ""
    await request.service.change_accounts(
        "system", lambda _accounts, now_ms: [a.SignInRefused(now_ms, who.provider, who.subject, user, refusal.why)]
    )
