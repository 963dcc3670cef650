"""Who queued work runs as when its user changes: as the account it was accepted with, or not at all.

A whole server as root, real processes, two accounts that every machine has.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.live import Live, Refused

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run tasks as others")

ACCOUNT, OTHER = "nobody", "daemon"


@pytest.fixture
def harness(live: Callable[..., Live]) -> Iterator[Harness]:
    """In a folder that every account can enter; those of pytest are for its own alone."""
    server = live()
    server.more = ["--account", ""]
    with tempfile.TemporaryDirectory(prefix="corral-test-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o777)
        yield Harness(server, Path(folder))


class Harness:
    """A server whose GPUs are taken until they are let go, and a job of alice's that waits for them."""

    def __init__(self, server: Live, folder: Path) -> None:
        self.server, self.out = server, folder
        server.start()
        self.ask("PUT", "/v1/users/admin", {"account": "root"})
        self.ask("PUT", "/v1/users/alice", {"account": ACCOUNT})
        self.ask("PUT", "/v1/users/alice/roles", {"role": "member", "queue": "default"})
        self.token = self.ask("POST", "/v1/tokens", {"user": "alice"})["token"]
        self.blocker = server.submit({"command": "sleep 1000", "gpus": 8, "preemptible": False})

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        return self.server.ask(method, path, body)

    def submit(self, **terms: Any) -> str:
        """As alice."""
        mine, self.server._token = self.server.token, self.token
        try:
            return self.server.submit({"command": f"id -un > {self.out}/$CORRAL_JOB_ID", "gpus": 8, **terms})
        finally:
            self.server._token = mine

    def let_go(self) -> None:
        self.ask("POST", f"/v1/jobs/{self.blocker}/cancel")
        self.server.until_over([self.blocker])

    def ran_as(self, job: str) -> str | None:
        path = self.out / job
        return path.read_text().strip() if path.exists() else None

    def stays_waiting(self, job: str, seconds: float = 1.5) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.ran_as(job) is None
            assert self.server.job(job)["state"] == "waiting"
            time.sleep(0.05)


def test_work_runs_as_the_account_of_its_user(harness: Harness) -> None:
    job = harness.submit()
    harness.let_go()
    harness.server.until_over([job])
    assert harness.ran_as(job) == ACCOUNT


def test_queued_work_of_a_removed_user_never_runs_as_another_user(harness: Harness) -> None:
    job = harness.submit()
    harness.ask("DELETE", "/v1/users/alice")
    harness.let_go()
    harness.stays_waiting(job)
    reasons = harness.ask("GET", f"/v1/jobs/{job}/why")["gangs"][0]["reasons"]
    assert any("was removed" in each["text"] for each in reasons)


def test_queued_work_of_a_disabled_user_waits_and_goes_on_as_its_account(harness: Harness) -> None:
    job = harness.submit()
    harness.ask("PUT", "/v1/users/alice", {"disabled": True})
    assert harness.ask("GET", "/v1/users/alice")["account"] == ACCOUNT, "only what was named has changed"
    harness.let_go()
    harness.stays_waiting(job)
    with pytest.raises(Refused) as refused:
        harness.ask("POST", f"/v1/jobs/{job}/release")
    assert refused.value.problem["code"] == "user_disabled"
    harness.ask("PUT", "/v1/users/alice", {"disabled": False})
    harness.server.until_over([job])
    assert harness.ran_as(job) == ACCOUNT


def test_requeued_work_of_a_disabled_user_does_not_start_again(harness: Harness) -> None:
    harness.let_go()
    job = harness.submit(command=f"id -un >> {harness.out}/runs; sleep 1000", requeue_exit=85)
    until(lambda: (harness.out / "runs").exists())
    harness.ask("PUT", "/v1/users/alice", {"disabled": True})
    assert harness.server.job(job)["state"] == "running", "what runs may finish"
    harness.ask("POST", f"/v1/jobs/{job}/requeue")
    until(lambda: harness.server.job(job)["state"] == "waiting")
    harness.stays_waiting(job)
    assert (harness.out / "runs").read_text().split() == [ACCOUNT]


def test_running_work_of_a_removed_user_is_ended_with_grace(harness: Harness) -> None:
    harness.let_go()
    saves = (
        f"trap 'echo warned > {harness.out}/warned; exit 85' TERM; touch {harness.out}/up; while :; do sleep 1; done"
    )
    job = harness.submit(command=saves, grace="10s")
    until(lambda: (harness.out / "up").exists())
    harness.ask("DELETE", "/v1/users/alice")
    until(lambda: (harness.out / "warned").exists())
    until(lambda: harness.server.job(job)["state"] == "waiting")
    harness.stays_waiting(job)


def test_queued_work_keeps_the_account_it_was_accepted_with_until_an_administrator_says_otherwise(
    harness: Harness,
) -> None:
    job = harness.submit()
    harness.ask("PUT", "/v1/users/alice", {"account": OTHER})
    harness.let_go()
    harness.stays_waiting(job)
    reasons = harness.ask("GET", f"/v1/jobs/{job}/why")["gangs"][0]["reasons"]
    assert any(ACCOUNT in each["text"] and "corral release" in each["text"] for each in reasons)
    harness.ask("POST", f"/v1/jobs/{job}/release")
    harness.server.until_over([job])
    assert harness.ran_as(job) == OTHER


def test_a_restart_forgets_nothing_of_it(harness: Harness) -> None:
    removed = harness.submit()
    harness.ask("DELETE", "/v1/users/alice")
    harness.server.kill()
    harness.server.start()
    harness.let_go()
    harness.stays_waiting(removed)


def test_work_without_an_account_is_refused_where_the_server_is_root(harness: Harness) -> None:
    harness.ask("PUT", "/v1/users/alice", {"account": ""})
    with pytest.raises(Refused) as refused:
        harness.submit()
    assert refused.value.status == 422
    assert refused.value.problem["code"] == "no_account"
    assert "corral user set alice --account" in refused.value.problem["hint"]


def until(happened: Callable[[], object], within_s: float = 30) -> None:
    end = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
