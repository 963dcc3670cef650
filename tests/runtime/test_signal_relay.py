"""Signals to a command and its shells, on plain processes: which get one, which are stopped, how they end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM, SIGUSR1

import pytest

from corral.runtime.container.task.signal_relay import SignalRelay
from corral.runtime.local.task.signal_audience import descendants
from tests.runtime.reports import until

SAVES = 'trap "echo warned; sleep 0.3; exit {code}" TERM; echo ready; while :; do sleep 0.02; done'


class Command:
    """One that is run by a shell; the words of all its processes are in one file."""

    def __init__(self, said: Path) -> None:
        self._said = said
        self.relay = SignalRelay()
        self.shell: subprocess.Popen[bytes] | None = None

    def run(self, script: str, ready: int = 1) -> None:
        with self._said.open("wb") as said:
            self.shell = subprocess.Popen(["sh", "-c", script], stdout=said, start_new_session=True)
        until(lambda: self.said().count("ready") == ready)

    def said(self) -> list[str]:
        return self._said.read_text().split()

    def tell(self, number: int = SIGTERM, *, is_last: bool = False) -> None:
        assert self.shell is not None
        tell = self.relay.signal_all if is_last else self.relay.signal_listeners
        tell([self.shell.pid, *descendants(self.shell.pid)], number)

    def end(self) -> int:
        """Looks until the shell has gone, and says how it went."""
        shell = self.shell
        assert shell is not None

        def is_over() -> bool:
            self.relay.look()
            return shell.poll() is not None

        until(is_over)
        return int(shell.returncode)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    made = Command(tmp_path / "said")
    yield made
    if made.shell is not None and made.shell.poll() is None:
        for pid in (made.shell.pid, *descendants(made.shell.pid)):
            subprocess.run(["kill", "-9", str(pid)], check=False)
        made.shell.wait()


def _program(code: int) -> str:
    return f"sh -c '{SAVES.format(code=code)}'"


def test_a_shell_waits_for_its_program_and_goes_on_with_nothing_else(command: Command):
    command.run(f"{_program(85)}; echo over")
    command.tell()
    assert command.end() == -SIGTERM
    assert (command.said(), command.relay.end) == (["ready", "warned"], 85 << 8)


def test_of_several_the_first_that_failed_speaks(command: Command):
    command.run(f"({_program(0)}; echo over) & ({_program(3)}; echo over) & wait", ready=2)
    command.tell()
    assert command.end() == -SIGTERM
    assert (command.said(), command.relay.end) == (["ready"] * 2 + ["warned"] * 2, 3 << 8)


def test_a_shell_that_listens_itself_is_not_stopped(command: Command):
    command.run(f"trap : TERM; {_program(7)}; echo over; exit 9")
    command.tell()
    assert command.end() == 9
    assert (command.said(), command.relay.end) == (["ready", "warned", "over"], None)


def test_shells_that_listen_and_shells_that_do_not_one_in_the_other(command: Command, tmp_path: Path):
    (tmp_path / "inner").write_text(f"{_program(85)}; echo inner\n")
    (tmp_path / "middle").write_text(f"trap : TERM; sh {tmp_path}/inner; exit 4\n")
    command.run(f"sh {tmp_path}/middle; echo over")
    command.tell()
    assert command.end() == -SIGTERM
    assert (command.said(), command.relay.end) == (["ready", "warned"], 85 << 8)


def test_where_no_one_listens_all_are_left_in_peace_until_the_last_call(command: Command):
    command.run("echo ready; sleep 600; echo over")
    command.tell()
    assert command.shell is not None
    assert command.shell.poll() is None
    command.tell(is_last=True)
    assert command.end() == -SIGTERM
    assert (command.said(), command.relay.end) == (["ready"], None)


def test_who_ignores_it_stays(command: Command):
    command.run("trap '' TERM; echo ready; sleep 0.3; exit 6")
    command.tell()
    assert (command.end(), command.relay.end) == (6, None)


def test_a_signal_that_is_received_and_outlived_is_followed_by_another(command: Command):
    early = 'trap "echo early" USR1; trap "echo late; exit 85" TERM; echo ready; while :; do sleep 0.02; done'
    command.run(f"sh -c '{early}'; echo over")
    command.tell(SIGUSR1)
    until(lambda: "early" in command.said())
    command.relay.look()
    command.tell(SIGTERM)
    assert command.end() == -SIGTERM
    assert (command.said(), command.relay.end) == (["ready", "early", "late"], 85 << 8)
