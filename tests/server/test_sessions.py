"""Sessions of browsers: signing in and out, the cookie, and changes that another site cannot make."""

from __future__ import annotations

import pytest

from corral.core.accounts.accounts import Role, TokenRevoked
from corral.server.api.app import make_app
from corral.server.api.http.settings import ApiSettings
from tests.server.asgi import ask
from tests.server.in_memory_service import MemoryService

JOB = {"name": "train", "queue": "team", "command": "true"}


class Browser:
    """Keeps a cookie, as a browser does."""

    def __init__(self, app) -> None:
        self.app, self.cookie, self.csrf, self.set_cookie = app, "", "", ""

    async def ask(self, method: str, path: str, body: object = b"", *, csrf: str | None = None, headers=()):
        headers = [("Host", "corral.test:7411"), *headers]
        if self.cookie:
            headers.append(("Cookie", f"other=1; {self.cookie}"))
        proof = self.csrf if csrf is None else csrf
        if proof:
            headers.append(("Corral-CSRF", proof))
        answer = await ask(self.app, method, path, "", body, headers)
        if "set-cookie" in answer.headers:
            self.set_cookie = answer.headers["set-cookie"]
            self.cookie = self.set_cookie.partition(";")[0]
        return answer

    async def sign_in(self, headers=(), **body: str):
        answer = await self.ask("POST", "/v1/session", body, csrf="", headers=headers)
        if answer.status == 200:
            self.csrf = answer.json()["csrf"]
        return answer


class Site:
    def __init__(self) -> None:
        self.service = MemoryService()
        self.service.queue("team")
        self.token = self.service.user("ann", (Role.MEMBER, "team"))
        self.app = make_app(self.service, ApiSettings(session_ms=1_000_000, session_idle_ms=60_000))
        self.browser = Browser(self.app)

    async def api(self, method: str, path: str, body: object = b""):
        return await ask(self.app, method, path, self.token, body)


@pytest.fixture
def site():
    return Site()


async def test_a_token_gives_a_session_with_the_same_rights(site):
    answer = await site.browser.sign_in(token=site.token)
    assert answer.status == 200
    assert "HttpOnly; SameSite=Strict" in site.browser.set_cookie
    assert "Secure" not in site.browser.set_cookie
    assert site.token not in site.browser.set_cookie
    who = (await site.browser.ask("GET", "/v1/whoami")).json()
    assert (who["user"], who["token"]) == ("ann", answer.json()["id"])
    assert (await site.browser.ask("POST", "/v1/jobs", JOB)).status == 201


async def test_the_cookie_is_secure_behind_tls(site):
    await site.browser.sign_in(token=site.token, headers=[("X-Forwarded-Proto", "https")])
    assert site.browser.set_cookie.endswith("; Secure")


async def test_a_change_needs_the_value_that_only_the_page_knows(site):
    await site.browser.sign_in(token=site.token)
    for wrong in ("x", site.browser.csrf[:-1]):
        answer = await site.browser.ask("POST", "/v1/jobs", JOB, csrf=wrong)
        assert (answer.status, answer.code) == (403, "csrf")
    proof, site.browser.csrf = site.browser.csrf, ""
    assert (await site.browser.ask("DELETE", "/v1/session")).status == 403
    assert (await site.browser.ask("GET", "/v1/session")).json()["csrf"] == proof


async def test_a_code_works_once_and_not_for_long(site):
    code = (await site.api("POST", "/v1/session-codes")).json()["code"]
    assert (await site.browser.sign_in(code=code)).status == 200
    assert (await Browser(site.app).sign_in(code=code)).code == "bad_code"
    late = (await site.api("POST", "/v1/session-codes")).json()["code"]
    site.service.time_ms += 60_001
    assert (await Browser(site.app).sign_in(code=late)).code == "bad_code"


async def test_a_session_cannot_make_codes_or_be_used_as_a_token(site):
    await site.browser.sign_in(token=site.token)
    assert (await site.browser.ask("POST", "/v1/session-codes")).status == 403
    secret = site.browser.cookie.partition("=")[2]
    assert (await ask(site.app, "GET", "/v1/whoami", secret)).status == 401
    site.browser.cookie = site.browser.cookie.partition("=")[0] + "=" + site.token
    assert (await site.browser.ask("GET", "/v1/whoami")).status == 401


async def test_signing_out_ends_the_session(site):
    await site.browser.sign_in(token=site.token)
    cookie = site.browser.cookie
    assert (await site.browser.ask("DELETE", "/v1/session")).status == 200
    site.browser.cookie = cookie
    assert (await site.browser.ask("GET", "/v1/whoami")).status == 401


async def test_a_session_ends_by_age_and_when_it_is_idle(site):
    await site.browser.sign_in(token=site.token)
    for _ in range(30):
        site.service.time_ms += 30_000
        assert (await site.browser.ask("GET", "/v1/whoami")).status == 200
    site.service.time_ms += 61_000
    assert (await site.browser.ask("GET", "/v1/whoami")).code == "session_over"
    await site.browser.sign_in(token=site.token)
    for _ in range(33):
        site.service.time_ms += 30_000
        assert (await site.browser.ask("GET", "/v1/whoami")).status == 200
    site.service.time_ms += 30_000
    assert (await site.browser.ask("GET", "/v1/whoami")).code == "token_expired"


async def test_a_session_ends_with_its_token_and_is_listed_and_revoked_like_one(site):
    await site.browser.sign_in(token=site.token)
    (session,) = [each for each in (await site.api("GET", "/v1/tokens")).json()["tokens"] if each["session_of"]]
    other = Browser(site.app)
    await other.sign_in(token=site.token)
    assert (await site.api("DELETE", f"/v1/tokens/{session['id']}")).status == 200
    assert (await site.browser.ask("GET", "/v1/whoami")).status == 401
    assert (await other.ask("GET", "/v1/whoami")).status == 200
    now_ms = site.service.now_ms()
    site.service.do_accounts("root", [TokenRevoked(now_ms, session["session_of"])])
    assert (await other.ask("GET", "/v1/whoami")).code == "session_over"


async def test_bad_sign_ins_are_refused_and_slowed_down(site):
    assert (await site.browser.sign_in()).status == 422
    statuses = [(await Browser(site.app).sign_in(token=f"corral_{n:016x}_wrongwrongwrong")).status for n in range(14)]
    assert statuses[0] == 401
    assert statuses[-1] == 429


async def test_the_page_allows_only_itself(site):
    page = await ask(site.app, "GET", "/", headers=[("Accept-Encoding", "gzip")])
    policy = page.headers["content-security-policy"]
    assert page.status == 200
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    assert page.headers["cache-control"] == "no-store"
    plain = await ask(site.app, "GET", "/")
    address = plain.body.decode().partition('src="')[2].partition('"')[0]
    script = await ask(site.app, "GET", f"/{address}")
    assert script.status == 200
    assert script.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert script.headers["content-type"].startswith("text/javascript")
    version = address.split("/")[1]
    for wrong in (f"/ui/{version}/../assets.py", f"/ui/{version}/nothing.js", "/ui/old/app.js"):
        assert (await ask(site.app, "GET", wrong)).status == 404
