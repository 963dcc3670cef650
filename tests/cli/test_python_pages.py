"""Examples of the Python client run as printed: those in docstrings, and every block of the tutorial."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
from pathlib import Path
from typing import Any

import pytest

from corral.client import Client
from corral.client.calls import Calls
from corral.client.handles.handle import BlockingMethods, JobMethods
from tests.architecture.repository import ROOT

TUTORIAL = (ROOT / "docs" / "python-tutorial.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
METHODS = {
    f"Client.{name}": getattr(Client, name) for part in Calls.__mro__ for name in vars(part) if name[0] != "_"
} | {f"job.{name}": getattr(BlockingMethods, name) for name in vars(JobMethods) if name[0] != "_"}
EXAMPLES = {name: method for name, method in METHODS.items() if ">>>" in (getattr(method, "__doc__", "") or "")}


def test_the_methods_that_people_use_first_have_examples() -> None:
    assert {"Client.submit", "Client.wait", "Client.job", "Client.dry_run", "job.wait", "job.logs"} <= set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_docstrings_work(name: str, at_home: Path) -> None:
    with Client() as client:
        client.submit({"command": "true"})
        example = doctest.DocTestParser().get_doctest(EXAMPLES[name].__doc__, {"client": client}, name, name, 0)
        said = io.StringIO()
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.write)
    assert said.getvalue() == ""


def blocks() -> list[tuple[str, str | None]]:
    """Programs, each with the output that the page shows."""
    found: list[tuple[str, str | None]] = []
    for language, text in BLOCK.findall(TUTORIAL):
        if language == "python":
            found.append((text, None))
        else:
            assert not language, "a block is a program, or what it prints"
            found[-1] = (found[-1][0], text)
    return found


def test_the_tutorial_runs_as_printed(at_home: Path) -> None:
    names: dict[str, Any] = {}
    assert len(blocks()) >= 7
    for program, shown in blocks():
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(program, "docs/python-tutorial.md", "exec"), names)
        assert said.getvalue() == (shown or ""), program
    names["client"].close()
