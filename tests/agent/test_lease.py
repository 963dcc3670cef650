"""Leases: on the server with a clock that is moved by hand, and in supervisors with real processes."""

from pathlib import Path

import pytest

from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass
from corral.remote.leases import Leases, LeaseStatus
from corral.remote.messages import LeaseAnswer, Renewal
from corral.remote.settings import RemoteSettings
from corral.runtime.base import Phase, TaskKey
from corral.runtime.local.backend import LocalBackend
from corral.runtime.local.settings import LocalSettings
from corral.runtime.local.state_dir import TaskState
from corral.runtime.local.task import lease
from tests.accounts import OWN
from tests.runtime.reports import Collector, order, until

SETTINGS = RemoteSettings(lease_ms=8_000, margin_ms=2_000, stall_ms=1_000)
KEY = TaskKey("1/main", 1, 0)


FOR_EVER_MS, EPOCH = 1 << 60, 5


def table(*nodes: str, now_ms: int = 0, settings: RemoteSettings = SETTINGS) -> Leases:
    """With the right to extend leases for ever, and the state loaded."""
    leases = Leases(settings, EPOCH)
    leases.delegate(FOR_EVER_MS)
    leases.begin({node: LeaseStatus() for node in nodes}, now_ms)
    return leases


def renewed(leases: Leases, now_ms: int, node: str = "n1", **rest: int) -> LeaseAnswer:
    return leases.renew(node, Renewal(**{"seq": 1, "epoch": EPOCH, **rest}), now_ms)


def swept(leases: Leases, from_ms: int, to_ms: int) -> dict[str, int]:
    """Who was given up when, with a look every 250 ms."""
    return {node: now for now in range(from_ms, to_ms + 1, 250) for node, _ in leases.sweep(now)}


def test_a_silent_node_is_given_up_after_its_lease_and_the_margin_and_once():
    assert swept(table("n1"), 0, 60_000) == {"n1": 10_250}


def test_a_node_that_renews_is_not_given_up():
    leases = table("n1")
    for now in range(0, 60_000, 250):
        if now % 2_000 == 0:
            assert renewed(leases, now).lease_ms == 8_000
        assert leases.sweep(now) == []


def test_a_node_whose_lease_is_over_gets_none_until_the_leader_takes_it_back():
    leases = table("n1")
    assert swept(leases, 0, 11_000) == {"n1": 10_250}
    waits = renewed(leases, 11_000)
    assert (waits.lease_ms, waits.is_gone) == (0, False), "the leader has not said yet that it is given up"
    leases.admit("n1", LeaseStatus(1, True), 11_100)
    gone = renewed(leases, 11_200)
    assert (gone.lease_ms, gone.is_gone, gone.term) == (0, True, 1)
    leases.admit("n1", LeaseStatus(1), 11_300)
    assert renewed(leases, 11_400, term=1).lease_ms == 8_000


def test_a_lease_that_has_run_out_is_not_extended_though_no_one_has_looked_yet():
    leases = table("n1")
    leases.sweep(9_900)
    assert renewed(leases, 10_001).lease_ms == 0
    assert leases.sweep(10_100) == [("n1", 0)]


def test_a_stalled_server_does_not_blame_the_nodes():
    leases = table("n1")
    swept(leases, 0, 7_000)
    assert leases.sweep(67_000) == [], "it was asleep itself"
    assert swept(leases, 67_250, 90_000) == {"n1": 77_250}, "and then every node has a whole lease"


def test_who_renews_before_the_first_look_after_a_stall_has_a_lease():
    leases = table("n1")
    swept(leases, 0, 7_000)
    assert renewed(leases, 67_000).lease_ms == 8_000


def test_an_answer_never_shortens_a_lease():
    leases = table("n1", now_ms=5_000)
    renewed(leases, 1_000)
    assert swept(leases, 5_000, 30_000) == {"n1": 15_250}


def test_without_the_right_of_the_leader_no_lease_is_extended_and_no_one_is_blamed():
    leases = table("n1")
    leases.delegate(5_000)
    assert renewed(leases, 4_999).lease_ms == 8_000
    assert renewed(leases, 5_000).lease_ms == 0
    assert swept(leases, 0, 90_000) == {}
    leases.delegate(FOR_EVER_MS)
    assert swept(leases, 90_250, 110_000) == {"n1": 100_500}, "a whole lease from when it could be renewed again"


def test_a_deposed_leader_extends_nothing():
    assert renewed(table("n1"), 1_000, epoch=EPOCH + 1).lease_ms == 0


def test_before_the_state_is_loaded_only_running_leases_are_extended():
    leases = Leases(SETTINGS, EPOCH, frozenset({"gone"}))
    leases.delegate(FOR_EVER_MS)
    running = renewed(leases, 0, epoch=EPOCH - 1, term=3, left_ms=1)
    assert (running.lease_ms, running.epoch, running.term) == (8_000, EPOCH, 0)
    for node, left_ms in (("n2", 0), ("gone", 5_000)):
        waits = renewed(leases, 0, node, left_ms=left_ms)
        assert (waits.lease_ms, waits.is_gone) == (0, False)
    assert swept(leases, 0, 60_000) == {}, "no node is given up"
    leases.begin({"n1": LeaseStatus(), "n2": LeaseStatus(), "gone": LeaseStatus(0, True)}, 60_000)
    assert renewed(leases, 60_100, "gone").is_gone
    assert renewed(leases, 60_100, "n2").lease_ms == 8_000
    assert swept(leases, 60_250, 80_000) == {"n1": 70_250, "n2": 70_250}


def test_what_an_earlier_server_granted_is_honoured():
    """A farewell lease is longer than others; its agent says how much of it is left, and may not say anything."""
    leases = table("n1")
    renewed(leases, 0, left_ms=40_000)
    assert swept(leases, 0, 90_000) == {"n1": 42_250}
    leases = table("n1")
    renewed(leases, 0, left_ms=10**15)
    assert swept(leases, 0, 90_000) == {"n1": 62_250}, "no longer than a farewell"


def test_a_node_that_was_not_known_may_still_have_the_farewell_of_the_last_server():
    leases = Leases(SETTINGS, EPOCH)
    leases.delegate(FOR_EVER_MS)
    renewed(leases, 0, "heard", left_ms=5_000)
    leases.begin({"heard": LeaseStatus(), "silent": LeaseStatus()}, 1_000, farewell_ms=60_000)
    assert swept(leases, 1_000, 90_000) == {"heard": 11_250, "silent": 63_250}


def test_an_agent_that_has_lost_its_memory_hears_of_the_present_first():
    leases = table("n1")
    assert renewed(leases, 0).lease_ms == 8_000
    old = renewed(leases, 100, epoch=EPOCH - 1)
    assert (old.lease_ms, old.epoch) == (0, EPOCH)
    assert renewed(leases, 200).lease_ms == 8_000


def test_a_stop_leaves_a_farewell_lease_behind_and_nothing_after_it():
    leases = table("n1")
    leases.say_farewell(60_000)
    assert renewed(leases, 0).lease_ms == 60_000
    leases.delegate(0)
    assert renewed(leases, 1).lease_ms == 0


# ---- on the machine --------------------------------------------------------------------------------------


def test_a_lease_of_another_boot_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The clock begins again with the boot: the moment that was meant may come days later, or never."""
    path, other = str(tmp_path / "lease"), tmp_path / "boot_id"
    lease.write(path, lease.now_ms() + 10**9)
    assert lease.TaskLease(path).left_ms()
    other.write_text("11111111-2222-3333-4444-555555555555\n")
    monkeypatch.setattr(lease, "_BOOT_ID", str(other))
    assert lease.read(path) == 0
    assert lease.TaskLease(path).left_ms() == 0
    lease.write(path, lease.now_ms() + 10**9)
    assert lease.TaskLease(path).left_ms()


def test_a_lease_that_does_not_say_of_which_boot_it_is_counts_as_over(tmp_path: Path):
    """As earlier versions wrote it."""
    path = tmp_path / "lease"
    path.write_bytes(str(lease.now_ms() + 10**9).encode())
    assert lease.read(str(path)) == 0
    assert lease.TaskLease(str(path)).left_ms() == 0


def test_supervisors_of_earlier_versions_can_read_a_lease(tmp_path: Path):
    path = tmp_path / "lease"
    lease.write(str(path), 123_456)
    assert int(path.read_bytes()[:32]) == 123_456


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (RemoteSettings(), ""),
        (RemoteSettings(lease_ms=3_000, heartbeat_ms=2_000), "three heartbeats"),
        (RemoteSettings(margin_ms=100), "margin"),
    ],
)
def test_settings_that_cannot_work_are_reported(settings: RemoteSettings, fault: str):
    assert fault in settings.fault()
    assert bool(fault) == bool(settings.fault())


def leased(data: Path) -> tuple[LocalBackend, Collector, str]:
    backend, collector = (
        LocalBackend(data, NodeSpec("n1"), LocalSettings(account=OWN, scan_ms=100, has_lease=True)),
        Collector(),
    )
    backend.open(collector, 1)
    return backend, collector, str(data / "run" / lease.LEASE)


def test_a_task_ends_by_itself_when_the_lease_passes_even_if_no_one_is_there(tmp_path: Path):
    backend, collector, file = leased(tmp_path)
    lease.write(file, lease.now_ms() + 1_500)
    backend.launch([order(KEY, "sleep", "600")])
    up = collector.up(KEY)
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
    backend, collector, file = leased(tmp_path)
    lease.write(file, lease.now_ms() + 600)
    backend.launch([order(KEY, "sh", "-c", "sleep 2; echo done")])
    collector.up(KEY)
    while not [r for r in collector.heard if getattr(r, "phase", None) is Phase.DOWN]:
        lease.write(file, lease.now_ms() + 600)
        until(lambda: lease.read(file) - lease.now_ms() < 400)
    assert collector.down(KEY).exit_code == 0
    backend.close()


def test_without_a_lease_nothing_begins(tmp_path: Path):
    backend, collector, _ = leased(tmp_path)
    backend.launch([order(KEY, "sleep", "600")])
    assert collector.down(KEY).failure is FailureClass.NODE_LOST
    backend.close()


def test_a_machine_without_an_agent_has_no_lease(tmp_path: Path):
    backend, collector = LocalBackend(tmp_path, NodeSpec("n1"), LocalSettings(account=OWN, scan_ms=100)), Collector()
    backend.open(collector, 1)
    backend.launch([order(KEY, "sh", "-c", "sleep 0.5")])
    assert collector.down(KEY).exit_code == 0
    backend.close()
