"""Where credentials come from, and which are refused."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from corral.client import BadCredentials
from corral.client.credentials import find_credentials, save_credentials

URL = "http://127.0.0.1:7070"


def home(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)} | more


def kept(tmp_path: Path, mode: int = 0o600, text: str = "") -> Path:
    path = tmp_path / "corral" / "credentials.json"
    path.parent.mkdir()
    path.write_text(text or json.dumps({"url": f"{URL}/", "token": "kept"}))
    path.chmod(mode)
    return path


def test_the_environment_comes_first(tmp_path: Path) -> None:
    kept(tmp_path)
    found = find_credentials(home(tmp_path, CORRAL_URL="http://far:1", CORRAL_TOKEN="t"))
    assert (found.url, found.token) == ("http://far:1", "t")
    assert "t'" not in repr(found).replace("source='the environment'", "")


def test_the_file_comes_second(tmp_path: Path) -> None:
    kept(tmp_path)
    found = find_credentials(home(tmp_path))
    assert (found.url, found.token) == (URL, "kept")
    assert find_credentials(home(tmp_path, CORRAL_TOKEN="other")).token == "other"


def test_a_kept_token_is_not_sent_to_another_server(tmp_path: Path) -> None:
    kept(tmp_path)
    assert find_credentials(home(tmp_path, CORRAL_URL=URL)).token == "kept"
    with pytest.raises(BadCredentials, match="is for http://127"):
        find_credentials(home(tmp_path, CORRAL_URL="http://far:1"))


def test_without_any_it_says_how_to_get_some(tmp_path: Path) -> None:
    with pytest.raises(BadCredentials, match="CORRAL_URL and CORRAL_TOKEN not set") as caught:
        find_credentials(home(tmp_path))
    assert "corral up" in caught.value.hint


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = kept(tmp_path, 0o644)
    with pytest.raises(BadCredentials, match=r"can be read by others \(mode 0644\)") as caught:
        find_credentials(home(tmp_path))
    assert f"chmod 600 {path}" in caught.value.hint


@pytest.mark.parametrize("text", ["nonsense", "[]", '{"url": "x"}'])
def test_a_file_that_says_nothing_is_reported(tmp_path: Path, text: str) -> None:
    kept(tmp_path, text=text)
    with pytest.raises(BadCredentials, match="is invalid"):
        find_credentials(home(tmp_path))


def test_saving_replaces_and_is_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "credentials.json"
    save_credentials(URL, "one", path)
    save_credentials(URL + "/", "two", path)
    assert json.loads(path.read_text()) == {"url": URL, "token": "two"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["credentials.json"]
