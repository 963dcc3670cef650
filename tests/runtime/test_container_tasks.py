"""Containers on a real Podman: what they are given, how they are limited, how they end, and what is told of that."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.core.model import FailureClass
from corral.core.work import EarlySignal, Mount
from corral.runtime.base import TaskKey
from tests.runtime.container_ground import ContainerGround
from tests.runtime.local_ground import is_alive, processes
from tests.runtime.podman import IMAGE, Podman
from tests.runtime.telling import now_ms, until

#: Grows without end, in the shell itself.
HUNGRY = "x=0123456789abcdef; while :; do x=$x$x; done"


@pytest.fixture
def ground(tmp_path: Path, podman: Podman) -> Iterator[ContainerGround]:
    ground = ContainerGround(tmp_path, podman)
    yield ground
    ground.close()
    until(lambda: not ground.names())


# --- what it is given ------------------------------------------------------------------------------------------------


def test_it_runs_in_the_image_and_is_labelled(ground: ContainerGround):
    key = ground.sh("ls /; echo ready; sleep 600")
    ground.says(key, "ready")
    assert ground.log(key).split()[:3] == ["bin", "corral", "data"]
    (container,) = [c for c in ground.podman.containers() if c["Labels"].get("corral.gang") == key.gang]
    labels = container["Labels"]
    assert {name: labels[f"corral.{name}"] for name in ("attempt", "task", "epoch")} == {
        "attempt": "1", "task": "0", "epoch": "1",
    }  # fmt: skip
    assert container["Names"][0].lstrip("/").startswith("corral-")


def test_its_environment_is_the_orders_and_not_the_servers(ground: ContainerGround, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FROM_THE_SERVER", "1")
    env = (("COLOUR", "red = 'dark'"), ("EMPTY", ""))
    _, said = ground.ran("env", env=env, gpus=("SIM-H100-0",), processes=processes({"RANK": "3"}))
    lines = said.splitlines()
    for line in ("COLOUR=red = 'dark'", "EMPTY=", "RANK=3", "TMPDIR=/tmp", "CORRAL_WARNING_FILE=/corral/warning.json"):
        assert line in lines
    assert "CUDA_VISIBLE_DEVICES=SIM-H100-0" in lines
    assert "CORRAL_SIMULATED_GPUS=1" in lines
    assert "NVIDIA_VISIBLE_DEVICES=void" in lines
    assert "FROM_THE_SERVER" not in said


def test_secrets_reach_it_and_are_in_no_label_log_or_file(ground: ContainerGround):
    key = ground.sh('test "${#TOKEN}" = 12 && echo it has it; sleep 600', secret_env=(("TOKEN", "s3cr3t-value"),))
    ground.says(key, "it has it")
    for container in ground.podman.containers():
        assert "s3cr3t-value" not in json.dumps(container["Labels"])
        assert "s3cr3t-value" not in json.dumps(container["Command"])
    for path in ground.data.rglob("*"):
        if path.is_file() and not path.is_fifo():
            assert b"s3cr3t-value" not in path.read_bytes(), path
    assert b"s3cr3t-value" not in (ground.podman.folder / "service.log").read_bytes()


def test_it_runs_as_the_account_in_a_place_it_can_write(ground: ContainerGround):
    down, said = ground.ran("id -u; id -g; echo x > $HOME/x && echo writes; echo $HOME", account="nobody")
    assert (down.exit_code, said) == (0, "65534\n65534\nwrites\n/tmp\n")


def test_privileges_cannot_be_gained(ground: ContainerGround):
    _, said = ground.ran("cat /proc/self/status", account="nobody")
    assert "NoNewPrivs:\t1" in said
    assert "CapEff:\t0000000000000000" in said


def test_mounts_show_what_they_name_and_can_be_read_only(ground: ContainerGround, tmp_path: Path):
    place = tmp_path / "shared"
    place.mkdir()
    (place / "in").write_text("from outside\n")
    mounts = (Mount(str(place), "/data"), Mount(str(place), "/fixed", read_only=True))
    script = "cat /fixed/in; echo back > /data/out; echo no > /fixed/out2 || echo read-only"
    down, said = ground.ran(script, mounts=mounts, directory="/data")
    assert said == "from outside\nread-only\n"
    assert (down.exit_code, (place / "out").read_text()) == (0, "back\n")
    assert not (place / "out2").exists()


@pytest.mark.parametrize(
    ("mount", "why"),
    [
        (Mount("/no/such/place", "/data"), "cannot be mounted for"),
        (Mount("/etc/../root", "/data"), "without '..'"),
        (Mount("relative", "/data"), "absolute paths"),
        (Mount("/etc", "/"), "nothing can be mounted on"),
        (Mount("/etc", "/proc/"), "nothing can be mounted on"),
    ],
)
def test_a_mount_that_cannot_be(ground: ContainerGround, mount: Mount, why: str):
    down, _ = ground.ran("true", mounts=(mount,))
    assert down.failure is FailureClass.USER_ERROR
    assert why in down.why


def test_only_what_the_site_allows_is_mounted(tmp_path: Path, podman: Podman):
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "link").symlink_to("/etc")
    ground = ContainerGround(tmp_path / "data", podman, mounts=(str(allowed),))
    good, _ = ground.ran("true", mounts=(Mount(str(allowed), "/data"),))
    outside, _ = ground.ran("true", mounts=(Mount("/etc", "/data"),))
    by_link, _ = ground.ran("true", mounts=(Mount(str(allowed / "link"), "/data"),))
    ground.close()
    assert good.exit_code == 0
    assert outside.failure is by_link.failure is FailureClass.USER_ERROR
    assert "may not be mounted" in outside.why
    assert "may not be mounted" in by_link.why


def test_output_goes_to_the_users_files_too(ground: ContainerGround, tmp_path: Path):
    ground.ran("echo out; echo err >&2", output=str(tmp_path / "o"), error=str(tmp_path / "e"))
    assert ((tmp_path / "o").read_text(), (tmp_path / "e").read_text()) == ("out\n", "err\n")


# --- limits ----------------------------------------------------------------------------------------------------------


def test_memory_processes_and_shared_memory_are_limited(tmp_path: Path, podman: Podman):
    ground = ContainerGround(tmp_path, podman, quota=True)
    key = ground.sh("df -k /dev/shm | tail -n 1; echo ready; sleep 600", memory_mib=96, cpu_milli=500)
    ground.says(key, "ready")
    assert ground.ear.up(key).unenforced == ()
    assert ground.log(key).split()[1] == str(96 * 1024)
    groups = dict(line.split(":")[1:] for line in Path(f"/proc/{ground.pid(key)}/cgroup").read_text().splitlines())
    wanted = {
        "memory": ("memory.limit_in_bytes", "memory.max", str(96 << 20)),
        "pids": ("pids.max", "pids.max", "100"),
        "cpu": ("cpu.cfs_quota_us", "cpu.max", "50000"),
    }
    for controller, (old, new, value) in wanted.items():
        found = Path(f"/sys/fs/cgroup/{controller}{groups[controller]}/{old}") if controller in groups else None
        path = found or Path(f"/sys/fs/cgroup{groups['']}/{new}")
        assert path.read_text().split()[0] == value
    ground.close()


def test_too_much_memory_is_told_as_such(ground: ContainerGround):
    down, _ = ground.ran(HUNGRY, memory_mib=32)
    assert (down.exit_code, down.failure) == (137, FailureClass.OUT_OF_MEMORY)
    assert "32 MiB" in down.why


def test_a_child_killed_for_memory_is_told_too(ground: ContainerGround):
    down, _ = ground.ran(f"sh -c '{HUNGRY}'; echo it is gone; exit 3", memory_mib=32)
    assert (down.exit_code, down.failure) == (3, FailureClass.OUT_OF_MEMORY)


def test_a_kill_is_not_taken_for_want_of_memory(ground: ContainerGround):
    key = ground.sh("echo ready; sleep 600", memory_mib=32)
    ground.says(key, "ready")
    ground.backend.kill(key)
    down = ground.ear.down(key)
    assert (down.exit_code, down.signal, down.failure) == (137, 9, None)
    assert "killed on request" in down.why


# --- ends ------------------------------------------------------------------------------------------------------------


def test_a_signal_reaches_the_whole_group_once(ground: ContainerGround):
    """As for plain processes: a shell that waits for its program does not keep it from hearing."""
    program = 'trap "echo heard; exit 85" TERM; echo ready; while :; do sleep 0.05; done'
    key = ground.sh(f"trap : TERM; sh -c '{program}'; exit $?")
    ground.says(key, "ready")
    ground.backend.warn(key, now_ms() + 60_000, "drain")
    down = ground.ear.down(key)
    assert (down.exit_code, ground.log(key)) == (85, "ready\nheard\n")


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("after", "code"), [("exit 85", 85), ("exit 0", 0)])
def test_a_program_may_save_although_the_shell_that_runs_it_would_die_of_the_warning(
    ground: ContainerGround, after: str, code: int, ranks: int
):
    """As for plain processes. Here the container ends with its shell, and whoever was saving with it."""
    program = f'trap "sleep 0.7; echo saved; {after}" TERM; echo ready; while :; do sleep 0.05; done'
    own = processes(*({"RANK": str(rank)} for rank in range(ranks)))
    key = ground.sh(f"cd /tmp; sh -c 'sh -c '\\''{program}'\\''; echo over'; echo over", processes=own)
    until(lambda: ground.log(key).count("ready") == ranks)
    ground.backend.warn(key, now_ms() + 60_000, "preempted")
    down = ground.ear.down(key)
    assert ground.log(key).split() == ["ready"] * ranks + ["saved"] * ranks
    assert (down.exit_code, down.signal) == (code, 0)


def test_who_listens_and_stays_has_no_more_than_the_deadline(ground: ContainerGround):
    key = ground.sh("sh -c 'trap : TERM; echo ready; while :; do sleep 0.05; done'; echo over")
    ground.says(key, "ready")
    ground.backend.warn(key, now_ms() + 1_000, "preempted")
    down = ground.ear.down(key)
    assert (down.signal, down.why) == (9, "killed at its deadline (preempted)")


def test_the_warning_says_when_and_why(ground: ContainerGround):
    key = ground.sh("trap 'cat $CORRAL_WARNING_FILE; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    ground.says(key, "ready")
    deadline_ms = now_ms() + 60_000
    ground.backend.warn(key, deadline_ms, "a node is drained")
    ground.ear.down(key)
    said = json.loads(ground.log(key).partition("\n")[2])
    assert said.pop("boot_ms")
    assert abs(said.pop("deadline_ms") - deadline_ms) < 2_000
    assert said == {"why": "a node is drained"}


def test_an_early_signal_comes_first(ground: ContainerGround):
    key = ground.sh(
        "trap 'echo early' USR1; trap 'echo late; exit 0' TERM; echo ready; while :; do sleep 0.05; done",
        early_signal=EarlySignal("SIGUSR1", 60_000),
    )
    ground.says(key, "ready")
    ground.backend.warn(key, now_ms() + 2_000, "drain")
    ground.ear.down(key)
    assert ground.log(key) == "ready\nearly\nlate\n"


def test_the_deadline_holds_without_server_and_without_engine(ground: ContainerGround):
    key = ground.sh("trap '' TERM; echo ready; while :; do sleep 0.05; done")
    ground.says(key, "ready")
    pid = ground.pid(key)
    ground.backend.warn(key, now_ms() + 1_000, "drain")
    ground.backend.close()
    ground.podman.stop()
    try:
        until(lambda: not is_alive(pid))
    finally:
        ground.podman.start()
    ground.open()
    down = ground.ear.down(key)
    assert (down.exit_code, down.signal) == (137, 9)
    assert "killed at its deadline (drain)" in down.why


def test_a_task_that_failed_keeps_its_place_until_it_is_needed(ground: ContainerGround):
    key = ground.sh("exit 3", hold_on_fail_ms=600_000)
    ground.says(key, "its seat is held", "stderr")
    ground.backend.warn(key, now_ms() + 600_000, "preempted")
    assert ground.ear.down(key).exit_code == 3


def test_nothing_of_it_survives_its_end(ground: ContainerGround):
    key = ground.sh("setsid sleep 601 & (sleep 602 &) ; sleep 0.1; echo ready; sleep 600")
    ground.says(key, "ready")
    inside = _members(ground.pid(key))
    assert len(inside) >= 4
    ground.backend.kill(key)
    ground.ear.down(key)
    assert not any(map(is_alive, inside))


def test_a_killed_first_process_is_told_as_killed(ground: ContainerGround):
    key = ground.sh("echo ready; sleep 600")
    ground.says(key, "ready")
    os.kill(ground.pid(key), signal.SIGKILL)
    down = ground.ear.down(key)
    assert (down.exit_code, down.signal, down.failure) == (137, 9, FailureClass.KILLED)
    assert "not by Corral" in down.why


# --- several processes -----------------------------------------------------------------------------------------------


def test_several_processes_share_a_container_and_have_their_own_variables(ground: ContainerGround):
    ranks = processes({"RANK": "0", "NAME": "it's"}, {"RANK": "1", "NAME": "$(two)"})
    script = (
        'echo "$RANK $NAME $COMMON" > /tmp/$RANK; touch /tmp/done.$RANK; '
        "while [ ! -e /tmp/done.0 ] || [ ! -e /tmp/done.1 ]; do sleep 0.02; done; cat /tmp/0 /tmp/1"
    )
    down, said = ground.ran(script, processes=ranks, env=(("COMMON", "c"),))
    assert down.exit_code == 0
    assert sorted(said.splitlines()) == ["0 it's c"] * 2 + ["1 $(two) c"] * 2


def test_the_others_are_ended_when_one_has_failed(ground: ContainerGround):
    ranks = processes({"RANK": "0"}, {"RANK": "1"})
    begun = time.monotonic()
    down, _ = ground.ran('[ "$RANK" = 0 ] || { sleep 0.2; exit 7; }; trap "" TERM; sleep 600', processes=ranks)
    assert (down.exit_code, down.signal) == (7, 0)
    assert time.monotonic() - begun < 20


def test_several_processes_hear_the_warning_once_and_have_until_the_deadline(ground: ContainerGround):
    ranks = processes({"RANK": "0"}, {"RANK": "1"})
    save = "[ $RANK = 1 ] || { echo told; sleep 1; }; echo bye $RANK; exit 85"
    key = ground.sh(f"trap '{save}' TERM; echo ready; while :; do sleep 0.05; done", processes=ranks)
    until(lambda: ground.log(key).count("ready") == 2)
    ground.backend.warn(key, now_ms() + 60_000, "drain")
    assert ground.ear.down(key).exit_code == 85
    assert sorted(ground.log(key).splitlines()[2:]) == ["bye 0", "bye 1", "told"]


# --- logs ------------------------------------------------------------------------------------------------------------


def test_streams_are_kept_apart_and_whole(ground: ContainerGround):
    key = ground.sh("i=0; while [ $i -lt 2000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done")
    ground.ear.down(key)
    assert ground.log(key) == "".join(f"out {n}\n" for n in range(2000))
    assert ground.log(key, "stderr") == "".join(f"err {n}\n" for n in range(2000))


def test_much_output_is_bounded(ground: ContainerGround):
    key = ground.sh("dd if=/dev/zero bs=65536 count=160 2>/dev/null; echo end", log_mib_max=1)
    ground.ear.down(key)
    last = ground.backend.read_log(key, "stdout", -4, 100)
    assert last is not None
    assert (last.data, last.next_offset) == (b"end\n", 160 * 65536 + 4)
    first = ground.backend.read_log(key, "stdout", 0, 1)
    assert first is not None
    assert first.offset >= 9 << 20


def test_output_goes_on_after_a_restart_of_the_engine(ground: ContainerGround):
    key = ground.sh("echo before; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo after")
    ground.says(key, "before")
    ground.podman.stop()
    ground.podman.start()
    ground.says(key, "connection to the container runtime was lost", "stderr")
    Path(f"/proc/{ground.pid(key)}/root/tmp/go").touch()
    assert ground.ear.down(key).exit_code == 0
    assert "after" in ground.log(key)


# --- images ----------------------------------------------------------------------------------------------------------


def test_an_image_that_is_not_there(ground: ContainerGround):
    down, _ = ground.ran("true", image="localhost/no-such-image:1")
    assert down.failure is FailureClass.USER_ERROR
    assert "the image 'localhost/no-such-image:1' is not on this machine" in down.why
    assert "pull: never" in down.why


def test_a_registry_that_is_not_there(tmp_path: Path, podman: Podman):
    ground = ContainerGround(tmp_path, podman, pull="missing")
    down, _ = ground.ran("true", image="127.0.0.1:9/team/train:1")
    assert down.failure is FailureClass.START_FAILED
    assert "cannot pull the image" in down.why
    ground.close()


@pytest.mark.parametrize(
    "image",
    [
        "docker-archive:/etc/passwd", "dir:/etc", "oci:/etc", "../../etc", "UPPER", "a b", "x\ny", "a?fromSrc=-",
        "-v", "dir:x", "a/../../containers/json", "a:tag:tag", "%2e%2e", "containers-storage:x", "x" * 600,
        "a@sha256:1",
    ],
)  # fmt: skip
def test_hostile_names_of_images_are_refused_before_anyone_is_asked(ground: ContainerGround, image: str):
    down, _ = ground.ran("true", image=image)
    assert down.failure is FailureClass.USER_ERROR
    assert "is not the name of an image" in down.why


@pytest.mark.parametrize(
    ("command", "words"),
    [("no-such-program", "no such command"), ("/data", "cannot execute")],
)
def test_what_cannot_be_executed(ground: ContainerGround, command: str, words: str):
    key = ground.launch(command)
    down = ground.ear.down(key)
    assert down.failure is FailureClass.USER_ERROR
    assert words in down.why
    assert IMAGE in down.why


def _members(first: int) -> list[int]:
    namespace = os.readlink(f"/proc/{first}/ns/pid")
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdecimal() and os.readlink(f"/proc/{entry}/ns/pid") == namespace:
                found.append(int(entry))
        except OSError:
            continue
    return found


def test_the_same_key_is_made_once(ground: ContainerGround):
    key = TaskKey("99/main", 1, 0)
    ground.backend.launch([ground.order(key, "sh", "-c", "echo ready; sleep 600")])
    ground.says(key, "ready")
    ground.ear.up(key)
    ground.backend.launch([ground.order(key, "sh", "-c", "echo again; sleep 600")])
    ground.ear.up(key, 2)
    assert ground.names() == ["99/main"]
    assert ground.log(key) == "ready\n"
