"""What `corral up` makes of accounts: one for all users, that of the user who became root, or an error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from corral.cli.errors import Complaint
from corral.cli.serve import up
from corral.core.accounts.identity import AccountRules
from corral.server.main import Options
from corral.wire.config import Config

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="of a server that is root")


@pytest.mark.parametrize(("sudo", "account"), [("nobody", "nobody"), ("root", ""), ("no-such-account", ""), ("", "")])
def test_who_became_root_has_their_own_jobs_run_as_themselves(monkeypatch, sudo: str, account: str) -> None:
    monkeypatch.setenv("SUDO_USER", sudo)
    assert up._administrator_account() == account


def test_one_account_for_all_users_must_be_there() -> None:
    config = Config(accounts=AccountRules(default="daemon", cancel_after_ms=5))
    assert up._accounts("nobody", config) == AccountRules(default="nobody", cancel_after_ms=5)
    assert up._accounts(None, config) == config.accounts
    with pytest.raises(Complaint, match="no account 'nowhere'"):
        up._accounts("nowhere", config)


@pytest.mark.parametrize(
    ("administrator", "default", "said"),
    [
        ("", "", "corral user set admin --account ACCOUNT"),
        ("ann", "", "jobs of admin run as ann"),
        ("", "research", ""),
    ],
)
def test_a_first_start_as_root_says_what_to_set(
    tmp_path: Path, capsys, administrator: str, default: str, said: str
) -> None:
    options = Options(
        data=tmp_path,
        credentials=tmp_path / "c",
        administrator_account=administrator,
        accounts=AccountRules(default=default),
    )
    up._note_first_start(options, False)
    told = capsys.readouterr().err
    assert said in told
    assert bool(told) == bool(said)
    (tmp_path / "journal.db").touch()
    up._note_first_start(options, False)
    assert capsys.readouterr().err == "", "once is enough"
