"""The door: every request comes in here, and every answer leaves here.

In order: a request id, the method, the size of headers, readiness, the token, its rate, its scope, what can be
accepted, parameters, the body; then the handler; then one answer, and one count. Whatever goes wrong leaves as a
problem; what nobody foresaw leaves as a 500 that says nothing but its request id. Knows routes as data only.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from itertools import count

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from corral.core.intake.refusal import Refusal
from corral.server.api.entry.asking import Ask, Content, Flow, Instead, Reply, Shared
from corral.server.api.entry.problems import PROBLEM_TYPE, Unable, out_of_scope, unauthenticated
from corral.server.api.entry.rate import Buckets
from corral.server.api.entry.reading import Bodies, ClientGone, read_body, read_parameters
from corral.server.api.entry.route import Door, Kind, Route
from corral.server.api.entry.streams import Streams
from corral.server.api.entry.throttle import LOOPBACK, Failures, network_of
from corral.server.auth import Principal, authenticate, is_in_scope, known_token, redacted
from corral.store.journal import JournalUnusable

log = structlog.get_logger(__name__)

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_STARTED, _numbers = secrets.token_hex(4), count(1)  # ids need to differ, not to be hard to guess
_NOBODY = Principal("", "")
_SAFE = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_CSP = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_JSON = b"application/json"
#: What may be said once: said twice, two readers of the same request may each believe another one.
_ONCE = frozenset(
    {b"authorization", b"content-encoding", b"content-length", b"content-type", b"expect", b"host", b"idempotency-key",
     b"last-event-id", b"transfer-encoding", b"x-request-id"}
)  # fmt: skip


class Desk:
    """What the doors share."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.bodies = Bodies(shared.settings)
        self.buckets = Buckets(shared.settings.requests_per_s, shared.settings.requests_burst)
        self.streams = Streams(shared)
        self.failures = Failures(shared.settings.failures_max)


class Entrance:
    """An ASGI application for one path: the routes that share it, by method."""

    def __init__(self, desk: Desk, routes: Mapping[str, Route], label: str) -> None:
        self.desk, self.routes, self.label = desk, routes, label
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
            ask = self._let_in(route, scope, headers, request_id)
            if route.kind is not Kind.NONE:
                ask.body = await self._body(route, receive, headers)
            reply = await route.handler(ask)
            status = route.status
            if isinstance(reply, Instead):
                status, reply = reply.status, reply.reply
            if isinstance(reply, Flow):
                await self.desk.streams.send(ask, reply, request_id, receive, send)
            else:
                await send_reply(send, status, reply, request_id)
        except ClientGone:
            pass
        except Unable as unable:
            status = unable.status
            await send_problem(send, unable, request_id)
        except JournalUnusable:
            status = 503
            why = "the database of the server cannot be reached"
            away = Unable(503, "database_away", why, "try again", headers={"Retry-After": "1"})
            await send_problem(send, away, request_id)
        except Exception:
            if self.desk.shared.service.has_failed:
                status = 503
                await send_problem(send, _journal_failed(), request_id)
                return
            log.exception("request_failed", request_id=request_id, route=label)
            status = 500
            why = "the server could not answer; it is in its log under this request id"
            await send_problem(send, Unable(500, "internal", why), request_id)
        finally:
            self.desk.shared.metrics.requested(label, status, time.perf_counter() - began)

    def _no_route(self, scope: Scope) -> Unable:
        if not self.routes:
            return Unable(404, "no_such_path", f"there is nothing at {scope['path'][:100]!r}", "see /v1/docs")
        why = f"{scope['method'][:20]!r} is not among {self.allow}"
        return Unable(405, "method_not_allowed", why, headers={"Allow": self.allow})

    def _let_in(self, route: Route, scope: Scope, headers: dict[bytes, bytes], request_id: str) -> Ask:
        shared = self.desk.shared
        _check_headers(scope, shared.settings.header_bytes_max, shared.settings.headers_max)
        _check_no_token_in_address(scope)
        principal = self._who(route, scope, headers) if route.door is not Door.OPEN else _NOBODY
        _check_accepted(route, headers)
        ask = Ask(shared, principal, request_id, scope.get("path_params", {}), headers, _address(scope))
        if route.query is not None or scope["query_string"]:
            ask.query = read_parameters(scope["query_string"], route.query)
        else:
            ask.query = None
        return ask

    def _who(self, route: Route, scope: Scope, headers: dict[bytes, bytes]) -> Principal:
        shared = self.desk.shared
        service = shared.service
        if service.has_failed:
            raise _journal_failed()
        if not service.is_ready:
            raise Unable(503, "not_ready", "the server is starting", "try again", headers={"Retry-After": "1"})
        address = _address(scope)
        is_here = address in LOOPBACK
        if route.door is Door.METRICS and shared.settings.metrics_open and is_here and b"authorization" not in headers:
            return _NOBODY
        who = self._authenticated(headers.get(b"authorization"), address)
        wait_s = self.desk.buckets.take(who.token, time.monotonic())
        if wait_s:
            why = "this token asks too often"
            raise Unable(429, "too_many_requests", why, headers={"Retry-After": str(int(wait_s) + 1)})
        if route.verb is not None and not is_in_scope(who, route.verb):
            raise out_of_scope(route.verb)
        return who

    def _authenticated(self, stated: bytes | None, address: str) -> Principal:
        service, failures, now_s = self.desk.shared.service, self.desk.failures, time.monotonic()
        text = None if stated is None else stated.decode("latin-1")
        key = (address, known_token(service.accounts, text))
        wait_s = failures.wait_s(key, now_s) if text else 0.0
        if wait_s:
            why = "too many bad tokens came from this address"
            headers = {"Retry-After": str(int(wait_s) + 1)}
            raise Unable(429, "too_many_failures", why, "wait, then use a token that is good", headers=headers)
        who = authenticate(service.accounts, text, service.now_ms())
        if not isinstance(who, Refusal):
            failures.succeeded(key)
            return who
        if who.code == "bad_token" and (wait_s := failures.failed(key, now_s)):
            log.warning("authentication_throttled", address=address, token=key[1], wait_s=wait_s)
        raise unauthenticated(who)

    async def _body(self, route: Route, receive: Receive, headers: dict[bytes, bytes]) -> object:
        settings = self.desk.shared.settings
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind and kind != _JSON:
            raise Unable(415, "not_json", f"the body is {kind.decode('latin-1')[:60]!r}", "send application/json")
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Unable(415, "encoded_body", "the body is encoded", "send it as it is")
        length = headers.get(b"content-length", b"")
        most = settings.batch_bytes_max if route.kind in (Kind.BATCH, Kind.WORD) else settings.body_bytes_max
        stated = int(length) if length.isdigit() and len(length) < 20 else None
        body = await self.desk.bodies.read(receive, stated, most)
        return body if route.body is None or route.kind is not Kind.SHAPE else read_body(body, route.body)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return "" if client is None else network_of(client[0])


def _journal_failed() -> Unable:
    why = "the journal cannot be written any more; the server is going down"
    return Unable(503, "journal_failed", why, "ask another server, or try again", headers={"Retry-After": "1"})


def _request_id(headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode()
    return f"{_STARTED}-{next(_numbers):x}"


def _check_headers(scope: Scope, bytes_max: int, count_max: int) -> None:
    headers = scope["headers"]
    if len(headers) > count_max or sum([len(name) + len(value) for name, value in headers]) > bytes_max:
        raise Unable(431, "headers_too_long", f"more than {count_max} headers or {bytes_max} bytes of them")
    if len(scope["query_string"]) + len(scope.get("raw_path") or b"") > bytes_max:
        raise Unable(414, "address_too_long", f"the address has more than {bytes_max} bytes")
    names = [name for name, _ in headers if name in _ONCE]
    if len(names) != len(set(names)):
        twice = next(name for name in names if names.count(name) > 1).decode()
        raise Unable(400, "header_twice", f"the header {twice} is there more than once", "send it once")


def _check_no_token_in_address(scope: Scope) -> None:
    """Addresses are written into logs on the way, so a token in one is known to others from then on."""
    address = f"{scope['path']}?{scope['query_string'].decode('latin-1')}"
    if redacted(address) != address:
        why = "there is a token in the address, which others may have read on the way"
        hint = "revoke it by its id, the part between the underscores, and send tokens in the header Authorization only"
        raise Unable(400, "token_in_address", why, hint)


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
    raise Unable(406, "not_acceptable", f"this can be answered as {', '.join((answer, *route.also))}")


# ---- answers ---------------------------------------------------------------------------------------------

_encoder = msgspec.json.Encoder()


async def send_reply(send: Send, status: int, reply: Reply, request_id: str) -> None:
    extra: tuple[tuple[str, str], ...] = ()
    policy: tuple[tuple[bytes, bytes], ...] = (_CSP,)
    if reply is None:
        body, kind = b"", b""
    elif isinstance(reply, Content):
        body, kind, extra = reply.body, reply.kind.encode(), reply.headers
        if any(name.lower() == "content-security-policy" for name, _ in extra):
            policy = ()
    else:
        body, kind = _encoder.encode(reply), _JSON
    head = [(b"x-request-id", request_id.encode()), *_SAFE, *policy]
    if kind:
        head += [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    head += [(name.lower().encode(), value.encode("latin-1")) for name, value in extra]
    await send({"type": "http.response.start", "status": status if kind or status != 200 else 204, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def send_problem(send: Send, unable: Unable, request_id: str) -> None:
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
