"""A server for a test, ended with it together with the tasks that it left; as root or as another user."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.account_server import PYTHON, SERVER_ACCOUNT, Cell, can_be_somebody_else
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
        each.end_tasks()


@pytest.fixture
def folder() -> Iterator[Path]:
    """That every account can enter; those of pytest are for its own alone."""
    # tasks of a killed server are being ended, and may still write while it is removed
    with tempfile.TemporaryDirectory(prefix="corral-test-", ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def cell(live: Callable[..., Live], folder: Path) -> Callable[..., Cell]:
    """``is_root``: whether the server is. ``engine``: the socket of its container runtime."""

    def make(is_root: bool, engine: str = "") -> Cell:
        if not is_root and not can_be_somebody_else():
            pytest.skip(f"{SERVER_ACCOUNT} cannot run a server with {PYTHON} here")
        data = folder / "data"
        data.mkdir(mode=0o700)
        if not is_root:
            shutil.chown(data, SERVER_ACCOUNT, "nogroup")
        return Cell(live(data), folder, is_root, engine)

    return make
