"""Signing in and out with a browser: a token or a code for one use is exchanged for a session."""

from __future__ import annotations

from msgspec import structs

from corral.core.accounts import commands
from corral.core.intake.refusal import Refusal
from corral.server.api.http.problems import ApiError, unauthenticated
from corral.server.api.http.request import ApiRequest, Content, Reply, WithStatus
from corral.server.api.http.session_cookie import session_token, set_cookie
from corral.server.api.http.shared_views import JSON, encode_json
from corral.server.auth import Principal, csrf_of, is_alive, may_mint, new_token
from corral.wire.api import ChangeAnswer, SessionCode, SessionView

_NAME_MAX = 100


async def sign_in(request: ApiRequest) -> Reply:
    """A session has the rights of the token that it is made with, and ends with it at the latest."""
    body = request.body
    if bool(body.token) == bool(body.code):
        raise ApiError(422, "no_credential", "give a token or a code", "paste a token, or use: corral open", "token")
    return await begin_session(request, request.authenticated(body.token) if body.token else _by_code(request))


async def begin_session(request: ApiRequest, who: Principal) -> Content:
    """A session for this user, and the cookie with it."""
    service = request.service
    now_ms, lasts_ms = service.now_ms(), request.shared.settings.session_ms
    expires_ms = min(now_ms + lasts_ms, who.expires_ms or now_ms + lasts_ms)
    drawn, name = new_token(), _browser(request.header(b"user-agent"))
    if isinstance(wrong := may_mint(who, who.scope, expires_ms), Refusal):
        raise ApiError(403, wrong.code, wrong.why, wrong.hint)
    if not service.leads:
        request.shared.sessions.keep(drawn.text, structs.replace(who, expires_ms=expires_ms))
        return _signed_in(request, drawn.text, who.token, who.user, expires_ms)
    answer = await service.change_accounts(
        who.user,
        lambda accounts, at_ms: commands.issue_token(
            accounts, drawn.id, who.user, drawn.digest, name, who.scope, expires_ms, at_ms, session_of=who.token
        ),
    )
    if isinstance(answer, Refusal):
        raise ApiError(409, answer.code, answer.why, answer.hint)
    return _signed_in(request, drawn.text, drawn.id, who.user, expires_ms)


def _signed_in(request: ApiRequest, token: str, session: str, user: str, expires_ms: int) -> Content:
    view = SessionView(id=session, user=user, csrf=_csrf(token), expires_ms=expires_ms)
    lasts_s = (expires_ms - request.service.now_ms()) // 1000
    return Content(encode_json(view), JSON, (set_cookie(request.headers, token, lasts_s, request.is_secure),))


def _by_code(request: ApiRequest) -> Principal:
    service = request.service
    if not service.leads:
        why = "this server is a standby, and the code is known to the leader only"
        raise ApiError(503, "not_leader", why, "open the link at the address of the leader, or paste a token here")
    token = request.shared.sessions.redeem(request.body.code, service.now_ms())
    known = service.accounts.tokens.get(token or "")
    who = None if known is None else Principal(known.user, known.id, known.scope, known.expires_ms)
    if who is None or not is_alive(service.accounts, who, service.now_ms()):
        raise unauthenticated(Refusal("bad_code", "the code was used or has expired", "make another: corral open"))
    return who


async def show_session(request: ApiRequest) -> Reply:
    who = request.principal
    if not who.is_session:
        raise ApiError(404, "no_session", "this request has a token, not a session", "sign in with POST /v1/session")
    csrf = _csrf(session_token(request.headers))
    return SessionView(id=who.token, user=who.user, csrf=csrf, expires_ms=who.expires_ms)


async def sign_out(request: ApiRequest) -> Reply:
    token = request.principal.token
    if not request.principal.is_session:
        raise ApiError(404, "no_session", "this request has a token, not a session", "revoke it: corral token revoke")
    cookie = session_token(request.headers)
    if request.shared.sessions.kept(cookie) is not None:
        request.shared.sessions.drop(cookie)
        done = ChangeAnswer(seq=request.service.durable_seq)
        return Content(encode_json(done), JSON, (set_cookie(request.headers, "", 0, request.is_secure),))
    done = await request.change_accounts(lambda accounts, now_ms: commands.revoke_token(accounts, token, now_ms))
    return Content(encode_json(done), JSON, (set_cookie(request.headers, "", 0, request.is_secure),))


async def make_code(request: ApiRequest) -> Reply:
    """A code stands for the token that it is made with; a session cannot make one."""
    if request.principal.is_session:
        raise ApiError(403, "wider_token", "a session cannot make a code", "use: corral open")
    now_ms = request.service.now_ms()
    expires_ms = now_ms + request.shared.settings.session_code_ms
    code = request.shared.sessions.new_code(request.principal.token, now_ms, expires_ms)
    return WithStatus(201, SessionCode(code=code, expires_ms=expires_ms))


def _csrf(token: str) -> str:
    return csrf_of(token.split("_", 2)[2])


def _browser(agent: str) -> str:
    """The name of a session: which browser it is of, as far as that says so."""
    kind = next((name for name in ("Edg", "Firefox", "Chrome", "Safari") if name in agent), "a browser")
    system = next((name for name in ("Android", "iPhone", "Windows", "Mac OS", "Linux") if name in agent), "")
    return f"session: {'Edge' if kind == 'Edg' else kind}{f' on {system}' if system else ''}"[:_NAME_MAX]
