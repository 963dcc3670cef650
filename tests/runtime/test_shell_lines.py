"""A command line of a job runs with bash where there is one, and with sh elsewhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from corral.runtime.container.task.launcher import in_any_shell
from corral.runtime.local.task import start
from corral.runtime.local.task.cgroups import TaskGroups
from corral.runtime.local.task.start import LINE_FOR_SHELL, Account, Program, StartFault, spawn
from corral.wire.job.program import SHELL
from tests.runtime.local_backend import Harness

SOURCES = "source env.sh && [[ $WORD == he* ]] && echo $WORD"


def ran(path: str, directory: Path, *command: str) -> str:
    program = Program([*command], {"PATH": path}, str(directory), Account(""), TaskGroups(2, {}), umask=0o022)
    output = directory / "output"
    sink = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.waitpid(spawn(program, sink, sink, 0), 0)
    finally:
        os.close(sink)
    return output.read_text().strip()


@pytest.fixture
def without_bash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with sh alone, as the only one in which programs are looked for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    monkeypatch.setattr(start, "_PATH", str(folder))
    return str(folder)


def test_the_server_and_the_node_agree_on_what_a_line_is() -> None:
    assert list(SHELL) == LINE_FOR_SHELL


def test_a_line_may_use_what_bash_has(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("WORD=hello\n")
    assert ran(os.environ["PATH"], tmp_path, *LINE_FOR_SHELL, SOURCES) == "hello"


def test_without_bash_a_line_runs_with_sh(tmp_path: Path, without_bash: str) -> None:
    assert ran(without_bash, tmp_path, *LINE_FOR_SHELL, "echo $0 $((1 + 1))") == "sh 2"


def test_only_a_line_is_given_to_another_shell(tmp_path: Path, without_bash: str) -> None:
    with pytest.raises(StartFault, match="bash: not found"):
        ran(without_bash, tmp_path, "bash", "-c", "echo $1", "name", "word")


def test_a_shell_that_was_named_is_that_shell(tmp_path: Path) -> None:
    assert ran(os.environ["PATH"], tmp_path, "sh", "-c", "echo ${BASH_VERSION:-none} $0").endswith(" sh")


def test_the_shell_is_found_whatever_the_path_of_the_job_is(tmp_path: Path) -> None:
    assert ran("/nowhere", tmp_path, *LINE_FOR_SHELL, "echo $PATH") == "/nowhere"


def test_a_task_runs_its_line_with_bash(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    try:
        key = harness.launch(*LINE_FOR_SHELL, 'source /dev/null && [[ a == a ]] && echo "${BASH_VERSION:+bash}"')
        assert harness.collector.down(key).exit_code == 0
        assert harness.log(key).strip() == "bash"
    finally:
        harness.backend.close()


@pytest.mark.parametrize(("has_bash", "shell"), [(True, "bash"), (False, "sh")])
def test_a_container_uses_the_shell_that_its_image_has(tmp_path: Path, has_bash: bool, shell: str) -> None:
    for name in ("sh", "bash") if has_bash else ("sh",):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    command = in_any_shell([*LINE_FOR_SHELL, "echo $0 'a  b'"])
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{shell} a  b\n"
    assert in_any_shell(["python", "train.py"]) == ["python", "train.py"]
