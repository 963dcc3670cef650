"""A first session, typed by a user who knows only the README: ``first_session.txt``.

``$`` is typed into a shell in a fresh copy of the examples; ``[3]`` is its exit code, if not 0; each ``>`` is in the
answer, in this order, with spaces as one. Every command that an answer recommends exists.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.documented_commands import Command, fault_of
from tests.architecture.repository import ROOT
from tests.cli.typed import environment, free_port

SESSION = Path(__file__).with_name("first_session.txt")
#: What no answer may contain: units and words of the inside.
_INTERNAL = re.compile(r"_milli|_mib\b|gpu_ms|src/corral/|NoneType|<class|user_error")
_RECOMMENDED = re.compile(r"^(?:  hint: .*?(?:with|mean): |  )(corral [a-z].*?)(?:  +.*|;.*)?$", re.MULTILINE)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has just installed Corral."""
    program = tmp_path / "bin" / "corral"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m corral "$@"\n')
    program.chmod(0o755)
    shutil.copytree(ROOT / "examples", tmp_path / "clone" / "examples")
    for folder in (tmp_path, tmp_path / "clone"):
        folder.chmod(0o755)
    found = environment(
        HOME=str(tmp_path),
        PATH=f"{program.parent}:{os.environ['PATH']}",
        XDG_CONFIG_HOME=str(tmp_path / "config"),
        CORRAL_DATA=str(tmp_path / "data"),
        CORRAL_LISTEN=f"127.0.0.1:{free_port()}",
        NO_COLOR="1",
    )
    return {name: value for name, value in found.items() if name not in ("CORRAL_URL", "CORRAL_TOKEN")}


@pytest.mark.timeout(900)  # many commands, each a process
def test_a_first_session_is_answered_on_the_screen(env: dict[str, str], tmp_path: Path) -> None:
    typed = re.findall(r"^\$ (.*)\n(?:\[(\d+)\]\n)?((?:> .*\n)*)", SESSION.read_text(), re.MULTILINE)
    assert sum("corral" in line for line, _, _ in typed) >= 60
    wrong = []
    try:
        for line, code, expected in typed:
            done = _type(line, env, tmp_path / "clone")
            answer = done.stdout + done.stderr
            faults = list(_faults(done.returncode, int(code or 0), answer, re.findall("> (.*)", expected)))
            wrong += [f"$ {line}\n{answer}" + "\n".join(faults)] if faults else []
    finally:
        subprocess.run(["corral", "down"], env=env, capture_output=True, timeout=60, check=False)
    assert not wrong, "\n\n".join(wrong)


def _type(line: str, env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    line = re.sub(r"\bcorral up\b", f"corral up --listen {env['CORRAL_LISTEN']}", line)
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )


def _faults(code: int, expected_code: int, answer: str, expected: list[str]) -> Iterator[str]:
    if code != expected_code:
        yield f"WRONG: exit code {code}, not {expected_code}"
    if found := _INTERNAL.search(answer):
        yield f"WRONG: an internal word, {found[0]!r}"
    if code and not re.search(r"hint: |\(.+\)|failed|cancelled|it waits", answer):
        yield "WRONG: does not say what to do"
    for command in _RECOMMENDED.findall(answer):
        if fault := fault_of(Command(tuple(shlex.split(command)[1:]), True)):
            yield f"WRONG: recommends {command!r}: {fault}"
    text, at = " ".join(answer.split()), 0
    for wanted in expected:
        found_at = text.find(wanted, at)
        if found_at < 0:
            yield f"WRONG: does not say {wanted!r}"
        at = max(at, found_at)
