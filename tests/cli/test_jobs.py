"""Commands about jobs, as typed, against a real server on this machine."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Type, live
from tests.cli.typed import HEAVY, command, loaded_by, typed
from tests.client.fake import Fake, Reply, serving

Submit = Callable[..., str]


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.02)


# ---- submit ----------------------------------------------------------------------------------------------------------


def test_a_command_is_submitted_and_the_next_commands_are_reported(corral: Type) -> None:
    done = corral("submit", "--name", "hello", "--", "echo", "hello")
    assert done.code == 0
    assert done.out.endswith("(hello) submitted to default\n")
    job = done.out.split()[1]
    assert f"corral why {job}" in done.err
    assert f"corral logs -f {job}" in done.err
    assert corral("wait", job).code == 0
    assert corral("logs", job).out == "hello\n"


def test_a_job_file_is_submitted_with_options_over_it(corral: Type, at_home: Path) -> None:
    (at_home / "job.yaml").write_text("name: from-file\ncommand: pwd; echo $WHO\nenv: {WHO: file}\n")
    done = corral("submit", "job.yaml", "--name", "over-it", "--env", "WHO=option", "--json")
    (answer,) = json.loads(done.out)
    assert answer["name"] == "over-it"
    assert corral("wait", answer["id"], "--quiet") == (0, "", "")
    assert corral("logs", answer["id"]).out == f"{at_home}\noption\n"


def test_several_jobs_of_a_file_are_submitted_together(corral: Type, at_home: Path) -> None:
    (at_home / "jobs.yaml").write_text("command: 'true'\n---\ncommand: 'true'\n")
    done = corral("submit", "--parsable", "--wait", "jobs.yaml")
    assert done.code == 0, done.err
    assert len(done.out.split()) == 2


def test_a_script_for_slurm_is_submitted_as_it_is(corral: Type, at_home: Path) -> None:
    lines = ("#!/bin/bash", "#SBATCH --job-name=old --gpus-per-node=2", "#SBATCH -t 10:00", "echo $1 in $PWD", "")
    (at_home / "train.sh").write_text("\n".join(lines))
    done = corral("submit", "--parsable", "--wait", "train.sh", "first")
    assert done.code == 0, done.err
    job = done.out.split()[0]
    assert corral("logs", job).out == f"first in {at_home}\n"
    assert json.loads(corral("show", job, "--json").out)["time_limit_ms"] == 600_000


def test_a_fault_of_a_script_has_its_place_too(corral: Type, at_home: Path) -> None:
    (at_home / "bad.sh").write_text("#!/bin/bash\n#SBATCH --time=tomorrow\nhostname\n")
    done = corral("submit", "bad.sh")
    assert done.code == 2
    assert done.err.startswith("bad.sh:2:")


def test_everything_wrong_with_a_file_is_reported_at_once_with_its_place(corral: Type, at_home: Path) -> None:
    (at_home / "bad.yaml").write_text("command: python train.py\nprioritty: 8\ntime_limit: soon\nmemory: 64\n")
    done = corral("submit", "bad.yaml")
    assert done.code == 2
    assert not done.out
    first, second, third, last, *_ = done.err.splitlines()
    assert first.startswith("bad.yaml:2:1: there is no key")
    assert "did you mean priority?" in first
    assert second.startswith("bad.yaml:3:13: ")
    assert third.startswith("bad.yaml:4:9: ")
    assert last == "error: 3 errors found"


def test_a_fault_that_only_the_server_finds_has_its_reason(corral: Type) -> None:
    done = corral("submit", "--gpus", "16", "--", "true")
    assert done.code == 2
    assert "a task requests 16 GPUs; the largest node has 8" in done.err
    assert "hint: " in done.err
    done = corral("submit", "--queue", "nowhere", "--", "true")
    assert done.code in (2, 4, 5)
    assert "nowhere" in done.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "there is nothing to run"),
        (("--",), "there is no command after --"),
        (("nowhere.yaml",), "there is no job file 'nowhere.yaml'"),
        (("--memory", "lots", "--time", "5", "--", "true"), "--memory: "),
        (("--env", "NO_SUCH_VARIABLE", "--", "true"), "--env NO_SUCH_VARIABLE: it is not set in your environment"),
        (("--set", "grace", "--", "true"), "--set cannot be 'grace'"),
    ],
)
def test_what_is_typed_wrongly_is_reported(corral: Type, words: tuple[str, ...], told: str) -> None:
    done = corral("submit", *words)
    assert done.code == 2
    assert told in done.err


def test_standard_input_is_a_job_file(house: dict[str, str]) -> None:
    done = subprocess.run(
        command("submit", "--wait", "-"), env=live(house), input=b"command: exit 4\n", capture_output=True, timeout=60
    )
    assert done.returncode == 4, done.stderr


def test_the_same_key_is_the_same_job(corral: Type) -> None:
    words = ("submit", "--parsable", "--key", "only-once", "--", "true")
    assert corral(*words).out == corral(*words).out


def test_a_dry_run_shows_the_plan_and_submits_nothing(corral: Type) -> None:
    done = corral("submit", "--dry-run", "--gpus", "2", "--name", "maybe", "--", "true")
    assert done.code == 0, done.err
    what, *rest = done.out.splitlines()
    assert what == "what    maybe in default, priority 0"
    assert [line.split()[0] for line in rest if not line.startswith(" ")] == ["where", "when", "quota"]
    assert corral("ps", "--all", "--over", "--name", "maybe", "--json").out == "[]\n"


# ---- run -------------------------------------------------------------------------------------------------------------


def test_run_shows_both_streams_and_leaves_with_the_exit_code(corral: Type) -> None:
    done = corral("run", "--", "bash", "-c", "echo out; echo err >&2; exit 7")
    assert done.code == 7
    assert done.out == "out\n"
    assert "\nerr\n" in done.err
    assert "failed after" in done.err
    assert "(exit 7)" in done.err


def test_run_can_be_quiet(corral: Type) -> None:
    assert corral("run", "--quiet", "--", "echo", "only this") == (0, "only this\n", "")


def test_the_output_of_several_tasks_is_marked(corral: Type) -> None:
    done = corral("run", "--quiet", "--tasks", "2", "--", "sh", "-c", "echo rank $RANK")
    assert sorted(done.out.splitlines()) == ["[0] rank 0", "[1] rank 1"]


def running(house: dict[str, str], *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command("run", *words), env=live(house), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip


def begun(process: subprocess.Popen[bytes]) -> str:
    """The job, once it writes."""
    assert process.stdout is not None
    assert process.stderr is not None
    job = process.stderr.readline().split()[1].decode()
    assert process.stdout.readline() == b"begun\n"
    return job


def test_an_interrupt_detaches_and_the_job_goes_on(house: dict[str, str], corral: Type) -> None:
    process = running(house, "--", "sh", "-c", "echo begun; sleep 1; echo more")
    job = begun(process)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"detached: job {job} continues" in told.decode()
    assert f"corral logs -f {job}" in told.decode()
    assert corral("wait", job).code == 0
    assert corral("logs", job).out == "begun\nmore\n"


def test_a_second_interrupt_cancels(house: dict[str, str], corral: Type) -> None:
    process = running(house, "--", "sh", "-c", "echo begun; sleep 60")
    job = begun(process)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while b"Ctrl-C again" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert f"job {job} is cancelled" in told.decode()
    assert corral("wait", job).code == 143


# ---- look ------------------------------------------------------------------------------------------------------------


def test_jobs_are_listed_and_fields_picked(corral: Type, submit: Submit) -> None:
    job = submit("--name", "listed", "--label", "for=listing", "--hold", "--", "true")
    shown = corral("ps", "--label", "for=listing").out.splitlines()
    assert shown[0].split() == ["ID", "NAME", "QUEUE", "STATE", "GPUS", "AGE", "TIME", "NODES", "(REASON)"]
    assert shown[1].split()[:5] == [job, "listed", "default", "waiting", "(held)"]
    assert shown[1].endswith(f"(job {job} is held; release it with: corral release {job})")
    assert corral("ps", "--label", "for=listing", "--fields", "id,labels").out.splitlines()[1].split() == [
        job, "for=listing",
    ]  # fmt: skip
    (told,) = json.loads(corral("ps", "--label", "for=listing", "--json").out)
    assert (told["id"], told["held"], told["state"]) == (job, True, "waiting")
    picked = corral("ps", "--label", "for=listing", "--json", "--fields", "id,time").out
    assert json.loads(picked) == [{"id": job, "time": None}]
    assert corral("ps", "--label", "for=listing", "--parsable").out == f"{job}\n"
    assert corral("cancel", job).out == f"job {job} is cancelled\n"
    assert "no jobs" in corral("ps", "--label", "for=listing").err
    assert "cancelled" in corral("ps", "--label", "for=listing", "--over").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--fields", "nam"), "there is no field 'nam'\n  hint: did you mean 'name'?"),
        (("--state", "runing"), "--state cannot be 'runing'\n  hint: did you mean 'running'?"),
        (("--label", "x"), "--label cannot be 'x'"),
        (("--since", "7"), "has no unit"),
    ],
)
def test_what_cannot_be_listed_is_reported(corral: Type, words: tuple[str, ...], told: str) -> None:
    done = corral("ps", *words)
    assert done.code == 2
    assert told in done.err


def test_a_list_loads_neither_the_server_nor_the_engine(house: dict[str, str]) -> None:
    loaded = loaded_by("ps", **live(house))
    assert "corral.client.blocking" in loaded
    heavy = (*HEAVY, "http.client", "ssl", "email.parser", "rich.console")
    assert [name for name in heavy if name in loaded and name != "msgspec"] == []


def test_why_says_what_keeps_a_job(corral: Type, submit: Submit) -> None:
    job = submit("--hold", "--name", "kept", "--", "true")
    done = corral("why", job)
    assert f"job {job} (kept) waits in default" in done.out
    assert "  - " in done.out
    (gang,) = json.loads(corral("why", job, "--json").out)["gangs"]
    assert gang["reasons"]
    corral("release", job)
    corral("wait", job)
    assert f"job {job} succeeded" in corral("why", job).out


def test_a_job_is_shown_with_its_runs(corral: Type, submit: Submit) -> None:
    job = submit("--name", "shown", "--gpus", "1", "--", "true")
    corral("wait", job)
    done = corral("show", job)
    assert "1 task, 1 GPU" in done.out
    assert "succeeded" in done.out
    assert f"{job}/main" in done.out
    assert json.loads(corral("show", job, "--json").out)["command"] == ["true"]


def test_a_preempted_attempt_reads_as_preempted_and_when_it_resumed(corral: Type, submit: Submit) -> None:
    low = submit("--gpus", "8", "--grace", "1s", "--", "sleep", "60")
    until(lambda: json.loads(corral("show", low, "--json").out)["state"] == "running")
    high = submit("--gpus", "8", "--priority", "5", "--", "sleep", "1")
    until(lambda: corral("show", low).out.count(f"{low}/main") == 3)
    until(lambda: "resumed" in corral("show", low).out)
    corral("cancel", low)
    corral("wait", low)
    shown = corral("show", low).out
    assert re.search(rf"  preempted by job {high} \(priority\), resumed \S+ later", shown), shown
    assert re.search(r"  cancelled by admin\b", shown.splitlines()[-1]), shown
    assert re.search(r"^state +cancelled by admin$", shown, re.MULTILINE), shown
    assert "failed" not in shown


def attempt(number: int, **given: object) -> dict[str, object]:
    begin = number * 100_000
    return {
        "gang": "7/main",
        "attempt": number,
        "started_ms": begin,
        "ended_ms": begin + 60_000,
        "nodes": ["a"],
    } | given


@pytest.mark.parametrize(
    ("runs", "end"),
    [
        ([attempt(1, exit_code=0)], "succeeded"),
        ([attempt(1, exit_code=3, failure="user_error")], "failed (exit 3)"),
        ([attempt(1, exit_code=137, failure="out_of_memory")], "failed: out of memory (exit 137)"),
        ([attempt(1, exit_code=143, failure="time_limit", cause="time_limit")], "stopped at its time limit"),
        ([attempt(1, exit_code=1, failure="user_error", cause="cancel")], "cancelled"),
        ([attempt(1, exit_code=143, failure="preempted", cause="drain")], "stopped because its node was drained"),
        (
            [attempt(1, exit_code=143, failure="preempted", cause="reclaim", beneficiary="62/main"), attempt(2)],
            "preempted by job 62 (reclaim), resumed 40s later",
        ),
        (
            [attempt(1, failure="preempted", cause="time_share", beneficiary="another job", lost_gpu_ms=90_000)],
            "preempted by another job (time share), 1m30s of GPU time lost",
        ),
        ([attempt(1, exit_code=75), attempt(2)], "asked to be requeued (exit 75), resumed 40s later"),
        ([attempt(1, exit_code=1, failure="node_lost"), attempt(2)], "failed: node lost (exit 1), resumed 40s later"),
    ],
)
def test_ends_of_attempts_are_said_as_people_say_them(
    runs: list[dict[str, object]], end: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {
        "id": "7",
        "name": "",
        "queue": "default",
        "user": "ann",
        "state": "running",
        "held": False,
        "submitted_ms": 1,
    }
    with serving(Fake()) as server:
        server.on("GET", "/v1/jobs/7", Reply(job | {"priority": 0, "tasks": 1, "gpus": 1, "history": runs}))
        monkeypatch.setenv("CORRAL_URL", server.url)
        monkeypatch.setenv("CORRAL_TOKEN", "secret")
        done = typed(capfd, "show", "7")
    assert done.code == 0, done.err
    first = next(line for line in done.out.splitlines() if line.startswith("7/main"))
    assert first.endswith(f"  {end}"), done.out


def test_logs_have_tasks_streams_tails_and_are_followed(corral: Type, submit: Submit) -> None:
    job = submit("--", "bash", "-c", "for n in 1 2 3; do echo line $n; echo error $n >&2; sleep 0.2; done")
    assert corral("logs", "-f", "--stream", "stdout", job).out == "line 1\nline 2\nline 3\n"
    assert corral("logs", "--stream", "stderr", "--tail", "1", job).out == "error 3\n"
    assert corral("logs", f"{job}/main").out == "line 1\nerror 1\nline 2\nerror 2\nline 3\nerror 3\n"
    nowhere = corral("logs", job, "--task", "7")
    assert nowhere.code == 5
    assert f"job {job} has no task 7" in nowhere.err


def test_binary_output_is_not_touched(house: dict[str, str], submit: Submit) -> None:
    job = submit("--wait", "--", "printf", "\\377\\000\\n").split()[0]
    done = subprocess.run(command("logs", job), env=live(house), capture_output=True, timeout=60)
    assert done.stdout == b"\xff\x00\n"


def test_an_array_is_one_job_with_elements(corral: Type, submit: Submit) -> None:
    job = submit("--array", "0-2", "--", "sh", "-c", "echo element $CORRAL_ARRAY_INDEX")
    corral("wait", job)
    assert corral("logs", f"{job}[2]").out == "element 2\n"


# ---- change ----------------------------------------------------------------------------------------------------------


def test_jobs_are_held_released_requeued_and_given_priorities(corral: Type, submit: Submit) -> None:
    job = submit("--hold", "--grace", "1s", "--", "sleep", "60")
    assert corral("priority", "7", job).out == f"job {job} has priority 7\n"
    assert corral("release", job).out == f"job {job} is released\n"
    until(lambda: json.loads(corral("show", job, "--json").out)["state"] == "running")
    assert corral("requeue", job).out == f"job {job} is requeued\n"
    until(lambda: json.loads(corral("show", job, "--json").out)["gangs"][0]["attempt"] == 2)
    assert corral("cancel", job).code == 0
    assert corral("wait", job).code == 143


def test_of_several_the_first_that_cannot_be_changed_gives_the_code(corral: Type, submit: Submit) -> None:
    job = submit("--hold", "--", "true")
    done = corral("cancel", "99999", job)
    assert done.code == 5
    assert "error: job 99999: there is no job '99999'" in done.err
    assert done.out == f"job {job} is cancelled\n"
    over = corral("hold", job)
    assert over.code == 4
    assert f"error: job {job} has already ended" in over.err
    assert f"error: job {job} has already ended" in corral("hold", job, "99999").err


def test_waiting_has_an_end(corral: Type, submit: Submit) -> None:
    job = submit("--hold", "--", "true")
    done = corral("wait", "--timeout", "300ms", job)
    assert done.code == 124
    assert f"job {job} is still waiting" in done.err
    corral("cancel", job)


@pytest.mark.parametrize("verb", ["cancel", "logs", "wait", "show"])
def test_what_is_no_job_is_reported(corral: Type, verb: str) -> None:
    done = corral(verb, "train")
    assert done.code == 2
    assert "'train' is not a job" in done.err


def test_what_others_wrote_into_a_job_does_not_reach_the_terminal_raw(corral: Type, submit: Submit) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J"
    job = submit("--label", f"note={evil}", "--", "echo", f"a{evil}\nforged  line")
    for words in (("show", job), ("show", job, "--json"), ("ps", "--all"), ("events", "--json"), ("why", job)):
        done = corral(*words)
        assert "\x1b" not in done.out + done.err, words
        assert "\x07" not in done.out + done.err, words
    assert "\\x1b]0;owned" in corral("show", job).out
    assert not [line for line in corral("show", job).out.splitlines() if line.startswith("forged")]
    refused = corral("cancel", f"7{evil}")
    assert refused.code
    assert "\x1b" not in refused.err
