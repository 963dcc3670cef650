"""The example of a batching queue, created and used as its page says."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

from tests.architecture.repository import ROOT
from tests.e2e.batching import batching_server

EXAMPLE = ROOT / "examples" / "batching"


def test_the_example_runs(tmp_path: Path):
    folder = tmp_path / "embed"
    shutil.copytree(EXAMPLE, folder)
    text = (folder / "embed.yaml").read_text(encoding="utf-8")
    (folder / "embed.yaml").write_text(f"{text}python: {sys.executable}\n", encoding="utf-8")
    with batching_server(tmp_path) as (live, client):
        env = os.environ | {"CORRAL_URL": live.url, "CORRAL_TOKEN": live.token}
        words = [sys.executable, "-m", "corral", "batch", "create", "embed.yaml"]
        subprocess.run(words, cwd=folder, env=env, check=True)
        vectors = client.batch("embed").map(["a sentence", "another one"])
    embed = runpy.run_path(str(EXAMPLE / "embed.py"))["embed"]
    assert vectors == embed(["a sentence", "another one"])
