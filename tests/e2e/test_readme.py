"""The first session of the README, typed line by line on a machine that has seen no Corral before."""

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

from tests.architecture.repository import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def session() -> list[str]:
    (block,) = re.findall(r"^```console\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Terminal:
    """Types commands; everything Corral keeps is kept in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.env = os.environ | {
            "PYTHONPATH": str(ROOT / "src"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "CORRAL_DATA": str(folder / "data"),
            "NO_COLOR": "1",
        }

    def type(self, line: str) -> str:
        words = shlex.split(line)
        assert words[0] == "corral"
        if words[1] == "up":
            words += ["--listen", f"127.0.0.1:{free_port()}"]
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout


def test_the_first_session_works_as_written(tmp_path):
    terminal = Terminal(tmp_path)
    lines = session()
    assert lines[0].startswith("corral up")
    assert lines[-1] == "corral down"
    said: dict[str, str] = {}
    try:
        for line in lines[:-1]:
            said[line] = terminal.type(line)
    finally:
        terminal.type("corral down")
    assert "rank 0 of 2 on SIM-H100-0,SIM-H100-1" in said[next(line for line in lines if " run " in line)]
    assert "succeeded" in said["corral events"]


def test_the_session_in_python_works_as_written(tmp_path):
    (snippet,) = re.findall(r"^```py\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    terminal = Terminal(tmp_path)
    terminal.type("corral up --detach --fake-gpus 8xH100")
    try:
        done = subprocess.run(
            [sys.executable, "-c", snippet], env=terminal.env, capture_output=True, text=True, timeout=90
        )
    finally:
        terminal.type("corral down")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].isdecimal(), "the exit code of the job"


def test_the_demo_tells_its_day_and_ends_by_itself():
    done = subprocess.run(
        [sys.executable, "examples/demo.py"], cwd=ROOT, capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "KEEP": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for told in (
        "impossible is refused",
        "preempted by 2 (reclaim)",
        "preempted by 6 (priority)",
        "requeued after its failure",
    ):
        assert told in done.stdout
    table = dict(line.split()[:2] for line in done.stdout.splitlines() if " succeeded " in line)
    assert table == dict.fromkeys(("borrower", "owner", "sweep", "flaky", "nightly", "urgent"), "succeeded")
