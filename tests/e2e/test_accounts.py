"""What a task can reach of the server, of other tasks and of the machine, by the account of the server.

Whole servers, as root and as another user; a task of one user tries what `tests/e2e/probe.py` lists against the task
of another. Which account runs what when users change is in `test_identity`, and both in `test_account_matrix`.
"""

from __future__ import annotations

import os
import pwd
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.account_server import ANN, SERVER_ACCOUNT, SIGNALS, Cell, has_scopes
from tests.e2e.live import Live, Refused
from tests.runtime.container_backend import ContainerHarness
from tests.runtime.podman import Podman

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start servers as root and as others")


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
    assert set(found["able"]) <= (set() if has_scopes() else SIGNALS)


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
    harness = ContainerHarness(tmp_path / "data", podman)
    looks = f"id -u; ls -d {tmp_path} /home /run/podman /var/lib 2>/dev/null; ls /proc | grep -c '^[0-9]'"
    try:
        down, said = harness.ran(looks, account=ANN)
    finally:
        harness.close()
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
