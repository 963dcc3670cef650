"""Mistakes typed against a real server: each answer says what is wrong and what to do, in the units of people.

``mistakes.txt`` holds all answers, to be read from end to end; ``--accept`` writes it again.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Type
from tests.cli.mistakes import FILES, MISTAKES

BOOK = Path(__file__).with_name("mistakes.txt")
_UNITS = re.compile(r"_milli|_mib\b|gpu_ms|\d{6,} MiB|Traceback|NoneType|<class|Error\(")
_VARIABLE = [
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
    (re.compile(r"current folder is .*"), "current folder is FOLDER"),
    (re.compile(r"/[\w./-]*pytest[\w./-]*/"), "FOLDER/"),
    (re.compile(r"servers run with data folder .*:"), "servers run with data folder FOLDER:"),
    (re.compile(r"\d[\d,.]* GiB"), "N GiB"),
    (re.compile(r"\b[\d,]+ CPUs"), "N CPUs"),
    (re.compile(r"request [0-9a-f]{8,}"), "request ID"),
    (re.compile(r"queues you may use: .*"), "queues you may use: QUEUES"),
    (re.compile(r"allowed: AccessRefused, .*"), "allowed: EVENT TYPES"),
    (re.compile(r"verbs: jobs.read, .*"), "verbs: VERBS"),
    (re.compile(r"\(process \d+\)"), "(process N)"),
]


@pytest.fixture
def mistaken(
    corral: Type, submit: Callable[..., str], at_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """Types a line; the answer with its exit code, without what differs from run to run."""
    for name, text in FILES.items():
        Path(at_home, name).write_text(text)
    job = submit("--hold", "--", "true")
    node = str(json.loads(corral("node", "--json").out)[0]["name"])
    corral("user", "set", "vera")
    corral("user", "grant", "vera", "viewer")
    viewer = corral("token", "make", "--user", "vera").out.strip()
    url = json.loads(Path(os.environ["XDG_CONFIG_HOME"], "corral", "credentials.json").read_text())["url"]
    others = {"AWAY": ("http://127.0.0.1:9", "x"), "WRONG": (url, "corral_wrong"), "AS_VIEWER": (url, viewer)}

    def answer(line: str) -> str:
        words = line.replace("JOB", job).replace("NODE", node).replace("URL", url).split()
        with monkeypatch.context() as changed:
            if words[0] in others:
                for name, value in zip(("CORRAL_URL", "CORRAL_TOKEN"), others[words.pop(0)], strict=True):
                    changed.setenv(name, value)
            if words[:1] in (["up"], ["testbed"]):
                changed.setenv("CORRAL_DATA", str(at_home / "other"))
            changed.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
            done = corral(*words)
        text = (done.out + done.err).replace(str(at_home) + "/", "").replace(node, "NODE")
        for before, after in (("job ", " "), ("'", "["), ("hint: write ", "\n")):
            text = text.replace(f"{before}{job}{after}", f"{before}JOB{after}")
        text = re.sub(rf"corral show {job}\b", "corral show JOB", text)
        for pattern, put in _VARIABLE:
            text = pattern.sub(put, text)
        return f"[{done.code}] {text.strip()}"

    return answer


def test_every_mistake_has_an_answer_that_helps(mistaken: Callable[[str], str], request: pytest.FixtureRequest) -> None:
    assert len(MISTAKES) >= 200
    assert len(set(MISTAKES)) == len(MISTAKES)
    answers = {line: mistaken(line) for line in MISTAKES}
    book = "".join(f"$ corral {line}\n{answer}\n\n" for line, answer in answers.items())
    if request.config.getoption("--accept"):
        BOOK.write_text(book)
    wrong = {line: why for line, answer in answers.items() if (why := _fault(line, answer))}
    assert not wrong, "\n".join(f"{why}: corral {line}\n{answers[line]}" for line, why in wrong.items())
    assert BOOK.read_text() == book, "read what changed, then: pytest tests/cli/test_mistakes.py --accept"


def _fault(line: str, answer: str) -> str:
    """What an answer lacks."""
    if answer.startswith("[0]"):
        return "accepted"
    if answer.startswith("[1] ") and "internal error" in answer:
        return "internal error"
    if (found := _UNITS.search(answer)) and found[0] not in line:
        return f"internal word {found[0]!r}"
    lines = answer.splitlines()
    has_hint = any(line.strip().startswith("hint:") for line in lines) or any("(" in line for line in lines[:-1])
    return "" if has_hint else "no hint"
