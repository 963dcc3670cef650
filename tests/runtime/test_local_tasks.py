"""Tasks as processes of this machine: what they are given, how they start and fail to, how they end."""

import json
import os
import pwd
import sys
import time
from pathlib import Path

import pytest

from corral.core.model import FailureClass
from corral.core.work import EarlySignal, Mount
from corral.runtime.base import Phase, Process
from tests.runtime.local_backend import IS_ROOT, Harness, is_alive, processes
from tests.runtime.reports import now_ms, until

needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root may run tasks as another account")
FAR_MS = 600_000


# --- what it is given -----------------------------------------------------------------------------------------------


def test_a_task_is_reported_its_variables_its_gpus_and_nothing_else(harness: Harness, monkeypatch):
    monkeypatch.setenv("SERVERS_OWN", "1")
    _, said = harness.ran("env", env=(("A", "1"), ("HOME", "/h")), gpus=("SIM-L4-0", "SIM-L4-1"))
    env = dict(line.split("=", 1) for line in said.splitlines())
    assert env["A"] == "1"
    assert env["HOME"] == "/h"
    assert env["CUDA_VISIBLE_DEVICES"] == "SIM-L4-0,SIM-L4-1"
    assert env["CORRAL_SIMULATED_GPUS"] == "1"
    assert env["USER"] == pwd.getpwuid(os.geteuid()).pw_name
    assert "SERVERS_OWN" not in env


def test_a_task_has_a_private_temporary_directory_that_goes_with_it(harness: Harness):
    down, said = harness.ran("mkdir -p $TMPDIR/a/b; touch $TMPDIR/a/b/c; stat -c %a $TMPDIR; echo $TMPDIR")
    mode, place = said.split()
    assert (down.exit_code, mode) == (0, "700")
    until(lambda: not Path(place).parent.exists())


def test_a_task_has_nothing_open_but_its_three_streams_also_when_its_supervisor_had_others_before(harness: Harness):
    for _ in range(3):
        _, said = harness.ran("ls /proc/self/fd; umask; pwd; readlink /proc/self/fd/0", directory="/")
        assert said.split() == ["0", "1", "2", "3", "0022", "/", "/dev/null"]  # 3 is the listing itself


def test_secrets_reach_the_task_and_no_file_and_no_argument(harness: Harness):
    key = harness.sh("echo it has ${#KEY} letters; sleep 60", secret_env=(("KEY", "hush-hush"),))
    harness.says(key, "it has 9 letters")
    for path in harness.data.rglob("*"):
        assert not path.is_file() or b"hush-hush" not in path.read_bytes()
    started = harness.started(key)
    for pid in [started.supervisor, *started.pids]:
        assert b"hush-hush" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert harness.ordered(key).secrets == ("KEY",)


@needs_root
def test_a_task_runs_as_its_account_without_a_way_back(harness: Harness):
    script = "id -un; id -Gn; grep NoNewPrivs /proc/self/status; stat -c %U $TMPDIR; echo $HOME"
    down, said = harness.ran(script, account="nobody", directory="/")
    assert down.exit_code == 0
    assert said.split() == ["nobody", "nogroup", "NoNewPrivs:", "1", "nobody", pwd.getpwnam("nobody").pw_dir]


@needs_root
def test_the_users_file_is_opened_with_the_rights_of_the_user(harness: Harness, tmp_path: Path):
    open_to_all = tmp_path / "out"
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(0o711)  # so that others may pass through
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    ours = tmp_path / "ours.txt"
    ours.write_text("precious")
    ours.chmod(0o600)
    key = harness.sh(
        "echo hello; echo oops >&2", account="nobody", directory="/", output=f"{open_to_all}/o", error=str(ours)
    )
    harness.collector.down(key)
    assert (open_to_all / "o").read_text() == "hello\n"
    assert (open_to_all / "o").owner() == "nobody"
    assert ours.read_text() == "precious"
    assert f"stderr is not copied to {str(ours)!r}: Permission denied" in harness.log(key, "stderr")
    assert "oops" in harness.log(key, "stderr")


def test_output_is_copied_into_the_users_files_and_added_to_what_is_there(harness: Harness, tmp_path: Path):
    (tmp_path / "o").write_text("before\n")
    down, said = harness.ran("echo one; echo two >&2", directory=str(tmp_path), output="o", error=f"{tmp_path}/e")
    assert (down.exit_code, said) == (0, "one\n")
    assert (tmp_path / "o").read_text() == "before\none\n"
    assert (tmp_path / "e").read_text() == "two\n"


def test_a_copy_that_cannot_be_made_is_said_and_nothing_else(harness: Harness, tmp_path: Path):
    os.mkfifo(tmp_path / "fifo")
    key = harness.sh("echo hello", output=str(tmp_path / "fifo"), error="/no/such/place/e")
    assert harness.collector.down(key).exit_code == 0
    assert harness.log(key) == "hello\n"
    assert "stdout is not copied" in harness.log(key, "stderr")
    assert "stderr is not copied to '/no/such/place/e': No such file or directory" in harness.log(key, "stderr")


# --- how it cannot start --------------------------------------------------------------------------------------------


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    for name, text, mode in (("plain", "x", 0o644), ("alien", "#!/no/such/shell\n", 0o755), ("noise", "x y", 0o755)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    return tmp_path


@pytest.mark.parametrize("limits", [{}, {"memory_mib": 100}], ids=["spawned", "forked"])
@pytest.mark.parametrize(
    ("command", "rest", "code", "why"),
    [
        ("no-such-thing", {}, 127, "no-such-thing: not found"),
        ("/no/such/thing", {}, 127, "/no/such/thing: not found"),
        ("{}/plain", {}, 126, "may not execute"),
        ("{}/alien", {}, 127, "the interpreter in the first line"),
        ("{}/noise", {}, 126, "is not a program: a script must start with #!"),
        ("true", {"directory": "/no/such/place"}, 126, "cannot enter the working directory '/no/such/place'"),
        ("true", {"image": "ubuntu"}, 126, "need a container runtime"),
        ("true", {"mounts": (Mount("/a", "/b"),)}, 126, "need a container runtime"),
        ("true", {"early_signal": EarlySignal("SIGNONE", 1)}, 126, "unknown signal 'SIGNONE'"),
        ("true", {"env": (("A=B", "1"),)}, 126, "names of variables must not contain '='"),
        ("", {}, 126, "there is no command to run"),
    ],
)
def test_a_mistake_of_the_user_is_said_in_words(harness: Harness, faulty: Path, limits, command, rest, code, why):
    key = harness.launch(command.format(faulty), **rest, **limits)
    down = harness.collector.down(key)
    assert why in down.why
    assert (down.failure, down.exit_code) == (FailureClass.USER_ERROR, code)
    assert why in harness.log(key, "stderr"), "the user finds it in the log as well"
    assert [report.phase for report in harness.collector.of(key)] == [Phase.DOWN]  # type: ignore[union-attr]


def test_an_unknown_account_is_a_fault_of_the_machine(harness: Harness):
    down, _ = harness.ran("true", account="no-such-account")
    assert down.failure is FailureClass.START_FAILED
    assert "no account 'no-such-account'" in down.why


def test_arguments_that_are_too_long_are_the_users_mistake(harness: Harness):
    down, _ = harness.ran("true", env=(("A", "x" * 200_000),))
    assert down.failure is FailureClass.USER_ERROR
    assert "longer than this machine allows" in down.why


def test_text_that_cannot_be_written_down_is_the_users_mistake_and_harms_no_other(harness: Harness):
    bad, good = harness.key(), harness.key()
    harness.backend.launch([harness.order(bad, "echo", "\ud800"), harness.order(good, "true")])
    assert harness.collector.down(bad).failure is FailureClass.USER_ERROR
    assert harness.collector.down(good).exit_code == 0
    harness.backend.forget(bad)
    until(lambda: harness.backend.known() == [good])


# --- several processes ----------------------------------------------------------------------------------------------


def test_every_process_of_a_task_has_its_own_variables(harness: Harness):
    down, said = harness.ran(
        "echo $RANK of $N", env=(("N", "3"),), processes=processes(*({"RANK": str(n)} for n in range(3)))
    )
    assert down.exit_code == 0
    assert sorted(said.splitlines()) == ["0 of 3", "1 of 3", "2 of 3"]


@pytest.mark.parametrize("trap", ["", "trap '' TERM;"], ids=["polite", "stubborn"])
def test_when_one_process_fails_the_others_are_ended(harness: Harness, trap):
    script = f"if [ $RANK = 1 ]; then exit 7; fi; {trap} while :; do sleep 0.02; done"
    key = harness.sh(script, processes=processes({"RANK": "0"}, {"RANK": "1"}, {"RANK": "2"}))
    down = harness.collector.down(key)
    assert (down.exit_code, down.signal) == (7, 0)


def test_a_process_that_is_done_does_not_end_the_others(harness: Harness):
    script = "if [ $RANK = 1 ]; then exit 0; fi; sleep 0.3; echo still here"
    down, said = harness.ran(script, processes=processes({"RANK": "0"}, {"RANK": "1"}))
    assert (down.exit_code, said) == (0, "still here\n")


# --- how it ends ----------------------------------------------------------------------------------------------------


def test_a_signal_is_reported_as_such(harness: Harness):
    down, _ = harness.ran("kill -SEGV $$")
    assert (down.exit_code, down.signal, down.failure) == (139, 11, None)


def test_a_kill_from_elsewhere_is_told_apart_from_ours(harness: Harness):
    down, _ = harness.ran("kill -KILL $$")
    assert (down.signal, down.failure) == (9, "killed")
    assert "not by Corral" in down.why
    down, _ = harness.ran("sh -c 'kill -KILL $$'; exit $?")
    assert (down.exit_code, down.failure) == (137, "killed"), "a shell says so of what it ran"
    key = harness.launch("sleep", "60")
    harness.collector.up(key)
    harness.backend.kill(key)
    assert harness.collector.down(key).why == "killed on request"


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.", FailureClass.OUT_OF_MEMORY),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", FailureClass.GPU_FAULT),
        ("ValueError: nothing of the kind", None),
    ],
)
def test_last_words_tell_what_an_exit_code_cannot(harness: Harness, said, failure):
    down, _ = harness.ran(f"echo '{said}' >&2; exit 1")
    assert (down.exit_code, down.failure) == (1, failure)


def test_a_library_that_aborts_is_judged_by_its_last_words(harness: Harness):
    down, _ = harness.ran("echo 'ncclRemoteError: a peer has ended' >&2; kill -ABRT $$")
    assert (down.exit_code, down.failure) == (134, FailureClass.NETWORK)


def test_rules_of_the_site_come_first(tmp_path: Path):
    rules = (("CUDA out of memory", None, "killed", "as we like it"), ("", 77, "network", ""))
    harness = Harness(tmp_path, failure_rules=rules)
    try:
        down, _ = harness.ran("echo 'CUDA out of memory' >&2; exit 1")
        assert (down.failure, down.why) == (
            FailureClass.KILLED,
            "as we like it (its output says: 'CUDA out of memory')",
        )
        down, _ = harness.ran("exit 77")
        assert (down.failure, down.why) == (FailureClass.NETWORK, "exit code 77")
        down, _ = harness.ran("exit 78")
        assert down.failure is None
    finally:
        harness.close()


def test_last_words_do_not_matter_when_all_went_well(harness: Harness):
    down, _ = harness.ran("echo 'CUDA out of memory, trying a smaller batch' >&2; exit 0")
    assert (down.exit_code, down.failure) == (0, None)


def test_steps_are_reported_as_they_are_saved(harness: Harness):
    save = """echo '{"step": %d}' >> $CORRAL_CHECKPOINT_FILE;"""
    key = harness.sh(save % 3 + "sleep 0.5;" + "echo noise >> $CORRAL_CHECKPOINT_FILE;" + save % 4 + "sleep 60")
    harness.collector.step(key, 3)
    harness.collector.step(key, 4)


def test_the_warning_is_in_its_file_before_the_signal_comes(harness: Harness):
    script = "trap 'cat $CORRAL_WARNING_FILE; exit 85' TERM; echo ready; while :; do sleep 0.02; done"
    key = harness.sh(script)
    harness.says(key, "ready")
    deadline_ms = now_ms() + FAR_MS
    harness.backend.warn(key, deadline_ms, 'node "n1"\nis drained')
    assert harness.collector.down(key).exit_code == 85
    warning = json.loads(harness.log(key).removeprefix("ready\n"))
    left_ms = warning.pop("boot_ms") - int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)
    assert 0 < left_ms <= FAR_MS
    assert abs(warning.pop("deadline_ms") - deadline_ms) < 2_000
    assert (warning["why"], warning["is_agreed"]) == ('node "n1" is drained', True)


def test_a_job_that_asked_for_an_early_signal_gets_it_first_and_sigterm_late(harness: Harness):
    script = "trap 'echo early' USR1; trap 'echo late; exit 85' TERM; echo ready; while :; do sleep 0.02; done"
    key = harness.sh(script, early_signal=EarlySignal("SIGUSR1", 60_000))
    harness.says(key, "ready")
    begun = time.monotonic()
    harness.backend.warn(key, now_ms() + 1_000, "drain")
    assert harness.collector.down(key).exit_code == 85
    assert harness.log(key).split() == ["ready", "early", "late"]
    assert time.monotonic() - begun >= 0.45, "half of the time is for the early signal"


@pytest.mark.parametrize(("audience", "expected"), [("script", ["early", "kept", "ready"]), ("", ["early", "ready"])])
def test_an_early_signal_for_the_script_does_not_end_the_program_that_it_runs(
    harness: Harness, audience: str, expected: list[str]
):
    script = "trap 'echo early' USR1; echo ready; sleep 4 && echo kept; exit 0"
    key = harness.sh(script, early_signal=EarlySignal("SIGUSR1", 60_000, audience))
    harness.says(key, "ready")
    harness.backend.warn(key, now_ms() + 60_000, "time_limit")
    assert (harness.collector.down(key).exit_code, sorted(harness.log(key).split())) == (0, expected)


# ``os.write``: a handler that prints while the program is inside a print raises "reentrant call".
SAVING = """
import os, signal, sys, time
def save(*_):
    time.sleep(0.5)
    os.write(1, b"saved\\n")
    sys.exit(int(sys.argv[1]))
signal.signal(signal.SIGTERM, save)
os.write(1, b"ready\\n")
time.sleep(600)
"""


@pytest.mark.parametrize("code", [85, 0, 3])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_program_may_save_although_the_shell_that_runs_it_dies_of_the_warning(
    harness: Harness, tmp_path: Path, code: int, processes: int
):
    """``command: python train.py`` is run by a shell, which does not wait for its children when it is ended."""
    (tmp_path / "train.py").write_text(SAVING)
    own = tuple(Process(env=(("LOCAL_RANK", str(rank)),)) for rank in range(processes))
    key = harness.sh(f"cd {tmp_path}; {sys.executable} train.py {code}; echo over", processes=own)
    until(lambda: harness.log(key).count("ready") == processes)
    harness.backend.warn(key, now_ms() + FAR_MS, "preempted")
    down = harness.collector.down(key)
    assert harness.log(key).count("saved") == processes
    assert (down.exit_code, down.signal) == (code, 0)


def test_who_saves_longer_than_the_others_has_until_the_deadline_and_is_reported_once(harness: Harness):
    slow = "echo warned; sleep 1; echo saved; exit 85"  # longer than the others of a failed process would have
    script = f'[ $RANK = 1 ] || slow="{slow}"; trap "${{slow:-exit 85}}" TERM; echo ready; while :; do sleep 0.02; done'
    key = harness.sh(script, processes=processes({"RANK": "0"}, {"RANK": "1"}))
    until(lambda: harness.log(key).count("ready") == 2)
    harness.backend.warn(key, now_ms() + FAR_MS, "preempted")
    assert harness.collector.down(key).exit_code == 85
    assert harness.log(key).split() == ["ready", "ready", "warned", "saved"]


@pytest.mark.parametrize(("why", "is_at_once"), [("priority", True), ("time_limit", False)])
def test_the_early_signal_of_a_preemption_comes_with_the_warning(harness: Harness, why: str, is_at_once: bool):
    """Before a time limit it comes as late as the job asked; a preempted job has no reason to wait for it."""
    script = "trap 'exit 85' USR2; echo ready; while :; do sleep 0.02; done"
    key = harness.sh(script, early_signal=EarlySignal("SIGUSR2", 1_000))
    harness.says(key, "ready")
    begun = time.monotonic()
    harness.backend.warn(key, now_ms() + 6_000, why)
    assert harness.collector.down(key).exit_code == 85
    assert (time.monotonic() - begun < 4) is is_at_once


def test_one_that_leaves_on_the_warning_in_its_file_does_not_take_the_others_along(harness: Harness):
    leave = "while [ ! -s $CORRAL_WARNING_FILE ]; do sleep 0.02; done; [ $RANK = 0 ] || exit 85"
    script = f"trap 'echo warned; exit 1' TERM; echo ready; {leave}; sleep 1; echo saved; exit 85"
    early = EarlySignal("SIGUSR1", 1_000)  # long after all that
    key = harness.sh(script, processes=processes({"RANK": "0"}, {"RANK": "1"}), early_signal=early)
    until(lambda: harness.log(key).count("ready") == 2)
    harness.backend.warn(key, now_ms() + FAR_MS, "preempted")
    assert harness.collector.down(key).exit_code == 85
    assert harness.log(key).split() == ["ready", "ready", "saved"]


def test_who_outlives_its_shell_has_no_more_than_the_deadline(harness: Harness):
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    key = harness.sh(f'{sys.executable} -c "{script}"; true')
    harness.says(key, "ready")
    harness.backend.warn(key, now_ms() + 400, "preempted")
    down = harness.collector.down(key)
    assert (down.signal, down.why) == (9, "killed at its deadline (preempted)")


def test_the_earlier_of_two_deadlines_holds(harness: Harness):
    key = harness.sh("trap '' TERM; echo ready; while :; do sleep 0.02; done")
    harness.says(key, "ready")
    harness.backend.warn(key, now_ms() + FAR_MS, "later")
    harness.backend.warn(key, now_ms() + 100, "sooner")
    harness.backend.warn(key, now_ms() + FAR_MS, "later")
    assert harness.collector.down(key).why == "killed at its deadline (sooner)"


def test_nothing_of_a_task_is_left_when_its_end_is_reported(harness: Harness, tmp_path: Path):
    pid = tmp_path / "pid"
    wait = f"while [ ! -s {pid} ]; do sleep 0.01; done"
    key = harness.sh(f"(setsid sh -c 'sleep 60 & echo $! > {pid}; wait' &); {wait}")
    harness.collector.down(key)
    assert not is_alive(int(pid.read_text()))


# --- keeping the place of a task that failed --------------------------------------------------------------------------


def test_a_task_that_failed_keeps_its_place_for_a_look(harness: Harness):
    key = harness.sh("exit 3", hold_on_fail_ms=700)
    harness.says(key, "its seat is held", "stderr")
    assert not [report for report in harness.collector.of(key) if getattr(report, "phase", None) is Phase.DOWN]
    assert harness.collector.down(key).exit_code == 3


def test_a_place_that_is_kept_is_given_up_when_it_is_needed(harness: Harness):
    key = harness.sh("exit 3", hold_on_fail_ms=FAR_MS)
    harness.says(key, "its seat is held", "stderr")
    harness.backend.warn(key, now_ms() + FAR_MS, "preempted")
    assert harness.collector.down(key).exit_code == 3


def test_a_task_that_saved_or_succeeded_keeps_nothing(harness: Harness):
    for code in (0, 85):
        down, _ = harness.ran(f"exit {code}", hold_on_fail_ms=FAR_MS)
        assert down.exit_code == code


# --- a warning does not harm processes without a handler -------------------------------------------------------------

READING = """
import os, sys, time
print("ready", flush=True)
while not os.path.exists(os.environ["CORRAL_WARNING_FILE"]):
    time.sleep(0.02)
time.sleep(0.5)
print("saved", flush=True)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("command", ["{python} train.py {code}", "cd .; {python} train.py {code}; exit $?"])
@pytest.mark.parametrize("count", [1, 4])
def test_a_program_that_does_not_catch_sigterm_is_warned_by_its_file_alone(
    harness: Harness, tmp_path: Path, command: str, count: int
):
    (tmp_path / "train.py").write_text(READING)
    own = processes(*({"LOCAL_RANK": str(rank)} for rank in range(count)))
    key = harness.sh(command.format(python=sys.executable, code=85), processes=own, directory=str(tmp_path))
    until(lambda: harness.log(key).count("ready") == count)
    harness.backend.warn(key, now_ms() + FAR_MS, "priority")
    down = harness.collector.down(key)
    assert harness.log(key).count("saved") == count
    assert (down.exit_code, down.signal) == (85, 0)


def test_a_program_that_hears_nothing_is_ended_shortly_before_the_deadline(harness: Harness):
    key = harness.sh("echo ready; sleep 600")
    harness.says(key, "ready")
    begun = time.monotonic()
    harness.backend.warn(key, now_ms() + 3_000, "priority")
    down = harness.collector.down(key)
    assert down.signal == 15, "by SIGTERM, before the deadline"
    assert time.monotonic() - begun >= 1.4


LISTENING = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done"


@pytest.mark.parametrize("why", ["priority", "reclaim", "drain", "requeue", "shrink"])
def test_a_program_that_exits_with_0_when_it_is_asked_to_stop_has_not_finished(harness: Harness, why: str):
    key = harness.sh(LISTENING)
    harness.says(key, "ready")
    harness.backend.warn(key, now_ms() + FAR_MS, why)
    down = harness.collector.down(key)
    assert (down.exit_code, down.failure) == (85, None)
    assert down.why == "exited with 0 when it was asked to stop, so it is run again"


@pytest.mark.parametrize("why", ["cancel", "time_limit"])
def test_an_exit_with_0_before_a_final_end_is_an_exit_with_0(harness: Harness, why: str):
    key = harness.sh(LISTENING)
    harness.says(key, "ready")
    harness.backend.warn(key, now_ms() + FAR_MS, why)
    assert harness.collector.down(key).exit_code == 0


def test_a_program_that_reported_its_end_or_heard_no_signal_has_finished(harness: Harness):
    finished = "touch $(dirname $CORRAL_CHECKPOINT_FILE)/finished; exit 0"
    told = harness.sh(LISTENING.replace("exit 0", finished))
    agreed = harness.sh(LISTENING, rerun_after_exit_0=False)
    deaf = harness.sh("echo ready; while [ ! -s $CORRAL_WARNING_FILE ]; do sleep 0.02; done")
    for key in (told, agreed, deaf):
        harness.says(key, "ready")
        harness.backend.warn(key, now_ms() + FAR_MS, "priority")
        assert harness.collector.down(key).exit_code == 0


@pytest.mark.parametrize("why", ["cancel", "failure"])
def test_where_nothing_is_to_be_saved_it_is_ended_at_once(harness: Harness, why: str):
    key = harness.sh("echo ready; sleep 600")
    harness.says(key, "ready")
    harness.backend.warn(key, now_ms() + FAR_MS, why)
    assert harness.collector.down(key).signal == 15


def test_a_program_that_begins_to_listen_later_hears_the_warning_then(harness: Harness):
    later = "while [ ! -s $CORRAL_WARNING_FILE ]; do sleep 0.02; done; sleep 0.5; trap 'echo warned; exit 85' TERM"
    key = harness.sh(f"echo ready; {later}; while :; do sleep 0.02; done")
    harness.says(key, "ready")
    harness.backend.warn(key, now_ms() + FAR_MS, "priority")
    assert harness.collector.down(key).exit_code == 85
    assert harness.log(key).split() == ["ready", "warned"]


HELPED = """
import multiprocessing, os, signal, sys, time
def help_on():
    signal.signal(signal.SIGTERM, lambda *_: os.abort())
    print("ready", flush=True)
    time.sleep(600)
def main():
    helper = multiprocessing.get_context(sys.argv[1]).Process(target=help_on, daemon=True)
    helper.start()
    if sys.argv[2] == "listens":
        signal.signal(signal.SIGTERM, lambda *_: None)
    while not os.path.exists(os.environ["CORRAL_WARNING_FILE"]):
        time.sleep(0.02)
    time.sleep(1)
    print("helped" if helper.is_alive() else "alone", flush=True)
    sys.exit(85)
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("listens", ["listens", "reads"])
def test_the_helpers_of_a_program_hear_nothing_while_it_saves(
    harness: Harness, tmp_path: Path, method: str, listens: str
):
    (tmp_path / "train.py").write_text(HELPED)
    key = harness.sh(f"cd {tmp_path}; {sys.executable} train.py {method} {listens}; exit $?")
    harness.says(key, "ready")
    time.sleep(0.2)
    harness.backend.warn(key, now_ms() + FAR_MS, "priority")
    assert harness.collector.down(key).exit_code == 85
    assert harness.log(key).split() == ["ready", "helped"]


def test_what_a_shell_runs_to_save_is_not_evicted(harness: Harness, tmp_path: Path):
    (tmp_path / "save.py").write_text("import time; time.sleep(1); print('saved', flush=True)")
    save = f"{sys.executable} {tmp_path}/save.py; exit 85"
    key = harness.sh(f"trap '{save}' TERM; echo ready; while :; do sleep 0.02; done")
    harness.says(key, "ready")
    harness.backend.warn(key, now_ms() + FAR_MS, "priority")
    assert harness.collector.down(key).exit_code == 85
    assert harness.log(key).split() == ["ready", "saved"]


def test_a_job_that_names_another_exit_code_for_saved_keeps_no_place_with_it(harness: Harness):
    down, _ = harness.ran("exit 42", hold_on_fail_ms=FAR_MS, requeue_exit=42)
    assert (down.exit_code, down.failure) == (42, None)
    down, _ = harness.ran("echo ncclSystemError >&2; exit 42", requeue_exit=42)
    assert down.failure is None
