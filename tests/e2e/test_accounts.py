"""What a task can reach of the server, of other tasks and of the machine, by as whom the server runs.

Whole servers, as root and as somebody else; a task of one user tries what `tests/e2e/probe.py` lists against the task
of another. Who runs as whom when users change is in `test_identity`.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.backends.local.state import TaskState
from tests.backends.container_ground import ContainerGround
from tests.backends.podman import Podman
from tests.e2e.live import Live, Refused

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start servers as root and as others")

SERVER_ACCOUNT, ANN, BEN = "nobody", "daemon", "bin"
PROBE = Path(__file__).with_name("probe.py")
#: A Python that everybody can execute.
PYTHON = "/usr/bin/python3"
#: What one account can do to its own processes, whatever they see of one another, where the kernel has no Landlock.
SIGNALS = {"signal the server", "signal the other", "signal the supervisor"}


class Cell:
    """A server, its users ann and ben, and a task of ben's that runs."""

    def __init__(self, server: Live, folder: Path, is_root: bool) -> None:
        self.server, self.folder, self.is_root = server, folder, is_root
        server.more = ["--account", ""]
        if not is_root:
            server.account = pwd.getpwnam(SERVER_ACCOUNT).pw_uid
            server.python, server.env = PYTHON, {"PYTHONPATH": f"{_path()}", "HOME": "/"}
        server.start()
        (server.data / "secrets").mkdir(exist_ok=True)
        for name in ("secrets/probe", "agent.json"):
            (server.data / name).write_text("{}")
            (server.data / name).chmod(0o600)
            shutil.chown(server.data / name, SERVER_ACCOUNT if not is_root else "root")
        self.tokens = {user: self.user(user, account) for user, account in (("ann", ANN), ("ben", BEN))}

    def user(self, name: str, account: str) -> str:
        self.server.ask("PUT", f"/v1/users/{name}", {"account": account if self.is_root else ""})
        self.server.ask("PUT", f"/v1/users/{name}/roles", {"role": "member", "queue": "default"})
        return str(self.server.ask("POST", "/v1/tokens", {"user": name})["token"])

    def submit(self, user: str, command: str, **terms: Any) -> str:
        mine, self.server._token = self.server.token, self.tokens[user]
        try:
            return self.server.submit({"command": command, **terms})
        finally:
            self.server._token = mine

    def reached(self) -> dict[str, Any]:
        """What ann's task can reach while ben's runs."""
        other = self.submit("ben", "echo $$ > $TMPDIR/../here; sleep 1000", env={"SECRET": "ben's"})
        state = self.state_of(other)
        started, order = state.record().started(), state.record().order()
        assert started is not None
        assert order is not None
        assert self.server.process is not None
        facts = {
            "data": str(self.server.data), "server": self.server.process.pid, "other": started.pids[0],
            "supervisor": started.supervisor, "scratch": order.scratch,
        }  # fmt: skip
        (self.folder / "facts").write_text(json.dumps(facts))
        job = self.submit("ann", f"id -un; {PYTHON} {self.folder}/probe.py {self.folder}/facts")
        assert self.server.until_over([job])[job]["state"] == "succeeded"
        lines = self.log(job).splitlines()
        self.server.ask("POST", f"/v1/jobs/{other}/cancel")
        return {"account": lines[0], **json.loads(lines[1])}

    def log(self, job: str) -> str:
        url = f"{self.server.url}/v1/jobs/{job}/logs?stream=stdout"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.server.token}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode())

    def state_of(self, job: str) -> TaskState:
        end = time.monotonic() + 30
        while True:
            for folder in (self.server.data / "tasks" / "state").glob(f"{job}%2F*"):
                if (state := TaskState(str(folder))).record().started() is not None:
                    return state
            assert time.monotonic() < end, "the other task did not begin"
            time.sleep(0.02)


def _path() -> str:
    root = Path(__file__).resolve().parents[2]
    return os.pathsep.join((str(root / "src"), str(root), sysconfig.get_paths()["purelib"]))


def _has_scopes() -> bool:
    """Whether the kernel has Landlock with scopes for signals."""
    return bool(ctypes.CDLL(None).syscall(444, None, 0, 1) >= 6)


def _can_be_somebody_else() -> bool:
    """Whether a server can run as another account here: that one must reach Python and all that is imported."""
    words = ["setpriv", "--reuid", SERVER_ACCOUNT, "--clear-groups", PYTHON, "-c", "import uvloop, tests.e2e.serving"]
    done = subprocess.run(words, env={"PYTHONPATH": _path()}, capture_output=True, check=False, cwd="/")
    return done.returncode == 0


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="corral-test-") as made:
        Path(made).chmod(0o755)
        shutil.copy(PROBE, Path(made) / "probe.py")
        yield Path(made)


@pytest.fixture
def cell(live: Callable[..., Live], folder: Path) -> Callable[[bool], Cell]:
    def make(is_root: bool) -> Cell:
        if not is_root and not _can_be_somebody_else():
            pytest.skip(f"{SERVER_ACCOUNT} cannot run a server with {PYTHON} here")
        data = folder / "data"
        data.mkdir(mode=0o700)
        if not is_root:
            shutil.chown(data, SERVER_ACCOUNT, "nogroup")
        return Cell(live(data), folder, is_root)

    return make


def test_a_task_of_another_account_reaches_nothing(cell: Callable[[bool], Cell]) -> None:
    found = cell(True).reached()
    print(found, file=sys.stderr)
    assert found["tried"] >= 30
    assert (found["account"], found["able"]) == (ANN, [])


def test_a_task_of_the_server_s_own_account_sees_nothing_of_it_nor_of_others(cell: Callable[[bool], Cell]) -> None:
    found = cell(False).reached()
    print(found, file=sys.stderr)
    assert found["tried"] >= 30
    assert found["account"] == SERVER_ACCOUNT
    assert set(found["able"]) <= (set() if _has_scopes() else SIGNALS)


def test_a_server_that_is_not_root_runs_nothing_as_others(cell: Callable[[bool], Cell]) -> None:
    made = cell(False)
    made.server.ask("PUT", "/v1/users/ann", {"account": ANN})
    with pytest.raises(Refused) as refused:
        made.submit("ann", "id")
    assert refused.value.problem["code"] == "cannot_run_as"
    made.server.ask("PUT", "/v1/users/ann", {"account": SERVER_ACCOUNT})
    job = made.submit("ann", "id -un")
    assert made.server.until_over([job])[job]["state"] == "succeeded"


def test_a_task_that_is_kept_apart_is_adopted_warned_and_ended_as_any_other(cell: Callable[[bool], Cell]) -> None:
    made = cell(False)
    script = "trap 'echo saved >> $CORRAL_CHECKPOINT_FILE; cat $CORRAL_WARNING_FILE; exit 85' TERM; echo up; "
    job = made.submit("ann", script + "while :; do sleep 0.05; done", grace="20s")
    made.state_of(job)
    made.server.kill()
    made.server.start()
    assert made.server.job(job)["state"] == "running"
    made.server.ask("POST", f"/v1/jobs/{job}/cancel")
    assert made.server.until_over([job])[job]["state"] == "cancelled"
    assert '"deadline_ms"' in made.log(job)
    pids = [pid for pid in os.listdir("/proc") if pid.isdecimal() and _is_of(pid, job, made.server.data)]
    assert not pids


def _is_of(pid: str, job: str, data: Path) -> bool:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"CORRAL_JOB_ID={job}\0".encode() in environ and str(data).encode() in environ


def test_a_container_of_an_account_sees_nothing_of_the_machine_but_what_it_mounts(
    tmp_path: Path, podman: Podman
) -> None:
    ground = ContainerGround(tmp_path / "data", podman)
    looks = f"id -u; ls -d {tmp_path} /home /run/podman /var/lib 2>/dev/null; ls /proc | grep -c '^[0-9]'"
    try:
        down, said = ground.ran(looks, account=ANN)
    finally:
        ground.close()
    uid, *seen, processes = said.split()
    assert (down.exit_code, int(uid), seen) == (0, pwd.getpwnam(ANN).pw_uid, [])
    assert int(processes) < 10, "those of the container alone"


@pytest.mark.parametrize("change", ["removed", "disabled", "changed"])
def test_queued_work_where_the_server_is_not_root_waits_when_its_user_changes(
    cell: Callable[[bool], Cell], change: str
) -> None:
    made = cell(False)
    blocker = made.submit("ben", "sleep 1000", gpus=8, preemptible=False)
    made.state_of(blocker)
    job = made.submit("ann", f"id > {made.folder}/ran", gpus=8)
    if change == "removed":
        made.server.ask("DELETE", "/v1/users/ann")
    else:
        made.server.ask("PUT", "/v1/users/ann", {"disabled": True} if change == "disabled" else {"account": ANN})
    made.server.ask("POST", f"/v1/jobs/{blocker}/cancel")
    made.server.until_over([blocker])
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        assert made.server.job(job)["state"] == "waiting"
        time.sleep(0.05)
    [gang] = made.server.ask("GET", f"/v1/jobs/{job}/why")["gangs"]
    assert gang["reasons"][0]["code"] == "Suspended"


def test_what_was_suspended_for_too_long_is_cancelled(live: Callable[..., Live], folder: Path) -> None:
    server = live(folder / "data")
    server.more = ["--account", "root", "--cancel-after-ms", "200"]
    server.start()
    server.ask("PUT", "/v1/users/ann", {})
    server.ask("PUT", "/v1/users/ann/roles", {"role": "member", "queue": "default"})
    mine, server._token = server.token, server.ask("POST", "/v1/tokens", {"user": "ann"})["token"]
    job = server.submit({"command": "true", "gpus": 8, "hold": True})
    server._token = mine
    server.ask("DELETE", "/v1/users/ann")
    assert server.until_over([job])[job]["state"] == "cancelled"
