"""From the claims of a verified token to what the rules of the site give. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from corral.core.accounts.accounts import Role
from corral.core.accounts.commands import USER
from corral.core.accounts.identities import ProvedIdentity
from corral.core.intake.refusal import Refusal
from corral.server.sign_in.id_tokens import SKEW_S, Claims
from corral.wire.identity_providers import IssuerRules, ProgramRule, ProviderRules, RoleRule

_VALUES_MAX = 10_000  # of one claim


def person(name: str, rules: ProviderRules, claims: Claims) -> ProvedIdentity | Refusal:
    """The identity of a person who signed in with a provider."""
    user = look_up(claims, rules.user_claim)
    if not isinstance(user, str) or not USER.fullmatch(user):
        why = f"the claim {rules.user_claim} of your token is not a user name of up to 64 letters, digits and . _ @ -"
        return Refusal("bad_name", why, "an administrator can name another claim: sign_in.providers, user_claim")
    account = look_up(claims, rules.account_claim) if rules.account_claim else ""
    roles = {(rule.queue, Role(rule.role)) for rule in rules.roles if _has_role(rule, rules.groups_claim, claims)}
    return ProvedIdentity(name, claims["sub"], user, frozenset(roles), account if isinstance(account, str) else "")


def program(name: str, rules: IssuerRules, claims: Claims, proof: str) -> tuple[ProvedIdentity, ProgramRule] | Refusal:
    """The identity of a program that presented a token, and the rule that accepts it."""
    rule = next((each for each in rules.rules if has_all(claims, each.claims)), None)
    if rule is None:
        why = f"no rule of {name} accepts a token with these claims"
        return Refusal("no_rule", why, "compare its claims with sign_in.issuers in the configuration")
    roles = frozenset({(rule.queue, Role(rule.role))})
    until_ms = int((claims["exp"] + SKEW_S) * 1000)
    # every subject that a rule accepts becomes the user of the rule, so the user belongs to the rule
    return ProvedIdentity(name, f"rule of {rule.user}", rule.user, roles, proof=proof, proof_until_ms=until_ms), rule


def _has_role(rule: RoleRule, groups_claim: str, claims: Claims) -> bool:
    groups = _values(look_up(claims, groups_claim))
    return (not rule.group or rule.group in groups) and has_all(claims, rule.claims)


def has_all(claims: Claims, wanted: Iterable[tuple[str, str]]) -> bool:
    """Whether every claim has the value; a value that ends in ``*`` fits all that begin like it."""
    return all(any(_fits(value, each) for each in _values(look_up(claims, name))) for name, value in wanted)


def _fits(wanted: str, value: str) -> bool:
    return value.startswith(wanted[:-1]) if wanted.endswith("*") else value == wanted


def _values(found: Any) -> list[str]:
    """The values of a claim as texts: of a list each one, of true and false as in JSON."""
    several = found[:_VALUES_MAX] if isinstance(found, list) else [found]
    return [
        str(each).lower() if isinstance(each, bool) else str(each)
        for each in several
        if isinstance(each, str | int | bool)
    ]


def look_up(claims: Claims, name: str) -> Any:
    """The claim of this name. A dot looks inside claims, if there is none of the whole name; names of claims may
    contain dots themselves (``kubernetes.io``)."""
    if name in claims:
        return claims[name]
    for n, letter in enumerate(name):
        inner = claims.get(name[:n]) if letter == "." else None
        if isinstance(inner, dict) and (found := look_up(inner, name[n + 1 :])) is not None:
            return found
    return None
