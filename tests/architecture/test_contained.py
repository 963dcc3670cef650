"""The run of all tests notices what they leave behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import contained

ESCAPES = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep({seconds})
        os._exit(0)
    os._exit(0)
os.wait()
sys.exit({code})
"""


@pytest.mark.parametrize(("seconds", "code", "expected"), [(0, 0, 0), (600, 0, 1), (0, 7, 7), (600, 7, 7), (1, 0, 0)])
def test_who_leaves_its_session_is_found_and_ended(seconds, code, expected):
    script = "from tests import contained; contained.mounted = set\n"  # others mount things meanwhile
    script += f"contained.PATIENCE_S = 3 if {seconds} > 1 else 60\n"
    script += (
        f"import sys; sys.exit(contained.main([sys.executable, '-c', {ESCAPES.format(seconds=seconds, code=code)!r}]))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == expected, run.stderr
    count = 1 if seconds == 600 else 0
    assert f"left after the run: {count} processes, 0 mounts, 0 places of tasks" in run.stderr


@pytest.mark.parametrize(("name", "expected"), [("corral-0123abcd", 1), ("corral-test-0123abcd", 0), ("else", 0)])
def test_the_place_of_tasks_that_a_server_leaves_is_found_and_removed(name, expected):
    made = f"import os, tempfile; place = os.path.join(tempfile.gettempdir(), {name!r}); os.mkdir(place); print(place)"
    script = "from tests import contained; contained.mounted = set\n"
    script += f"import sys; sys.exit(contained.main([sys.executable, '-c', {made!r}]))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == expected, run.stderr
    assert f"0 processes, 0 mounts, {expected} places of tasks" in run.stderr
    assert not Path(run.stdout.strip()).parent.exists()


def test_mounts_are_known():
    assert "/proc" in contained.mounted()
