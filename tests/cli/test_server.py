"""Starting, stopping and looking after a server on this machine, as typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.cli.serve.data_folder import running_server
from tests.cli.conftest import Type, live
from tests.cli.typed import command, free_port, spawned, typed


class Machine:
    """A machine of our own: its data, its credentials, and commands typed there."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.variables = {"XDG_CONFIG_HOME": str(folder), "CORRAL_DATA": str(self.data), "HOME": str(folder)}
        self.address = f"127.0.0.1:{free_port()}"

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*words), env=live(self.variables), capture_output=True, text=True, timeout=120, check=False
        )

    def up(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self("up", "--detach", "--listen", self.address, "--fake-gpus", "2xL4", *words)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    here = Machine(tmp_path)
    yield here
    server = running_server(here.data)
    if server is not None:
        os.kill(server.pid, signal.SIGKILL)


def test_a_server_starts_stops_and_takes_up_what_went_on(machine: Machine) -> None:
    done = machine.up()
    assert done.returncode == 0, done.stderr
    assert f"corral is up at http://{machine.address}" in done.stdout
    again = machine.up()
    assert again.returncode == 0
    assert again.stdout.startswith(f"a server is running already, at http://{machine.address};")
    second = machine("up", "--listen", f"127.0.0.1:{free_port()}")
    assert second.returncode == 2
    assert "stop it with: corral down" in second.stderr

    flag = machine.data.parent / "go"
    waits = f"until [ -e {flag} ]; do sleep 0.05; done; echo went on"
    job = machine("submit", "--parsable", "--", "sh", "-c", waits).stdout.strip()
    while json.loads(machine("show", job, "--json").stdout)["state"] != "running":
        pass
    down = machine("down")
    assert f"the server at http://{machine.address} has stopped" in down.stdout
    assert "1 job continues" in down.stderr
    assert machine("ps").returncode == 3
    flag.touch()

    machine.address = f"127.0.0.1:{free_port()}"  # and where it is now is known without an option
    assert machine.up().returncode == 0
    assert machine("wait", job).returncode == 0
    assert machine("logs", job).stdout == "went on\n"
    assert machine("down").returncode == 0


def test_what_runs_is_ended_if_asked_for(machine: Machine) -> None:
    machine.up()
    job = machine("submit", "--parsable", "--", "sleep", "300").stdout.strip()
    while json.loads(machine("show", job, "--json").stdout)["state"] != "running":
        pass
    done = machine("down", "--kill-tasks")
    assert done.returncode == 0, done.stderr
    assert "go on" not in done.stderr
    assert machine("down").returncode == 3


def test_a_server_in_the_foreground_says_where_it_is_and_stops_at_ctrl_c(machine: Machine) -> None:
    words = command("up", "--listen", machine.address, "--fake-gpus", "1xT4")
    process = subprocess.Popen(words, env=live(machine.variables), stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stderr is not None
    told = b""
    while b"corral is up at" not in told:
        told = process.stderr.readline()
        assert told
    assert machine("node", "list", "--fields", "gpus").stdout.splitlines()[1] == "1 x T4 (simulated)"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--listen", "here"), "--listen: 'here' is not an address and a port"),
        (("--listen", "0.0.0.0:7411"), "is reachable from other machines"),
        (("--fake-gpus", "8xH1000"), "--fake-gpus: "),
        (("--config", "nowhere.yaml"), "nowhere.yaml cannot be read"),
        (("--peer", "sched2.example"), "'sched2.example' is not the address of a server"),
    ],
)
def test_what_cannot_be_started_is_reported(machine: Machine, words: tuple[str, ...], told: str) -> None:
    done = machine("up", *words)
    assert done.returncode == 2
    assert told in done.stderr
    assert not machine.data.exists()


def test_a_port_that_is_taken_is_reported(machine: Machine, house: dict[str, str], at_home: Path) -> None:
    taken = running_server(Path(house["CORRAL_DATA"]))
    assert taken is not None
    done = machine("up", "--listen", taken.url.removeprefix("http://"))
    assert done.returncode == 1
    assert "another program uses it" in done.stderr
    assert not machine.data.exists()


# ---- data ------------------------------------------------------------------------------------------------------------


def test_the_journal_is_described_and_verified_while_the_server_runs(corral: Type) -> None:
    assert corral("db", "verify").out.endswith("is complete and valid\n")
    assert json.loads(corral("db", "info", "--json").out)["records"] > 5
    assert "records" in corral("db", "info").out
    busy = corral("db", "rebuild")
    assert busy.code == 1
    assert "stop the server with: corral down" in busy.err


def test_the_journal_is_made_again_archived_and_a_fault_in_it_is_found(machine: Machine) -> None:
    machine.up()
    machine("submit", "--wait", "--", "true")
    machine("down")
    assert machine("db", "rebuild").stdout.startswith("rebuilt from ")
    archived = machine("db", "archive")
    assert archived.returncode == 0, archived.stderr
    assert archived.stdout.endswith(" MiB smaller\n")
    assert machine("db", "vacuum").stdout.endswith(" MiB smaller\n")
    assert machine("db", "verify").returncode == 0
    (archive,) = (machine.data / "archive").iterdir()
    archive.write_bytes(archive.read_bytes()[:-20])
    found = machine("db", "verify")
    assert found.returncode == 7
    assert "archive" in found.stdout
    assert "2 errors" in found.stderr


def test_where_there_is_no_journal_it_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for verb in ("verify", "rebuild", "archive", "vacuum", "info"):
        done = typed(capsys, "db", verb, "--data", str(tmp_path))
        assert done.code == 2
        assert "there is no journal in" in done.err


# ---- the rest --------------------------------------------------------------------------------------------------------


def test_the_doctor_finds_a_sound_house_sound(corral: Type) -> None:
    done = corral("doctor")
    assert done.code == 0, done.out
    assert "you are admin" in done.out
    states = {each["about"]: each["state"] for each in json.loads(corral("doctor", "--json").out)}
    assert {"python", "data", "database", "cgroups", "gpus", "port", "clock", "credentials", "server"} <= set(states)


def test_the_doctor_says_what_is_separated_by_what(corral: Type) -> None:
    [found] = [each for each in json.loads(corral("doctor", "--json").out) if each["about"] == "separation"]
    parts = dict(part.split(" by ", 1) for part in found["what"].split("; "))
    assert {"server's data", "tasks of other users", "signals", "memory", "CPU time", "number of processes"} <= set(
        parts
    )
    assert parts["server's data"].startswith("account" if os.geteuid() == 0 else ("mount namespace", "nothing"))
    assert (found["state"] == "note") == any(by.startswith("nothing") for by in parts.values())


def test_the_doctor_says_what_to_do(corral: Type, monkeypatch: pytest.MonkeyPatch, at_home: Path) -> None:
    open_folder = at_home / "open"
    open_folder.mkdir(mode=0o755)
    open_folder.chmod(0o755)
    monkeypatch.setenv("CORRAL_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("CORRAL_TOKEN", "t")
    done = corral("doctor", "--data", str(open_folder))
    assert done.code == 7
    assert f"chmod 700 {open_folder}" in done.out
    assert "start one here with: corral up" in done.out


def test_a_configuration_is_written_checked_and_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CORRAL_CONFIG", raising=False)
    assert typed(capsys, "config", "init").out == "wrote corral.yaml\n"
    assert typed(capsys, "config", "init").code == 2
    assert typed(capsys, "config", "check", "corral.yaml").out == "corral.yaml is valid\n"
    shown = typed(capsys, "config", "show", "corral.yaml").out
    assert shown == typed(capsys, "config", "show").out
    assert json.loads(typed(capsys, "config", "show", "--json").out)["listen"]["port"] == 7411
    Path("bad.yaml").write_text("listen: {prot: 1}\npolicy: fai\n")
    bad = typed(capsys, "config", "check", "bad.yaml")
    assert bad.code == 7
    assert "bad.yaml:1:10" in bad.err
    assert "bad.yaml:2:9" in bad.err


def test_the_version_of_both_sides_is_reported(corral: Type) -> None:
    from corral import __version__

    assert corral("version").out == f"corral {__version__}\nserver {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"_CORRAL_COMPLETE={shell}_complete" in typed(capsys, "completion", shell).out


def test_a_completion_is_the_command_that_begins_so() -> None:
    done = spawned(_CORRAL_COMPLETE="bash_complete", COMP_WORDS="corral re", COMP_CWORD="1")
    assert done.stdout.split() == [b"plain,release", b"plain,requeue"]


def test_any_free_port_is_the_one_that_is_printed_and_used(machine: Machine) -> None:
    machine.address = "127.0.0.1:0"
    done = machine.up()
    assert done.returncode == 0, done.stderr
    assert "corral is up at http://127.0.0.1:" in done.stdout
    assert "127.0.0.1:0 " not in done.stdout
    assert machine("ps").returncode == 0
    assert machine("down").returncode == 0


def test_an_address_of_another_machine_is_called_that(machine: Machine) -> None:
    done = machine("up", "--listen", "203.0.113.7:7411", "--fake-gpus", "1xL4", "--allow-plain-http")
    assert "cannot listen on 203.0.113.7:7411" in done.stderr
    assert "hint: 203.0.113.7 is no address of this machine" in done.stderr


def test_credentials_for_another_server_are_kept_when_a_new_one_starts(machine: Machine) -> None:
    kept = machine.data.parent / "corral" / "credentials.json"
    kept.parent.mkdir()
    kept.write_text('{"url": "https://sched.example:7411", "token": "corral_a_b"}')
    kept.chmod(0o600)
    done = machine.up()
    assert done.returncode == 0, done.stderr
    aside = kept.with_name("credentials-sched.example-7411.json")
    assert f"your credentials for https://sched.example:7411 are kept in {aside}" in done.stderr
    assert json.loads(aside.read_text())["token"] == "corral_a_b"
    assert aside.stat().st_mode & 0o777 == 0o600
    assert machine("ps").returncode == 0
    assert machine("down").returncode == 0
