"""A server for a test, ended with it together with the tasks that it left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.live import Live


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Callable[..., Live]]:
    """Makes servers; each ends with the test. ``folder``: of its data."""
    made: list[Live] = []

    def make(folder: Path | None = None, **terms: Any) -> Live:
        made.append(Live(folder or tmp_path / f"data-{len(made)}", **terms))
        return made[-1]

    yield make
    for each in made:
        if each.process is not None:
            each.kill()
        for folder in (each.data / "tasks" / "state").glob("*"):
            with suppress(OSError):  # no supervisor listens: the task is over
                control = os.open(folder / "control", os.O_WRONLY | os.O_NONBLOCK)
                os.write(control, b"kill the test is over\n")
                os.close(control)
