"""A server in bad surroundings: what it cannot use is refused in words that help, and nothing acknowledged is lost."""

from __future__ import annotations

import os
import resource
import socket
import sqlite3
import subprocess
import time
from contextlib import ExitStack, contextmanager

import pytest

from corral.store.verify import verify
from tests.e2e.live import Live, Refused, Unanswered

IS_ROOT = os.geteuid() == 0
NOBODY = 65534


def refused(live: Live) -> str:
    """What it says when it does not start; it must do so by itself and soon."""
    process = live.begin()
    assert process.wait(30) == 2, live.errors()
    live.process = None
    return live.errors()


def test_a_second_server_on_the_same_data_is_refused(live):
    first, second = live(), live()
    first.start()
    second.data = first.data
    said = refused(second)
    assert f"is in use by process {first.process.pid}" in said
    assert "Stop that process first, or use another folder" in said
    assert first.is_serving()


def test_a_port_that_is_taken_is_named(live):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = live(port=taken.getsockname()[1])
        said = refused(server)
        assert f"cannot listen on 127.0.0.1:{server.port}" in said
        assert "Choose another port" in said
    server.start()
    assert server.submit({"command": "true"}) == "1"


def test_a_journal_that_is_no_database_is_left_alone(live):
    server = live()
    server.start()
    server.submit({"command": "true"})
    server.stop()
    journal = server.data / "journal.db"
    for name in ("journal.db-wal", "journal.db-shm"):
        (server.data / name).unlink(missing_ok=True)
    journal.write_bytes(b"not a database" * 1000)
    said = refused(server)
    assert "Restore it from a backup" in said
    assert journal.read_bytes().startswith(b"not a database")


def test_a_journal_whose_end_was_cut_off_is_refused(live):
    server = live()
    server.start()
    server.submit({"command": "true"})
    server.stop()
    connection = sqlite3.connect(server.data / "journal.db")
    connection.execute("DELETE FROM records WHERE seq = (SELECT max(seq) FROM records)")
    connection.commit()
    connection.close()
    said = refused(server)
    assert "should end with" in said
    assert "corral db verify" in said


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_a_data_directory_that_cannot_be_used_is_named(live):
    server = live()
    server.data.mkdir(mode=0o700)
    server.account = NOBODY
    try:
        said = refused(server)
    except PermissionError:
        pytest.skip("the interpreter of the tests cannot be run by another user")
    assert "Run as the user who owns it" in said


def test_a_client_that_hangs_up_halfway_does_no_harm(live):
    server = live()
    server.start()
    head = f"POST /v1/jobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {server.token}\r\ncontent-length: 1000\r\n\r\n"
    for part in (b"", b"GET", head.encode(), head.encode() + b'{"command":'):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(part)
    whole = head.replace("1000", "18").encode() + b'{"command":"true"}'
    for _ in range(20):  # gone before the answer: the job is there, or it is not, and nothing else
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(whole)
    job = server.submit({"command": "true"})
    server.until_over([each["id"] for each in server.jobs()])
    assert 1 <= len(server.jobs()) <= 21
    assert server.job(job)["state"] == "succeeded"
    server.stop()
    assert verify(server.data) == []


def test_thousands_of_connections_are_answered_or_reported_to_wait(live):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 6_000:
        pytest.skip("this machine does not allow this many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 6_000), hard))
    server = live()
    server.start()
    before = rss_mib(server)
    assert answers_to_many(server, 1_000) == {b"200"}
    told = answers_to_many(server, 5_000)
    assert b"503" in told
    assert told <= {b"200", b"503"}  # some leave before the others are looked at, or none does
    assert server.is_serving()
    assert rss_mib(server) - before < 200


def answers_to_many(server: Live, count: int) -> set[bytes]:
    """The statuses of this many clients that are all connected before the first of them sends a request."""
    request = f"GET /v1/whoami HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {server.token}\r\n\r\n".encode()
    with ExitStack() as stack:
        place = ("127.0.0.1", server.port)
        clients = [stack.enter_context(socket.create_connection(place, timeout=30)) for _ in range(count)]
        for client in clients:
            client.sendall(request)
        return {client.recv(12)[9:12] for client in clients}


def rss_mib(live: Live) -> float:
    assert live.process is not None
    with open(f"/proc/{live.process.pid}/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS:"))


@contextmanager
def small_disk(place, mib):
    """A file system of its own with so much room."""
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(place)], capture_output=True)
    if made.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {made.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def submit_without_end(server: Live, acknowledged: list[str]) -> None:
    document = {"command": "true", "env": {"FILLING": "x" * 30_000}}
    while len(acknowledged) < 2_000:
        acknowledged.append(server.submit(document))


def _submitted_within(server: Live, patience_s: float) -> str:
    end = time.monotonic() + patience_s
    while True:
        try:
            return server.submit({"command": "true"})
        except (Refused, Unanswered):
            assert time.monotonic() < end, server.errors()
            time.sleep(0.5)


@pytest.mark.skipif(not IS_ROOT, reason="only root can mount a small disk")
def test_on_a_full_disk_nothing_is_lost_and_the_server_goes_on_by_itself_when_there_is_room(live, tmp_path):
    with small_disk(tmp_path / "disk", 16) as disk:
        server = live(disk / "data")
        server.start()
        acknowledged: list[str] = []
        server.ask("POST", "/v1/nodes/here/drain")
        with pytest.raises((Refused, Unanswered)) as full:
            submit_without_end(server, acknowledged)
        if isinstance(full.value, Refused):
            assert (full.value.status, full.value.problem["code"]) == (507, "disk_full")
        assert server.process.poll() is None
        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
        acknowledged.append(_submitted_within(server, 120))
        assert len(acknowledged) > 10
        assert {job["id"] for job in server.jobs()} >= set(acknowledged)
        server.stop()
        assert verify(server.data) == []


def test_the_clock_of_the_server_never_goes_back(live):
    """It ran with a clock an hour ahead, which is then set right: its time goes on from where it was."""
    server = live(ahead_s=3600)
    server.start()
    first = server.submit({"command": "true"})
    server.until_over([first])
    server.kill()
    server.ahead_s = 0
    server.start()
    second = server.submit({"command": "true"})
    views = server.until_over([first, second])
    assert views[second]["submitted_ms"] >= views[first]["ended_ms"] > time.time() * 1000 + 3_000_000
    assert views[second]["ended_ms"] >= views[second]["started_ms"] >= views[second]["submitted_ms"]


def test_a_grace_is_as_long_when_the_clocks_of_server_and_machine_differ(live):
    """The wall clock was set forward by an hour after the server had begun: what is left of a grace is handed on, and
    not a time of day."""
    server = live(ahead_s=-3600)
    server.start()
    script = "trap 'sleep 1; exit 7' TERM; while :; do sleep 0.05; done"
    job = server.submit({"command": ["sh", "-c", script], "grace": "20s"})
    end = time.monotonic() + 60
    while server.job(job)["state"] != "running":
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(0.5)  # until the shell has set its trap
    server.ask("POST", f"/v1/jobs/{job}/cancel")
    assert server.until_over([job])[job]["history"][0]["exit_code"] == 7  # and not 137
