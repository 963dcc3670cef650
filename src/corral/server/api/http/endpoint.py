"""The HTTP endpoint: every request enters here, and every answer leaves here.

In order: a request id, the method, the size of headers, readiness, the token, its rate, its scope, what the client
accepts, parameters, the body; then the handler; then one answer, and one count in the metrics. Errors are answered as
problems; an unexpected error is a 500 that shows only its request id. Knows routes as data only.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from itertools import chain, count

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from corral.core.intake.refusal import Refusal
from corral.server.api.http.bodies import Bodies, ClientGone, read_body, read_parameters
from corral.server.api.http.problems import PROBLEM_TYPE, ApiError, out_of_scope, unauthenticated
from corral.server.api.http.rate_limit import Buckets
from corral.server.api.http.request import ApiRequest, Content, DuplexAnswer, Reply, Shared, StreamAnswer, WithStatus
from corral.server.api.http.route import BodyKind, Route, RouteAccess
from corral.server.api.http.session_cookie import check_csrf, session_token
from corral.server.api.http.streamed_answers import Streams
from corral.server.api.http.throttle import LOOPBACK, FailedSignIns, network_of
from corral.server.auth import Principal, authenticate, is_alive, is_in_scope, known_token, redacted
from corral.store.journal import JournalUnusable

log = structlog.get_logger(__name__)

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_STARTED, _numbers = secrets.token_hex(4), count(1)  # ids need to differ, not to be hard to guess
_ANONYMOUS = Principal("", "")
_SAFE = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_CSP = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_JSON = b"application/json"
#: Headers that may occur only once: if repeated, a proxy and the server may each believe a different one.
_ONCE = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"idempotency-key",
        b"last-event-id",
        b"transfer-encoding",
        b"x-request-id",
    }
)


class EndpointContext:
    """What all endpoints share."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.bodies = Bodies(shared.settings)
        self.buckets = Buckets(shared.settings.requests_per_s, shared.settings.requests_burst)
        self.streams = Streams(shared)
        self.failures = FailedSignIns(shared.settings.failures_max)


class Endpoint:
    """An ASGI application for one path: the routes that share it, by method."""

    def __init__(self, context: EndpointContext, routes: Mapping[str, Route], label: str) -> None:
        self.context = context
        self.routes = routes
        self.label = label
        self.names = {method: route.name for method, route in routes.items()}
        self.allow = ", ".join(sorted(routes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        headers = dict(scope["headers"])
        request_id = _request_id(headers)
        route = self.routes.get(scope["method"])
        label = self.names.get(scope["method"], self.label)
        status = 499
        try:
            if route is None:
                raise self._no_route(scope)
            request = self._admit(route, scope, headers, request_id)
            if route.kind is not BodyKind.NONE:
                request.body = await self._body(route, receive, headers)
            reply = await route.handler(request)
            status = route.status
            if isinstance(reply, WithStatus):
                status, reply = reply.status, reply.reply
            if isinstance(reply, DuplexAnswer):
                await reply.run(receive, send)
            elif isinstance(reply, StreamAnswer):
                await self.context.streams.send(request, reply, request_id, receive, send)
            else:
                await send_reply(send, status, reply, request_id)
        except ClientGone:
            pass
        except ApiError as unable:
            status = unable.status
            await send_problem(send, unable, request_id)
        except JournalUnusable:
            status = 503
            why = "the server cannot reach its database"
            away = ApiError(503, "database_away", why, "try again", headers={"Retry-After": "1"})
            await send_problem(send, away, request_id)
        except Exception:
            if self.context.shared.service.has_failed:
                status = 503
                await send_problem(send, _journal_failed(), request_id)
                return
            log.exception("request_failed", request_id=request_id, route=label)
            status = 500
            why = "internal error; details are in the server log under this request id"
            await send_problem(send, ApiError(500, "internal", why), request_id)
        finally:
            self.context.shared.metrics.requested(label, status, time.perf_counter() - began)

    def _no_route(self, scope: Scope) -> ApiError:
        if not self.routes:
            return ApiError(404, "no_such_path", f"there is no path {scope['path'][:100]!r}", "see /v1/docs")
        why = f"the method {scope['method'][:20]!r} is not allowed here"
        return ApiError(405, "method_not_allowed", why, f"use {self.allow}", headers={"Allow": self.allow})

    def _admit(self, route: Route, scope: Scope, headers: dict[bytes, bytes], request_id: str) -> ApiRequest:
        shared = self.context.shared
        _check_headers(scope, len(headers), shared.settings.header_bytes_max, shared.settings.headers_max)
        _check_no_token_in_address(scope)
        address = _address(scope)
        principal = _ANONYMOUS
        if route.access is RouteAccess.SIGN_IN:
            self._check_ready()
        elif route.access is not RouteAccess.OPEN:
            principal = self._principal(route, address, headers)
        _check_accepted(route, headers)
        request = ApiRequest(shared, principal, request_id, scope.get("path_params", {}), headers, address)
        request.is_secure = scope.get("scheme") == "https" or headers.get(b"x-forwarded-proto") == b"https"
        request.authenticated = lambda token: self._authenticated(f"Bearer {token}", address)
        if route.query is not None or scope["query_string"]:
            request.query = read_parameters(scope["query_string"], route.query)
        else:
            request.query = None
        return request

    def _check_ready(self) -> None:
        service = self.context.shared.service
        if service.has_failed:
            raise _journal_failed()
        if not service.is_ready:
            raise ApiError(503, "not_ready", "the server is starting", "try again", headers={"Retry-After": "1"})

    def _principal(self, route: Route, address: str, headers: dict[bytes, bytes]) -> Principal:
        shared = self.context.shared
        self._check_ready()
        is_open = route.access is RouteAccess.METRICS and shared.settings.metrics_open and address in LOOPBACK
        if is_open and b"authorization" not in headers:
            return _ANONYMOUS
        who = self._signed_in(route, address, headers)
        wait_s = self.context.buckets.take(who.token, time.monotonic())
        if wait_s:
            why = "too many requests with this token"
            headers_ = {"Retry-After": str(int(wait_s) + 1)}
            raise ApiError(429, "too_many_requests", why, "retry later", headers=headers_)
        if route.verb is not None and not is_in_scope(who, route.verb):
            raise out_of_scope(route.verb)
        return who

    def _signed_in(self, route: Route, address: str, headers: dict[bytes, bytes]) -> Principal:
        """The user of the token in the header; without that, of the session in the cookie."""
        stated = headers.get(b"authorization")
        session = "" if stated is not None else session_token(headers)
        if not session:
            return self._authenticated(None if stated is None else stated.decode("latin-1"), address)
        shared = self.context.shared
        accounts, now_ms = shared.service.accounts, shared.service.now_ms()
        who = shared.sessions.kept(session) or authenticate(accounts, f"Bearer {session}", now_ms, is_cookie=True)
        if isinstance(who, Refusal):
            raise unauthenticated(who)
        if not is_alive(accounts, who, now_ms):
            raise unauthenticated(Refusal("session_over", "the session has ended", "sign in again"))
        if not shared.sessions.is_in_use(who.token, now_ms, shared.settings.session_idle_ms):
            raise unauthenticated(Refusal("session_over", "the session was not used for too long", "sign in again"))
        check_csrf(route.method, session, headers)
        return who

    def _authenticated(self, text: str | None, address: str) -> Principal:
        service = self.context.shared.service
        failures = self.context.failures
        now_s = time.monotonic()
        if failures.is_empty:  # the usual case: no address has to wait
            who = authenticate(service.accounts, text, service.now_ms())
            if not isinstance(who, Refusal):
                return who
        key = (address, known_token(service.accounts, text))
        wait_s = failures.wait_s(key, now_s) if text else 0.0
        if wait_s:
            why = "too many bad tokens were sent from this address"
            headers = {"Retry-After": str(int(wait_s) + 1)}
            raise ApiError(429, "too_many_failures", why, "wait, then use a valid token", headers=headers)
        who = authenticate(service.accounts, text, service.now_ms())
        if not isinstance(who, Refusal):
            failures.succeeded(key)
            return who
        if who.code == "bad_token" and (wait_s := failures.failed(key, now_s)):
            log.warning("authentication_throttled", address=address, token=key[1], wait_s=wait_s)
        raise unauthenticated(who)

    async def _body(self, route: Route, receive: Receive, headers: dict[bytes, bytes]) -> object:
        kind = headers.get(b"content-type", _JSON)
        if kind != _JSON and (kind := kind.partition(b";")[0].strip().lower()) and kind != _JSON:
            why = f"the content type of the body is {kind.decode('latin-1')[:60]!r}"
            raise ApiError(415, "not_json", why, "send application/json")
        if b"content-encoding" in headers and headers[b"content-encoding"].lower() != b"identity":
            raise ApiError(415, "encoded_body", "the body has a content encoding", "send it without one")
        length = headers.get(b"content-length", b"")
        stated = int(length) if length.isdigit() and len(length) < 20 else None
        body = await self.context.bodies.read(receive, stated, self.context.shared.settings.body_bytes_max)
        return body if route.body is None or route.kind is not BodyKind.SHAPE else read_body(body, route.body)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return "" if client is None else network_of(client[0])


def _journal_failed() -> ApiError:
    why = "the journal cannot be written; the server is shutting down"
    return ApiError(503, "journal_failed", why, "try another server, or retry later", headers={"Retry-After": "1"})


def _request_id(headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode()
    return f"{_STARTED}-{next(_numbers):x}"


def _check_headers(scope: Scope, distinct: int, bytes_max: int, count_max: int) -> None:
    """Check number, size and uniqueness of headers. ``distinct``: the number of different names."""
    headers = scope["headers"]
    if len(headers) > count_max or sum(map(len, chain.from_iterable(headers))) > bytes_max:
        why = f"the request has more than {count_max} headers or {bytes_max} bytes of headers"
        raise ApiError(431, "headers_too_long", why, "send fewer or shorter headers")
    if len(scope["query_string"]) + len(scope.get("raw_path") or b"") > bytes_max:
        raise ApiError(414, "address_too_long", f"the URL has more than {bytes_max} bytes", "send a shorter one")
    if len(headers) == distinct:
        return
    names = [name for name, _ in headers if name in _ONCE]
    if len(names) != len(set(names)):
        twice = next(name for name in names if names.count(name) > 1).decode()
        raise ApiError(400, "header_twice", f"the header {twice} occurs more than once", "send it once")


def _check_no_token_in_address(scope: Scope) -> None:
    """Refuse a token in the URL: proxies write URLs into their logs, where others can read them."""
    address = f"{scope['path']}?{scope['query_string'].decode('latin-1')}"
    if redacted(address) != address:
        why = "the URL contains a token, which proxies may have logged"
        hint = "revoke it by its id, the part between the underscores; send tokens in the header Authorization only"
        raise ApiError(400, "token_in_address", why, hint)


def _check_accepted(route: Route, headers: dict[bytes, bytes]) -> None:
    accept = headers.get(b"accept")
    if not accept or b"*/*" in accept or route.answer is None:
        return
    answer = route.answer if isinstance(route.answer, str) else "application/json"
    offered = [each.encode() for each in (answer, *route.also)]
    for part in accept.split(b","):
        wanted, _, terms = part.strip().lower().partition(b";")
        wanted = wanted.strip()
        is_refused = terms.replace(b" ", b"") in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
        if not is_refused and any(wanted in (each, each.partition(b"/")[0] + b"/*") for each in offered):
            return
    why = "the server cannot answer with a content type that the client accepts"
    raise ApiError(406, "not_acceptable", why, f"accept {' or '.join((answer, *route.also))}")


# ---- answers ---------------------------------------------------------------------------------------------

_encoder = msgspec.json.Encoder()


async def send_reply(send: Send, status: int, reply: Reply, request_id: str) -> None:
    extra: tuple[tuple[str, str], ...] = ()
    policy: tuple[tuple[bytes, bytes], ...] = (_CSP,)
    if reply is None:
        body, kind = b"", b""
    elif isinstance(reply, Content):
        body = reply.body
        kind = reply.kind.encode()
        extra = reply.headers
        if any(name.lower() == "content-security-policy" for name, _ in extra):
            policy = ()
    else:
        body, kind = _encoder.encode(reply), _JSON
    named = {name.lower().encode() for name, _ in extra}
    head = [(b"x-request-id", request_id.encode()), *(each for each in _SAFE if each[0] not in named), *policy]
    if kind:
        head += [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    head += [(name.lower().encode(), value.encode("latin-1")) for name, value in extra]
    await send({"type": "http.response.start", "status": status if kind or status != 200 else 204, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def send_problem(send: Send, unable: ApiError, request_id: str) -> None:
    body = _encoder.encode(unable.problem(request_id))
    head = [
        (b"x-request-id", request_id.encode()),
        (b"content-type", PROBLEM_TYPE),
        (b"content-length", str(len(body)).encode()),
        *_SAFE,
        _CSP,
        *((name.lower().encode(), value.encode("latin-1", "replace")) for name, value in unable.headers.items()),
    ]
    await send({"type": "http.response.start", "status": unable.status, "headers": head})
    await send({"type": "http.response.body", "body": body})
