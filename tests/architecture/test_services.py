"""The script that installs services notices what is missing, also where a function of it has the name of a program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "services.sh"


@pytest.mark.parametrize("service", ["chromium", "podman"])
def test_a_missing_program_is_noticed(tmp_path, service):
    for name in ("id", "dirname"):  # neither the program nor apt-get
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT), service], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert f"{service} is not here, so its tests are skipped" in done.stderr
