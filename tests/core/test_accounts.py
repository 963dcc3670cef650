"""Account commands: what they lead to, and what they refuse."""

from __future__ import annotations

import pytest

from corral.core.accounts import accounts as a
from corral.core.accounts import commands
from corral.core.accounts.accounts import Accounts, Role
from corral.core.intake.refusal import Refusal

NOW = 1_000
QUEUES = ("", "team")


@pytest.fixture
def accounts():
    made = Accounts()
    for event in (
        a.UserSet(0, "root"),
        a.RoleGranted(0, "root", Role.ADMINISTRATOR),
        a.UserSet(0, "ann"),
        a.RoleGranted(0, "ann", Role.MEMBER, "team"),
        a.TokenIssued(0, "t1", "ann", "d"),
        a.SecretSet(0, "key", "team"),
    ):
        made.apply(event)
    return made


DONE = {
    "a new user": (lambda c: commands.set_user(c, "bob", "", False, NOW), a.UserSet(NOW, "bob")),
    "a user with an account": (
        lambda c: commands.set_user(c, "ann", "ann_1", False, NOW),
        a.UserSet(NOW, "ann", "ann_1"),
    ),
    "a user is disabled": (lambda c: commands.set_user(c, "ann", "", True, NOW), a.UserSet(NOW, "ann", "", True)),
    "a user goes": (lambda c: commands.remove_user(c, "ann", NOW), a.UserRemoved(NOW, "ann")),
    "a role": (
        lambda c: commands.grant(c, "ann", Role.LEAD, "team", QUEUES, NOW),
        a.RoleGranted(NOW, "ann", Role.LEAD, "team"),
    ),
    "a role taken": (
        lambda c: commands.revoke(c, "ann", Role.MEMBER, "team", NOW),
        a.RoleRevoked(NOW, "ann", Role.MEMBER, "team"),
    ),
    "a token": (
        lambda c: commands.issue_token(c, "t2", "ann", "d", "ci", (), 2000, NOW),
        a.TokenIssued(NOW, "t2", "ann", "d", "ci", (), 2000),
    ),
    "a token revoked": (lambda c: commands.revoke_token(c, "t1", NOW), a.TokenRevoked(NOW, "t1")),
    "a secret": (lambda c: commands.set_secret(c, "new", "team", QUEUES, NOW), a.SecretSet(NOW, "new", "team")),
    "a secret gone": (lambda c: commands.remove_secret(c, "key", "team", NOW), a.SecretRemoved(NOW, "key", "team")),
}


@pytest.mark.parametrize(("command", "event"), DONE.values(), ids=DONE.keys())
def test_what_it_leads_to(accounts, command, event):
    assert command(accounts) == [event]
    accounts.apply(event)


REFUSED = {
    "bad_name": lambda c: commands.set_user(c, "a b", "", False, NOW),
    "bad_account": lambda c: commands.set_user(c, "ann", "-rm", False, NOW),
    "last_administrator": lambda c: commands.set_user(c, "root", "", True, NOW),
    "last_administrator ": lambda c: commands.remove_user(c, "root", NOW),
    "last_administrator  ": lambda c: commands.revoke(c, "root", Role.ADMINISTRATOR, "", NOW),
    "no_such_user": lambda c: commands.remove_user(c, "bob", NOW),
    "no_such_user ": lambda c: commands.grant(c, "bob", Role.LEAD, "team", QUEUES, NOW),
    "no_such_queue": lambda c: commands.grant(c, "ann", Role.LEAD, "nowhere", QUEUES, NOW),
    "no_such_role": lambda c: commands.revoke(c, "ann", Role.LEAD, "team", NOW),
    "no_such_user  ": lambda c: commands.issue_token(c, "t2", "bob", "d", "", (), None, NOW),
    "token_exists": lambda c: commands.issue_token(c, "t1", "ann", "d", "", (), None, NOW),
    "bad_expiry": lambda c: commands.issue_token(c, "t2", "ann", "d", "", (), NOW, NOW),
    "bad_name ": lambda c: commands.issue_token(c, "t2", "ann", "d", "a\nb", (), None, NOW),
    "no_such_token": lambda c: commands.revoke_token(c, "t9", NOW),
    "bad_name  ": lambda c: commands.set_secret(c, "../etc", "team", QUEUES, NOW),
    "no_such_queue ": lambda c: commands.set_secret(c, "key", "nowhere", QUEUES, NOW),
    "no_such_secret": lambda c: commands.remove_secret(c, "key", "", NOW),
}


@pytest.mark.parametrize(("code", "command"), REFUSED.items(), ids=REFUSED.keys())
def test_what_is_refused(accounts, code, command):
    refusal = command(accounts)
    assert isinstance(refusal, Refusal)
    assert refusal.code == code.strip()


def test_a_disabled_administrator_does_not_count(accounts):
    accounts.apply(a.UserSet(0, "eve", "", True))
    accounts.apply(a.RoleGranted(0, "eve", Role.ADMINISTRATOR))
    assert isinstance(commands.remove_user(accounts, "root", NOW), Refusal)
    accounts.apply(a.UserSet(0, "eve"))
    assert commands.remove_user(accounts, "root", NOW) == [a.UserRemoved(NOW, "root")]


def test_asking_twice_for_a_role_does_no_harm(accounts):
    assert commands.grant(accounts, "ann", Role.MEMBER, "team", QUEUES, NOW) == []


def test_tokens_of_one_user_are_bounded(accounts):
    for n in range(commands.TOKENS_MAX):
        accounts.apply(a.TokenIssued(0, f"n{n}", "ann", "d"))
    refusal = commands.issue_token(accounts, "t2", "ann", "d", "", (), None, NOW)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "too_many_tokens"
