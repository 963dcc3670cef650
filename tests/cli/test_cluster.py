"""Commands about queues, machines, people and the record, as typed, against a real server."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Type, live
from tests.cli.typed import command, typed


def test_queues_are_made_changed_shown_and_removed(corral: Type) -> None:
    assert corral("queue", "set", "lab", "--guarantee", "gpus=2,memory=1GiB").out == "queue lab created\n"
    corral("queue", "set", "lab/vision", "--limit", "gpus=1.5", "--weight", "3", "--budget", "100h/30d")
    assert corral("queue", "set", "lab", "--limit", "gpus=6").out == "queue lab changed\n"
    told = json.loads(corral("queue", "show", "lab", "--json").out)
    assert told["terms"]["guarantee"] == {"gpu_milli": 2000, "memory_mib": 1024}
    assert told["terms"]["limit"] == {"gpu_milli": 6000}
    below = json.loads(corral("queue", "show", "lab/vision", "--json").out)
    assert below["terms"]["limit"] == {"gpu_milli": 1500}
    assert below["terms"]["budget"]["gpu_ms"] == 360_000_000
    shown = corral("queue").out.splitlines()
    assert [line.split()[0] for line in shown if line.split()[0] in ("lab", "vision")] == ["lab", "vision"]
    assert "2 GPUs, 1 GiB of memory" in corral("queue", "show", "lab").out
    assert corral("queue", "remove", "lab").code == 4
    assert corral("queue", "remove", "lab/vision").code == 0
    assert corral("queue", "remove", "lab").out == "queue lab removed\n"
    assert corral("queue", "show", "lab").code == 5


@pytest.mark.parametrize(
    "words", [("--guarantee", "gpus"), ("--guarantee", "gpus=some"), ("--limit", "memory=64"), ("--budget", "lots")]
)
def test_bad_terms_are_reported(corral: Type, words: tuple[str, ...]) -> None:
    done = corral("queue", "set", "lab", *words)
    assert done.code == 2
    assert words[0] in done.err or "is not a duration" in done.err


def test_machines_are_listed_and_simulated_gpus_are_marked(corral: Type) -> None:
    (node,) = json.loads(corral("node", "list", "--json").out)
    assert "8 x H100 (simulated)" in corral("node").out
    shown = corral("node", "show", node["name"]).out
    assert shown.count("H100 (simulated)") == 8
    assert corral("node", "list", "--fields", "name,gpus_free").out.splitlines()[0].split() == ["NODE", "FREE"]


def test_a_machine_says_what_separates_tasks_there(corral: Type) -> None:
    name = json.loads(corral("node", "list", "--json").out)[0]["name"]
    view = json.loads(corral("node", "show", name, "--json").out)
    assert {"server's data", "tasks of other users", "signals", "memory"} <= set(view["separation"])
    shown = corral("node", "show", name).out
    assert "SEPARATED" in shown
    for thing, by in view["separation"].items():
        assert f"{thing} " in shown
        assert by in shown


def test_a_machine_is_drained_and_comes_back(corral: Type) -> None:
    name = json.loads(corral("node", "list", "--json").out)[0]["name"]
    try:
        assert "is drained: nothing runs there" in corral("node", "drain", name, "--why", "new fans").out
        assert "draining" not in corral("node").out, "nothing runs there"
        assert "drained" in corral("node").out
    finally:
        assert corral("node", "undrain", name).out == f"{name} takes jobs again\n"
    assert "healthy" in corral("node").out


def test_what_happened_is_reported_with_who_did_it(corral: Type) -> None:
    corral("queue", "set", "fresh")
    last = corral("events").out.splitlines()[-1]
    seq, _, actor, *rest = last.split()
    assert (actor, " ".join(rest)) == ("admin", "queue fresh was created or changed")
    assert corral("events", "--since", str(int(seq) - 1), "--limit", "1").out.splitlines() == [last]
    lines = corral("events", "--json", "--type", "QueueSet").out.splitlines()
    assert {json.loads(line)["type"] for line in lines} == {"QueueSet"}
    corral("queue", "remove", "fresh")


def test_the_record_is_followed(house: dict[str, str], corral: Type) -> None:
    after = json.loads(corral("events", "--json").out.splitlines()[-1])["seq"]
    follows = command("events", "-f", "--since", str(after), "--limit", "2", "--type", "QueueSet")
    following = subprocess.Popen(follows, env=live(house), stdout=subprocess.PIPE)
    corral("queue", "set", "first")
    corral("queue", "set", "second")
    out, _ = following.communicate(timeout=30)
    assert [line.split()[4] for line in out.decode().splitlines()] == ["first", "second"]
    corral("queue", "remove", "first")
    corral("queue", "remove", "second")


def test_usage_is_reported(corral: Type) -> None:
    corral("submit", "--wait", "--gpus", "1", "--", "sleep", "0.2")
    done = corral("usage")
    assert done.out.splitlines()[0].split() == ["DAY", "QUEUE", "USER", "GPU", "HOURS", "LOST", "JOBS"]
    assert "total: " in done.err
    assert "admin" in {line["user"] for line in json.loads(corral("usage", "--json").out)}  # others ran jobs there, too
    assert corral("usage", "--since", "7d", "--until", "2999-01-01").out == done.out
    assert corral("usage", "--since", "2999-01-01").err == "no usage\n"
    lines = json.loads(corral("usage", "--json", "--fields", "gpu_hours,gpu_ms").out)
    assert all(abs(line["gpu_hours"] * 3_600_000 - line["gpu_ms"]) <= 1_800 for line in lines), "the earlier name works"


# ---- people ----------------------------------------------------------------------------------------------------------


def test_a_user_new_gets_a_role_and_a_token_and_sees_no_more_than_that(
    corral: Type, monkeypatch: pytest.MonkeyPatch, house: dict[str, str]
) -> None:
    corral("queue", "set", "hers")
    assert corral("user", "set", "ada").out == "user ada created\n"
    assert corral("user", "grant", "ada", "member", "hers").out == "ada is now member of hers\n"
    assert "member of hers" in corral("user").out
    made = corral("token", "make", "laptop", "--user", "ada", "--expires", "1d")
    token = made.out.strip()
    assert "it is not shown again" in made.err
    listed = json.loads(corral("token", "list", "--user", "ada", "--json").out)
    assert [each["name"] for each in listed] == ["laptop"]
    url = json.loads((Path(house["XDG_CONFIG_HOME"]) / "corral" / "credentials.json").read_text())["url"]
    monkeypatch.setenv("CORRAL_URL", url)
    monkeypatch.setenv("CORRAL_TOKEN", token)
    assert "member of hers" in corral("whoami").out
    assert corral("user", "set", "eve").code in (4, 5)
    assert corral("submit", "--queue", "hers", "--wait", "--", "true").code == 0
    monkeypatch.delenv("CORRAL_TOKEN")
    assert corral("token", "revoke", listed[0]["id"]).code == 0
    monkeypatch.setenv("CORRAL_TOKEN", token)
    refused = corral("ps")
    assert refused.code == 4
    assert "Traceback" not in refused.err
    monkeypatch.delenv("CORRAL_TOKEN")
    assert corral("user", "revoke", "ada", "member", "hers").code == 0
    assert corral("user", "remove", "ada").out == "user ada removed\n"


def test_a_role_that_does_not_exist_is_reported_with_the_nearest(corral: Type) -> None:
    done = corral("user", "grant", "ada", "membr")
    assert done.code == 2
    assert "did you mean 'member'?" in done.err


def test_a_secret_fills_a_variable_and_is_shown_nowhere(house: dict[str, str], corral: Type) -> None:
    done = subprocess.run(
        command("secret", "set", "key"), env=live(house), input=b"sesame\n", capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert b"sesame" not in done.stdout + done.stderr
    listed = corral("secret").out
    assert "key" in listed
    assert "sesame" not in listed + corral("events", "--json").out
    ran = corral("run", "--quiet", "--secret", "KEY=key", "--", "sh", "-c", 'test "$KEY" = sesame && echo open')
    assert ran.out == "open\n"
    assert corral("secret", "remove", "key").code == 0


# ---- without a server ------------------------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("CORRAL_URL", "CORRAL_TOKEN", "CORRAL_DATA", "CORRAL_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_credentials_it_says_how_to_get_some(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = typed(capsys, "ps")
    assert done.code == 3
    assert "there are no credentials" in done.err
    assert "corral up" in done.err


def test_a_server_that_is_not_there_is_reported_with_how_to_start_one(
    alone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("CORRAL_TOKEN", "t")
    done = typed(capsys, "ps")
    assert done.code == 3
    assert done.err.splitlines() == [
        "error: no server answers at http://127.0.0.1:1",
        "  hint: start one here with: corral up; or use another one with: corral login",
    ]
    assert "no server answers" in typed(capsys, "version").out


def test_credentials_that_others_can_read_are_refused(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (alone / "corral").mkdir()
    (alone / "corral" / "credentials.json").write_text('{"url": "http://127.0.0.1:1", "token": "t"}')
    os.chmod(alone / "corral" / "credentials.json", 0o640)
    done = typed(capsys, "ps")
    assert done.code == 3
    assert "chmod 600" in done.err
