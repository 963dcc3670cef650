"""What a sign-in changes, and who is refused."""

from __future__ import annotations

import pytest

from corral.core.accounts import accounts as a
from corral.core.accounts import commands
from corral.core.accounts.accounts import Accounts, Role
from corral.core.accounts.identities import NewTokenTerms, ProvedIdentity, link, sign_in
from corral.core.intake.refusal import Refusal

QUEUES = {"lab", "lab/vision"}
MEMBER = ("lab/vision", Role.MEMBER)
LEAD = ("lab", Role.LEAD)


class Site:
    def __init__(self) -> None:
        self.accounts = Accounts()
        self.apply([a.UserSet(0, "root"), a.RoleGranted(0, "root", Role.ADMINISTRATOR)])
        self.tokens = 0

    def apply(self, events):
        for event in events:
            self.accounts.apply(event)
        return events

    def enter(self, user="ann", subject="s-1", provider="company", roles=(MEMBER,), now_ms=1_000, **more):
        self.tokens += 1
        who = ProvedIdentity(provider, subject, user, frozenset(roles), **more)
        terms = NewTokenTerms(f"t{self.tokens}", "digest", (), now_ms + 10_000)
        answer = sign_in(self.accounts, who, terms, QUEUES, now_ms)
        return answer if isinstance(answer, Refusal) else self.apply(answer)

    def roles(self, user="ann"):
        return set(self.accounts.users[user].roles)


@pytest.fixture
def site():
    return Site()


def code(answer):
    assert isinstance(answer, Refusal), answer
    return answer.code


def test_the_first_sign_in_creates_the_user_with_the_roles_of_the_groups_and_a_token(site):
    site.enter()
    assert site.roles() == {MEMBER}
    token = site.accounts.tokens["t1"]
    assert (token.user, token.expires_ms) == ("ann", 11_000)
    assert (site.accounts.users["ann"].provider, site.accounts.users["ann"].subject) == ("company", "s-1")


def test_every_sign_in_follows_the_groups_and_leaves_roles_that_users_granted(site):
    site.enter()
    site.apply(commands.grant(site.accounts, "ann", Role.VIEWER, "lab", QUEUES, 2_000))
    site.enter(roles=(LEAD,), now_ms=3_000)
    assert site.roles() == {LEAD, ("lab", Role.VIEWER)}
    site.enter(roles=(), now_ms=4_000)
    assert site.roles() == {("lab", Role.VIEWER)}


def test_a_role_that_a_user_also_granted_stays_when_the_group_is_gone(site):
    site.enter()
    site.apply(commands.grant(site.accounts, "ann", Role.MEMBER, "lab/vision", QUEUES, 2_000))
    site.enter(roles=(LEAD,), now_ms=3_000)
    assert site.roles() == {MEMBER, LEAD}


def test_nobody_without_a_role_enters_and_no_user_is_created(site):
    assert code(site.enter(roles=())) == "no_role"
    assert code(site.enter(roles=(("no/such/queue", Role.MEMBER),))) == "no_role"
    assert "ann" not in site.accounts.users


def test_a_user_who_was_created_here_is_not_taken_over_by_name(site):
    assert code(site.enter(user="root", roles=(("", Role.ADMINISTRATOR),))) == "user_exists"
    site.apply(link(site.accounts, "root", "company", 2_000))
    site.enter(user="root", subject="s-9")
    assert site.accounts.users["root"].subject == "s-9"
    assert code(site.enter(user="root", subject="s-10")) == "other_person"


def test_another_person_who_got_the_same_user_name_later_is_refused(site):
    site.enter()
    assert code(site.enter(subject="s-2")) == "other_person"
    assert code(site.enter(subject="s-1", provider="other")) == "user_exists"


def test_a_person_who_was_renamed_at_the_provider_stays_the_same_user(site):
    site.enter()
    site.enter(user="ann.lee", now_ms=2_000)
    assert "ann.lee" not in site.accounts.users
    assert site.accounts.tokens["t2"].user == "ann"


def test_a_disabled_user_is_refused(site):
    site.enter()
    site.apply(commands.set_user(site.accounts, "ann", None, True, 2_000))
    assert code(site.enter(now_ms=3_000)) == "user_disabled"


def test_the_last_administrator_stays_one_whatever_the_groups_say(site):
    site.enter(roles=(("", Role.ADMINISTRATOR),))
    site.apply(commands.remove_user(site.accounts, "root", 2_000))
    site.enter(roles=(MEMBER,), now_ms=3_000)
    assert ("", Role.ADMINISTRATOR) in site.roles()


def test_a_token_of_a_program_is_accepted_once_until_it_has_expired(site):
    proof = {"proof": "p1", "proof_until_ms": 5_000}
    site.enter(**proof)
    assert code(site.enter(now_ms=2_000, **proof)) == "token_used"
    site.enter(now_ms=6_000, proof="p2", proof_until_ms=9_000)
    assert site.accounts.proofs == {"p2": 9_000}


@pytest.mark.parametrize("user", ["node:n1", "../x", "", "a b", "x" * 65])
def test_names_that_are_not_user_names_are_refused(site, user):
    assert code(site.enter(user=user)) == "bad_name"


def test_a_thousand_sign_ins_never_lock_a_user_out(site):
    for n in range(commands.TOKENS_MAX + 3):
        site.enter(now_ms=1_000 + n)
    assert len(site.accounts.tokens) == commands.TOKENS_MAX
    assert "t1" not in site.accounts.tokens
