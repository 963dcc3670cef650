"""Scripts for sbatch: every directive, its units, what is noted, what is wrong, and that they run."""

from __future__ import annotations

import subprocess
from datetime import UTC
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.model import JobSpec
from corral.server.dispatch import inline_script
from corral.wire.environment.export import with_environment
from corral.wire.job import Parsed
from corral.wire.job.directives import BY_NAME, DIRECTIVES
from corral.wire.job.sbatch import read_sbatch
from corral.wire.job.slurm_units import slurm_moment, slurm_span
from tests.architecture.repository import ROOT

NOW_MS = 1_800_000_000_000  # 2027-01-15T08:00:00Z
CONVENTIONS = [
    "job-name",
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "gpus",
    "gpus-per-node",
    "gres",
    "cpus-per-task",
    "mem",
    "mem-per-gpu",
    "time",
    "partition",
    "account",
    "qos",
    "array",
    "dependency",
    "output",
    "error",
    "requeue",
    "signal",
    "switches",
    "exclusive",
    "begin",
    "deadline",
    "hold",
    "nice",
    "comment",
    "mail-type",
    "export",
    "chdir",
    "wrap",
    "parsable",
    "test-only",
    "wait",
]


def script(*directives: str) -> str:
    return "#!/bin/bash\n" + "".join(f"#SBATCH {each}\n" for each in directives) + "\necho done\n"


def read(*directives: str, **options: Any) -> Parsed:
    return read_sbatch(script(*directives), "run.sh", now_ms=NOW_MS, **options)


def keys(*directives: str, **options: Any) -> dict[str, Any]:
    found = read(*directives, **options)
    assert found.faults == ()
    assert isinstance(found.spec, JobSpec)
    document = {key: value for key, value in found.document.items() if key not in ("command", "script")}
    usual = {"slurm", "first", "slurm-%j.out", "slurm-%A_%a.out"}
    return {key: value for key, value in document.items() if not isinstance(value, str) or value not in usual}


MEANS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "a name": (("--job-name=a",), {"name": "a"}),
    "a name with its letter": (("-J a",), {"name": "a"}),
    "a letter and its value together": (("-Ja", "-c4"), {"name": "a", "cpus": 4}),
    "minutes": (("--time=90",), {"time_limit": "1h30m"}),
    "days": (("-t 1-12:30:10",), {"time_limit": "1d12h30m10s"}),
    "no limit": (("--time=UNLIMITED",), {}),
    "gpus of a model": (("--gpus=h100:8",), {"gpus": "H100:8"}),
    "gres": (("--gres=gpu:a100:2,licence:3",), {"gpus": "A100:2", "resources": {"licence": 3}}),
    "gres without a number": (("--gres=gpu",), {"gpus": 1}),
    "gpus among nodes": (("-N 2", "-G 16"), {"nodes": 2, "gpus": 8}),
    "cpus and memory": (("-c 8", "--mem=64G"), {"cpus": 8, "memory": "64GiB"}),
    "memory in MiB": (("--mem=4096",), {"memory": "4GiB"}),
    "memory by gpu": (("--gpus=2", "--mem-per-gpu=10G"), {"gpus": 2, "memory": "20GiB"}),
    "memory by cpu": (("-c 4", "--mem-per-cpu=2G"), {"cpus": 4, "memory": "8GiB"}),
    "a partition": (("-p gpu",), {"queue": "gpu"}),
    "an account": (("-A lab", "-p gpu"), {"queue": "lab", "labels": {"slurm.partition": "gpu"}}),
    "a class": (("--qos=high",), {"priority": "high"}),
    "nice": (("--nice",), {"priority": -100}),
    "an array": (("-a 0-9%2",), {"array": "0-9%2"}),
    "dependencies": (("-d afterok:1:2,afterany:3,afternotok:4",), {"after": ["ok:1", "ok:2", "any:3", "not_ok:4"]}),
    "a singleton": (("-J a", "-d singleton"), {"name": "a", "singleton": True}),
    "files": (("-o %x-%j.out", "-e %A_%a.err"), {"output": "%x-%j.out", "error": "%A_%a.err"}),
    "a signal": (("--signal=B:USR1@120",), {"signal": "script:SIGUSR1@120s", "grace": "120s"}),
    "one switch": (("--switches=1@10:00",), {"prefer": {"level": "rack", "wait": "10m"}}),
    "a begin": (("--begin=now+2hours",), {"begin": "2027-01-15T10:00:00.000Z"}),
    "a deadline": (("--deadline=2027-02-01T08:00:00",), {"deadline": "2027-02-01T08:00:00.000Z"}),
    "held": (("-H",), {"hold": True}),
    "a comment": (('--comment="two words"',), {"labels": {"comment": "two words"}}),
    "variables": (("--export=NONE,A=1,B",), {"env": {"A": "1", "B": "2"}}),
    "a directory": (("-D /srv/runs",), {"directory": "/srv/runs"}),
    "a directory of here": (("-D runs/1",), {"directory": "/home/ada/runs/1"}),
    "no requeue": (
        ("--no-requeue",),
        {"retries": {"gpu_fault": 0, "network": 0, "node_lost": 0, "start_failed": 0}, "preemptible": False},
    ),
    "scratch": (("--tmp=20G",), {"disk": "20GiB"}),
    "a container": (
        ("--container-image=img", "--container-mounts=/a:/b:ro,/c"), {"image": "img", "mounts": ["/a:/b:ro", "/c"]}
    ),
    "several in one line": (("--gpus=1 -c 2  # as asked",), {"gpus": 1, "cpus": 2}),
    "the last one wins": (("--gpus=1", "--gpus=2"), {"gpus": 2}),
}  # fmt: skip


@pytest.mark.parametrize(("directives", "wanted"), MEANS.values(), ids=MEANS.keys())
def test_directives_mean(directives: tuple[str, ...], wanted: dict[str, Any]) -> None:
    directory = {"directory": "/home/ada"}
    found = keys(*directives, exporter=lambda document: with_environment(document, {"B": "2"}), defaults=directory)
    env = {name: value for name, value in found.pop("env", {}).items() if not name.startswith("SLURM_")}
    env = env if env != {"B": "2"} or "env" in wanted else {}
    if "labels" not in wanted:
        found.pop("labels", None)
    found.get("labels", {}).pop("slurm.account", None)
    found = {key: value for key, value in (found | {"env": env}).items() if value != {}}
    assert found == directory | {"name": "run.sh"} | wanted


def test_tasks_are_the_share_of_a_node() -> None:
    found = keys("--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=8", "--gpus-per-task=1")
    assert (found["nodes"], found["gpus"], found["cpus"]) == (2, 4, 32)
    assert found["env"]["SLURM_NTASKS"] == "8"
    assert keys("--ntasks=6", "--ntasks-per-node=3")["nodes"] == 2
    assert keys("--nodes=2-4")["nodes"] == "2..4"


def test_slurm_is_spoken_to() -> None:
    spec = read("--gpus=1").spec
    assert spec is not None
    assert spec.gangs[0].work is not None
    assert spec.gangs[0].work.compat == "slurm"


def test_the_command_line_goes_before_the_script() -> None:
    found = keys("--gpus=1", "-t 10", options=["--gpus", "2"], overrides={"queue": "lab", "time_limit": "1h"})
    wanted = {"name": "run.sh", "gpus": 2, "time_limit": "1h", "queue": "lab", "env": {"SLURM_GPUS": "2"}}
    assert found == wanted


# --- notes and faults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONVENTIONS)
def test_every_directive_of_the_conventions_is_known(name: str) -> None:
    assert name in BY_NAME


@pytest.mark.parametrize("directive", [each for each in DIRECTIVES if each.note], ids=lambda each: each.name)
def test_what_means_nothing_here_is_noted(directive) -> None:
    value = "=x" if directive.takes == "value" else ""
    found = read("--gpus=1", f"--{directive.name}{value}")
    assert found.spec is not None
    assert [str(note) for note in found.notes] == [f"run.sh:3:9: --{directive.name}: {directive.note}"]


def test_what_means_something_else_is_noted() -> None:
    told = [str(note) for note in read("--requeue", "-N 2", "--export=NOT_SET", "--qos=long").notes]
    assert [line.partition(": ")[0] for line in told] == ["run.sh:5:9", "run.sh:2:9", "run.sh:4:9"]


WRONG = {
    "an unknown option": ("--gpu=1", "run.sh:2:9: there is no option --gpu. did you mean --gpus?"),
    "an unknown letter": ("-Z", "run.sh:2:9: there is no option -Z"),
    "no option": ("gpus=1", "run.sh:2:9: 'gpus=1' is not an option"),
    "no value": ("--gpus", "run.sh:2:9: --gpus needs a value"),
    "a value too much": ("--hold=yes", "run.sh:2:9: --hold takes no value"),
    "a bad time": ("--time=1h", "run.sh:2:9: --time: '1h' is not a valid Slurm time"),
    "a bad size": ("--mem=64Gi", "run.sh:2:9: --mem: '64Gi' is not a valid Slurm size"),
    "a bad number": ("--nodes=x", "run.sh:2:9: --nodes: 'x' is not a number of nodes"),
    "bad gpus": ("-c 1 --gpus=8x", "run.sh:2:14: --gpus: '8x' is not a number of GPUs"),
    "a bad array": ("--array=9-1", "run.sh:2:9: array: the range 9-1 is empty"),
    "a dependency of another kind": ("-d after:5", "run.sh:2:9: --dependency: 'after:5' is not supported"),
    "one of several": ("-d afterok:1?afterok:2", "run.sh:2:9: --dependency: dependencies joined by ?"),
    "a bad signal": ("--signal=KILL@5", "run.sh:2:9: --signal: 'KILL' is not a signal that a job can request"),
    "a bad begin": ("--begin=soon", "run.sh:2:9: --begin: 'soon' is not a valid Slurm time"),
    "a quote that does not end": ("--comment='x", "run.sh:2:19: a quote is not closed"),
    "parts": ("hetjob", "run.sh:2:9: hetjob: use gangs for the parts of a job"),
    "a relative directory": ("-D runs", "run.sh:2:9: directory: 'runs' is not an absolute path"),
}


@pytest.mark.parametrize(("directive", "begins"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_said_where_it_stands(directive: str, begins: str) -> None:
    found = read(directive)
    assert found.spec is None
    assert str(found.faults[0]).startswith(begins)


def test_everything_is_reported_at_once() -> None:
    found = read("--gpu=1", "--time=x", "--mem=y -n z", "--array=a")
    assert [str(fault.place) for fault in found.faults] == [
        "run.sh:2:9", "run.sh:3:9", "run.sh:4:9", "run.sh:4:17", "run.sh:5:9"
    ]  # fmt: skip


def test_directives_after_the_first_command_are_noted() -> None:
    found = read_sbatch("#!/bin/sh\n#SBATCH -c 1\n# more\n\necho\n#SBATCH -c 2\n", "run.sh")
    assert found.document["cpus"] == 1
    assert [str(note.place) for note in found.notes] == ["run.sh:6:1"]


@pytest.mark.parametrize("text", ["echo hi\n", "", "#!/bin/sh\r\necho\r\n"])
def test_what_is_no_script_is_refused(text: str) -> None:
    assert read_sbatch(text, "run.sh").faults


# --- running ---------------------------------------------------------------------------------------------------------


def output(text: str, name: str = "run.sh", **options: Any) -> str:
    found = read_sbatch(text, name, **options)
    assert found.spec is not None, found.faults
    assert found.spec.gangs[0].work is not None
    command = inline_script(found.spec.gangs[0].work)
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout


def test_scripts_run_as_they_are() -> None:
    text = '#!/bin/bash\n#SBATCH -c 1\nset -eu\necho "$0 $# $1"\nfor x in a b; do echo $x; done'
    assert output(text, arguments=["one two", "3"]) == "run.sh 2 one two\na\nb\n"


def test_a_script_is_text_and_not_an_argument() -> None:
    found = read_sbatch("#!/bin/sh\n#SBATCH -c 1\necho secret\n", "run.sh", arguments=["a"])
    assert found.spec is not None
    work = found.spec.gangs[0].work
    assert work is not None
    assert (work.command, work.launch) == (("run.sh", "a"), "first")
    assert work.script.endswith("echo secret\n")


SHORT = [("--job=a", "name"), ("--mem-per-c=1G", "memory"), ("--exclus", "exclusive")]


@pytest.mark.parametrize(("short", "full"), SHORT)
def test_options_are_abbreviated_as_getopt_takes_them(short: str, full: str) -> None:
    found = read(short)
    assert found.faults == ()
    assert full in found.document or [note.what for note in found.notes] == [f"--{full}"]


def test_other_interpreters_are_those_of_the_script() -> None:
    assert output("#!/usr/bin/env bash\n#SBATCH -c 1\necho ${BASH_VERSION:+bash}\n") == "bash\n"


def test_scripts_of_other_languages_run_from_a_file(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    text = "#!/usr/bin/env python3\n#SBATCH -c 1\nimport sys\nprint(sys.argv[1:], '\\\\n')\n"
    assert output(text, arguments=["a b"]) == "['a b'] \\n\n"


def test_wrapped_commands_run() -> None:
    assert output("", options=["--wrap=echo $((1 + 1))"]) == "2\n"


def test_the_example_is_sound() -> None:
    found = read_sbatch((ROOT / "examples" / "jobs" / "train.sbatch").read_text(), "train.sbatch")
    assert found.faults == ()
    assert found.spec is not None
    assert [str(note.place) for note in found.notes] == ["train.sbatch:12:9"]


# --- units -----------------------------------------------------------------------------------------------------------

SPANS = {"5": 300, "5:30": 330, "1:00:00": 3600, "1-0": 86_400, "1-2:30": 95_400, "0-0:0:1": 1, "INFINITE": None}


@pytest.mark.parametrize(("text", "seconds"), SPANS.items(), ids=SPANS.keys())
def test_spans_of_slurm(text: str, seconds: int | None) -> None:
    assert slurm_span(text) == (None if seconds is None else seconds * 1000)


MOMENTS = {
    "now": 0, "now+90": 90, "now+1day": 86_400, "16:30": 30_600, "07:59": 86_340, "noon": 14_400, "tomorrow": 57_600,
    "2027-01-16": 57_600, "01/16/27": 57_600, "1:00pm": 18_000,
}  # fmt: skip


@pytest.mark.parametrize(("text", "seconds"), MOMENTS.items(), ids=MOMENTS.keys())
def test_times_of_slurm(text: str, seconds: int) -> None:
    assert slurm_moment(text, NOW_MS, UTC) == NOW_MS + seconds * 1000


NAMES = [f"--{name}" for name in BY_NAME]
WORDS = st.sampled_from([*NAMES, "-N", "-c", "=", "2", "gpu:2", "x", "'", '"', "#", "\\", "-"])


@settings(deadline=None)
@given(st.lists(st.lists(WORDS | st.text(max_size=6), max_size=4), max_size=4))
def test_any_script_gives_a_job_or_faults(lines: list[list[str]]) -> None:
    found = read_sbatch(script(*(" ".join(line) for line in lines)), "run.sh", now_ms=NOW_MS)
    assert (found.spec is not None) != bool(found.faults)
