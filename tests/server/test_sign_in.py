"""Sign-in with identity providers, through the API and against a provider that signs real tokens."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

from corral.core.accounts import accounts as a
from corral.core.accounts.accounts import Role
from corral.server.api.app import make_app
from corral.server.api.http.settings import ApiSettings
from corral.server.sign_in.ways import BadSignIn, check_sign_in
from corral.wire.identity_providers import IssuerRules, ProgramRule, ProviderRules, RoleRule, SignInRules
from tests.identity_provider import IdentityProvider
from tests.server.asgi import ask
from tests.server.in_memory_service import MemoryService

ANN = {"sub": "s-1", "preferred_username": "ann", "groups": ["vision", "staff"]}
CI = {"sub": "repo:lab/models:ref:refs/heads/main", "repository": "lab/models", "ref": "refs/heads/main"}


@pytest.fixture(scope="module")
def running():
    with IdentityProvider() as provider:
        yield provider


@pytest.fixture
def provider(running):
    running.claims, running.is_away, running.audience = None, False, "corral"
    running.refresh_tokens.clear()
    running.requests.clear()
    return running


def rules(provider: IdentityProvider) -> SignInRules:
    person = ProviderRules(
        issuer=provider.url,
        client_id="corral",
        roles=(
            RoleRule(group="vision", role="member", queue="team"),
            RoleRule(group="leads", role="lead", queue="team"),
        ),
    )
    program = IssuerRules(
        issuer=provider.url,
        audience="corral-ci",
        rules=(
            ProgramRule(
                claims=(("repository", "lab/models"), ("ref", "refs/heads/*")),
                user="ci",
                role="member",
                queue="team",
                scope=("jobs.submit", "jobs.read"),
            ),
        ),
    )
    return SignInRules(providers=(("company", person),), issuers=(("forge", program),))


class Site:
    def __init__(self, provider: IdentityProvider | None, ways: SignInRules | None = None) -> None:
        self.provider = provider
        self.service = MemoryService()
        self.service.queue("team")
        self.root = self.service.user("root", (Role.ADMINISTRATOR, ""))
        self.app = make_app(self.service, ApiSettings(sign_in=ways or rules(provider or IdentityProvider())))

    async def post(self, path: str, body: Any, token: str = ""):
        return await ask(self.app, "POST", path, token, body)

    async def exchange(self, token: str):
        return await self.post("/v1/sign-in/exchange", {"token": token})

    async def sign_in(self):
        """On another device, at once."""
        begun = (await self.post("/v1/sign-in/device", {})).json()
        return await self.post("/v1/sign-in/device/result", {"id": begun["id"]})

    def recorded(self, kind: type) -> list[Any]:
        return [event for event in self.service.events() if isinstance(event, kind)]


@pytest.fixture
async def site(provider):
    made = Site(provider)
    yield made
    made.app.close()


# ---- people ----------------------------------------------------------------------------------------------


async def test_a_person_signs_in_on_another_device_and_gets_a_token_with_the_rights_of_their_groups(site, provider):
    begun = await site.post("/v1/sign-in/device", {"provider": "company"})
    assert begun.status == 201
    assert (begun.json()["code"], begun.json()["page"]) == ("WDJB-MJHT", f"{provider.url}/activate")
    id = {"id": begun.json()["id"]}
    assert (await site.post("/v1/sign-in/device/result", id)).json() == {"signed_in": None}
    provider.claims = ANN
    made = (await site.post("/v1/sign-in/device/result", id)).json()["signed_in"]
    who = (await ask(site.app, "GET", "/v1/whoami", made["token"])).json()
    assert (who["user"], who["roles"]) == ("ann", [{"role": "member", "queue": "team"}])
    assert made["expires_ms"] - made["issued_ms"] == 12 * 3_600_000
    assert site.recorded(a.SignedIn)[-1].user == "ann"
    again = await site.post("/v1/sign-in/device/result", id)
    assert (again.status, again.code) == (403, "no_such_sign_in")


async def test_the_provider_is_asked_no_more_often_than_it_allows(site, provider):
    provider.interval_s = 30
    try:
        begun = (await site.post("/v1/sign-in/device", {})).json()
    finally:
        provider.interval_s = 0
    for _ in range(20):
        await site.post("/v1/sign-in/device/result", {"id": begun["id"]})
    assert [path for path, _ in provider.requests].count("/token") == 1


async def test_a_refresh_follows_the_groups_and_revoked_ones_are_refused(site, provider):
    provider.claims = ANN
    made = (await site.sign_in()).json()["signed_in"]
    provider.claims = ANN | {"groups": ["leads"]}
    body = {"provider": "company", "refresh_token": made["refresh_token"]}
    newer = await site.post("/v1/sign-in/refresh", body)
    assert newer.status == 201
    who = (await ask(site.app, "GET", "/v1/whoami", newer.json()["token"])).json()
    assert who["roles"] == [{"role": "lead", "queue": "team"}]
    assert (await site.post("/v1/sign-in/refresh", body)).code == "sign_in_refused"


async def test_after_a_sign_out_the_token_and_the_refresh_token_are_of_no_use(site, provider):
    provider.claims = ANN
    made = (await site.sign_in()).json()["signed_in"]
    body = {"provider": "company", "refresh_token": made["refresh_token"]}
    assert (await site.post("/v1/sign-out", body, made["token"])).status == 200
    assert (await ask(site.app, "GET", "/v1/whoami", made["token"])).status == 401
    assert (await site.post("/v1/sign-in/refresh", body)).status == 403


async def test_who_has_no_group_of_a_rule_is_refused_and_recorded(site, provider):
    provider.claims = ANN | {"groups": ["guests"]}
    answer = await site.sign_in()
    assert (answer.status, answer.code) == (403, "no_role")
    refused = site.recorded(a.SignInRefused)[-1]
    assert (refused.user, refused.subject, refused.provider) == ("ann", "s-1", "company")
    assert "ann" not in site.service.accounts.users


async def test_a_local_user_of_that_name_is_safe_until_an_administrator_links_it(site, provider):
    provider.claims = ANN | {"preferred_username": "root", "groups": ["vision"]}
    assert (await site.sign_in()).code == "user_exists"
    linked = await ask(site.app, "PUT", "/v1/users/root/provider", site.root, {"provider": "company"})
    assert linked.status == 200
    assert (await site.sign_in()).json()["signed_in"]["user"] == "root"


async def test_new_keys_of_the_provider_are_found_without_a_failed_sign_in(site, provider):
    provider.claims = ANN
    assert (await site.sign_in()).status == 200
    for issuer in site.app.shared.sign_in._at.values():
        issuer._keys = (issuer._keys[0] - 60, issuer._keys[1]) if issuer._keys else None  # read a minute ago
    provider.rotate()
    assert (await site.sign_in()).status == 200


async def test_a_provider_that_is_away_or_answers_nonsense_is_reported_and_nothing_else_suffers(site, provider):
    provider.is_away = True
    answer = await site.post("/v1/sign-in/device", {})
    assert (answer.status, answer.code) == (502, "provider_away")
    assert (await ask(site.app, "GET", "/v1/whoami", site.root)).status == 200


async def test_sign_ins_that_are_begun_are_bounded_by_address(site, provider):
    answers = [await site.post("/v1/sign-in/device", {}) for _ in range(25)]
    assert [each.status for each in answers[:20]] == [201] * 20
    assert {each.code for each in answers[20:]} == {"sign_in_busy"}


async def test_without_providers_sign_in_says_what_to_do(setup):
    assert (await ask(setup.app, "GET", "/v1/sign-in")).json() == {"providers": [], "issuers": []}
    answer = await ask(setup.app, "POST", "/v1/sign-in/device", "", {})
    assert (answer.status, answer.code) == (404, "no_such_provider")
    assert "corral login --token" in answer.json()["hint"]


# ---- people: in a browser --------------------------------------------------------------------------------


class BrowserOf:
    """A browser at a site: it keeps its cookies."""

    def __init__(self, site: Site, host: str = "corral.example:7411") -> None:
        self.site, self.host = site, host
        self.cookies: dict[str, str] = {}

    async def post(self, path: str, body: Any):
        kept = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        headers = [("Host", self.host), ("Cookie", kept)]
        answer = await ask(self.site.app, "POST", path, body=body, headers=headers)
        for name, value in answer.all_headers:
            if name.lower() == "set-cookie":
                key, _, rest = value.partition("=")
                self.cookies[key] = rest.partition(";")[0]
                assert "HttpOnly; SameSite=Strict" in value
        return answer

    async def begin(self) -> str:
        begun = await self.post("/v1/sign-in/browser", {})
        assert begun.status == 201, begun.body
        return str(begun.json()["page"])

    async def result(self, came_back: dict[str, str]):
        return await self.post("/v1/sign-in/browser/result", came_back)


async def test_a_person_signs_in_in_a_browser_with_a_code_and_its_proof(site, provider):
    browser = BrowserOf(site)
    page = await browser.begin()
    assert page.startswith(f"{provider.url}/authorize?")
    assert "redirect_uri=http%3A%2F%2Fcorral.example%3A7411%2F&" in page
    came_back = provider.authorize(page, ANN)
    session = await browser.result(came_back)
    assert (session.status, session.json()["user"]) == (200, "ann")
    assert browser.cookies["corral_session_7411"]
    assert browser.cookies["sign_in_corral_session_7411"] == ""
    assert [event.user for event in site.recorded(a.SignedIn)] == ["ann"]
    assert (await browser.result(came_back)).code == "no_such_sign_in"  # a sign-in ends once


@pytest.mark.parametrize(
    ("attack", "code"),
    [
        ("another browser", "no_such_sign_in"),
        ("no cookie", "no_such_sign_in"),
        ("another state", "no_such_sign_in"),
        ("another code", "sign_in_refused"),
        ("a code of another sign-in", "sign_in_refused"),
        ("another nonce", "bad_id_token"),
        ("another issuer", "other_issuer"),
        ("another audience", "bad_id_token"),
    ],
)
async def test_a_sign_in_in_a_browser_ends_only_as_it_began(site, provider, attack, code):
    browser, other = BrowserOf(site), BrowserOf(site)
    page, others_page = await browser.begin(), await other.begin()
    claims = {"another nonce": {"nonce": "x"}, "another audience": {"aud": "other"}}.get(attack, {})
    came_back = provider.authorize(page, ANN | claims)
    if attack == "another browser":
        browser = other
    elif attack == "no cookie":
        browser.cookies.clear()
    elif attack == "another state":
        came_back["state"] = "x" * 32
    elif attack == "another code":
        came_back["code"] = "guessed"
    elif attack == "a code of another sign-in":  # injected: made for the verifier of another browser
        came_back["code"] = provider.authorize(others_page, ANN)["code"]
    elif attack == "another issuer":
        came_back["iss"] = "https://evil.example"
    answer = await browser.result(came_back)
    assert (answer.status, answer.code) == (403, code)
    assert "corral_session_7411" not in browser.cookies


@pytest.mark.parametrize("host", ["", "evil.example/x", "a b", "a:b", "x" * 300])
async def test_a_host_that_cannot_be_one_begins_no_sign_in(site, host):
    answer = await BrowserOf(site, host).post("/v1/sign-in/browser", {})
    assert answer.status in (400, 422)


# ---- programs --------------------------------------------------------------------------------------------


async def test_a_program_exchanges_its_token_once_for_a_token_with_the_scope_of_the_rule(site, provider):
    token = provider.token(CI, aud="corral-ci")
    made = await site.exchange(token)
    assert made.status == 201
    who = (await ask(site.app, "GET", "/v1/whoami", made.json()["token"])).json()
    assert (who["user"], who["scope"]) == ("ci", ["jobs.submit", "jobs.read"])
    assert (await site.exchange(token)).code == "token_used"
    other = provider.token(CI | {"sub": "another run"}, aud="corral-ci")
    assert (await site.exchange(other)).json()["user"] == "ci"


async def test_an_issuer_that_wants_a_token_and_is_found_elsewhere_is_read_with_both(tmp_path):
    """As the API server of a Kubernetes cluster; tests/kubernetes has the real one."""
    with IdentityProvider() as cluster:
        cluster.reader_token, cluster.name = "of-the-pod", "https://kubernetes.default.svc.cluster.local"
        file = tmp_path / "token"
        claims = {"sub": "system:serviceaccount:lab:trainer", "kubernetes.io": {"namespace": "lab"}}
        rule = ProgramRule(claims=(("kubernetes.io.namespace", "lab"),), user="lab-pods", role="member", queue="team")
        issuer = IssuerRules(
            issuer=cluster.name, audience="corral", rules=(rule,), discovery=cluster.url, token_file=str(file)
        )
        site = Site(cluster, SignInRules(issuers=(("cluster", issuer),)))
        assert "Check token_file" in (await site.exchange(cluster.token(claims))).json()["detail"]
        file.write_text("of another pod\n")
        assert "needs a token: set token_file" in (await site.exchange(cluster.token(claims))).json()["detail"]
        file.write_text("of-the-pod\n")  # it is read at every request: Kubernetes renews it
        assert (await site.exchange(cluster.token(claims))).json()["user"] == "lab-pods"
        other = claims | {"kubernetes.io": {"namespace": "lab2"}}
        assert (await site.exchange(cluster.token(other))).code == "no_rule"
        site.app.close()


def unsigned(claims: dict[str, Any], header: dict[str, Any], key: bytes = b"") -> str:
    """A token made by hand: not signed, or with a shared secret."""

    def part(value: Any) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    head = part(header) + b"." + part(claims)
    signature = hmac.new(key, head, hashlib.sha256).digest() if key else b""
    return (head + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def whole(provider: IdentityProvider, **changes: Any) -> dict[str, Any]:
    now_s = int(time.time())
    return CI | {"iss": provider.url, "aud": "corral-ci", "iat": now_s, "exp": now_s + 300} | changes


def swapped(token: str, **changes: Any) -> str:
    """The same token with other claims and the old signature."""
    head, body, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))) | changes
    changed = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"{head}.{changed}.{signature}"


def public_pem(provider: IdentityProvider) -> bytes:
    key = provider.keys[0]
    assert not isinstance(key, OctKey)
    return bytes(key.as_pem(private=False))


NOW_S = int(time.time())
FORGED = {
    "not signed (alg none)": lambda p: unsigned(whole(p), {"alg": "none"}),
    "not signed, written otherwise": lambda p: unsigned(whole(p), {"alg": "nOnE", "kid": p.keys[0].kid}),
    "signed with the public key as a shared secret": lambda p: unsigned(
        whole(p), {"alg": "HS256", "kid": p.keys[0].kid}, public_pem(p)
    ),
    "signed with a shared secret": lambda p: jwt.encode(
        {"alg": "HS256", "kid": p.keys[0].kid}, whole(p), OctKey.generate_key(256)
    ),
    "signed by another RSA key of the same id": lambda p: p.token(
        CI, RSAKey.generate_key(2048, {"kid": p.keys[0].kid}, auto_kid=False), aud="corral-ci"
    ),
    "signed by an unknown key": lambda p: p.token(
        CI, ECKey.generate_key("P-256", {"kid": "mine"}, auto_kid=False), aud="corral-ci"
    ),
    "a key that the token itself brings along": lambda p: _with_own_key(p),
    "the address of keys in the header": lambda p: _with_address_of_keys(p),
    "extensions that must be understood": lambda p: _with_extension(p),
    "claims changed after signing": lambda p: swapped(p.token(CI, aud="corral-ci"), repository="lab/models", role="x"),
    "signature cut off": lambda p: p.token(CI, aud="corral-ci").rpartition(".")[0] + ".",
    "expired": lambda p: p.token(CI, aud="corral-ci", iat=NOW_S - 900, exp=NOW_S - 300),
    "not valid yet": lambda p: p.token(CI, aud="corral-ci", nbf=NOW_S + 3_600),
    "issued in the future": lambda p: p.token(CI, aud="corral-ci", iat=NOW_S + 3_600, exp=NOW_S + 7_200),
    "without an expiry": lambda p: p.token(CI, aud="corral-ci", exp=None),
    "valid for a year": lambda p: p.token(CI, aud="corral-ci", exp=NOW_S + 365 * 86_400),
    "an expiry that is no number": lambda p: p.token(CI, aud="corral-ci", exp="tomorrow"),
    "meant for another audience": lambda p: p.token(CI, aud="another-service"),
    "meant for people, not for programs": lambda p: p.token(CI, aud="corral"),
    "no audience": lambda p: p.token(CI, aud=None),
    "issued to another client": lambda p: p.token(CI, aud=["corral-ci", "other"], azp="other"),
    "another issuer": lambda p: p.token(CI, aud="corral-ci", iss="https://evil.example"),
    "an issuer that only begins like it": lambda p: p.token(CI, aud="corral-ci", iss=p.url + "/"),
    "no subject": lambda p: p.token(CI, aud="corral-ci", sub=None),
    "a repository that no rule accepts": lambda p: p.token(CI, aud="corral-ci", repository="lab/models-fork"),
    "a claim that is a list with much else": lambda p: p.token(CI, aud="corral-ci", repository=[["lab/models"]]),
    "not a token at all": lambda _: "hello",
    "five parts (encrypted)": lambda _: "a.b.c.d.e",
    "a header that is a list": lambda _: base64.urlsafe_b64encode(b"[]").decode().rstrip("=") + ".e30.x",
    "deeply nested": lambda _: base64.urlsafe_b64encode(b"[" * 9_000).decode().rstrip("=") + ".e30.x",
}


def _with_own_key(provider: IdentityProvider) -> str:
    key = RSAKey.generate_key(2048, auto_kid=False)
    return jwt.encode({"alg": "RS256", "jwk": key.as_dict(private=False)}, whole(provider), key)


def _with_address_of_keys(provider: IdentityProvider) -> str:
    key = RSAKey.generate_key(2048, {"kid": "evil"}, auto_kid=False)
    return jwt.encode({"alg": "RS256", "kid": "evil", "jku": f"{provider.url}/evil"}, whole(provider), key)


def _with_extension(provider: IdentityProvider) -> str:
    head, _, rest = provider.token(CI, aud="corral-ci").partition(".")
    header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4))) | {"crit": ["b64"], "b64": True}
    changed = base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode()
    return f"{changed}.{rest}"


@pytest.mark.parametrize("name", FORGED)
async def test_forged_and_foreign_tokens_are_refused(site, provider, name):
    before = len(site.service.accounts.tokens)
    answer = await site.exchange(FORGED[name](provider))
    assert answer.status in (403, 422), answer.body
    assert answer.code in ("bad_id_token", "no_rule")
    assert len(site.service.accounts.tokens) == before


async def test_refusals_of_unconfirmed_clients_are_recorded_and_bounded_together(site):
    for number in range(60):
        await ask(site.app, "POST", "/v1/sign-in/exchange", body={"token": "a.b.c"}, client=f"10.0.{number}.1")
    recorded = site.recorded(a.SignInRefused)
    assert 20 <= len(recorded) <= 22  # six a minute more
    assert "its header cannot be read (from 10.0.0" in recorded[0].why


async def test_clocks_may_differ_by_a_minute_and_no_more(site, provider):
    late = provider.token(CI, aud="corral-ci", iat=int(time.time()) + 45, exp=int(time.time()) + 300)
    assert (await site.exchange(late)).status == 201
    early = provider.token(CI, aud="corral-ci", iat=int(time.time()) + 90, exp=int(time.time()) + 300)
    assert (await site.exchange(early)).code == "bad_id_token"


async def test_many_bad_tokens_of_one_address_have_to_wait(site):
    answers = [await site.exchange("a.b.c") for _ in range(15)]
    assert answers[-1].status == 429
    assert "retry-after" in answers[-1].headers


# ---- settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"client_secret_file": "/nowhere/secret"}, "cannot be read"),
        ({"ca": "/nowhere/ca.pem"}, "certificate authority"),
    ],
)
def test_settings_that_cannot_be_used_are_found_at_the_start(change, text):
    person = ProviderRules(issuer="https://login.example", client_id="corral", **change)
    with pytest.raises(BadSignIn, match=text):
        check_sign_in(SignInRules(providers=(("company", person),)))


def test_a_client_secret_that_others_can_read_and_a_verb_that_does_not_exist_are_refused(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    secret.chmod(0o644)
    person = ProviderRules(issuer="https://login.example", client_id="corral", client_secret_file=str(secret))
    with pytest.raises(BadSignIn, match="chmod 600"):
        check_sign_in(SignInRules(providers=(("company", person),)))
    rule = ProgramRule(claims=(("a", "b"),), user="ci", role="member", scope=("jobs.fly",))
    issuer = IssuerRules(issuer="https://ci.example", audience="corral", rules=(rule,))
    with pytest.raises(BadSignIn, match=r"jobs\.fly"):
        check_sign_in(SignInRules(issuers=(("ci", issuer),)))
