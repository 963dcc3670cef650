"""``corral exec`` and ``corral shell`` in a running job, as processes of their own."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.cli.conftest import Type, live
from tests.cli.typed import command


@pytest.fixture
def job(corral: Type, submit: Callable[..., str]):
    number = submit("--env", "MODE=deep", "--", "sleep", "120")
    end = time.monotonic() + 60
    while '"running"' not in corral("show", "--json", number).out and time.monotonic() < end:
        time.sleep(0.1)
    yield number
    corral("cancel", "--now", number)


def executed(house: dict[str, str], *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), env=live(house), input=given, capture_output=True, text=True, timeout=60)


def test_a_command_runs_inside_a_job(job: str, house: dict[str, str]) -> None:
    done = executed(house, "exec", job, "--", "sh", "-c", "echo $CORRAL_JOB_ID $MODE; cat; exit 4", given="said\n")
    assert (done.stdout, done.returncode) == (f"{job} deep\nsaid\n", 4)


def test_what_cannot_be_entered_is_said(job: str, house: dict[str, str], submit: Callable[..., str]) -> None:
    assert "there is no job" in executed(house, "exec", "999999", "--", "true").stderr
    assert "does not run now" in executed(house, "exec", submit("--hold", "--", "true"), "--", "true").stderr
    assert "there is no task 7" in executed(house, "exec", "--task", "7", job, "--", "true").stderr


def test_a_shell_has_a_terminal(job: str, house: dict[str, str]) -> None:
    pid, fd = pty.fork()
    if pid == 0:
        os.execvpe(command()[0], command("shell", job), live(house))
    said = b""

    def until(text: bytes, within_s: float = 30.0) -> None:
        nonlocal said
        end = time.monotonic() + within_s
        while text not in said and time.monotonic() < end and select.select([fd], [], [], 1)[0] is not None:
            try:
                said += os.read(fd, 4096) if select.select([fd], [], [], 0.2)[0] else b""
            except OSError:
                break
        assert text in said, said

    time.sleep(1)
    os.write(fd, b"tty; echo job-$CORRAL_JOB_ID\r")
    until(b"/dev/pts/")
    until(f"job-{job}".encode())
    os.write(fd, b"sleep 100\r")
    end = time.monotonic() + 60  # less than the sleep
    while b"a2z" not in said and time.monotonic() < end:
        time.sleep(0.7)
        os.write(fd, b"\x03")  # a terminal drops what was typed before Ctrl-C
        time.sleep(0.7)
        os.write(fd, b"echo a$((1+1))z\r")
        with contextlib.suppress(AssertionError):
            until(b"a2z", 3)
    until(b"a2z")
    os.write(fd, b"exit 7\r")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    os.close(fd)
