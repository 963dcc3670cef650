"""Restarts and losses: of the server, of the spawner, of a supervisor, of the machine. Tasks go on or are told lost."""

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
from tests.runtime.local_ground import IS_ROOT, NODE, Ground, is_alive
from tests.runtime.telling import Ear, now_ms, until

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


def started(ground: Ground, key: TaskKey) -> StartRecord:
    ground.ear.up(key)
    return ground.started(key)


def test_a_killed_server_takes_no_task_with_it(tmp_path: Path):
    server = subprocess.Popen([sys.executable, "-c", SERVER, tmp_path, OWN], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "up\n"
    server.kill()
    server.wait()
    server.stdout.close()
    key, ear = TaskKey("1/main", 1, 0), Ear()
    backend = LocalBackend(tmp_path, NODE, LocalSettings(account=OWN))
    backend.open(ear, 2)
    ear.up(key)
    until(lambda: backend.read_log(key, "stdout", 0, 100).data == b"ready\n")  # type: ignore[union-attr]
    backend.warn(key, now_ms() + 60_000, "drain")
    assert ear.down(key).exit_code == 85
    backend.close()


def test_a_supervisor_that_was_killed_is_told_as_a_loss_and_nothing_of_its_task_is_left(ground: Ground, tmp_path: Path):
    other = ground.launch("sleep", "600")
    key = ground.sh(f"setsid sleep 600 & echo $! > {tmp_path}/pid; echo ready; wait")
    ground.says(key, "ready")
    record = started(ground, key)
    os.kill(record.supervisor, signal.SIGKILL)
    down = ground.ear.down(key)
    assert down.failure is FailureClass.NODE_LOST
    assert f"process {record.supervisor}" in down.why
    for pid in [*record.pids, int((tmp_path / "pid").read_text())]:
        assert not is_alive(pid)
    assert is_alive(started(ground, other).pids[0])
    assert len(ground.ear.of(other)) == 1


def test_a_supervisor_killed_while_there_was_no_server_is_told_to_the_next(ground: Ground):
    key = ground.launch("sleep", "600", memory_mib=100)
    record = started(ground, key)
    ground.backend.close()
    os.kill(record.supervisor, signal.SIGKILL)
    ground.open()
    assert ground.ear.down(key).failure is FailureClass.NODE_LOST
    assert not is_alive(record.pids[0])


def test_what_holds_gpus_dies_with_its_supervisor_also_when_nobody_is_there_to_see_it(ground: Ground):
    key = ground.launch("sleep", "600", gpus=("SIM-1",))
    record = started(ground, key)
    ground.backend.close()
    os.kill(record.supervisor, signal.SIGKILL)
    until(lambda: not is_alive(record.pids[0]))


def test_a_restart_of_the_machine_is_told_as_a_loss(ground: Ground):
    key = ground.launch("sleep", "600")
    record = started(ground, key)
    ground.backend.close()
    os.kill(record.supervisor, signal.SIGKILL)
    os.kill(record.pids[0], signal.SIGKILL)
    boot, file = ground.ordered(key).boot, ground.state(key) / "record"
    file.write_text(file.read_text().replace(boot, "another"))
    ground.open()
    down = ground.ear.down(key)
    assert (down.failure, down.why) == (FailureClass.NODE_LOST, "the machine was restarted while the task ran")


def test_a_state_directory_that_nobody_supervised_is_a_failed_start(ground: Ground):
    key = ground.launch("sleep", "600")
    record = started(ground, key)
    ground.backend.close()
    os.kill(record.supervisor, signal.SIGKILL)
    file = ground.state(key) / "record"
    file.write_bytes(file.read_bytes().partition(b"started ")[0])
    ground.open()
    assert ground.ear.down(key).failure is FailureClass.START_FAILED
    until(lambda: not is_alive(record.pids[0]))


def test_what_was_torn_by_a_power_failure_is_as_if_it_had_not_been_written(ground: Ground):
    key = ground.launch("true")
    ground.ear.down(key)
    ground.backend.close()
    file = ground.state(key) / "record"
    file.write_bytes(file.read_bytes()[:-9])
    torn = ground.state(TaskKey("99/main", 1, 0))
    torn.mkdir()
    (torn / "record").write_bytes(b'order {"order"')
    ground.open()
    assert ground.ear.down(key).failure is FailureClass.NODE_LOST
    assert ground.backend.known() == [key]
    assert not torn.exists()


def test_a_lost_spawner_is_replaced(ground: Ground):
    key = ground.launch("sleep", "600")
    started(ground, key)
    lock = (ground.data / "run" / "spawner.lock").stat()
    os.kill(_holder(lock.st_ino), signal.SIGKILL)
    until(lambda: _holder(lock.st_ino) != 0)
    assert ground.ran("echo again")[1] == "again\n"
    assert len(ground.ear.of(key)) == 1
    assert is_alive(started(ground, key).pids[0])


def _holder(inode: int) -> int:
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
            return int(fields[4])
    return 0


def test_an_idle_supervisor_that_was_killed_is_not_given_a_task(ground: Ground):
    for _ in range(3):
        key = ground.launch("true")
        supervisor = started(ground, key).supervisor
        ground.ear.down(key)
        os.kill(supervisor, signal.SIGKILL)
        until(partial(_is_dead, supervisor))
        assert ground.ran("echo next")[1] == "next\n"


def _is_dead(pid: int) -> bool:
    return not is_alive(pid)


def test_lost_news_are_found_by_looking(ground: Ground):
    key = ground.launch("sleep", "0.3")
    ground.ear.up(key)
    ground.backend.close()
    (ground.data / "run" / "news").unlink()
    os.mkfifo(ground.data / "run" / "news")  # where nobody listens
    ground.open()
    (ground.data / "run" / "news").unlink()
    assert ground.ear.down(key).exit_code == 0


def test_many_tasks_end_while_there_is_no_server(ground: Ground):
    keys = [ground.sh(f"sleep 0.2; exit {n}") for n in range(20)]
    for key in keys:
        ground.ear.up(key)
    ground.backend.close()
    time.sleep(0.3)
    ground.open()
    assert [ground.ear.down(key).exit_code for key in keys] == list(range(20))


@needs_cgroups
def test_leftovers_of_no_task_are_swept(ground: Ground):
    layout = ground.backend._site.layout
    ground.backend.close()
    for folder in layout.folders():
        (Path(folder) / "left-over").mkdir(parents=True)
    left = Path(ground.backend._site.scratch) / "left-over"
    left.mkdir(parents=True)
    (left / "file").touch()
    ground.open()
    assert not left.exists()
    assert not [folder for folder in layout.folders() if (Path(folder) / "left-over").exists()]


def test_forgetting_leaves_nothing_but_the_log(ground: Ground):
    key = ground.sh("echo hello; exit 1", memory_mib=100)
    ground.ear.down(key)
    groups = ground.ordered(key).cgroups.values()
    ground.backend.forget(key)
    until(lambda: not ground.state(key).exists())
    until(lambda: not [group for group in groups if Path(group).exists()])
    assert ground.log(key) == "hello\n"


def test_the_place_of_private_directories_may_be_cleaned_away(ground: Ground):
    os.rmdir(ground.backend._site.scratch)
    assert ground.ran("echo $TMPDIR")[1].startswith(ground.backend._site.scratch)


@pytest.mark.skipif(not IS_ROOT, reason="only root can play another account")
def test_the_place_of_private_directories_must_be_ours(ground: Ground):
    os.chown(ground.backend._site.scratch, 65534, -1)
    down, _ = ground.ran("true")
    assert down.failure is FailureClass.START_FAILED
    assert "belongs to another account" in down.why
    os.chown(ground.backend._site.scratch, 0, -1)


def test_closing_leaves_nothing_on_the_machine_but_what_runs(ground: Ground):
    places = [*ground.backend._site.layout.folders(), ground.backend._site.scratch]
    key = ground.launch("sleep", "600", cpu_milli=100)
    ground.ear.up(key)
    ground.ran("true")
    ground.backend.close()
    assert Path(places[-1]).exists()
    ground.open()
    ground.backend.kill(key)
    ground.ear.down(key)
    until(lambda: not list(Path(places[-1]).glob("*")))
    ground.backend.close()
    ground.open()
    ground.backend.close()
    assert not [place for place in places if Path(place).exists()]
    ground.open()


# --- limits ---------------------------------------------------------------------------------------------------------


@needs_cgroups
def test_limits_are_in_force_and_what_is_not_is_said(ground: Ground):
    key = ground.launch("sleep", "600", memory_mib=100, cpu_milli=1500)
    report = ground.ear.up(key)
    record = ground.ordered(key)
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
def test_the_weight_of_a_task_without_a_group_of_its_own_does_not_pass_to_the_next(ground: Ground):
    layout = ground.backend._site.layout
    if "cpu" not in layout.parents:
        pytest.skip("this machine lets nobody weigh CPUs")
    name = "cpu.shares" if layout.version == 1 else "cpu.weight"
    show = f"cat {layout.parents['cpu']}/worker-$PPID/{name}"
    heavy, light = ("1536", "1024") if layout.version == 1 else ("150", "100")
    assert ground.ran(show, cpu_milli=1500)[1].strip() == heavy
    assert ground.ran(show)[1].strip() == light


@needs_cgroups
def test_a_quota_holds_also_when_nobody_else_wants_the_cpu(tmp_path: Path):
    ground = Ground(tmp_path, has_cpu_quota=True)
    spin = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
    key = ground.python(spin, cpu_milli=200)
    report = ground.ear.up(key)
    ground.ear.down(key)
    if not any(text.startswith("cpu") for text in report.unenforced):
        assert float(ground.log(key)) < 0.6
    ground.close()


def test_without_cgroups_every_limit_is_said_to_be_unenforced(tmp_path: Path, monkeypatch):
    def nothing(name: str):
        from corral.runtime.local.task.cgroups import Layout

        layout = Layout()
        layout.unenforced = dict.fromkeys(("memory", "cpu", "pids"), "none here")
        return layout

    monkeypatch.setattr("corral.runtime.local.backend.detect", nothing)
    ground = Ground(tmp_path)
    key = ground.sh("setsid sleep 600 & echo $!; wait", memory_mib=100)
    ground.says(key, "\n")
    assert ground.ear.up(key).unenforced == ("memory: none here", "pids: none here")
    record = started(ground, key)
    os.kill(record.supervisor, signal.SIGKILL)
    assert ground.ear.down(key).failure is FailureClass.NODE_LOST
    assert not is_alive(int(ground.log(key))), "found by its environment"
    ground.close()
