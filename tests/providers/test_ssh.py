"""Hosts reached by SSH: which are unfit, what can never become a command, and that nothing stays half done."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.providers.base import PilotOrder, PilotPhase, ProviderRefused
from corral.providers.bootstrap import bundle
from corral.providers.bootstrap.bundle import AgentBundle, Interpreter, NoWheels, agent_for
from corral.providers.bootstrap.host_checks import unfit
from corral.providers.bootstrap.host_messages import (
    HostAnswer,
    HostDetails,
    RestartRequest,
    StopRequest,
    UpgradeRequest,
)
from corral.providers.bootstrap.payload import program
from corral.providers.catalog import BadSettings, kind_of, read_settings
from corral.providers.hosts import HostProvider
from corral.providers.ssh import SshHost, SshSettings, opened
from corral.providers.ssh.remote_exec import SshExec
from tests.providers.fake_server import FakeServer
from tests.providers.ssh_hosts import SshHarness, agents_in, pilot_of

ROOT = Path(__file__).resolve().parents[2]


def until(holds: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, f"not within {within_s:g} s: {what}"
        time.sleep(0.02)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[SshHarness]:
    made = SshHarness(tmp_path)
    yield made
    made.close()


@pytest.fixture
def fake_server() -> Iterator[FakeServer]:
    made = FakeServer()
    yield made
    made.close()


def order(fake_server: FakeServer, pilot: str = "gpu-1") -> PilotOrder:
    return PilotOrder(pilot=pilot, urls=(fake_server.url,), token=f"once-{pilot}")


# --- settings ---------------------------------------------------------------------------------------------------------

BAD: dict[str, dict[str, Any]] = {
    "no host": {"hosts": []},
    "a host that is an option": {"hosts": [{"host": "-oProxyCommand=touch x"}]},
    "a host that is several words": {"hosts": [{"host": "gpu1 gpu2"}]},
    "a user that is an option": {"hosts": [{"host": "gpu1", "user": "-x"}]},
    "a python that is a command": {"hosts": [{"host": "gpu1"}], "python": "python3; reboot"},
    "a folder that is a command": {"hosts": [{"host": "gpu1", "folder": "$(reboot)"}]},
    "a folder with a space": {"hosts": [{"host": "gpu1"}], "folder": "/a b"},
    "a port that is none": {"hosts": [{"host": "gpu1", "port": 70_000}]},
    "one host twice": {"hosts": [{"host": "gpu1"}, {"host": "gpu1", "port": 22}]},
    "an option for ssh in the name of a file": {"hosts": [{"host": "gpu1"}], "known_hosts": '"\nProxyCommand x'},
    "a word that there is not": {"hosts": [{"host": "gpu1", "shell": "zsh"}]},
    "a path with a control character": {"hosts": [{"host": "gpu1", "path": "a\0b"}]},
}


@pytest.mark.parametrize("said", BAD.values(), ids=BAD.keys())
def test_settings_that_cannot_be_are_refused(said: dict[str, Any]) -> None:
    with pytest.raises(BadSettings):
        read_settings(kind_of("ssh"), said)


def test_what_is_said_for_all_holds_for_those_that_say_nothing() -> None:
    said = read_settings(kind_of("ssh"), {"user": "a", "port": 7, "hosts": [{"host": "x"}, {"host": "y", "user": "b"}]})
    assert [(host.user, host.port) for host in map(said.whole, said.hosts)] == [("a", 7), ("b", 7)]


def test_nothing_that_was_said_becomes_a_command_on_the_other_side() -> None:
    settings = SshSettings(hosts=(SshHost(host="gpu1", path="$(reboot)", fake_gpus="`reboot`"),), user="root")
    shell = SshExec(settings)
    try:
        first, second = (shell.command(settings.whole(SshHost(host=name, path=name))) for name in ("gpu1", "gpu2"))
    finally:
        shell.close()
    assert first[-1] == second[-1]
    assert first[first.index("--") + 1] == "gpu1"
    assert "-oStrictHostKeyChecking=yes" in first


def test_a_folder_that_others_can_enter_holds_no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SshSettings(hosts=(SshHost(host="gpu1"),))
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setattr("tempfile.tempdir", short)
        for mode, is_used in ((0o700, True), (0o755, False)):
            folder = Path(short) / f"corral-ssh-{os.geteuid()}"
            folder.mkdir(exist_ok=True)
            folder.chmod(mode)
            shell = SshExec(settings)
            assert any("ControlPath" in word for word in shell.command(shell.hosts()[0])) == is_used


# --- is a host fit ----------------------------------------------------------------------------------------------------

NOW = 1_800_000_000_000
SOUND = HostDetails(
    python=(3, 11, 2),
    machine="x86_64",
    libc="glibc",
    now_ms=NOW + 20,
    folder="/x",
    free_mib=50_000,
    can_write=True,
    driver="550.54",
    devices=8,
)
UNFIT = {
    "an old Python": ({"python": (3, 9, 2)}, "Python 3.9.2"),
    "no room": ({"free_mib": 100}, "100 MiB"),
    "GPUs without a driver": ({"driver": ""}, "no driver"),
    "a clock that is slow": ({"now_ms": NOW - 100_000}, "100 s off"),
    "a clock that is fast": ({"now_ms": NOW + 100_050}, "100 s off"),
    "a folder that cannot be made": ({"can_write": False}, "cannot create"),
}


@pytest.mark.parametrize(("changed", "words"), UNFIT.values(), ids=UNFIT.keys())
def test_a_host_is_unfit(changed: dict[str, Any], words: str) -> None:
    answer = HostAnswer(details=msgspec.structs.replace(SOUND, **changed))
    assert words in unfit(SshHost(host="gpu1"), answer, NOW, NOW + 50)


def test_a_host_is_fit_also_when_the_answer_took_long() -> None:
    host, sound = SshHost(host="gpu1"), HostAnswer(details=SOUND)
    without_gpus = HostAnswer(details=msgspec.structs.replace(SOUND, devices=0, driver=""))
    assert unfit(host, sound, NOW, NOW + 50) == ""
    assert unfit(host, sound, NOW - 90_000, NOW + 90_000) == ""
    assert unfit(host, without_gpus, NOW, NOW + 50) == ""


def test_where_no_host_will_do_that_is_said(harness: SshHarness, fake_server: FakeServer) -> None:
    settings = msgspec.structs.replace(harness.settings, python="/nowhere/python3")
    provider = opened(settings, "test")
    with pytest.raises(ProviderRefused, match=r"no host can be used: .*cannot run /nowhere/python3"):
        provider.acquire([order(fake_server)])
    provider.close()


def test_a_host_whose_key_is_not_known_is_not_trusted(
    harness: SshHarness, fake_server: FakeServer, tmp_path: Path
) -> None:
    unknown = tmp_path / "none"
    settings = msgspec.structs.replace(harness.settings, known_hosts=str(unknown))
    provider = opened(settings, "test")
    with pytest.raises(Exception, match="accept_new"):
        provider.acquire([order(fake_server)])
    provider.close()
    assert not unknown.exists()
    asked = opened(msgspec.structs.replace(settings, accept_new=True), "test")
    asked.look(["gpu-1"])
    asked.close()
    assert "ssh-ed25519" in unknown.read_text()


def test_one_host_that_is_away_keeps_no_other_from_its_work(harness: SshHarness, fake_server: FakeServer) -> None:
    hosts = (SshHost(host="127.0.0.1", port=1), *harness.settings.hosts)
    provider = opened(msgspec.structs.replace(harness.settings, hosts=hosts), "test")
    provider.acquire([order(fake_server)])
    until(lambda: fake_server.is_here("gpu-1"), "the agent reports")
    (sighting,) = provider.look(["gpu-1"])
    assert sighting.phase is PilotPhase.STARTED
    provider.close()


def test_what_runs_on_a_bare_host_is_read_by_old_pythons_too() -> None:
    """Otherwise nothing there could report that they are too old."""
    ast.parse(program(), feature_version=(3, 7))
    assert imported(program()) <= sys.stdlib_module_names


def imported(text: bytes) -> set[str]:
    nodes = list(ast.walk(ast.parse(text)))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)} - {"collections.abc"}


# --- wheels -----------------------------------------------------------------------------------------------------------


def test_an_agent_is_the_same_however_often_it_is_made() -> None:
    first = agent_for(bundle.this_interpreter()).mark
    bundle.own_wheels.cache_clear()
    assert agent_for(bundle.this_interpreter()).mark == first


def test_another_python_needs_wheels_of_its_own(tmp_path: Path) -> None:
    other = Interpreter((3, bundle.this_interpreter().version[1] + 1), "riscv64", "glibc")
    with pytest.raises(NoWheels, match="pip download"):
        agent_for(other)
    with pytest.raises(NoWheels, match="has no corral-scheduler"):
        agent_for(other, str(tmp_path))


def test_wheels_of_a_folder_are_chosen_by_their_tags(tmp_path: Path) -> None:
    names = [
        "corral_scheduler-0.1.0-py3-none-any.whl", "nvidia_ml_py-13-py3-none-any.whl", "rich_click-1-py3-none-any.whl",
        "msgspec-1-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "msgspec-1-cp313-cp313-manylinux_2_17_x86_64.whl", "msgspec-1-cp312-cp312-musllinux_1_2_x86_64.whl",
        "other-1-cp39-abi3-manylinux_2_28_x86_64.whl",
    ]  # fmt: skip
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    found = {wheel.name for wheel in agent_for(Interpreter((3, 12), "x86_64", "glibc"), str(tmp_path)).wheels}
    assert found == {names[0], names[1], names[2], names[3], names[6]}


# --- what goes on on the host -----------------------------------------------------------------------------------------


def test_an_agent_that_is_killed_is_started_again_as_the_same_node(
    harness: SshHarness, fake_server: FakeServer
) -> None:
    harness.provider().acquire([order(fake_server)])
    until(lambda: fake_server.is_here("gpu-1"), "the agent reports")
    (pid,) = agents_in(harness.folders[0], "gpu-1")
    until(lambda: json.loads((harness.folders[0] / "place.json").read_text())["token"] == "", "the token is dropped")
    os.kill(pid, signal.SIGKILL)
    until(lambda: [pid] != agents_in(harness.folders[0], "gpu-1") != [], "there is another")
    fake_server.heard_s.clear()
    until(lambda: fake_server.is_here("gpu-1"), "it reports again")
    assert len(fake_server.joined) == 1


def test_after_a_restart_of_the_host_it_begins_again_at_the_next_look(
    harness: SshHarness, fake_server: FakeServer
) -> None:
    provider = harness.provider()
    provider.acquire([order(fake_server)])
    until(lambda: fake_server.is_here("gpu-1"), "the agent reports")
    os.kill(int((harness.folders[0] / "keeper.lock").read_text()), signal.SIGKILL)
    until(lambda: not agents_in(harness.folders[0]), "an agent does not outlive its keeper")
    until(
        lambda: provider.look(["gpu-1"])[0].phase is PilotPhase.STARTED and bool(agents_in(harness.folders[0])), "it is"
    )
    assert len(agents_in(harness.folders[0], "gpu-1")) == 1


def test_a_server_of_another_version_brings_its_agent_along(harness: SshHarness, fake_server: FakeServer) -> None:
    harness.provider().acquire([order(fake_server)])
    until(lambda: fake_server.is_here("gpu-1"), "the agent reports")
    (before,) = agents_in(harness.folders[0], "gpu-1")

    def newer(interpreter: Interpreter, folder: str) -> AgentBundle:
        found = agent_for(interpreter, folder)
        return AgentBundle(found.wheels, "9.9.9-other")

    provider = HostProvider(harness.settings, "test", SshExec(harness.settings), newer)
    provider.look(["gpu-1"])
    until(lambda: (after := agents_in(harness.folders[0], "gpu-1")) != [] and after != [before], "another agent runs")
    until(lambda: os.listdir(harness.folders[0] / "agents") == ["9.9.9-other"], "the old one is removed")
    assert len(fake_server.joined) == 1
    provider.close()


def test_when_it_is_let_go_nothing_is_left(harness: SshHarness, fake_server: FakeServer) -> None:
    provider = harness.provider()
    provider.acquire([order(fake_server)])
    until(lambda: fake_server.is_here("gpu-1"), "the agent reports")
    provider.release("gpu-1")
    until(lambda: not harness.folders[0].exists(), "everything is removed")
    assert list(provider.look(["gpu-1"])) == []
    provider.release("gpu-1")
    shell = SshExec(harness.settings)
    ours = ("gpu-1", "test")
    for request in (StopRequest(*ours), UpgradeRequest(*ours, "x"), RestartRequest(*ours, is_kept=False)):
        shell.ask(shell.hosts()[0], request)
    shell.close()
    assert not harness.folders[0].exists(), "to say it again makes nothing"


def test_two_corrals_do_not_meet_on_a_host(harness: SshHarness, fake_server: FakeServer) -> None:
    one_host = msgspec.structs.replace(harness.settings, hosts=harness.settings.hosts[:1])
    ours, theirs = opened(one_host, "ours"), opened(one_host, "theirs")
    ours.acquire([order(fake_server)])
    theirs.acquire([order(fake_server)])
    assert theirs.look(["gpu-1"])[0].phase is PilotPhase.WAITING
    theirs.release("gpu-1")
    assert list(theirs.look(["gpu-1"])) == []
    assert pilot_of(harness.folders[0]) == "gpu-1"
    ours.close()
    theirs.close()


# --- interrupted at any point -----------------------------------------------------------------------------------------

#: In place of ssh: at the request that was chosen it ends the program that made it, when half of it was sent, or when
#: all was carried out and the answer is under way.
CLIENT = """#!{python}
import os, signal, subprocess, sys
data = sys.stdin.buffer.read()
is_chosen = b'{{"act": "{act}"' in data
if is_chosen and {half}:
    data = data[: len(data) // 2 if len(data) > 1_000_000 else -2]
done = subprocess.run(["ssh", *sys.argv[1:]], input=data, capture_output=True)
if is_chosen:
    os.kill(os.getppid(), signal.SIGKILL)
sys.stdout.buffer.write(done.stdout)
sys.exit(done.returncode)
"""
ACQUIRE = """
import msgspec, sys
from corral.providers.base import PilotOrder
from corral.providers.hosts import HostProvider
from corral.providers.ssh.settings import SshSettings
from corral.providers.ssh.remote_exec import SshExec
settings = msgspec.json.decode(sys.argv[1], type=SshSettings)
provider = HostProvider(settings, "test", SshExec(settings, sys.argv[2]))
provider.acquire([PilotOrder(pilot="gpu-1", urls=(sys.argv[3],), token="once-gpu-1")])
provider.close()
"""


def test_interrupted_at_each_step_one_after_another_it_can_be_done_again(
    harness: SshHarness, fake_server: FakeServer, tmp_path: Path
) -> None:
    settings = msgspec.structs.replace(harness.settings, hosts=harness.settings.hosts[:1])
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}

    def acquired(client: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-c", ACQUIRE, msgspec.json.encode(settings).decode(), client, fake_server.url]
        return subprocess.run(command, env=env, check=False, capture_output=True)

    for act in ("look", "install", "start"):
        for half in (True, False):
            client = tmp_path / f"ssh-{act}-{half}"
            client.write_text(CLIENT.format(python=sys.executable, act=act, half=half))
            client.chmod(0o755)
            assert acquired(str(client)).returncode == -signal.SIGKILL, (act, half)
            has_agent = bool(list((harness.folders[0] / "agents").glob("[!.]*")))
            assert has_agent == (act == "start" or (act == "install" and not half)), (act, half)
            assert pilot_of(harness.folders[0]) == ("gpu-1" if act == "start" and not half else "")
    last = acquired("ssh")
    assert last.returncode == 0, last.stderr.decode()
    until(lambda: fake_server.is_here("gpu-1"), "the agent reports")
    assert len(agents_in(harness.folders[0])) == 1
    assert len(fake_server.joined) == 1
