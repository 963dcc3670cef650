"""The watch over a machine: what it tells, what it keeps, what it tries, and what it makes of ends of tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.core.cluster.resources import Gpu
from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass, Health
from corral.health.devices import DriverTimeout, SimulatedDevices
from corral.health.fault_injection import FaultCleared, InjectedFault, health_folder, write_clearings, write_drills
from corral.health.monitor import Monitor
from corral.health.readings import GpuReading, XidEvent
from corral.health.watched import WatchedBackend
from corral.runtime.base import DetailsReport, HealthReport, Phase, TaskKey, TaskReport
from corral.runtime.fake import FakeBackend, FakeScript
from corral.runtime.local.backend import LocalBackend
from corral.runtime.local.settings import LocalSettings
from corral.runtime.local.state_dir import TaskState
from corral.wire.health import HealthSettings
from tests.accounts import OWN
from tests.runtime.reports import Collector, now_ms, order, until

GPUS = tuple(Gpu(f"SIM-H100-{n}", "H100", 81_559) for n in range(3))
NODE = NodeSpec("n1", GPUS)
QUICK = HealthSettings(interval_ms=30, quiet_ms=50, probe_retry_ms=100, clock_jump_ms_max=0)
SLOW = replace(QUICK, quiet_ms=600_000)
Make = Callable[..., tuple[Monitor, Collector]]


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Make]:
    made: list[Monitor] = []

    def make(settings: HealthSettings = QUICK, **rest: object) -> tuple[Monitor, Collector]:
        monitor, collector = Monitor(NODE, tmp_path, settings, **rest), Collector()  # type: ignore[arg-type]
        made.append(monitor)
        monitor.begin(collector)
        return monitor, collector

    yield make
    for monitor in made:
        monitor.close()


def told(collector: Collector, gpu: int | None) -> list[tuple[Health, str]]:
    return [(r.health, r.why) for r in collector.heard if isinstance(r, HealthReport) and r.gpu == gpu]


def until_told(collector: Collector, gpu: int | None, health: Health) -> str:
    until(lambda: bool(told(collector, gpu)) and told(collector, gpu)[-1][0] is health)
    return told(collector, gpu)[-1][1]


def test_it_begins_by_saying_how_everything_stands_and_says_nothing_twice(watch):
    monitor, collector = watch()
    until(lambda: any(isinstance(r, DetailsReport) for r in collector.heard))
    assert [(r.gpu, r.health) for r in monitor.observations()] == [(n, Health.HEALTHY) for n in (None, 0, 1, 2)]
    monitor.take(monitor.look())
    assert [len(told(collector, n)) for n in (None, 0, 1, 2)] == [1, 1, 1, 1]
    assert monitor.details is not None
    assert len(monitor.details.gpus) == 3


def test_a_sick_gpu_is_reported_kept_over_a_restart_and_tried_before_it_comes_back(watch, tmp_path):
    monitor, collector = watch()
    write_drills(health_folder(tmp_path), {1: InjectedFault(vanished=True)})
    assert until_told(collector, 1, Health.FAILED).startswith("the driver can no longer reach")
    monitor.close()
    _, collector = watch()
    assert told(collector, 1)[0][0] is Health.FAILED, "a restart forgives nothing"
    write_drills(health_folder(tmp_path), {1: InjectedFault(probe_fails=True)})
    until(lambda: told(collector, 1)[-1][1].startswith("a probe failed: simulated failure (drill); before: the driver"))
    write_drills(health_folder(tmp_path), {})
    assert until_told(collector, 1, Health.HEALTHY) == "a probe passed; before: the driver can no longer reach the GPU"
    assert len(told(collector, 0)) == 1


def test_a_gpu_in_use_is_not_tried(watch):
    monitor, collector = watch()
    monitor.occupancy.launched([order(TaskKey("1/main", 1, 0), "x", gpus=("SIM-H100-1",))])
    monitor.take([XidEvent("SIM-H100-1", 79, now_ms())])
    until_told(collector, 1, Health.FAILED)
    for _ in range(10):
        monitor.take(monitor.look())
        monitor.turn()
    assert told(collector, 1)[-1][0] is Health.FAILED
    monitor.occupancy.over(TaskKey("1/main", 1, 0))
    until_told(collector, 1, Health.HEALTHY)


def test_an_application_that_faults_is_no_ones_alarm_and_an_unknown_gpu_is_the_machines(watch):
    monitor, collector = watch(SLOW)
    monitor.take([XidEvent("SIM-H100-1", 31, now_ms())])
    assert told(collector, 1) == [(Health.HEALTHY, "")]
    monitor.take([XidEvent("", 79, now_ms())])
    assert until_told(collector, None, Health.SUSPECT).startswith("Xid 79")


def test_an_operator_clears_a_gpu_and_the_machine(watch, tmp_path):
    monitor, collector = watch(SLOW)
    monitor.take([XidEvent("SIM-H100-2", 79, now_ms()), XidEvent("", 79, now_ms())])
    folder = health_folder(tmp_path)
    write_clearings(
        folder, [FaultCleared(2, now_ms() + 1), FaultCleared(None, now_ms() + 2), FaultCleared(99, now_ms() + 3)]
    )
    assert until_told(collector, 2, Health.HEALTHY).startswith("cleared by an operator; before: Xid 79")
    until_told(collector, None, Health.HEALTHY)


def test_the_check_of_the_site_speaks_of_one_gpu(watch, tmp_path):
    check = tmp_path / "check"
    check.write_text("#!/bin/sh\necho gpu 2: not today\nexit 2\n")
    check.chmod(0o755)
    _, collector = watch(replace(SLOW, site_check=str(check)))
    assert until_told(collector, 2, Health.DRAINING) == "the site check: not today"
    assert told(collector, None) == [(Health.HEALTHY, "")]


class Stuck(SimulatedDevices):
    """A driver that does not answer until it is let go."""

    gate = threading.Event()

    def read(self) -> Sequence[GpuReading]:
        self.gate.wait(20)
        return super().read()


def test_a_driver_that_hangs_makes_the_machine_suspect_and_no_gpu(watch):
    devices = Stuck([gpu.uuid for gpu in GPUS])
    devices.gate = threading.Event()
    _, collector = watch(replace(QUICK, silence_ms_max=1_000), devices=devices)
    assert until_told(collector, None, Health.SUSPECT) == "the driver or the disk has not answered for more than 1 s"
    devices.gate.set()
    until_told(collector, None, Health.HEALTHY)
    assert all(len(told(collector, n)) == 1 for n in range(3))


class Mute(SimulatedDevices):
    def read(self) -> Sequence[GpuReading]:
        raise DriverTimeout("NVML does not answer: version mismatch")


def test_a_driver_that_cannot_be_asked_makes_the_machine_suspect_and_no_gpu(watch):
    _, collector = watch(devices=Mute([gpu.uuid for gpu in GPUS]))
    assert until_told(collector, None, Health.SUSPECT) == "NVML does not answer: version mismatch"
    assert all(len(told(collector, n)) == 1 for n in range(3))


def test_a_book_that_cannot_be_read_is_started_again(watch, tmp_path):
    health_folder(tmp_path).mkdir()
    (health_folder(tmp_path) / "book.json").write_text("{")
    _, collector = watch()
    until_told(collector, 0, Health.HEALTHY)


# ---- behind the seam -----------------------------------------------------------------------------------------------


def ran_on_gpus(folder: Path, users: int) -> tuple[WatchedBackend, Collector]:
    """Work of this many users, all of which fails on the first GPU and none on the second."""
    bad, good = FakeScript(runs_ms=0, exit_code=1, failure=FailureClass.GPU_FAULT), FakeScript(runs_ms=0)
    monitor, collector = Monitor(NODE, folder, SLOW), Collector()
    backend = WatchedBackend(FakeBackend([NODE], lambda asked: bad if GPUS[0].uuid in asked.gpus else good), monitor)
    backend.open(collector, 1)
    for n in range(24):
        key, gpu = TaskKey(f"{n}/main", 1, 0), GPUS[0 if n % 3 == 0 else 1].uuid
        backend.launch([order(key, "x", gpus=(gpu,), env=(("CORRAL_USER", f"u{n % users}"),))])
        collector.down(key)
    return backend, collector


def test_work_of_several_users_that_fails_on_one_gpu_only_makes_it_a_lemon_and_not_its_node(tmp_path):
    backend, collector = ran_on_gpus(tmp_path, users=4)
    assert until_told(collector, 0, Health.SUSPECT).startswith("jobs of 4 users hit machine faults here")
    assert [told(collector, n)[-1][0] for n in (None, 1, 2)] == [Health.HEALTHY] * 3
    backend.close()


def test_what_the_jobs_of_one_user_print_condemns_no_gpu(tmp_path):
    """Four jobs that print `ncclSystemError`, or forty."""
    backend, collector = ran_on_gpus(tmp_path, users=1)
    until_told(collector, 0, Health.HEALTHY)
    time.sleep(0.5)
    assert {health for health, _ in told(collector, 0)} == {Health.HEALTHY}
    backend.close()


def test_a_task_that_was_evicted_says_nothing_about_the_machine(tmp_path):
    monitor, collector = Monitor(NODE, tmp_path, SLOW), Collector()
    backend = WatchedBackend(FakeBackend([NODE], lambda _: FakeScript()), monitor)
    backend.open(collector, 1)
    key = TaskKey("1/main", 1, 0)
    backend.launch([order(key, "x", gpus=("SIM-H100-0",))])
    collector.up(key)
    assert monitor.occupancy.is_busy("SIM-H100-0")
    backend.kill(key)
    collector.down(key)
    assert not monitor.occupancy.is_busy("SIM-H100-0")
    assert monitor._records.ends == []
    backend.close()


def test_an_adopted_task_of_which_nothing_is_written_down_keeps_all_gpus_busy(tmp_path):
    monitor = Monitor(NODE, tmp_path, SLOW)
    backend = WatchedBackend(FakeBackend([NODE]), monitor)
    key = TaskKey("1/main", 1, 0)
    backend._note(TaskReport(key=key, phase=Phase.UP, at_ms=1, node="n1"))
    assert all(monitor.occupancy.is_busy(gpu.uuid) for gpu in GPUS)
    backend._note(TaskReport(key=key, phase=Phase.DOWN, at_ms=2, node="n1", exit_code=1))
    assert not any(monitor.occupancy.is_busy(gpu.uuid) for gpu in GPUS)
    assert monitor._records.ends == []


def test_a_task_launched_just_before_the_end_of_the_watch_keeps_its_own_gpus_busy(tmp_path):
    """It was in no book when the agent was killed: its report says which GPUs it has."""
    tasks = LocalBackend(tmp_path, NODE, LocalSettings(account=OWN, scan_ms=50))
    key = TaskKey("1/main", 1, 0)
    tasks.open(Collector(), 1)
    tasks.launch([order(key, "sleep", "60", gpus=(GPUS[1].uuid,))])
    state = TaskState(str(tmp_path / "tasks" / "state" / "1%2Fmain@1.0"))
    until(lambda: state.record().started() is not None)
    tasks.close()
    monitor, collector = Monitor(NODE, tmp_path, SLOW), Collector()
    backend = WatchedBackend(LocalBackend(tmp_path, NODE, LocalSettings(account=OWN, scan_ms=50)), monitor)
    backend.open(collector, 1)
    try:
        assert collector.up(key).gpus == (GPUS[1].uuid,)
        assert [monitor.occupancy.is_busy(gpu.uuid) for gpu in GPUS] == [False, True, False]
        backend.kill(key)
        assert collector.down(key).gpus == (GPUS[1].uuid,)
    finally:
        backend.close()


def test_an_end_that_is_reported_again_after_a_restart_is_not_judged_again(tmp_path):
    """It may have been evicted, which is not remembered."""
    script = FakeScript(exit_code=1, runs_ms=0)
    tasks = FakeBackend([NODE], lambda _: script)
    key = TaskKey("1/main", 1, 0)
    first = WatchedBackend(tasks, Monitor(NODE, tmp_path / "a", SLOW))
    collector = Collector()
    first.open(collector, 1)
    first.launch([order(key, "pretend", gpus=(GPUS[0].uuid,))])
    collector.down(key)
    first.close()
    again = Monitor(NODE, tmp_path / "b", SLOW)
    second = WatchedBackend(tasks, again)
    second.open(collector, 2)
    assert again._records.ends == []
    second.close()
