"""Sessions of browsers: the cookie, the protection against requests of other sites, and when each was last used.

A session is a token of its own (``core.accounts``) whose secret is only in a cookie that scripts cannot read. A standby
cannot record one: it keeps its sessions in memory, and they end when it does. Knows headers and times, not rights.
"""

from __future__ import annotations

import hmac
import secrets

from msgspec.structs import replace

from corral.server.api.http.problems import ApiError
from corral.server.auth import Principal, csrf_of, digest_of

CSRF_HEADER = b"corral-csrf"
_NAME = "corral_session"
_FLOW = "sign_in_"
_READS = ("GET", "HEAD", "OPTIONS")
_KEPT_MAX = 100_000
_CODES_MAX = 10_000


def cookie_name(headers: dict[bytes, bytes]) -> str:
    """Cookies are shared by all ports of a host, so that the name has the port in it."""
    port = headers.get(b"host", b"").decode("latin-1").rpartition(":")[2]
    return f"{_NAME}_{port}" if port.isdecimal() else _NAME


def session_token(headers: dict[bytes, bytes]) -> str:
    """The token in the cookie; "" if there is none."""
    return _cookie(headers, cookie_name(headers))


def _cookie(headers: dict[bytes, bytes], name: str) -> str:
    prefix = name + "="
    for part in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        if part.strip().startswith(prefix):
            return part.strip().removeprefix(prefix)
    return ""


def set_cookie(headers: dict[bytes, bytes], token: str, lasts_s: int, is_secure: bool) -> tuple[str, str]:
    """The header that sets the cookie; without a token it removes it."""
    terms = f"Path=/; HttpOnly; SameSite=Strict; Max-Age={lasts_s if token else 0}"
    return "Set-Cookie", f"{cookie_name(headers)}={token}; {terms}{'; Secure' if is_secure else ''}"


def flow_cookie(headers: dict[bytes, bytes], secret: str, lasts_s: int, is_secure: bool) -> tuple[str, str]:
    """The same for a sign-in that is under way at a provider."""
    terms = f"Path=/; HttpOnly; SameSite=Strict; Max-Age={lasts_s}"
    return "Set-Cookie", f"{_FLOW}{cookie_name(headers)}={secret}; {terms}{'; Secure' if is_secure else ''}"


def flow_secret(headers: dict[bytes, bytes]) -> str:
    return _cookie(headers, _FLOW + cookie_name(headers))


def check_csrf(method: str, token: str, headers: dict[bytes, bytes]) -> None:
    """Refuse a change that another site could have made the browser send."""
    if method in _READS:
        return
    expected = csrf_of(token.split("_", 2)[2])
    if not hmac.compare_digest(headers.get(CSRF_HEADER, b""), expected.encode()):
        why = "a change with a session needs the header Corral-CSRF"
        raise ApiError(403, "csrf", why, "send the value that GET /v1/session returns")


class SessionUse:
    """When each session was last used, codes for signing in, and sessions of a standby. In memory: after a restart no
    session has been idle, and the others are void."""

    def __init__(self) -> None:
        self._used_ms: dict[str, int] = {}
        self._codes: dict[str, tuple[str, int]] = {}  # code -> the token of its user, when it expires
        self._here: dict[str, Principal] = {}  # digest -> sessions of a standby, which cannot record any

    def is_in_use(self, session: str, now_ms: int, idle_ms_max: int) -> bool:
        """Whether it was used recently; if so, it is used now."""
        last_ms = self._used_ms.pop(session, now_ms)
        if now_ms - last_ms > idle_ms_max:
            self._used_ms[session] = last_ms
            return False
        if len(self._used_ms) >= _KEPT_MAX:
            del self._used_ms[next(iter(self._used_ms))]
        self._used_ms[session] = now_ms
        return True

    def keep(self, token: str, who: Principal) -> None:
        """A session that only this server knows, with the rights of the token it was signed in with."""
        while len(self._here) >= _CODES_MAX:
            del self._here[next(iter(self._here))]
        self._here[digest_of(token)] = replace(who, is_session=True)

    def kept(self, token: str) -> Principal | None:
        return self._here.get(digest_of(token)) if self._here else None

    def drop(self, token: str) -> None:
        self._here.pop(digest_of(token), None)

    def new_code(self, token: str, now_ms: int, expires_ms: int) -> str:
        """A code that stands for this token, once."""
        self._codes = {code: known for code, known in self._codes.items() if known[1] > now_ms}
        if len(self._codes) >= _CODES_MAX:
            raise ApiError(429, "too_many_codes", "too many codes for signing in are valid", "wait a minute")
        code = secrets.token_urlsafe(32)
        self._codes[code] = (token, expires_ms)
        return code

    def redeem(self, code: str, now_ms: int) -> str | None:
        """The token of a code, which is void from now on; None if there is no such code."""
        token, expires_ms = self._codes.pop(code, ("", 0))
        return token if expires_ms > now_ms else None
