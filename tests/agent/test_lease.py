"""Leases: on the server with a clock that is moved by hand, and in supervisors with real processes."""

from pathlib import Path

import pytest

from corral.backends.base import Phase, TaskKey
from corral.backends.fleet.leases import Leases
from corral.backends.fleet.settings import FleetSettings
from corral.backends.local.backend import LocalBackend
from corral.backends.local.settings import LocalSettings
from corral.backends.local.state import TaskState
from corral.backends.local.task import lease
from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass
from tests.accounts import OWN
from tests.backends.telling import Ear, order, until

SETTINGS = FleetSettings(lease_ms=8_000, margin_ms=2_000, stall_ms=1_000)
KEY = TaskKey("1/main", 1, 0)


def swept(leases: Leases, from_ms: int, to_ms: int) -> dict[str, int]:
    """Who was given up when, with a look every 250 ms."""
    return {node: now for now in range(from_ms, to_ms + 1, 250) for node in leases.sweep(now)}


def test_a_silent_node_is_given_up_after_its_lease_and_the_margin_and_once():
    leases = Leases(SETTINGS)
    leases.grant("n1", 0)
    assert swept(leases, 0, 60_000) == {"n1": 10_250}


def test_a_node_that_reports_is_not_given_up():
    leases = Leases(SETTINGS)
    for now in range(0, 60_000, 250):
        if now % 2_000 == 0:
            leases.grant("n1", now)
        assert leases.sweep(now) == []


def test_a_stalled_server_does_not_blame_the_nodes():
    leases = Leases(SETTINGS)
    leases.grant("n1", 0)
    swept(leases, 0, 7_000)
    assert leases.sweep(67_000) == [], "it was asleep itself"
    assert swept(leases, 67_250, 90_000) == {"n1": 77_250}, "and then everybody has a whole lease"


def test_an_answer_never_shortens_a_lease():
    leases = Leases(SETTINGS)
    leases.grant("n1", 5_000)
    leases.grant("n1", 1_000)
    assert swept(leases, 5_000, 30_000) == {"n1": 15_250}


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (FleetSettings(), ""),
        (FleetSettings(lease_ms=3_000, heartbeat_ms=2_000), "three heartbeats"),
        (FleetSettings(margin_ms=100), "margin"),
    ],
)
def test_settings_that_cannot_work_are_told(settings: FleetSettings, fault: str):
    assert fault in settings.fault()
    assert bool(fault) == bool(settings.fault())


def leased(data: Path) -> tuple[LocalBackend, Ear, str]:
    backend, ear = LocalBackend(data, NodeSpec("n1"), LocalSettings(account=OWN, scan_ms=100, has_lease=True)), Ear()
    backend.open(ear, 1)
    return backend, ear, str(data / "run" / lease.LEASE)


def test_a_task_ends_by_itself_when_the_lease_passes_even_if_nobody_is_there(tmp_path: Path):
    backend, ear, file = leased(tmp_path)
    lease.write(file, lease.now_ms() + 1_500)
    backend.launch([order(KEY, "sleep", "600")])
    up = ear.up(KEY)
    backend.close()
    deadline = lease.read(file)
    state = TaskState(str(tmp_path / "tasks" / "state" / "1%2Fmain@1.0"))
    until(lambda: state.record().exit() is not None)
    assert lease.now_ms() >= deadline
    again, ear2, _ = leased(tmp_path)
    down = ear2.down(KEY)
    assert (down.failure, down.signal, down.exit_code) == (FailureClass.NODE_LOST, 9, 137)
    assert "lease" in down.why
    assert down.at_ms >= up.at_ms
    again.close()


def test_a_lease_that_is_renewed_keeps_its_tasks(tmp_path: Path):
    backend, ear, file = leased(tmp_path)
    lease.write(file, lease.now_ms() + 600)
    backend.launch([order(KEY, "sh", "-c", "sleep 2; echo done")])
    ear.up(KEY)
    while not [r for r in ear.heard if getattr(r, "phase", None) is Phase.DOWN]:
        lease.write(file, lease.now_ms() + 600)
        until(lambda: lease.read(file) - lease.now_ms() < 400)
    assert ear.down(KEY).exit_code == 0
    backend.close()


def test_without_a_lease_nothing_begins(tmp_path: Path):
    backend, ear, _ = leased(tmp_path)
    backend.launch([order(KEY, "sleep", "600")])
    assert ear.down(KEY).failure is FailureClass.NODE_LOST
    backend.close()


def test_a_machine_without_an_agent_has_no_lease(tmp_path: Path):
    backend, ear = LocalBackend(tmp_path, NodeSpec("n1"), LocalSettings(account=OWN, scan_ms=100)), Ear()
    backend.open(ear, 1)
    backend.launch([order(KEY, "sh", "-c", "sleep 0.5")])
    assert ear.down(KEY).exit_code == 0
    backend.close()
