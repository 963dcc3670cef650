"""The environment of jobs as users type it: `source`, `--export`, `--venv`, and never that of the server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.client import Client
from tests.cli.conftest import Type, live
from tests.cli.typed import command, free_port

Says = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server whose own environment has a folder in PATH, a secret and a setting that no job may see."""
    folder = tmp_path_factory.mktemp("house")
    own = folder / "server-bin"
    own.mkdir()
    (own / "only-of-the-server").write_text("#!/bin/sh\necho found\n")
    (own / "only-of-the-server").chmod(0o755)
    variables = {"XDG_CONFIG_HOME": str(folder / "config"), "CORRAL_DATA": str(folder / "data"), "HOME": str(folder)}
    hidden = {"SERVER_SECRET": "sesame", "PATH": f"{own}:{os.environ['PATH']}", "LD_PRELOAD": ""}
    words = ("up", "--detach", "--listen", f"127.0.0.1:{free_port()}", "--fake-gpus", "8xH100")
    for each, more in ((words, hidden), (("down",), {})):
        if each == ("down",):
            yield variables
        done = subprocess.run(command(*each), env=live(variables) | more, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def environment_of(corral: Type) -> Says:
    """Runs `env` as a job; its variables."""

    def run(*words: str) -> dict[str, str]:
        done = corral("run", "--quiet", *words, "--", "env", "-0")
        assert done.code == 0, done.err
        return dict(each.split("=", 1) for each in done.out.split("\0") if "=" in each)

    return run


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """As `python -m venv` makes it."""
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    (folder / "bin" / "python").symlink_to(sys.executable)
    return folder


def test_a_command_line_may_source_a_file(corral: Type, at_home: Path) -> None:
    (at_home / "env.sh").write_text("export WORD=hello\n")
    done = corral("run", "--quiet", "--", "source env.sh && [[ -n $WORD ]] && echo $WORD")
    assert (done.code, done.out) == (0, "hello\n")


def test_a_job_never_has_the_environment_of_the_server(environment_of: Says) -> None:
    for words in ((), ("--export", "ALL"), ("--export", "NONE")):
        found = environment_of(*words)
        assert "SERVER_SECRET" not in found
        assert "server-bin" not in found["PATH"]


def test_by_default_a_job_finds_the_programs_of_the_shell_and_has_none_of_its_secrets(
    environment_of: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    monkeypatch.setenv("MODE", "fast")
    found = environment_of()
    assert found["PATH"].startswith(os.environ["PATH"].partition(":")[0])
    assert {"HF_TOKEN", "MODE"}.isdisjoint(found)


def test_export_selects_as_sbatch_does(environment_of: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODE", "fast")
    assert environment_of("--export", "MODE,X=1")["MODE"] == "fast"
    assert environment_of("--export=MODE,X=1")["X"] == "1"
    assert environment_of("--export=ALL")["MODE"] == "fast"
    assert "MODE" not in environment_of("--export=NONE")


def test_a_script_and_a_job_file_export_too(corral: Type, at_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODE", "fast")
    (at_home / "job.sh").write_text("#!/bin/bash\n#SBATCH --export=MODE,X=1\necho $MODE $X\n")
    (at_home / "job.yaml").write_text("export: MODE,X=2\ncommand: echo $MODE $X\n")
    assert corral("run", "--quiet", "job.sh").out == "fast 1\n"
    assert corral("run", "--quiet", "job.yaml").out == "fast 2\n"
    assert corral("run", "--quiet", "job.yaml", "--export", "X=3").out == "3\n"


def test_secrets_are_not_exported_with_everything_and_that_is_told(
    corral: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    done = corral("submit", "--export", "ALL", "--", "true")
    assert "not exported: " in done.err
    assert "HF_TOKEN" in done.err
    assert "corral secret set" in done.err


def test_a_selection_that_is_none_is_an_error(corral: Type) -> None:
    done = corral("submit", "--export", "A B", "--", "true")
    assert done.code == 2
    assert "--export" in done.err
    assert "HF_HOME,MODE=fast" in done.err


# ---- Python environments ---------------------------------------------------------------------------------------------


def test_from_an_active_environment_the_job_has_its_python_and_that_is_told(
    corral: Type, venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(venv))
    monkeypatch.setenv("PATH", f"{venv}/bin:{os.environ['PATH']}")
    done = corral("run", "--", "command -v python; echo $VIRTUAL_ENV")
    assert done.out == f"{venv}/bin/python\n{venv}\n"
    assert f"python is {venv}/bin/python, as here" in done.err
    assert "python is" not in corral("run", "--quiet", "--", "true").err


def test_without_it_that_is_told_too(corral: Type, venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(venv))
    done = corral("submit", "--export", "NONE", "--", "true")
    assert f"python is that of the node, not of the active environment {venv}: --venv uses it" in done.err


@pytest.mark.parametrize("words", [("--venv",), ("--venv", "venv"), ("--venv=venv",)])
def test_venv_carries_an_environment(
    corral: Type, venv: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    if words == ("--venv",):
        monkeypatch.setenv("VIRTUAL_ENV", str(venv))
    done = corral("run", *words, "--export", "NONE", "--", "command -v python; echo $VIRTUAL_ENV")
    assert done.out == f"{venv}/bin/python\n{venv}\n"


def test_venv_knows_conda(corral: Type, venv: Path) -> None:
    (venv / "conda-meta").mkdir()
    done = corral(
        "run", "--quiet", "--venv", "venv", "--", "command -v python; echo $CONDA_PREFIX ${VIRTUAL_ENV:-none}"
    )
    assert done.out == f"{venv}/bin/python\n{venv} none\n"


def test_venv_without_an_environment_is_an_error(corral: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    done = corral("submit", "--venv", "--", "true")
    assert done.code != 0
    assert "no virtual environment or conda environment is active here" in done.err
    assert "--venv DIR" in done.err
    assert "there is no bin/python in it" in corral("submit", "--venv", ".", "--", "true").err


def test_python_submits_as_the_command_line_does(at_home: Path, venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODE", "fast")
    with Client() as client:
        job = client.submit({"command": "pwd; echo $MODE; command -v python"}, export="MODE", venv=str(venv))
        client.wait(job.id, timeout_s=60)
        said = b"".join(part.data for part in client.logs(job.id)).decode()
    assert said == f"{at_home}\nfast\n{venv}/bin/python\n"
