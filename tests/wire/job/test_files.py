"""Files of jobs: several documents, places of faults, what YAML may and may not be, and the examples."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.wire.job import is_script, read_job_file
from tests.architecture.repository import ROOT

EXAMPLES = sorted((ROOT / "examples" / "jobs").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_sound(path) -> None:
    for found in read_job_file(path.read_text(), path.name):
        assert found.faults == ()
        assert found.spec is not None


def said(text: str, **options) -> list[str]:
    return [str(fault) for job in read_job_file(text, "job.yaml", **options) for fault in job.faults]


def test_faults_have_their_place() -> None:
    text = "name: a b\ncommand: x\ngpu:\n  modl: H100\n  vram: 40G\ngangs:\n  - rol: a\n---\ncommand: y\ntasks: [1]\n"
    places = [line.split(": ")[:2] for line in said(text)]
    assert places == [
        ["job.yaml:1:7", "name"],
        ["job.yaml:4:3", "gpu.modl"],
        ["job.yaml:5:9", "gpu.vram"],
        ["job.yaml:7:5", "gangs[0].rol"],
        ["job.yaml:7:5", "gangs[0].role"],
        ["job.yaml:10:8", "tasks"],
    ]


WRONG = {
    "equal keys": ("command: x\ngpus: 1\ngpus: 2\n", "job.yaml:3:1: gpus: the key 'gpus' occurs twice; first on"),
    "a quote that does not end": ('command: "x\n', "job.yaml:2:1: found unexpected end of stream"),
    "a tab": ("command: x\n\tgpus: 1\n", "job.yaml:2:1: "),
    "a tag": ("command: !!python/object:os.system x\n", "job.yaml:1:10: command: the tag"),
    "an endless alias": ("command: x\nenv: &a\n  A: *a\n", "job.yaml:2:6: env.A: an alias is inside its own"),
    "nothing": ("# nothing\n", "job.yaml:1:1: there is no job in this file"),
    "a list": ("- command: x\n", "job.yaml:1:1: this must be a mapping, not a list"),
    "a complex key": ("command: x\n? [a, b]\n: c\n", "job.yaml:2:3: a key must be a single word"),
    "a number as key": ("command: x\n5: y\n", "job.yaml:2:1: 5: there is no key '5' here"),
    "a merge of a number": ("command: x\nenv:\n  <<: 5\n", "job.yaml:3:7: env: << must have a mapping"),
    "a control character": ("command: \x01\n", "job.yaml:1:1: "),
    "an unknown alias": ("command: *x\n", "job.yaml:1:10: found undefined alias"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "begins"), WRONG.values(), ids=WRONG.keys())
def test_what_yaml_must_not_be(text: str, begins: str) -> None:
    found = said(text)
    assert found
    assert found[0].startswith(begins)


def document(text: str) -> dict:
    (found,) = read_job_file(text, "job.yaml")
    return found.document


def test_scalars_are_as_json_has_them() -> None:
    text = (
        "env: {A: 007, B: 1_000, C: yes, D: 12:30, E: 2026-01-01, F: '5', G: 0x1f, H: +5, I: 5, J: 1.5, K: true, L: ~}"
    )
    assert document(text)["env"] == {
        "A": "007", "B": "1_000", "C": "yes", "D": "12:30", "E": "2026-01-01", "F": "5", "G": "0x1f", "H": "+5",
        "I": 5, "J": 1.5, "K": True, "L": None,
    }  # fmt: skip


def test_anchors_and_merges_work() -> None:
    text = (
        "env: &e {A: '1', B: '2'}\ncommand: x\ngangs:\n  - role: a\n    env: {<<: *e, B: '3'}\n  - {role: b, env: *e}\n"
    )
    (found,) = read_job_file(text, "job.yaml")
    assert found.spec is not None
    works = [gang.work for gang in found.spec.gangs]
    assert [dict(work.env) for work in works if work] == [{"A": "1", "B": "3"}, {"A": "1", "B": "2"}]


def test_defaults_and_overrides() -> None:
    defaults = {"queue": "mine", "directory": "/here", "env": {"A": "0"}}
    (found,) = read_job_file(
        "command: x\ngpu: {count: 2}\nenv: {B: '1'}\nqueue: lab\n", "j", defaults=defaults, overrides={"gpus": 4}
    )
    assert found.document == {
        "queue": "lab", "directory": "/here", "env": {"A": "0", "B": "1"}, "command": "x", "gpus": 4
    }  # fmt: skip
    assert str(found.place(("queue",))) == "j:4:8"


def test_scripts_are_told_from_yaml() -> None:
    assert is_script("#!/bin/bash\necho\n")
    assert is_script("# no shebang\n#SBATCH -c 1\necho\n")
    assert not is_script("# a comment\ncommand: x\n")


def laughs(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


HOSTILE = {
    "a billion laughs": laughs(12),
    "deep lists": "a: " + "[" * 5_000,
    "deep mappings": "\n".join(" " * n + "a:" for n in range(2_000)),
    "many merges": "a: &a {b: 1}\n" + "\n".join(f"k{n}: {{<<: *a}}" for n in range(3_000)),
    "too large": "x" * 5_000_000,
    "many documents": "---\ncommand: x\n" * 1_100,
    "many unknown keys": "\n".join(f"k{n}: 1" for n in range(5_000)),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_files_are_bounded(text: str) -> None:
    begin = time.process_time()
    found = said(text)
    assert 0 < len(found) <= 60
    assert time.process_time() - begin < 20


@settings(deadline=None)
@given(st.text(max_size=60) | st.text("ab:-[]{}&*!|>'\"#%@`,? \n\t0~<", max_size=40))
def test_any_text_gives_jobs_or_faults(text: str) -> None:
    found = read_job_file(text, "j")
    assert found
    assert all((job.spec is not None) != bool(job.faults) for job in found)
