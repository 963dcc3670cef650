"""Secrets at rest: what lies on the disk cannot be read without the key, and keys can be changed."""

from __future__ import annotations

import base64
import threading

import pytest

from corral.core.accounts import accounts as a
from corral.core.accounts.accounts import Accounts
from corral.server.vault import secrets_of
from corral.server.vault.sealing import CannotOpen, Sealer
from corral.server.vault.sealing_keys import BadKey, add_key, load_keys, read_keys
from corral.server.vault.secret_store import FileValues, NoKey, SecretStore

VALUE = "swordfish-and-chips"


def accounts_with(*secrets: tuple[str, str]) -> Accounts:
    accounts = Accounts()
    for queue, name in secrets:
        accounts.apply(a.SecretSet(1, name, queue))
    return accounts


def lying_in(folder) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_value_cannot_be_read_where_it_lies(tmp_path):
    store = secrets_of(tmp_path)
    store.put("lab", "key", VALUE)
    assert store.get("lab", "key") == VALUE
    assert VALUE.encode() not in lying_in(tmp_path)
    assert base64.b64encode(VALUE.encode()) not in lying_in(tmp_path)
    assert secrets_of(tmp_path).get("lab", "key") == VALUE  # after a restart


def test_the_key_need_not_be_beside_the_values(tmp_path):
    key_file = tmp_path / "elsewhere" / "key"
    add_key(key_file)
    secrets_of(tmp_path / "data", str(key_file)).put("", "key", VALUE)
    assert not (tmp_path / "data" / "secrets.key").exists()
    with pytest.raises(CannotOpen, match="not in the key file"):
        secrets_of(tmp_path / "data").get("", "key")


def test_systemd_may_hand_over_the_key(tmp_path, monkeypatch):
    add_key(tmp_path / "corral-secrets-key")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert load_keys("", tmp_path / "data", is_shared=True) == read_keys(tmp_path / "corral-secrets-key")


def test_what_an_older_server_kept_in_the_clear_is_sealed(tmp_path):
    FileValues(tmp_path / "secrets").put("lab", "key", VALUE.encode())
    store = secrets_of(tmp_path)
    assert store.get("lab", "key") == VALUE
    assert store.seal_again(accounts_with(("lab", "key"))) == 1
    assert VALUE.encode() not in lying_in(tmp_path)
    assert store.get("lab", "key") == VALUE
    assert store.seal_again(accounts_with(("lab", "key"))) == 0


def test_a_new_key_takes_over(tmp_path):
    key_file = tmp_path / "key"
    add_key(key_file)
    secrets_of(tmp_path, str(key_file)).put("", "key", VALUE)
    add_key(key_file)
    accounts = accounts_with(("", "key"))
    assert secrets_of(tmp_path, str(key_file)).seal_again(accounts) == 1
    newest = key_file.read_bytes().splitlines()[0]
    key_file.write_bytes(newest + b"\n")
    assert secrets_of(tmp_path, str(key_file)).get("", "key") == VALUE


def test_a_value_moved_under_another_name_does_not_open(tmp_path):
    values, sealer = FileValues(tmp_path), Sealer((bytes(32),))
    SecretStore(values, sealer).put("lab", "mine", VALUE)
    values.put("lab", "yours", values.get("lab", "mine") or b"")
    with pytest.raises(CannotOpen):
        SecretStore(values, sealer).get("lab", "yours")


def test_a_value_that_cannot_be_opened_is_missing_and_ends_nothing(tmp_path):
    values = FileValues(tmp_path)
    SecretStore(values, Sealer((bytes(32),))).put("lab", "key", VALUE)
    other = SecretStore(values, Sealer((bytes([1] * 32),)))
    assert other.reveal(accounts_with(("lab", "key")), "lab/vision", "key") is None
    assert other.seal_again(accounts_with(("lab", "key"))) == 0
    values.put("lab", "key", b"\xff\xfe")
    assert other.reveal(accounts_with(("lab", "key")), "lab", "key") is None


def test_servers_that_share_a_database_need_a_key_that_all_have(tmp_path):
    shared = FileValues(tmp_path / "shared")
    shared.put("", "old", b"kept in the clear")
    store = secrets_of(tmp_path / "data", "", shared)
    assert store.get("", "old") == "kept in the clear"
    with pytest.raises(NoKey, match="corral secret new-key"):
        store.put("", "key", VALUE)


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        (b"", 0o600, "no key"),
        (b"c2hvcnQ=\n", 0o600, "invalid line: each key is 32 bytes"),
        (b"not base64!\n", 0o600, "invalid line: each key is 32 bytes"),
        (base64.b64encode(bytes(32)), 0o644, "can be read by other users"),
    ],
)
def test_a_bad_key_file_is_reported(tmp_path, text, mode, why):
    path = tmp_path / "key"
    path.write_bytes(text)
    path.chmod(mode)
    with pytest.raises(BadKey, match=why):
        read_keys(path)


def test_many_may_set_one_secret_at_once(tmp_path):
    """Each of them is kept whole: what is there in the end is what one of them said."""
    store, faults = secrets_of(tmp_path), []

    def put(n: int) -> None:
        try:
            for _ in range(20):
                store.put("lab", "key", f"{n}" * 100)
        except OSError as fault:
            faults.append(fault)

    threads = [threading.Thread(target=put, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert store.get("lab", "key") in {f"{n}" * 100 for n in range(8)}
    assert len(list((tmp_path / "secrets").iterdir())) == 1
