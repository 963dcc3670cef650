"""The place of tasks' private directories is gone when no process needs it any more, however the server ended."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from corral.runtime.local.state_dir import short
from tests.e2e.live import Live

WAIT_S = 60


def place_of(live: Live) -> Path:
    return Path(tempfile.gettempdir()) / f"corral-{short(str(live.data / 'tasks' / 'state'))[:8]}"


def is_gone(place: Path) -> bool:
    end = time.monotonic() + WAIT_S
    while place.exists() and time.monotonic() < end:
        time.sleep(0.05)
    return not place.exists()


@pytest.mark.parametrize("has_worked", [False, True], ids=["before any task", "after a task"])
def test_a_server_that_is_killed_leaves_no_place_behind(live, has_worked):
    server = live()
    server.start()
    place = place_of(server)
    assert place.is_dir()
    if has_worked:
        server.until_over([server.submit({"command": "true"})])
    server.kill()
    assert is_gone(place), os.listdir(place)


def test_the_last_task_of_a_server_that_is_killed_removes_the_place_and_one_before_it_does_not(live, tmp_path):
    server = live()
    server.start()
    for name in ("first", "last"):
        script = f"touch {tmp_path}/{name}; while [ ! -e {tmp_path}/end-{name} ]; do sleep 0.05; done"
        server.submit({"command": ["sh", "-c", script]})
    end = time.monotonic() + WAIT_S
    while not all((tmp_path / name).exists() for name in ("first", "last")) and time.monotonic() < end:
        time.sleep(0.05)
    place = place_of(server)
    server.kill()
    (tmp_path / "end-first").touch()
    end = time.monotonic() + WAIT_S
    while len(os.listdir(place)) > 1 and time.monotonic() < end:
        time.sleep(0.05)
    assert len(os.listdir(place)) == 1
    (tmp_path / "end-last").touch()
    assert is_gone(place), os.listdir(place)


def test_a_server_that_begins_again_on_the_same_data_has_its_place(live):
    server = live()
    server.start()
    server.kill()
    server.start()
    job = server.submit({"command": "true"})
    server.until_over([job])
    assert server.ask("GET", f"/v1/jobs/{job}")["state"] == "succeeded"
    server.stop()
    assert is_gone(place_of(server))
