"""Containers on a real Podman: what they are given, how they are limited, how they end, and what is reported."""

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
from tests.runtime.container_backend import ContainerHarness
from tests.runtime.local_backend import is_alive, processes
from tests.runtime.podman import IMAGE, Podman
from tests.runtime.reports import now_ms, until

#: Grows without end, in the shell itself.
HUNGRY = "x=0123456789abcdef; while :; do x=$x$x; done"


@pytest.fixture
def harness(tmp_path: Path, podman: Podman) -> Iterator[ContainerHarness]:
    harness = ContainerHarness(tmp_path, podman)
    yield harness
    harness.close()
    until(lambda: not harness.names())


# --- what it is given ------------------------------------------------------------------------------------------------


def test_it_runs_in_the_image_and_is_labelled(harness: ContainerHarness):
    key = harness.sh("ls /; echo ready; sleep 600")
    harness.says(key, "ready")
    assert harness.log(key).split()[:3] == ["bin", "corral", "data"]
    (container,) = [c for c in harness.podman.containers() if c["Labels"].get("corral.gang") == key.gang]
    labels = container["Labels"]
    assert {name: labels[f"corral.{name}"] for name in ("attempt", "task", "epoch")} == {
        "attempt": "1", "task": "0", "epoch": "1",
    }  # fmt: skip
    assert container["Names"][0].lstrip("/").startswith("corral-")


def test_its_environment_is_the_orders_and_not_the_servers(harness: ContainerHarness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FROM_THE_SERVER", "1")
    env = (("COLOUR", "red = 'dark'"), ("EMPTY", ""))
    _, said = harness.ran("env", env=env, gpus=("SIM-H100-0",), processes=processes({"RANK": "3"}))
    lines = said.splitlines()
    for line in ("COLOUR=red = 'dark'", "EMPTY=", "RANK=3", "TMPDIR=/tmp", "CORRAL_WARNING_FILE=/corral/warning.json"):
        assert line in lines
    assert "CUDA_VISIBLE_DEVICES=SIM-H100-0" in lines
    assert "CORRAL_SIMULATED_GPUS=1" in lines
    assert "NVIDIA_VISIBLE_DEVICES=void" in lines
    assert "FROM_THE_SERVER" not in said


def test_secrets_reach_it_and_are_in_no_label_log_or_file(harness: ContainerHarness):
    key = harness.sh('test "${#TOKEN}" = 12 && echo it has it; sleep 600', secret_env=(("TOKEN", "s3cr3t-value"),))
    harness.says(key, "it has it")
    for container in harness.podman.containers():
        assert "s3cr3t-value" not in json.dumps(container["Labels"])
        assert "s3cr3t-value" not in json.dumps(container["Command"])
    for path in harness.data.rglob("*"):
        if path.is_file() and not path.is_fifo():
            assert b"s3cr3t-value" not in path.read_bytes(), path
    assert b"s3cr3t-value" not in (harness.podman.folder / "service.log").read_bytes()


def test_it_runs_as_the_account_in_a_place_it_can_write(harness: ContainerHarness):
    down, said = harness.ran("id -u; id -g; echo x > $HOME/x && echo writes; echo $HOME", account="nobody")
    assert (down.exit_code, said) == (0, "65534\n65534\nwrites\n/tmp\n")


def test_privileges_cannot_be_gained(harness: ContainerHarness):
    _, said = harness.ran("cat /proc/self/status", account="nobody")
    assert "NoNewPrivs:\t1" in said
    assert "CapEff:\t0000000000000000" in said


def test_mounts_show_what_they_name_and_can_be_read_only(harness: ContainerHarness, tmp_path: Path):
    place = tmp_path / "shared"
    place.mkdir()
    (place / "in").write_text("from outside\n")
    mounts = (Mount(str(place), "/data"), Mount(str(place), "/fixed", read_only=True))
    script = "cat /fixed/in; echo back > /data/out; echo no > /fixed/out2 || echo read-only"
    down, said = harness.ran(script, mounts=mounts, directory="/data")
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
def test_a_mount_that_cannot_be(harness: ContainerHarness, mount: Mount, why: str):
    down, _ = harness.ran("true", mounts=(mount,))
    assert down.failure is FailureClass.USER_ERROR
    assert why in down.why


def test_only_what_the_site_allows_is_mounted(tmp_path: Path, podman: Podman):
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "link").symlink_to("/etc")
    harness = ContainerHarness(tmp_path / "data", podman, mounts=(str(allowed),))
    # runc reads the cgroup of a process that it has started: of one that ends at once, it may fail to
    good, _ = harness.ran("sleep 0.3", mounts=(Mount(str(allowed), "/data"),))
    outside, _ = harness.ran("true", mounts=(Mount("/etc", "/data"),))
    by_link, _ = harness.ran("true", mounts=(Mount(str(allowed / "link"), "/data"),))
    harness.close()
    assert good.exit_code == 0
    assert outside.failure is by_link.failure is FailureClass.USER_ERROR
    assert "may not be mounted" in outside.why
    assert "may not be mounted" in by_link.why


def test_output_goes_to_the_users_files_too(harness: ContainerHarness, tmp_path: Path):
    harness.ran("echo out; echo err >&2", output=str(tmp_path / "o"), error=str(tmp_path / "e"))
    assert ((tmp_path / "o").read_text(), (tmp_path / "e").read_text()) == ("out\n", "err\n")


# --- limits ----------------------------------------------------------------------------------------------------------


def test_memory_processes_and_shared_memory_are_limited(tmp_path: Path, podman: Podman):
    harness = ContainerHarness(tmp_path, podman, quota=True)
    key = harness.sh("df -k /dev/shm | tail -n 1; echo ready; sleep 600", memory_mib=96, cpu_milli=500)
    harness.says(key, "ready")
    assert harness.collector.up(key).unenforced == ()
    assert harness.log(key).split()[1] == str(96 * 1024)
    groups = dict(line.split(":")[1:] for line in Path(f"/proc/{harness.pid(key)}/cgroup").read_text().splitlines())
    wanted = {
        "memory": ("memory.limit_in_bytes", "memory.max", str(96 << 20)),
        "pids": ("pids.max", "pids.max", "100"),
        "cpu": ("cpu.cfs_quota_us", "cpu.max", "50000"),
    }
    for controller, (old, new, value) in wanted.items():
        found = Path(f"/sys/fs/cgroup/{controller}{groups[controller]}/{old}") if controller in groups else None
        path = found or Path(f"/sys/fs/cgroup{groups['']}/{new}")
        assert path.read_text().split()[0] == value
    harness.close()


def test_too_much_memory_is_reported_as_such(harness: ContainerHarness):
    down, _ = harness.ran(HUNGRY, memory_mib=32)
    assert (down.exit_code, down.failure) == (137, FailureClass.OUT_OF_MEMORY)
    assert "32 MiB" in down.why


def test_a_child_killed_for_memory_is_reported_too(harness: ContainerHarness):
    down, _ = harness.ran(f"sh -c '{HUNGRY}'; echo it is gone; exit 3", memory_mib=32)
    assert (down.exit_code, down.failure) == (3, FailureClass.OUT_OF_MEMORY)


def test_a_kill_is_not_taken_for_want_of_memory(harness: ContainerHarness):
    key = harness.sh("echo ready; sleep 600", memory_mib=32)
    harness.says(key, "ready")
    harness.backend.kill(key)
    down = harness.collector.down(key)
    assert (down.exit_code, down.signal, down.failure) == (137, 9, None)
    assert "killed on request" in down.why


# --- ends ------------------------------------------------------------------------------------------------------------


def test_a_signal_reaches_the_whole_group_once(harness: ContainerHarness):
    """As for plain processes: a shell that waits for its program does not keep it from hearing."""
    program = 'trap "echo warned; exit 85" TERM; echo ready; while :; do sleep 0.05; done'
    key = harness.sh(f"trap : TERM; sh -c '{program}'; exit $?")
    harness.says(key, "ready")
    harness.backend.warn(key, now_ms() + 60_000, "drain")
    down = harness.collector.down(key)
    assert (down.exit_code, harness.log(key)) == (85, "ready\nwarned\n")


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("after", "code"), [("exit 85", 85), ("exit 0", 0)])
def test_a_program_may_save_although_the_shell_that_runs_it_would_die_of_the_warning(
    harness: ContainerHarness, after: str, code: int, ranks: int
):
    """As for plain processes. Here the container ends with its shell, and processes that were saving with it."""
    program = f'trap "sleep 0.7; echo saved; {after}" TERM; echo ready; while :; do sleep 0.05; done'
    own = processes(*({"RANK": str(rank)} for rank in range(ranks)))
    key = harness.sh(f"cd /tmp; sh -c 'sh -c '\\''{program}'\\''; echo over'; echo over", processes=own)
    until(lambda: harness.log(key).count("ready") == ranks)
    harness.backend.warn(key, now_ms() + 60_000, "preempted")
    down = harness.collector.down(key)
    assert harness.log(key).split() == ["ready"] * ranks + ["saved"] * ranks
    assert (down.exit_code, down.signal) == (code, 0)


def test_who_listens_and_stays_has_no_more_than_the_deadline(harness: ContainerHarness):
    key = harness.sh("sh -c 'trap : TERM; echo ready; while :; do sleep 0.05; done'; echo over")
    harness.says(key, "ready")
    harness.backend.warn(key, now_ms() + 1_000, "preempted")
    down = harness.collector.down(key)
    assert (down.signal, down.why) == (9, "killed at its deadline (preempted)")


def test_the_warning_says_when_and_why(harness: ContainerHarness):
    key = harness.sh("trap 'cat $CORRAL_WARNING_FILE; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    harness.says(key, "ready")
    deadline_ms = now_ms() + 60_000
    harness.backend.warn(key, deadline_ms, "a node is drained")
    harness.collector.down(key)
    said = json.loads(harness.log(key).partition("\n")[2])
    assert said.pop("boot_ms")
    assert abs(said.pop("deadline_ms") - deadline_ms) < 2_000
    assert said == {"why": "a node is drained", "is_agreed": True}


def test_an_early_signal_comes_first(harness: ContainerHarness):
    key = harness.sh(
        "trap 'echo early' USR1; trap 'echo late; exit 0' TERM; echo ready; while :; do sleep 0.05; done",
        early_signal=EarlySignal("SIGUSR1", 60_000),
    )
    harness.says(key, "ready")
    harness.backend.warn(key, now_ms() + 2_000, "drain")
    harness.collector.down(key)
    assert harness.log(key) == "ready\nearly\nlate\n"


def test_the_deadline_holds_without_server_and_without_engine(harness: ContainerHarness):
    key = harness.sh("trap '' TERM; echo ready; while :; do sleep 0.05; done")
    harness.says(key, "ready")
    pid = harness.pid(key)
    harness.backend.warn(key, now_ms() + 1_000, "drain")
    harness.backend.close()
    harness.podman.stop()
    try:
        until(lambda: not is_alive(pid))
    finally:
        harness.podman.start()
    harness.open()
    down = harness.collector.down(key)
    assert (down.exit_code, down.signal) == (137, 9)
    assert "killed at its deadline (drain)" in down.why


def test_a_task_that_failed_keeps_its_place_until_it_is_needed(harness: ContainerHarness):
    key = harness.sh("exit 3", hold_on_fail_ms=600_000)
    harness.says(key, "its seat is held", "stderr")
    harness.backend.warn(key, now_ms() + 600_000, "preempted")
    assert harness.collector.down(key).exit_code == 3


def test_nothing_of_it_survives_its_end(harness: ContainerHarness):
    key = harness.sh("setsid sleep 601 & (sleep 602 &) ; sleep 0.1; echo ready; sleep 600")
    harness.says(key, "ready")
    inside = _members(harness.pid(key))
    assert len(inside) >= 4
    harness.backend.kill(key)
    harness.collector.down(key)
    assert not any(map(is_alive, inside))


def test_a_killed_first_process_is_reported_as_killed(harness: ContainerHarness):
    key = harness.sh("echo ready; sleep 600")
    harness.says(key, "ready")
    os.kill(harness.pid(key), signal.SIGKILL)
    down = harness.collector.down(key)
    assert (down.exit_code, down.signal, down.failure) == (137, 9, FailureClass.KILLED)
    assert "not by Corral" in down.why


# --- several processes -----------------------------------------------------------------------------------------------


def test_several_processes_share_a_container_and_have_their_own_variables(harness: ContainerHarness):
    ranks = processes({"RANK": "0", "NAME": "it's"}, {"RANK": "1", "NAME": "$(two)"})
    script = (
        'echo "$RANK $NAME $COMMON" > /tmp/$RANK; touch /tmp/done.$RANK; '
        "while [ ! -e /tmp/done.0 ] || [ ! -e /tmp/done.1 ]; do sleep 0.02; done; cat /tmp/0 /tmp/1"
    )
    down, said = harness.ran(script, processes=ranks, env=(("COMMON", "c"),))
    assert down.exit_code == 0
    assert sorted(said.splitlines()) == ["0 it's c"] * 2 + ["1 $(two) c"] * 2


def test_the_others_are_ended_when_one_has_failed(harness: ContainerHarness):
    ranks = processes({"RANK": "0"}, {"RANK": "1"})
    begun = time.monotonic()
    down, _ = harness.ran('[ "$RANK" = 0 ] || { sleep 0.2; exit 7; }; trap "" TERM; sleep 600', processes=ranks)
    assert (down.exit_code, down.signal) == (7, 0)
    assert time.monotonic() - begun < 20


def test_several_processes_hear_the_warning_once_and_have_until_the_deadline(harness: ContainerHarness):
    ranks = processes({"RANK": "0"}, {"RANK": "1"})
    save = "[ $RANK = 1 ] || { echo warned; sleep 1; }; echo bye $RANK; exit 85"
    key = harness.sh(f"trap '{save}' TERM; echo ready; while :; do sleep 0.05; done", processes=ranks)
    until(lambda: harness.log(key).count("ready") == 2)
    harness.backend.warn(key, now_ms() + 60_000, "drain")
    assert harness.collector.down(key).exit_code == 85
    assert sorted(harness.log(key).splitlines()[2:]) == ["bye 0", "bye 1", "warned"]


# --- logs ------------------------------------------------------------------------------------------------------------


def test_streams_are_kept_apart_and_whole(harness: ContainerHarness):
    key = harness.sh("i=0; while [ $i -lt 2000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done")
    harness.collector.down(key)
    assert harness.log(key) == "".join(f"out {n}\n" for n in range(2000))
    assert harness.log(key, "stderr") == "".join(f"err {n}\n" for n in range(2000))


def test_much_output_is_bounded(harness: ContainerHarness):
    key = harness.sh("dd if=/dev/zero bs=65536 count=160 2>/dev/null; echo end", log_mib_max=1)
    harness.collector.down(key)
    last = harness.backend.read_log(key, "stdout", -4, 100)
    assert last is not None
    assert (last.data, last.next_offset) == (b"end\n", 160 * 65536 + 4)
    first = harness.backend.read_log(key, "stdout", 0, 1)
    assert first is not None
    assert first.offset >= 9 << 20


def test_output_goes_on_after_a_restart_of_the_engine(harness: ContainerHarness):
    key = harness.sh("echo before; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo after")
    harness.says(key, "before")
    harness.podman.stop()
    harness.podman.start()
    harness.says(key, "connection to the container runtime was lost", "stderr")
    Path(f"/proc/{harness.pid(key)}/root/tmp/go").touch()
    assert harness.collector.down(key).exit_code == 0
    assert "after" in harness.log(key)


# --- images ----------------------------------------------------------------------------------------------------------


def test_an_image_that_is_not_there(harness: ContainerHarness):
    down, _ = harness.ran("true", image="localhost/no-such-image:1")
    assert down.failure is FailureClass.USER_ERROR
    assert "the image 'localhost/no-such-image:1' is not on this machine" in down.why
    assert "pull: never" in down.why


def test_a_registry_that_is_not_there(tmp_path: Path, podman: Podman):
    harness = ContainerHarness(tmp_path, podman, pull="missing")
    down, _ = harness.ran("true", image="127.0.0.1:9/team/train:1")
    assert down.failure is FailureClass.START_FAILED
    assert "cannot pull the image" in down.why
    harness.close()


@pytest.mark.parametrize(
    "image",
    [
        "docker-archive:/etc/passwd", "dir:/etc", "oci:/etc", "../../etc", "UPPER", "a b", "x\ny", "a?fromSrc=-",
        "-v", "dir:x", "a/../../containers/json", "a:tag:tag", "%2e%2e", "containers-storage:x", "x" * 600,
        "a@sha256:1",
    ],
)  # fmt: skip
def test_hostile_names_of_images_are_refused_before_anyone_is_asked(harness: ContainerHarness, image: str):
    down, _ = harness.ran("true", image=image)
    assert down.failure is FailureClass.USER_ERROR
    assert "is not the name of an image" in down.why


@pytest.mark.parametrize(
    ("command", "words"),
    [("no-such-program", "no-such-program: not found"), ("/data", "cannot execute")],
)
def test_what_cannot_be_executed(harness: ContainerHarness, command: str, words: str):
    key = harness.launch(command)
    down = harness.collector.down(key)
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


def test_the_same_key_is_made_once(harness: ContainerHarness):
    key = TaskKey("99/main", 1, 0)
    harness.backend.launch([harness.order(key, "sh", "-c", "echo ready; sleep 600")])
    harness.says(key, "ready")
    harness.collector.up(key)
    harness.backend.launch([harness.order(key, "sh", "-c", "echo again; sleep 600")])
    harness.collector.up(key, 2)
    assert harness.names() == ["99/main"]
    assert harness.log(key) == "ready\n"
