"""What training scripts import: within Corral, and anywhere else."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from corral import training
from tests.cli.typed import environment

VARIABLES = (
    "CORRAL_JOB_ID", "CORRAL_ATTEMPT", "CORRAL_ARRAY_INDEX", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "CORRAL_CHECKPOINT_FILE", "CORRAL_WARNING_FILE",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_outside_corral_it_does_nothing() -> None:
    assert not training.is_managed()
    assert (training.rank(), training.world_size(), training.local_rank(), training.local_world_size()) == (0, 1, 0, 1)
    assert (training.job_id(), training.attempt(), training.array_index()) == (None, 1, None)
    assert not training.should_stop()
    assert training.deadline() is None
    assert training.seconds_left() is None
    assert training.why_stop() == ""
    training.checkpoint_saved(3, "path")
    training.report(3, 0.5, busy_s=0.1, lr=1e-3)
    with training.busy():
        training.finished()
    assert training.resume_from() is None
    assert training.resume_path() is None


def test_ranks_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = {"CORRAL_JOB_ID": "17", "RANK": "5", "WORLD_SIZE": "8", "CORRAL_ATTEMPT": "3", "CORRAL_ARRAY_INDEX": "0"}
    for name, value in stated.items():
        monkeypatch.setenv(name, value)
    assert training.is_managed()
    assert (training.rank(), training.world_size()) == (5, 8)
    assert (training.job_id(), training.attempt(), training.array_index()) == ("17", 3, 0)


def test_a_checkpoint_is_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "checkpoints"
    monkeypatch.setenv("CORRAL_CHECKPOINT_FILE", str(file))
    training.checkpoint_saved(10)
    training.checkpoint_saved(20)
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [10, 20]


def test_a_checkpoint_says_where_it_is_and_how_long_it_took(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "checkpoints"
    monkeypatch.setenv("CORRAL_CHECKPOINT_FILE", str(file))
    training.checkpoint_saved(10, tmp_path / "ten", took_s=1.5)
    said = json.loads(file.read_text())
    assert (said["step"], said["path"], said["save_ms"]) == (10, str(tmp_path / "ten"), 1_500)


def test_the_next_attempt_gets_the_newest_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_RESUME_STEP", "10")
    monkeypatch.setenv("CORRAL_RESUME_PATH", "runs/ten")
    assert training.resume_from() == (10, "runs/ten")
    assert training.resume_path() == "runs/ten"


def test_a_report_has_the_time_without_waiting_and_a_fingerprint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CORRAL_CHECKPOINT_FILE", str(tmp_path / "checkpoint"))
    monkeypatch.setattr(training, "_pace", training._Pace())
    with training.busy():
        time.sleep(0.02)
    training.report(7, 0.5, data_s=0.001, parameters="0badcafe", lr=0.25)
    said = json.loads((tmp_path / "progress.0").read_text())
    assert (said["step"], said["metrics"]) == (7, {"loss": 0.5, "lr": 0.25})
    assert (said["data_ms"], said["parameters"]) == (1, [7, "0badcafe"])
    assert int((tmp_path / "pace.0").read_text()) >= 20


@pytest.mark.timeout(120)
def test_it_is_installed_alone(tmp_path: Path) -> None:
    """The package corral-training is this one module."""
    folder = Path(training.__file__).parents[3] / "packaging" / "training"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=folder, check=True, capture_output=True, timeout=100)
    (wheel,) = tmp_path.glob("corral_training-*.whl")
    with zipfile.ZipFile(wheel) as files:
        assert files.read("corral_training.py") == Path(training.__file__).read_bytes()
        assert [name for name in files.namelist() if name.endswith(".py")] == ["corral_training.py"]


def test_a_warning_says_until_when_and_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "warning"
    monkeypatch.setenv("CORRAL_WARNING_FILE", str(file))
    assert not training.should_stop()
    at_ms = int(time.time() * 1000) + 30_000
    file.write_text(json.dumps({"deadline_ms": at_ms, "why": "priority"}))
    assert training.should_stop()
    assert training.deadline() == at_ms / 1000
    assert 25 < (training.seconds_left() or 0) <= 30
    assert training.why_stop() == "priority"


def test_half_a_warning_is_a_warning_without_a_deadline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "warning"
    monkeypatch.setenv("CORRAL_WARNING_FILE", str(file))
    file.write_text('{"deadl')
    assert training.should_stop()
    assert training.deadline() is None


def test_it_loads_the_standard_library_only() -> None:
    show = "import sys; print(*sys.modules); from corral import training; training.rank(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", show], env=environment(), capture_output=True, text=True, check=True)
    before, after = ({name.partition(".")[0] for name in line.split()} for line in done.stdout.splitlines())
    assert after - before - set(sys.stdlib_module_names) == {"corral"}


# --- SIGTERM ----------------------------------------------------------------------------------------------------------

TOLD = """
import os, signal, sys, time
{before}
from corral import training
{after}
os.kill(os.getpid(), signal.SIGTERM)
print("alive", training.should_stop(), training.SAVED)
"""


def told(before: str = "", after: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """A program that imports it, and then gets the signal."""
    script = TOLD.format(before=before, after=after)
    env = environment() | variables
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60)


def test_within_corral_sigterm_is_noted_and_harms_no_one() -> None:
    assert told(CORRAL_JOB_ID="1").stdout == "alive True 85\n"


LEAVING = """
import os, signal, sys
from corral import training
class Last:
    def __del__(self, kill=os.kill, me=os.getpid(), what=signal.SIGTERM):
        kill(me, what)
last = Last()
sys.exit(training.SAVED)
"""


def test_a_signal_that_meets_a_program_on_its_way_out_does_not_replace_its_exit_code() -> None:
    done = subprocess.run([sys.executable, "-c", LEAVING], env=environment() | {"CORRAL_JOB_ID": "1"}, timeout=60)
    assert done.returncode == 85


def test_outside_corral_sigterm_ends_a_program_as_ever() -> None:
    assert told().returncode == -15


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_handler_of_the_program_is_the_one_that_counts(where: str) -> None:
    own = {where: "signal.signal(signal.SIGTERM, lambda *_: print('own'))"}
    assert told(**own, CORRAL_JOB_ID="1").stdout == "own\nalive False 85\n"


def test_from_another_thread_nothing_is_installed_and_nothing_fails() -> None:
    before = (
        "import importlib, threading\n"
        "other = threading.Thread(target=importlib.import_module, args=('corral.client.training',))\n"
        "other.start(); other.join()"
    )
    assert told(before, CORRAL_JOB_ID="1").returncode == -15


def test_the_exit_code_that_the_job_names_is_the_one_to_leave_with() -> None:
    assert told(CORRAL_JOB_ID="1", CORRAL_REQUEUE_EXIT="42").stdout == "alive True 42\n"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_helpers_can_be_ended_as_ever(method: str, tmp_path: Path) -> None:
    """`multiprocessing` ends them by SIGTERM, and waits for them."""
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, time\nfrom corral import training\n"
        "def rest():\n    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        f"    helper = multiprocessing.get_context('{method}').Process(target=rest)\n"
        "    helper.start(); time.sleep(0.5); helper.terminate(); helper.join(30)\n"
        "    print(helper.exitcode)\n    helper.kill()\n"
    )
    env = environment() | {"CORRAL_JOB_ID": "1"}
    done = subprocess.run([sys.executable, str(program)], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "-15\n", done.stderr


def test_what_is_left_is_reported_by_a_clock_that_no_one_can_set(tmp_path, monkeypatch):
    """The time of day in the warning is an hour off: the wall clock was set since."""
    file = tmp_path / "warning.json"
    monkeypatch.setenv("CORRAL_WARNING_FILE", str(file))
    until_ms = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000) + 30_000
    at_ms = time.time_ns() // 1_000_000 - 3_600_000
    file.write_text(json.dumps({"deadline_ms": at_ms, "boot_ms": until_ms, "why": "drain"}))
    left_s = training.seconds_left()
    assert left_s is not None
    assert 0 < left_s <= 30


# --- any Python, without Corral ---------------------------------------------------------------------------------------

FILE = Path(training.__file__)
LATER_THAN_3_9 = re.compile(r"^\s*(?:match |case )|isinstance\([^()]*\|[^()]*\)|\bzip\([^()]*strict", re.M)


def test_it_is_one_file_for_python_3_9() -> None:
    """There is no such Python here: its grammar is, and what came later is looked for by name."""
    text = FILE.read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 9))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= set(sys.stdlib_module_names)
    assert not LATER_THAN_3_9.findall(text)
    assert "from __future__ import annotations" in text


def test_a_bare_interpreter_loads_it_from_a_folder(tmp_path: Path) -> None:
    """Without site-packages and variables of Python: only the folder that it is given."""
    (tmp_path / "corral_training.py").write_bytes(FILE.read_bytes())
    (tmp_path / "state").mkdir()
    script = (
        f"import sys; sys.path.append({str(tmp_path)!r}); import corral_training as t\n"
        "t.checkpoint_saved(7); t.step_done(0.5); print(t.rank(), t.should_stop(), t.SAVED, 'msgspec' in sys.modules)\n"
        "try: import corral\nexcept ImportError: print('no corral')"
    )
    env = {"CORRAL_JOB_ID": "1", "RANK": "3", "CORRAL_CHECKPOINT_FILE": str(tmp_path / "state" / "checkpoint")}
    bare = [sys.executable, "-I", "-S", "-c", script]
    done = subprocess.run(bare, env=env, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.stdout.splitlines() == ["3 False 85 False", "no corral"], done.stderr
    assert json.loads((tmp_path / "state" / "checkpoint").read_text())["step"] == 7
    assert (tmp_path / "state" / "pace.3").read_text() == "500"


ENDS = """
import os, signal, sys
sys.path.insert(0, {folder!r})
from corral import training
if {uses}:
    training.should_stop()
os.kill(os.getpid(), signal.SIGTERM)
if {asks}:
    training.should_stop()
if {says}:
    training.finished()
"""


@pytest.mark.parametrize(
    ("uses", "asks", "says", "is_finished"),
    [(True, False, False, True), (True, True, False, False), (True, True, True, True), (False, False, False, False)],
    ids=["never warned", "warned", "warned, and finished all the same", "a framework with a handler of its own"],
)
def test_a_program_that_was_not_warned_has_finished(
    tmp_path: Path, uses: bool, asks: bool, says: bool, is_finished: bool
) -> None:
    script = ENDS.format(folder=str(Path(training.__file__).parents[2]), uses=uses, asks=asks, says=says)
    env = {"CORRAL_JOB_ID": "1", "CORRAL_CHECKPOINT_FILE": str(tmp_path / "checkpoint")}
    subprocess.run([sys.executable, "-c", script], env=environment() | env, check=True, timeout=60)
    assert (tmp_path / "finished").exists() is is_finished
