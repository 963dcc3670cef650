"""Configuration of sign-in: identity providers for people, and issuers whose tokens programs present.

Keys, defaults and their meaning for each other. `corral.server.sign_in` talks to providers and checks tokens.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from corral.core.accounts.accounts import Role
from corral.core.accounts.commands import USER
from corral.wire.document.errors import Path, Reading, Wrong
from corral.wire.document.key_table import Key, KeyTable, struct_kind
from corral.wire.document.kinds import SPAN_OVER_ZERO, ValueKind, choice, listing, pairs, text
from corral.wire.job.keys import QUEUE
from corral.wire.job.program import PATH_TEXT

HOUR_MS = 3_600_000
_LIFETIME_MS_MAX = 30 * 24 * HOUR_MS


class RoleRule(Struct, frozen=True, kw_only=True):
    """Gives a role to all users who have a group, and these values of claims."""

    role: str
    queue: str = ""
    group: str = ""
    claims: tuple[tuple[str, str], ...] = ()


class ProviderRules(Struct, frozen=True, kw_only=True):
    """An identity provider with which people sign in."""

    issuer: str
    client_id: str
    client_secret_file: str = ""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    user_claim: str = "preferred_username"
    groups_claim: str = "groups"
    account_claim: str = ""
    roles: tuple[RoleRule, ...] = ()
    token_ms: int = 12 * HOUR_MS
    ca: str = ""
    dashboard_url: str = ""


class ProgramRule(Struct, frozen=True, kw_only=True):
    """Accepts the tokens with these values of claims, for one user with one role."""

    claims: tuple[tuple[str, str], ...]
    user: str
    role: str
    queue: str = ""
    scope: tuple[str, ...] = ()


class IssuerRules(Struct, frozen=True, kw_only=True):
    """An issuer of tokens for programs: a CI system, Kubernetes, or a provider that issues client credentials."""

    issuer: str
    audience: str
    rules: tuple[ProgramRule, ...]
    token_ms: int = HOUR_MS
    ca: str = ""
    discovery: str = ""
    token_file: str = ""


class SignInRules(Struct, frozen=True, kw_only=True):
    providers: tuple[tuple[str, ProviderRules], ...] = ()
    issuers: tuple[tuple[str, IssuerRules], ...] = ()

    @property
    def is_on(self) -> bool:
        return bool(self.providers or self.issuers)


_NAME = text(
    "a name", most="name_chars", pattern=r"[a-z0-9][a-z0-9-]{0,31}", hint="use lower-case letters, digits and -"
)
_ISSUER = text(
    "the URL of an issuer",
    pattern=r"(https://[^\s/?#]+|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?)(/[^\s?#]*)?",
    hint="use https; http is allowed for this machine only",
)
_DASHBOARD = text(
    "the URL of the dashboard",
    pattern=r"https?://[^\s/?#]+/([^\s?#]*/)?",
    hint="with a / at its end, as it is registered at the provider",
)
_CLAIM = text("the name of a claim", most="name_chars")
_VALUE = text("the value of a claim", hint="a value may end in * to accept everything that begins like it")
_CLAIMS = pairs(_CLAIM, _VALUE, "a mapping of claims", "labels")
_ROLE = choice([role.value for role in Role])
_USER_NAME = text("a user name", pattern=USER.pattern, hint="use up to 64 letters, digits and . _ @ -")
_SCOPE = listing(text("a verb such as jobs.submit", most="name_chars"), "a list of verbs", "labels")


def _lifetime(value: Any, path: Path, reading: Reading) -> int:
    found = int(SPAN_OVER_ZERO.read(value, path, reading))
    if found > _LIFETIME_MS_MAX:
        raise Wrong("out_of_range", "tokens of a sign-in are valid for 30 days at most", "give a shorter time")
    return found


_LIFETIME = ValueKind(_lifetime, SPAN_OVER_ZERO.schema, SPAN_OVER_ZERO.says, SPAN_OVER_ZERO.write)

ROLE_RULE_KEYS = KeyTable(
    "sign_in.providers.roles",
    [
        Key("group", text("a group"), "Group of the provider whose members get the role.", "gpu-users", into="group"),
        Key("claims", _CLAIMS, "Values of claims that are needed for the role, besides the group.",
            {"department": "research"}, into="claims"),
        Key("role", _ROLE, "Role to give.", "member", into="role", required=True),
        Key("queue", QUEUE, "Queue of the role, with all below it.", "lab/vision", default="the whole cluster",
            into="queue"),
    ],
)  # fmt: skip
PROVIDER_KEYS = KeyTable(
    "sign_in.providers",
    [
        Key("issuer", _ISSUER, "URL of the provider, as its tokens name it (`iss`).",
            "https://login.example.org/realms/lab", into="issuer", required=True),
        Key("client_id", text("a client id"), "Client id of Corral at the provider.", "corral", into="client_id",
            required=True),
        Key("client_secret_file", PATH_TEXT, "File with the client secret; leave it out for a public client.",
            "/etc/corral/oidc.secret", into="client_secret_file"),
        Key("scopes", listing(text("a scope", most="name_chars"), "a list of scopes", "labels"),
            "Scopes to request; `openid` is required, `offline_access` gives refresh tokens.",
            ["openid", "profile", "email", "offline_access"], default="openid, profile, email", into="scopes"),
        Key("user_claim", _CLAIM, "Claim with the user name.", "email", default="preferred_username",
            into="user_claim"),
        Key("groups_claim", _CLAIM, "Claim with the groups; a dot looks inside a claim.", "realm_access.roles",
            default="groups", into="groups_claim"),
        Key("account_claim", _CLAIM, "Claim with the Unix account that jobs run as.", "posix_account",
            into="account_claim"),
        Key("roles", listing(struct_kind(ROLE_RULE_KEYS, "a rule", RoleRule), "a list of rules", "models"),
            "Who gets which role. They are applied again at every sign-in.",
            [{"group": "gpu-users", "role": "member", "queue": "lab"}], into="roles"),
        Key("token_lifetime", _LIFETIME, "How long a sign-in is valid.", "12h", default="12h", into="token_ms"),
        Key("ca", PATH_TEXT, "Certificate authority of the provider, if it is private.", "/etc/corral/idp-ca.pem",
            into="ca"),
        Key("dashboard_url", _DASHBOARD, "Address of the dashboard, registered at the provider as a redirect URI.",
            "https://corral.example.org/", default="the address that the browser uses", into="dashboard_url"),
    ],
)  # fmt: skip
PROGRAM_RULE_KEYS = KeyTable(
    "sign_in.issuers.rules",
    [
        Key("claims", _CLAIMS, "Values of claims that a token must have; a value may end in `*`.",
            {"repository": "lab/models", "ref": "refs/heads/main"}, into="claims", required=True),
        Key("user", _USER_NAME, "User that the program becomes.", "ci-models", into="user", required=True),
        Key("role", _ROLE, "Role of that user.", "member", into="role", required=True),
        Key("queue", QUEUE, "Queue of the role, with all below it.", "lab/ci", default="the whole cluster",
            into="queue"),
        Key("scope", _SCOPE, "Verbs that the token of the program is valid for.", ["jobs.submit", "jobs.read"],
            default="all that the role allows", into="scope"),
    ],
)  # fmt: skip
_PROGRAM_RULES = listing(struct_kind(PROGRAM_RULE_KEYS, "a rule", ProgramRule), "a list of rules", "models", least=1)
ISSUER_KEYS = KeyTable(
    "sign_in.issuers",
    [
        Key("issuer", _ISSUER, "URL of the issuer, as its tokens name it (`iss`).",
            "https://token.actions.githubusercontent.com", into="issuer", required=True),
        Key("audience", text("an audience"), "Audience that its tokens must name (`aud`).", "corral", into="audience",
            required=True),
        Key("rules", _PROGRAM_RULES,
            "Which tokens are accepted, and for which user. The first rule that matches applies.",
            [{"claims": {"repository": "lab/models"}, "user": "ci-models", "role": "member", "queue": "lab/ci"}],
            into="rules", required=True),
        Key("token_lifetime", _LIFETIME, "How long the token that the program gets is valid.", "1h", default="1h",
            into="token_ms"),
        Key("ca", PATH_TEXT, "Certificate authority of the issuer, if it is private.", "/etc/corral/ci-ca.pem",
            into="ca"),
        Key("discovery", _ISSUER, "URL to read its addresses from, if its own is not reachable: inside a Kubernetes "
            "cluster that of the API server.", "https://kubernetes.default.svc", default="`issuer`", into="discovery"),
        Key("token_file", PATH_TEXT, "File with a token to show when its addresses and keys are read, as an API server "
            "of Kubernetes asks for.", "/var/run/secrets/kubernetes.io/serviceaccount/token", into="token_file"),
    ],
)  # fmt: skip
SIGN_IN_KEYS = KeyTable(
    "sign_in",
    [
        Key("providers", pairs(_NAME, struct_kind(PROVIDER_KEYS, "a provider", ProviderRules),
                               "a mapping of providers", "labels"),
            "OpenID Connect providers with which people sign in, by name.",
            {"company": {"issuer": "https://login.example.org/realms/lab", "client_id": "corral"}}, into="providers"),
        Key("issuers", pairs(_NAME, struct_kind(ISSUER_KEYS, "an issuer", IssuerRules),
                             "a mapping of issuers", "labels"),
            "Issuers whose tokens programs exchange for a token of Corral, by name.",
            {"github": {"issuer": "https://token.actions.githubusercontent.com", "audience": "corral",
                        "rules": [{"claims": {"repository": "lab/models"}, "user": "ci", "role": "member"}]}},
            into="issuers"),
    ],
)  # fmt: skip


def write_sign_in(rules: SignInRules) -> dict[str, Any]:
    """The rules as a document, which reads back the same."""
    named = {
        "providers": {name: _written(each, PROVIDER_KEYS) for name, each in rules.providers},
        "issuers": {name: _written(each, ISSUER_KEYS) for name, each in rules.issuers},
    }
    return {name: each for name, each in named.items() if each}


def _written(part: Struct, table: KeyTable) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in table.keys:
        value = getattr(part, key.into)
        if value in ("", ()):
            continue
        inner = _RULES.get(key.name)
        found[key.name] = [_written(each, inner[table.name]) for each in value] if inner else key.kind.write(value)
    return found


def _read_rules(value: Any, path: Path, reading: Reading) -> SignInRules:
    rules = _TABLE.read(value, path, reading)
    if not isinstance(rules, SignInRules):  # there are faults
        return SignInRules()
    both = {name for name, _ in rules.providers} & {name for name, _ in rules.issuers}
    if both:
        raise Wrong("duplicate", f"{min(both)} is the name of a provider and of an issuer", "give each its own name")
    for n, (name, provider) in enumerate(rules.providers):
        if "openid" not in provider.scopes:
            raise Wrong("bad_choice", f"the scopes of {name} lack openid", "add openid to scopes")
        for rule in provider.roles:
            if not rule.group and not rule.claims:
                raise Wrong("missing", f"a rule of {name} names no group and no claims", "it would hold for all users")
        if n and provider.issuer in {other.issuer for _, other in rules.providers[:n]}:
            raise Wrong("duplicate", f"two providers have the issuer {provider.issuer}", "give each its own issuer")
    return rules


_RULES = {"roles": {PROVIDER_KEYS.name: ROLE_RULE_KEYS}, "rules": {ISSUER_KEYS.name: PROGRAM_RULE_KEYS}}
_TABLE = struct_kind(SIGN_IN_KEYS, "a mapping", SignInRules)
SIGN_IN = ValueKind(_read_rules, _TABLE.schema, _TABLE.says)
