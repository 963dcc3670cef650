"""A real server on simulated GPUs for the commands that need one; started once for all of them in a process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.typed import Typed, command, environment, free_port, typed


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables of a user who started a server."""
    folder = tmp_path_factory.mktemp("house")
    variables = {"XDG_CONFIG_HOME": str(folder / "config"), "CORRAL_DATA": str(folder / "data"), "HOME": str(folder)}
    words = ("up", "--detach", "--listen", f"127.0.0.1:{free_port()}", "--fake-gpus", "8xH100")
    run(variables, *words)
    yield variables
    run(variables, "down")


def run(variables: dict[str, str], *words: str) -> None:
    done = subprocess.run(command(*words), env=live(variables), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def live(variables: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in environment().items() if name not in ("CORRAL_URL", "CORRAL_TOKEN")}
    return kept | variables


Type = Callable[..., Typed]


@pytest.fixture
def at_home(house: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("CORRAL_URL", "CORRAL_TOKEN", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in house.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def corral(at_home: Path, capfd: pytest.CaptureFixture[str]) -> Type:
    """Types a command at the server's own machine."""
    assert os.environ["CORRAL_DATA"]
    return lambda *words: typed(capfd, *words)


@pytest.fixture
def submit(corral: Type) -> Callable[..., str]:
    """Submits a command with options; the number of the job."""

    def submitted(*words: str) -> str:
        done = corral("submit", "--parsable", *words)
        assert done.code == 0, done.err
        return done.out.strip()

    return submitted
