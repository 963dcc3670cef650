"""What people type who know Slurm, Kubernetes or a shell: it works, or the answer names what does."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Type, live
from tests.cli.typed import command, environment, free_port, typed


def node_name(corral: Type) -> str:
    return str(json.loads(corral("node", "--json").out)[0]["name"])


@pytest.mark.parametrize(
    ("word", "meant"),
    [("stop", "cancel"), ("kill", "cancel"), ("delete", "cancel"), ("scancel", "cancel"), ("squeue", "ps"),
     ("list", "ps"), ("sinfo", "node"), ("sbatch", "submit"), ("srun", "run"), ("cordon", "node cordon")],
)  # fmt: skip
def test_a_word_of_elsewhere_is_answered_by_its_meaning(
    capsys: pytest.CaptureFixture[str], word: str, meant: str
) -> None:
    done = typed(capsys, word)
    assert done.code == 2
    assert f"did you mean: corral {meant}\n" in done.err


def test_within_a_group_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean: corral queue remove" in typed(capsys, "queue", "delete", "lab").err
    assert "see: corral queue --help" in typed(capsys, "queue", "xyzzy").err


def test_a_dependency_as_sbatch_writes_it(corral: Type, submit: Callable[..., str]) -> None:
    first = submit("--hold", "--", "true")
    second = submit("-d", f"afterany:{first}", "--", "true")
    assert first in corral("why", second).out
    corral("cancel", first, second)


def test_a_time_limit_as_sbatch_writes_it(corral: Type, submit: Callable[..., str]) -> None:
    job = submit("--hold", "--time", "1:00:00", "--", "true")
    shown = json.loads(corral("show", job, "--json").out)
    assert shown["time_limit_ms"] == 3_600_000
    corral("cancel", job)


@pytest.mark.parametrize("words", [("high", "JOB"), ("JOB", "high"), ("100", "JOB")])
def test_a_priority_is_a_word_or_a_number_in_either_order(
    corral: Type, submit: Callable[..., str], words: tuple[str, ...]
) -> None:
    job = submit("--hold", "--", "true")
    done = corral("priority", *(job if word == "JOB" else word for word in words))
    assert done.out == f"job {job} has priority 100\n", done.err
    corral("cancel", job)


def test_a_guarantee_with_a_typing_error_is_refused_and_too_much_is_pointed_out(corral: Type) -> None:
    done = corral("queue", "set", "typo", "--guarantee", "gpu=4")
    assert (done.code, "did you mean gpus?" in done.err) == (2, True)
    done = corral("queue", "set", "much", "--limit", "gpus=100")
    assert done.code == 0
    assert "warning: --limit is 100 GPUs; the whole cluster has 8 GPUs" in done.err
    corral("queue", "remove", "much")


def test_a_cordoned_node_finishes_its_jobs_and_starts_nothing(corral: Type, submit: Callable[..., str]) -> None:
    name = node_name(corral)
    job = submit("--", "sleep", "60")
    assert corral("wait", "--timeout", "0s", job).code == 124
    _until_running(corral, job)
    try:
        assert "1 gang continues to the end" in corral("node", "cordon", name).out
        assert "cordoned" in corral("node").out
        later = submit("--", "true")
        assert json.loads(corral("show", later, "--json").out)["state"] == "waiting"
        assert json.loads(corral("show", job, "--json").out)["state"] == "running"
        assert "uncordon" in corral("node", "undrain", name).err
        done = corral("node", "cordon", name)
        assert (done.code, "already cordoned" in done.err) == (4, True)
    finally:
        assert corral("node", "uncordon", name).out == f"{name} takes jobs again\n"
    assert corral("wait", "--timeout", "60s", later).code == 0
    corral("cancel", "--now", job)


def _until_running(corral: Type, job: str) -> None:
    until = time.monotonic() + 60
    while json.loads(corral("show", job, "--json").out)["state"] != "running":
        assert time.monotonic() < until
        time.sleep(0.05)


def test_drain_says_what_it_stops_and_asks_on_a_terminal(
    house: dict[str, str], corral: Type, submit: Callable[..., str]
) -> None:
    name = node_name(corral)
    job = submit("--", "sleep", "60")
    _until_running(corral, job)
    ours, theirs = pty.openpty()
    asked = subprocess.Popen(
        command("node", "drain", name), env=live(house), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = b""
    while b"[y/N]" not in seen:
        seen += os.read(ours, 1000)
    os.write(ours, b"n\n")
    assert asked.wait(60) != 0
    os.close(ours)
    assert b"1 gang on" in seen
    assert b"corral node cordon" in seen
    assert json.loads(corral("show", job, "--json").out)["state"] == "running"
    corral("cancel", "--now", job)


def test_events_are_the_newest_last(corral: Type) -> None:
    for n in range(4):
        corral("queue", "set", f"row{n}")
    told = [json.loads(line)["seq"] for line in corral("events", "--limit", "2", "--json").out.splitlines()]
    everything = [json.loads(line)["seq"] for line in corral("events", "--json").out.splitlines()]
    assert told == everything[-2:]
    assert len(corral("events", "--since", "5m").out.splitlines()) >= 4
    assert corral("events", "--since", "0s").out == ""
    done = corral("events", "--type", "JobEndde")
    assert (done.code, "did you mean JobEnded?" in done.err) == (2, True)
    assert corral("events", "--since", "soon").code == 2


@pytest.mark.parametrize("noun", ["node", "queue", "user", "token", "secret", "fleet"])
def test_every_list_has_json(corral: Type, noun: str) -> None:
    assert isinstance(json.loads(corral(noun, "--json").out), list)
    assert isinstance(json.loads(corral(noun, "list", "--json").out), list)


@pytest.mark.parametrize(
    ("line", "expected"),
    [("queue show ", "default"), ("ps --queue ", "default"), ("user set ", "admin"), ("cancel ", "JOB")],
)
def test_a_shell_completes_what_the_server_knows(
    house: dict[str, str], submit: Callable[..., str], corral: Type, line: str, expected: str
) -> None:
    job = submit("--hold", "--", "true")
    words = {
        "_CORRAL_COMPLETE": "bash_complete",
        "COMP_WORDS": f"corral {line}",
        "COMP_CWORD": str(len(line.split()) + 1),
    }
    done = subprocess.run(command(), env=live(house) | words, capture_output=True, text=True, timeout=60, check=False)
    assert (job if expected == "JOB" else expected) in done.stdout.replace(",", "\n").split("\n")
    corral("cancel", job)


def test_without_a_server_nothing_is_completed_and_nothing_is_said(tmp_path: Path) -> None:
    words = {"_CORRAL_COMPLETE": "bash_complete", "COMP_WORDS": "corral queue show ", "COMP_CWORD": "3"}
    env = environment(XDG_CONFIG_HOME=str(tmp_path), CORRAL_URL="http://127.0.0.1:9", CORRAL_TOKEN="x", **words)
    done = subprocess.run(command(), env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_tables_fit_sixty_columns(house: dict[str, str]) -> None:
    for noun in ("node", "queue", "ps", "user"):
        ours, theirs = pty.openpty()
        env = live(house) | {"COLUMNS": "60", "TERM": "dumb"}
        done = subprocess.run(command(noun), env=env, stdout=theirs, stderr=subprocess.DEVNULL, timeout=60, check=True)
        os.close(theirs)
        assert done.returncode == 0
        lines = os.read(ours, 100_000).decode().splitlines() if noun != "ps" else []
        os.close(ours)
        assert all(len(line) <= 60 for line in lines), lines


def test_down_knows_what_up_used_and_a_relative_configuration_is_found(tmp_path: Path) -> None:
    env = environment(XDG_CONFIG_HOME=str(tmp_path / "config"), HOME=str(tmp_path))
    env = {name: value for name, value in env.items() if not name.startswith("CORRAL_")}
    (tmp_path / "site.yaml").write_text("keep_ended: 100d\n")
    words = ("--data", "here", "--config", "site.yaml", "--listen", f"127.0.0.1:{free_port()}", "--fake-gpus", "1xH100")
    up = subprocess.run(
        command("up", "--detach", *words), env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert up.returncode == 0, up.stderr
    down = subprocess.run(command("down"), env=env, cwd="/", capture_output=True, text=True, timeout=120)
    assert down.returncode == 0, down.stderr
    assert "has stopped" in down.stdout


def test_a_member_of_one_queue_need_not_name_it_and_of_several_is_told_which(
    corral: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue in ("crew", "crew/sight", "crew/sound"):
        corral("queue", "set", queue)
    corral("user", "set", "mia")
    corral("user", "grant", "mia", "member", "crew/sight")
    token = corral("token", "make", "--user", "mia").out.split()[-1]
    own = json.loads(Path(os.environ["XDG_CONFIG_HOME"], "corral", "credentials.json").read_text())
    with monkeypatch.context() as as_mia:
        as_mia.setenv("CORRAL_URL", own["url"])
        as_mia.setenv("CORRAL_TOKEN", token)
        done = corral("submit", "--hold", "--", "id")
        assert "submitted to crew/sight" in done.out, done.err
    corral("user", "grant", "mia", "member", "crew/sound")
    with monkeypatch.context() as as_mia:
        as_mia.setenv("CORRAL_URL", own["url"])
        as_mia.setenv("CORRAL_TOKEN", token)
        done = corral("submit", "--hold", "--", "id")
        assert done.code != 0
        assert "you may use several" in done.err
        assert "crew/sight, crew/sound" in done.err


def test_a_node_with_a_suspect_gpu_says_so(corral: Type) -> None:
    corral("node", "drill", "--gpu", "7", "--xid", "79")
    try:
        until = time.monotonic() + 60
        while "1 GPU " not in (shown := corral("node").out):
            assert time.monotonic() < until, shown
            time.sleep(0.2)
        assert "(1 GPU " in shown
        assert "79" in shown
    finally:
        corral("node", "drill", "--gpu", "7", "--end")
        corral("node", "clear", "--gpu", "7")
        until = time.monotonic() + 60
        while "1 GPU " in corral("node").out and time.monotonic() < until:
            time.sleep(0.2)


def test_sbatch_mail_options_promise_nothing(corral: Type, at_home: Path) -> None:
    script = at_home / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --mail-type=END\n#SBATCH --hold\ntrue\n")
    assert "no mail is sent" in corral("submit", str(script)).err


def test_a_test_cluster_that_is_sent_sigterm_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "bed"
    bed = subprocess.Popen(
        command("testbed", "--folder", str(folder), "--nodes", "1"),
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert bed.stdout is not None
    assert "1 nodes" in bed.stdout.readline()
    bed.send_signal(signal.SIGTERM)
    assert bed.wait(60) == 0
    bed.stdout.close()
    until = time.monotonic() + 30
    while left := _naming(str(folder)):
        assert time.monotonic() < until, left
        time.sleep(0.1)


def _naming(folder: str) -> list[str]:
    """Processes whose command line names the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        found += [line] if folder in line else []
    return found


def test_doctor_asks_the_slurm_controller(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in ("sbatch", "squeue", "scancel", "scontrol"):
        Path(tmp_path, program).write_text(
            "#!/bin/sh\necho 'slurm_load_jobs: Unable to contact slurm controller' >&2\nexit 1\n"
        )
        Path(tmp_path, program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    checks = json.loads(typed(capsys, "doctor", "--json", "--data", str(tmp_path / "data")).out)
    (found,) = [check for check in checks if check["about"] == "on slurm"]
    assert found["state"] == "note"
    assert "Unable to contact slurm controller" in found["what"]
    assert "squeue" in found["todo"]


@pytest.mark.parametrize(
    ("typed_words", "expected"),
    [
        (("--wrap", "echo hi", "-t", "90"), {"command": "echo hi", "time_limit": "1h30m"}),
        (("--wrap=echo hi", "--mem", "4G"), {"command": "echo hi", "memory": "4GiB"}),
        (("--gres=gpu:2", "-A", "lab", "--", "true"), {"gpus": 2, "queue": "lab"}),
        (("-p", "lab,dev", "-G", "h100:1", "--", "true"), {"gpus": "H100:1", "queue": "lab"}),
        (("-N", "2", "-n", "16", "-c", "4", "--gpus=16", "--", "true"), {"nodes": 2, "cpus": 32, "gpus": 8}),
        (("-n4", "--hold", "--", "true"), {"cpus": 4, "hold": True}),
        (("--qos", "high", "--comment=x", "-H", "--", "true"), {"priority": "high", "labels": {"comment": "x"}}),
        (("--time", "6h", "--mem", "4GiB", "-c", "4", "--", "true"), {"time_limit": "6h", "memory": "4GiB", "cpus": 4}),
        (("-J", "x", "--exclusive", "--mail-type=END", "--", "true", "-n", "7"), {"name": "x"}),
    ],
)
def test_the_options_of_sbatch_are_accepted(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    typed_words: tuple[str, ...],
    expected: dict[str, object],
) -> None:
    """As the document that would be sent."""
    sent: list[dict[str, object]] = []
    monkeypatch.setattr("corral.cli.jobs.submit.send", lambda _client, jobs, _key: sent.append(jobs[0].document))
    monkeypatch.setattr("corral.cli.jobs.submit._print_submitted", lambda _answers, _given: None)
    monkeypatch.setattr("corral.cli.jobs.submit.connected", lambda: contextlib.nullcontext())
    assert typed(capsys, "submit", *typed_words).code == 0
    assert {key: sent[0].get(key) for key in expected} == expected
    assert "compat" not in sent[0]


def test_srun_starts_each_of_its_tasks(corral: Type) -> None:
    done = corral("run", "-n", "2", "--", "sh", "-c", "echo task $CORRAL_TASK")
    assert sorted(done.out.split()) == sorted(["[0]", "task", "0", "[1]", "task", "1"])


def test_states_by_the_words_of_others(corral: Type, submit: Callable[..., str]) -> None:
    job = submit("--hold", "--", "true")
    assert job in corral("ps", "--state", "PD", "--parsable").out.split()
    assert job in corral("ps", "--state", "pending,R", "--parsable").out.split()
    assert corral("cancel", "--state", "pending", "--yes").code == 0
    assert job not in corral("ps", "--parsable").out.split()
