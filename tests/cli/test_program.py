"""The program as the system sees it: what it loads, how it ends, what it writes twice."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corral import __version__
from corral.cli import main as program
from tests.cli.typed import HEAVY, command, environment, loaded_by, spawned, table, typed


def test_the_version_is_reported() -> None:
    done = spawned("--version")
    assert (done.returncode, done.stdout.decode()) == (0, f"corral {__version__}\n")


@pytest.mark.parametrize(
    "words", [("--help",), ("ps", "--help"), ("sim", "run", "--help"), ("--version",)], ids=" ".join
)
def test_help_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    loaded = loaded_by(*words)
    assert "loaded" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_the_command_line_answers_soon() -> None:
    show = "import time; a = time.process_time(); import corral.cli.main; print(time.process_time() - a)"
    took = [
        float(subprocess.run([sys.executable, "-c", show], env=environment(), capture_output=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(took) < 0.15


@pytest.mark.parametrize("words", [("-h",), ("sim", "--help"), ("sim", "compare", "--help")], ids=" ".join)
def test_there_is_help(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    done = typed(capsys, *words)
    assert done.code == 0
    assert "Usage: corral" in done.out


def test_a_fault_of_its_own_is_reported_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(program.NOUNS, "sim", "corral.cli.nowhere:sim")
    done = typed(capsys, "sim")
    assert done.code == 1
    assert "No module named 'corral.cli.nowhere'" in done.err
    assert "CORRAL_DEBUG=1" in done.err


def test_who_stops_reading_is_not_bothered() -> None:
    piped = f"{' '.join(command('sim', 'policies'))} | head -n 1"
    done = subprocess.run(
        ["sh", "-c", piped], env=environment(), capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stderr == ""


# --- the same question has the same answer --------------------------------------------------------------------------


def test_the_same_command_writes_the_same_bytes_under_any_hash_seed(tmp_path: Path) -> None:
    workload = table(tmp_path / "jobs.csv")
    written = []
    for turn, seed in enumerate(("0", "1", "4242")):
        json_file, journal = tmp_path / f"{turn}.json", tmp_path / f"{turn}.jsonl"
        words = ("--node-hours", "5", "--lost-reports", "0.2", "--time-share", "3", "--policy", "standard", "-q")
        files = ("--json", str(json_file), "--journal", str(journal))
        done = spawned("sim", "run", "--trace", workload, "--nodes", "2x8", *words, *files, PYTHONHASHSEED=seed)
        assert done.returncode == 0, done.stderr
        written.append((json_file.read_bytes(), journal.read_bytes(), done.stdout))
    assert written[0][1].count(b"\n") > 60
    assert all(each == written[0] for each in written)


# --- a full disk ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("option", ["--json", "--csv", "--html", "--journal"])
def test_a_full_disk_is_reported_and_the_table_is_not_lost(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str
) -> None:
    done = typed(
        capsys, "sim", "run", "--trace", table(tmp_path / "jobs.csv"), "--nodes", "1x8", "-q", option, "/dev/full"
    )
    assert done.code == 1
    assert f"error: {option}: /dev/full could not be written: No space left on device" in done.err
    assert ("completion, mean" in done.out) is (option != "--journal")


# --- interrupted ----------------------------------------------------------------------------------------------------


UNDER_WAY = 100_000  # bytes of a journal: machines and queues have been set up, and jobs have come


def interrupted(tmp_path: Path, verb: str, *words: str) -> tuple[int, bytes, str]:
    """A long run that is sent SIGINT once it is under way."""
    files = ("--json", "-", "--journal", str(tmp_path / "events.jsonl"))
    running = subprocess.Popen(
        command("sim", verb, "--trace", "synthetic:department", "-q", *words, *files),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        until = time.monotonic() + 30
        while not any(path.stat().st_size > UNDER_WAY for path in tmp_path.glob("events*.jsonl")):
            assert time.monotonic() < until, "it did not begin"
            assert running.poll() is None, "it was over too soon"
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    finally:
        if running.poll() is None:
            running.kill()
            running.communicate()
    return running.returncode, out, err.decode()


def test_an_interrupt_gives_the_report_so_far_and_says_that_it_is_not_the_whole(tmp_path: Path) -> None:
    code, out, err = interrupted(tmp_path, "run", "--policy", "fair")
    assert code == 130
    (run,) = json.loads(out)["runs"]
    assert run["cut_ms"] > 0
    assert "interrupted: the results are NOT complete" in err
    assert "Traceback" not in err


def test_an_interrupt_names_the_policies_that_were_not_begun(tmp_path: Path) -> None:
    code, out, err = interrupted(tmp_path, "compare", "--policy", "fair,fifo")
    assert code == 130
    assert [run["policy"] for run in json.loads(out)["runs"]] == ["fair"]
    assert "Not started: fifo" in err


def test_an_interrupt_stops_all_processes(tmp_path: Path) -> None:
    code, out, err = interrupted(tmp_path, "compare", "--policy", "fair,standard", "--jobs", "2")
    assert code == 130
    assert all(run["cut_ms"] is not None for run in json.loads(out)["runs"])
    assert "Traceback" not in err


# --- progress -------------------------------------------------------------------------------------------------------


def test_a_terminal_sees_how_far_the_run_is(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    words = command("sim", "run", "--trace", "synthetic:lab", "--until", "4d", "--json", str(tmp_path / "x.json"))
    running = subprocess.Popen(
        words, env=environment(TERM="xterm", COLUMNS="120"), stdout=subprocess.DEVNULL, stderr=theirs
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # what a closed terminal gives
            break
        if not part:
            break
        seen += part
    os.close(ours)
    assert running.wait(timeout=30) == 0
    assert b"events/s" in seen
    assert b"standard" in seen


def test_without_colour_there_is_none(tmp_path: Path) -> None:
    workload = table(tmp_path / "jobs.csv")
    done = spawned(
        "sim", "compare", "--trace", workload, "--nodes", "1x8", "--policy", "fifo,fair", NO_COLOR="1", FORCE_COLOR="1"
    )
    assert done.returncode == 0
    assert b"\x1b[3" not in done.stdout
    assert b"38;" not in done.stdout
