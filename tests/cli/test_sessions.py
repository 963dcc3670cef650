"""Ports, copies, terminals and ssh into running jobs, as commands of their own against a real server."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Type, live
from tests.cli.typed import command, free_port

BYTES = 3_000_000


def running(corral: Type, number: str) -> str:
    end = time.monotonic() + 60
    while '"running"' not in corral("show", "--json", number).out:
        assert time.monotonic() < end
        time.sleep(0.1)
    return number


@pytest.fixture
def job(corral: Type, submit: Callable[..., str]) -> Iterator[str]:
    number = running(corral, submit("--", "sleep", "120"))
    yield number
    corral("cancel", "--now", number)


def done(house: dict[str, str], *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), env=live(house), input=given, capture_output=True, text=True, timeout=90, check=False
    )


def test_files_are_copied_both_ways(job: str, house: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "data").write_bytes(os.urandom(BYTES))
    assert done(house, "cp", str(tmp_path / "in"), f"{job}:{tmp_path}/there").returncode == 0
    assert done(house, "cp", f"{job}:{tmp_path}/there", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back" / "deep" / "data").read_bytes() == (tmp_path / "in" / "deep" / "data").read_bytes()
    (tmp_path / "there" / "out").symlink_to("/etc/passwd")
    refused = done(house, "cp", f"{job}:{tmp_path}/there", str(tmp_path / "again"))
    assert (refused.returncode, "leads out of the folder" in refused.stderr) == (2, True), refused.stderr
    assert "No such file" in done(house, "cp", f"{job}:/no/such", str(tmp_path)).stderr
    assert "neither is in a job" in done(house, "cp", "a", "b").stderr


def test_a_port_of_a_job(corral: Type, submit: Callable[..., str], house: dict[str, str], tmp_path: Path) -> None:
    there, here = free_port(), free_port()
    (tmp_path / "big").write_bytes(os.urandom(BYTES))
    words = (sys.executable, "-m", "http.server", str(there), "--bind", "127.0.0.1", "--directory", str(tmp_path))
    job = running(corral, submit("--", *words))
    forward = subprocess.Popen(command("port", job, f"{there}:{here}"), env=live(house), stderr=subprocess.DEVNULL)
    try:
        end, answer = time.monotonic() + 60, b""
        while len(answer) < BYTES and time.monotonic() < end:
            answer = fetched(here) or answer
            time.sleep(0.2)
        assert answer.partition(b"\r\n\r\n")[2] == (tmp_path / "big").read_bytes()
    finally:
        forward.terminate()
        forward.wait(20)
        corral("cancel", "--now", job)
    assert "is not a port" in done(house, "port", job, "x").stderr


def fetched(port: int) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), 20) as connection:
            connection.settimeout(30)
            connection.sendall(b"GET /big HTTP/1.0\r\n\r\n")
            found = b""
            while more := connection.recv(1 << 16):
                found += more
            return found
    except OSError:
        return b""


def test_a_job_that_is_a_terminal_ends_with_it(house: dict[str, str], corral: Type) -> None:
    ended = done(house, "run", "--pty", "--name", "typed", "--", "sh", given="echo in-$CORRAL_JOB_ID; tty; exit 5\n")
    assert ended.returncode == 5, ended.stderr
    assert "/dev/pts/" in ended.stdout
    found = re.search(r"in-(\d+)", ended.stdout)
    assert found is not None, ended.stdout
    end = time.monotonic() + 30
    while '"succeeded"' not in corral("show", "--json", found[1]).out:
        assert time.monotonic() < end
        time.sleep(0.2)


def test_a_terminal_that_must_wait_gives_up(house: dict[str, str]) -> None:
    late = done(house, "run", "--pty", "--max-wait", "1s", "--begin", "+1h", "--", "sh")
    assert late.returncode == 124, late.stderr
    assert "did not start in time" in late.stderr


def test_a_job_is_followed_again(corral: Type, submit: Callable[..., str], house: dict[str, str]) -> None:
    job = submit("--", "sh", "-c", "echo first; sleep 4; echo last; exit 3")
    running(corral, job)
    followed = done(house, "attach", job)
    assert (followed.stdout, followed.returncode) == ("first\nlast\n", 3)
    assert "has ended" in done(house, "attach", job).stderr


@pytest.mark.skipif(shutil.which("ssh") is None or not Path("/usr/sbin/sshd").exists(), reason="needs ssh and sshd")
def test_ssh_enters_a_job(job: str, house: dict[str, str], tmp_path: Path) -> None:
    text = done(house, "ssh-config").stdout
    variables = " ".join(f"{name}={house[name]}" for name in ("HOME", "XDG_CONFIG_HOME", "CORRAL_DATA"))
    own = " ".join(command())
    (tmp_path / "config").write_text(text.replace("ProxyCommand corral", f"ProxyCommand env {variables} {own}"))
    words = ["ssh", "-F", str(tmp_path / "config"), f"corral-{job}", "echo job $CORRAL_JOB_ID; exit 6"]
    entered = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
    assert (entered.stdout, entered.returncode) == (f"job {job}\n", 6), entered.stderr


def test_sessions_are_in_the_audit_record(job: str, house: dict[str, str], corral: Type) -> None:
    assert done(house, "exec", job, "--", "true").returncode == 0
    done(house, "cp", f"{job}:/etc/hostname", "/dev/null")
    assert Path("/dev/null").is_char_device()  # and no file, for every user on this machine
    said = corral("events", "--json").out + corral("events").out
    assert f"exec: a process in job {job}" in said
    assert f"cp: a process in job {job}" in said


#: What Jupyter does here: it listens on the port that it is given. Jupyter itself is not installed.
JUPYTER = """#!/bin/sh
for word in "$@"; do case $word in --port=*) port=${word#--port=};; esac; done
echo "token $JUPYTER_TOKEN"
exec %s -m http.server --bind 127.0.0.1 "$port"
"""


def test_a_notebook_has_a_page_here(house: dict[str, str], tmp_path: Path, corral: Type) -> None:
    program = tmp_path / "jupyter"
    program.write_text(JUPYTER % sys.executable)
    program.chmod(0o755)
    env = live(house) | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = command("notebook", "--name", "page", "--export", "PATH")
    page = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert page.stdout is not None
        line = page.stdout.readline()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/lab\?token=(\S{32})\n", line)
        assert found is not None, page.stderr.read() if page.stderr else line
        with socket.create_connection(("127.0.0.1", int(found[1])), 20) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert connection.recv(12).startswith(b"HTTP/1.0 200")
        page.send_signal(signal.SIGINT)
        assert page.wait(30) == 0
    finally:
        page.kill()
        page.communicate(timeout=20)
