"""Restarts and losses: of the server, of the spawner, of a supervisor, of the machine. Tasks go on or are lost."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from corral.core.model import FailureClass
from corral.runtime.base import TaskKey
from corral.runtime.local.backend import LocalBackend
from corral.runtime.local.settings import LocalSettings
from corral.runtime.local.state_dir import StartRecord
from corral.runtime.local.task.cgroups import detect
from tests.accounts import OWN
from tests.runtime.local_backend import IS_ROOT, NODE, Harness, is_alive
from tests.runtime.reports import Collector, now_ms, until

needs_cgroups = pytest.mark.skipif(not IS_ROOT, reason="cgroups need root")

SERVER = """
import sys, time
from pathlib import Path
from corral.runtime.base import TaskKey, TaskOrder
from corral.runtime.local.backend import LocalBackend
from corral.runtime.local.settings import LocalSettings
from corral.core.cluster.topology import NodeSpec
backend = LocalBackend(Path(sys.argv[1]), NodeSpec("n1"), LocalSettings(account=sys.argv[2]))
backend.open(lambda report: print(report.phase, flush=True), 1)
script = "trap 'exit 85' TERM; echo ready; while :; do sleep 0.02; done"
backend.launch([TaskOrder(key=TaskKey("1/main", 1, 0), epoch=1, node="n1", command=("sh", "-c", script))])
time.sleep(600)
"""


def started(harness: Harness, key: TaskKey) -> StartRecord:
    harness.collector.up(key)
    return harness.started(key)


def test_a_killed_server_takes_no_task_with_it(tmp_path: Path):
    server = subprocess.Popen([sys.executable, "-c", SERVER, tmp_path, OWN], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "up\n"
    server.kill()
    server.wait()
    server.stdout.close()
    key, collector = TaskKey("1/main", 1, 0), Collector()
    backend = LocalBackend(tmp_path, NODE, LocalSettings(account=OWN))
    backend.open(collector, 2)
    collector.up(key)
    until(lambda: backend.read_log(key, "stdout", 0, 100).data == b"ready\n")  # type: ignore[union-attr]
    backend.warn(key, now_ms() + 60_000, "drain")
    assert collector.down(key).exit_code == 85
    backend.close()


def test_a_supervisor_that_was_killed_is_reported_as_a_loss_and_nothing_of_its_task_is_left(
    harness: Harness, tmp_path: Path
):
    other = harness.launch("sleep", "600")
    key = harness.sh(f"setsid sleep 600 & echo $! > {tmp_path}/pid; echo ready; wait")
    harness.says(key, "ready")
    record = started(harness, key)
    os.kill(record.supervisor, signal.SIGKILL)
    down = harness.collector.down(key)
    assert down.failure is FailureClass.NODE_LOST
    assert f"process {record.supervisor}" in down.why
    for pid in [*record.pids, int((tmp_path / "pid").read_text())]:
        assert not is_alive(pid)
    assert is_alive(started(harness, other).pids[0])
    assert len(harness.collector.of(other)) == 1


def test_a_supervisor_killed_while_there_was_no_server_is_reported_to_the_next(harness: Harness):
    key = harness.launch("sleep", "600", memory_mib=100)
    record = started(harness, key)
    harness.backend.close()
    os.kill(record.supervisor, signal.SIGKILL)
    harness.open()
    assert harness.collector.down(key).failure is FailureClass.NODE_LOST
    assert not is_alive(record.pids[0])


def test_what_holds_gpus_dies_with_its_supervisor_also_when_no_one_is_there_to_see_it(harness: Harness):
    key = harness.launch("sleep", "600", gpus=("SIM-1",))
    record = started(harness, key)
    harness.backend.close()
    os.kill(record.supervisor, signal.SIGKILL)
    until(lambda: not is_alive(record.pids[0]))


def test_a_restart_of_the_machine_is_reported_as_a_loss(harness: Harness):
    key = harness.launch("sleep", "600")
    record = started(harness, key)
    harness.backend.close()
    os.kill(record.supervisor, signal.SIGKILL)
    os.kill(record.pids[0], signal.SIGKILL)
    boot, file = harness.ordered(key).boot, harness.state(key) / "record"
    file.write_text(file.read_text().replace(boot, "another"))
    harness.open()
    down = harness.collector.down(key)
    assert (down.failure, down.why) == (FailureClass.NODE_LOST, "the machine was restarted while the task ran")


def test_a_state_directory_that_no_onesupervised_is_a_failed_start(harness: Harness):
    key = harness.launch("sleep", "600")
    record = started(harness, key)
    harness.backend.close()
    os.kill(record.supervisor, signal.SIGKILL)
    file = harness.state(key) / "record"
    file.write_bytes(file.read_bytes().partition(b"started ")[0])
    harness.open()
    assert harness.collector.down(key).failure is FailureClass.START_FAILED
    until(lambda: not is_alive(record.pids[0]))


def test_what_was_torn_by_a_power_failure_is_as_if_it_had_not_been_written(harness: Harness):
    key = harness.launch("true")
    harness.collector.down(key)
    harness.backend.close()
    file = harness.state(key) / "record"
    file.write_bytes(file.read_bytes()[:-9])
    torn = harness.state(TaskKey("99/main", 1, 0))
    torn.mkdir()
    (torn / "record").write_bytes(b'order {"order"')
    harness.open()
    assert harness.collector.down(key).failure is FailureClass.NODE_LOST
    assert harness.backend.known() == [key]
    assert not torn.exists()


def test_a_lost_spawner_is_replaced(harness: Harness):
    key = harness.launch("sleep", "600")
    started(harness, key)
    lock = (harness.data / "run" / "spawner.lock").stat()
    os.kill(_holder(lock.st_ino), signal.SIGKILL)
    until(lambda: _holder(lock.st_ino) != 0)
    assert harness.ran("echo again")[1] == "again\n"
    assert len(harness.collector.of(key)) == 1
    assert is_alive(started(harness, key).pids[0])


def _holder(inode: int) -> int:
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
            return int(fields[4])
    return 0


def test_an_idle_supervisor_that_was_killed_is_not_given_a_task(harness: Harness):
    for _ in range(3):
        key = harness.launch("true")
        supervisor = started(harness, key).supervisor
        harness.collector.down(key)
        os.kill(supervisor, signal.SIGKILL)
        until(partial(_is_dead, supervisor))
        assert harness.ran("echo next")[1] == "next\n"


def _is_dead(pid: int) -> bool:
    return not is_alive(pid)


def test_lost_news_are_found_by_looking(harness: Harness):
    key = harness.launch("sleep", "0.3")
    harness.collector.up(key)
    harness.backend.close()
    (harness.data / "run" / "news").unlink()
    os.mkfifo(harness.data / "run" / "news")  # where no process listens
    harness.open()
    (harness.data / "run" / "news").unlink()
    assert harness.collector.down(key).exit_code == 0


def test_many_tasks_end_while_there_is_no_server(harness: Harness):
    keys = [harness.sh(f"sleep 0.2; exit {n}") for n in range(20)]
    for key in keys:
        harness.collector.up(key)
    harness.backend.close()
    time.sleep(0.3)
    harness.open()
    assert [harness.collector.down(key).exit_code for key in keys] == list(range(20))


@needs_cgroups
def test_leftovers_of_no_task_are_swept(harness: Harness):
    layout = harness.backend._site.layout
    harness.backend.close()
    for folder in layout.folders():
        (Path(folder) / "left-over").mkdir(parents=True)
    left = Path(harness.backend._site.scratch) / "left-over"
    left.mkdir(parents=True)
    (left / "file").touch()
    harness.open()
    assert not left.exists()
    assert not [folder for folder in layout.folders() if (Path(folder) / "left-over").exists()]


def test_forgetting_leaves_nothing_but_the_log(harness: Harness):
    key = harness.sh("echo hello; exit 1", memory_mib=100)
    harness.collector.down(key)
    groups = harness.ordered(key).cgroups.values()
    harness.backend.forget(key)
    until(lambda: not harness.state(key).exists())
    until(lambda: not [group for group in groups if Path(group).exists()])
    assert harness.log(key) == "hello\n"


def test_the_place_of_private_directories_may_be_cleaned_away(harness: Harness):
    os.rmdir(harness.backend._site.scratch)
    assert harness.ran("echo $TMPDIR")[1].startswith(harness.backend._site.scratch)


@pytest.mark.skipif(not IS_ROOT, reason="only root can play another account")
def test_the_place_of_private_directories_must_be_ours(harness: Harness):
    os.chown(harness.backend._site.scratch, 65534, -1)
    down, _ = harness.ran("true")
    assert down.failure is FailureClass.START_FAILED
    assert "belongs to another account" in down.why
    os.chown(harness.backend._site.scratch, 0, -1)


def test_closing_leaves_nothing_on_the_machine_but_what_runs(harness: Harness):
    places = [*harness.backend._site.layout.folders(), harness.backend._site.scratch]
    key = harness.launch("sleep", "600", cpu_milli=100)
    harness.collector.up(key)
    harness.ran("true")
    harness.backend.close()
    assert Path(places[-1]).exists()
    harness.open()
    harness.backend.kill(key)
    harness.collector.down(key)
    until(lambda: not list(Path(places[-1]).glob("*")))
    harness.backend.close()
    harness.open()
    harness.backend.close()
    assert not [place for place in places if Path(place).exists()]
    harness.open()


# --- limits ---------------------------------------------------------------------------------------------------------


@needs_cgroups
def test_limits_are_in_force_and_what_is_not_is_said(harness: Harness):
    key = harness.launch("sleep", "600", memory_mib=100, cpu_milli=1500)
    report = harness.collector.up(key)
    record = harness.ordered(key)
    layout = detect("corral-test-unused")
    for folder in layout.folders():
        os.rmdir(folder)
    assert {text.split(":")[0] for text in report.unenforced} == set(layout.unenforced)
    groups = record.cgroups
    assert set(groups) == set(layout.parents)
    if "memory" in groups:
        name = "memory.limit_in_bytes" if record.cgroup_version == 1 else "memory.max"
        assert (Path(groups["memory"]) / name).read_text().strip() == str(100 << 20)
    if "cpu" in groups:
        name, value = ("cpu.shares", "1536") if record.cgroup_version == 1 else ("cpu.weight", "150")
        assert (Path(groups["cpu"]) / name).read_text().strip() == value


@needs_cgroups
def test_the_weight_of_a_task_without_a_group_of_its_own_does_not_pass_to_the_next(harness: Harness):
    layout = harness.backend._site.layout
    if "cpu" not in layout.parents:
        pytest.skip("this machine does not allow CPU weights")
    name = "cpu.shares" if layout.version == 1 else "cpu.weight"
    show = f"cat {layout.parents['cpu']}/worker-$PPID/{name}"
    heavy, light = ("1536", "1024") if layout.version == 1 else ("150", "100")
    assert harness.ran(show, cpu_milli=1500)[1].strip() == heavy
    assert harness.ran(show)[1].strip() == light


@needs_cgroups
def test_a_quota_holds_also_when_no_other_wants_the_cpu(tmp_path: Path):
    harness = Harness(tmp_path, has_cpu_quota=True)
    spin = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
    key = harness.python(spin, cpu_milli=200)
    report = harness.collector.up(key)
    harness.collector.down(key)
    if not any(text.startswith("cpu") for text in report.unenforced):
        assert float(harness.log(key)) < 0.6
    harness.close()


def test_without_cgroups_every_limit_is_said_to_be_unenforced(tmp_path: Path, monkeypatch):
    def nothing(name: str):
        from corral.runtime.local.task.cgroups import Layout

        layout = Layout()
        layout.unenforced = dict.fromkeys(("memory", "cpu", "pids"), "none here")
        return layout

    monkeypatch.setattr("corral.runtime.local.backend.detect", nothing)
    harness = Harness(tmp_path)
    key = harness.sh("setsid sleep 600 & echo $!; wait", memory_mib=100)
    harness.says(key, "\n")
    assert harness.collector.up(key).unenforced == ("memory: none here", "pids: none here")
    record = started(harness, key)
    os.kill(record.supervisor, signal.SIGKILL)
    assert harness.collector.down(key).failure is FailureClass.NODE_LOST
    assert not is_alive(int(harness.log(key))), "found by its environment"
    harness.close()
