"""Tasks that do their worst. None of it may reach another task, the supervisor or the machine."""

import os
import sys
import time
from pathlib import Path

import pytest

from corral.core.model import FailureClass
from corral.runtime.base import TaskKey
from tests.runtime.local_backend import IS_ROOT, Harness, is_alive
from tests.runtime.reports import now_ms, until

needs_cgroups = pytest.mark.skipif(not IS_ROOT, reason="limits need cgroups, and these need root")


@pytest.fixture(autouse=True)
def bystander(harness: Harness):
    """Another task, which notices nothing."""
    key = harness.launch("sleep", "600")
    harness.collector.up(key)
    yield
    assert len(harness.collector.of(key)) == 1
    assert is_alive(harness.started(key).pids[0])


@needs_cgroups
def test_a_fork_bomb_is_bounded_and_ended(tmp_path: Path):
    harness = Harness(tmp_path / "bomb", pids_max=40)
    bomb = "import os\nwhile True:\n try: os.fork()\n except OSError: print('full', flush=True)"
    key = harness.python(bomb)
    harness.says(key, "full")
    harness.backend.kill(key)
    assert harness.collector.down(key).signal == 9
    assert harness.ran("echo fine")[1] == "fine\n", "the next task under the same supervisor has all its room"
    harness.close()


@needs_cgroups
@pytest.mark.parametrize("limits", [{"memory_mib": 64}, {"memory_mib": 64, "cpu_milli": 500}])
def test_too_much_memory_is_reported_as_such(harness: Harness, limits):
    key = harness.python("x = bytearray(256 << 20)", **limits)
    down = harness.collector.down(key)
    assert (down.failure, down.signal) == (FailureClass.OUT_OF_MEMORY, 9)
    assert "64 MiB" in down.why


def test_a_task_that_closes_its_output_goes_on(harness: Harness):
    key = harness.sh("exec >&- 2>&-; sleep 0.3; exit 5")
    begun = time.monotonic()
    assert harness.collector.down(key).exit_code == 5
    assert time.monotonic() - begun > 0.25


def test_double_setsid_and_ignored_signals_do_not_help(harness: Harness, tmp_path: Path):
    escape = f"""
import os, signal, time
for n in range(1, 65):
    try: signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError): pass
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        open({str(tmp_path / "pid")!r} + ".new", "w").write(str(os.getpid()))
        os.rename({str(tmp_path / "pid")!r} + ".new", {str(tmp_path / "pid")!r})
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""
    key = harness.launch(sys.executable, "-I", "-c", escape)
    until((tmp_path / "pid").exists)
    harness.backend.warn(key, now_ms() + 100, "drain")
    assert harness.collector.down(key).signal == 9
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_a_task_may_kill_its_own_group(harness: Harness):
    down, _ = harness.ran("kill -KILL 0")
    assert down.signal == 9


@pytest.mark.skipif(not IS_ROOT, reason="without root a task and its supervisor are the same account")
def test_a_task_of_another_account_cannot_reach_its_supervisor(harness: Harness):
    down, said = harness.ran("kill -KILL $PPID && echo reached; exit 4", account="nobody", directory="/")
    assert (down.exit_code, said) == (4, "")


def test_a_task_may_remove_its_temporary_directory(harness: Harness):
    key = harness.sh("rm -rf $TMPDIR $(dirname $TMPDIR); trap 'exit 3' TERM; echo ready; while :; do sleep 0.02; done")
    harness.says(key, "ready")
    harness.backend.warn(key, now_ms() + 60_000, "drain")
    assert harness.collector.down(key).exit_code == 3


@pytest.mark.parametrize("account", ["", pytest.param("nobody", marks=pytest.mark.skipif(not IS_ROOT, reason="root"))])
def test_links_in_the_private_directory_lead_nowhere(harness: Harness, tmp_path: Path, account):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("{}\n")
    script = f"""
cd $(dirname $TMPDIR)
ln -s {kept} $TMPDIR/link; ln -s {kept}/file warning.json; ln -s {kept}/file checkpoint
mkdir $TMPDIR/closed; touch $TMPDIR/closed/x; chmod 000 $TMPDIR/closed
pwd; trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done"""
    key = harness.sh(script, account=account, directory="/")
    harness.says(key, "ready")
    harness.backend.warn(key, now_ms() + 60_000, "drain")
    harness.collector.down(key)
    until(lambda: not Path(harness.log(key).split()[0]).exists())
    assert (kept / "file").read_text() == "{}\n"


def test_a_checkpoint_file_that_is_a_fifo_holds_no_one_up(harness: Harness):
    down, _ = harness.ran("mkfifo $CORRAL_CHECKPOINT_FILE; sleep 0.5")
    assert down.exit_code == 0


def test_folders_may_be_nested_deeper_than_anything(harness: Harness):
    nest = "import os\nos.chdir(os.environ['TMPDIR'])\nfor _ in range(1010): os.mkdir('d'); os.chdir('d')\n"
    deep = nest + "print(os.environ['TMPDIR'])"
    key = harness.python(deep)
    harness.collector.down(key)
    until(lambda: not Path(harness.log(key).strip()).parent.exists())


def test_a_flood_of_output_is_bounded_and_counted(harness: Harness):
    mib = 40
    flood = f"import os\nfor n in range({mib}): os.write(1, bytes([n]) * (1 << 20))"
    key = harness.python(flood, log_mib_max=1)
    assert harness.collector.down(key).exit_code == 0
    kept = sum(path.stat().st_size for path in (harness.data / "tasks" / "logs").rglob("stdout.*"))
    assert kept <= 1 << 20
    part = harness.backend.read_log(key, "stdout", -10, 100)
    assert part is not None
    assert (part.next_offset, part.data, part.is_over) == (mib << 20, bytes([mib - 1]) * 10, True)
    oldest = harness.backend.read_log(key, "stdout", 0, 10)
    assert oldest is not None
    assert oldest.offset >= (mib - 1) << 20, "what is not kept is skipped"
    assert oldest.data == bytes([mib - 1]) * 10


def test_bytes_without_lines_arrive_as_they_are(harness: Harness, tmp_path: Path):
    data = os.urandom(3 << 20)
    (tmp_path / "data").write_bytes(data)
    key = harness.sh(f"cat {tmp_path}/data", output=str(tmp_path / "copy"))
    plain = harness.sh(f"cat {tmp_path}/data")
    for which in (key, plain):
        harness.collector.down(which)
        assert _whole_log(harness, which) == data
    assert (tmp_path / "copy").read_bytes() == data


def _whole_log(harness: Harness, key: TaskKey) -> bytes:
    offset, got = 0, b""
    while True:
        part = harness.backend.read_log(key, "stdout", offset, 1 << 20)
        assert part is not None
        got, offset = got + part.data, part.next_offset
        if part.is_over:
            return got


@pytest.mark.skipif(not IS_ROOT, reason="a small file system can be mounted by root only")
def test_a_full_disk_holds_no_one_up_and_the_log_says_what_was_lost(tmp_path: Path):
    data, wrote, go_on = tmp_path / "small", tmp_path / "wrote", tmp_path / "go_on"
    logs = data / "tasks" / "logs"
    logs.mkdir(parents=True)
    if os.system(f"mount -t tmpfs -o size=3m corral-test {logs}") != 0:
        pytest.skip("mounting is not allowed here")
    try:
        (logs / "filler").write_bytes(bytes(2900 << 10))
        harness = Harness(data)
        wait = f"while [ ! -e {go_on} ]; do sleep 0.05; done"
        more_than_a_pipe_holds = 4_000_000
        key = harness.sh(f"head -c {more_than_a_pipe_holds} /dev/zero; touch {wrote}; {wait}; echo after")
        until(wrote.exists)
        (logs / "filler").unlink()
        time.sleep(1.1)  # a full disk is tried again after a second
        go_on.touch()
        assert harness.collector.down(key).exit_code == 0
        log = _whole_log(harness, key)
        assert b" bytes of stdout were lost here: no space to store them\n" in log
        assert log.endswith(b"after\n")
        end = harness.backend.read_log(key, "stdout", -6, 6)
        assert end is not None
        assert (end.data, end.next_offset > more_than_a_pipe_holds) == (b"after\n", True), "offsets count what was lost"
        harness.close()
    finally:
        os.system(f"umount {logs}")


@pytest.mark.skipif(not IS_ROOT, reason="only root could run it as root")
def test_a_task_without_an_account_is_refused_where_the_backend_is_root(tmp_path: Path):
    harness = Harness(tmp_path / "strict", account="")
    try:
        down, said = harness.ran("id -un")
        meant, root = harness.ran("id -un", account="root")
    finally:
        harness.close()
    assert (down.failure, said) == (FailureClass.START_FAILED, "")
    assert "corral user set NAME --account ACCOUNT" in down.why
    assert (meant.exit_code, root) == (0, "root\n"), "the word was written"
