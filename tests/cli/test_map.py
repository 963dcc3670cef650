"""``corral map``, as typed."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.cli.conftest import Type


def test_every_gpu_has_one_character(corral: Type):
    shown = corral("map").out
    assert "· 8 free" in shown
    assert "········" in shown.splitlines()[0]
    assert corral("map", "--node", "nowhere").err == "no node has 'nowhere' in its name\n"


def test_a_pipe_has_no_width(corral: Type):
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run([sys.executable, "-m", "corral", "map"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "free" in done.stdout
