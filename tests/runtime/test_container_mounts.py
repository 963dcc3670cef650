"""What is mounted is what was checked: swapping a path for a link in between has no effect."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.core.work import Mount
from corral.runtime.container.task.mounts import Sources
from tests.runtime.container_backend import ContainerHarness
from tests.runtime.podman import Podman

ACCOUNT = "nobody"
TRIES = 15


class Swapped:
    """A path that is a folder and a link to elsewhere in turns, as fast as can be."""

    def __init__(self, inside: Path, outside: Path) -> None:
        self.path = inside / "data"
        real, link = inside / "real", inside / "link"
        real.mkdir()
        real.chmod(0o755)
        (real / "secret").write_text("mine\n")
        link.symlink_to(outside)
        self.path.symlink_to(real)
        self._real, self._link, self._is_over = real, link, threading.Event()
        self._thread = threading.Thread(target=self._swap, daemon=True)

    def _swap(self) -> None:
        draft = self.path.with_name("draft")
        while not self._is_over.is_set():
            for target in (self._real, os.readlink(self._link)):
                with contextlib.suppress(OSError):
                    os.symlink(target, draft)
                    os.replace(draft, self.path)
                self._is_over.wait(0.0005)

    def __enter__(self) -> Swapped:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="corral-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has what others may not see")
def test_a_path_that_is_swapped_while_it_is_mounted_never_shows_what_is_outside(
    tmp_path: Path, place: Path, podman: Podman
) -> None:
    allowed, outside = place / "allowed", place / "outside"
    for folder in (allowed, outside):
        folder.mkdir()
    outside.chmod(0o755)  # the account may look there by itself; the site does not want it mounted
    (outside / "secret").write_text("outside\n")
    harness = ContainerHarness(tmp_path / "data", podman, mounts=(str(allowed),))
    try:
        with Swapped(allowed, outside) as swapped:
            said = [
                harness.ran("cat /m/secret", account=ACCOUNT, mounts=(Mount(str(swapped.path), "/m"),))
                for _ in range(TRIES)
            ]
    finally:
        harness.close()
    assert not [text for _, text in said if "outside" in text]
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text(), "nothing stays mounted"
    assert [text for _, text in said if "mine" in text], "it is mounted now and then"
    assert all("mine" in text or "may not be mounted" in down.why for down, text in said)


def test_a_single_file_and_a_link_within_what_is_allowed_are_mounted(tmp_path: Path, place: Path, podman: Podman):
    (place / "file").write_text("a file\n")
    (place / "real").mkdir()
    (place / "real" / "name").write_text("by link\n")
    (place / "link").symlink_to(place / "real")
    harness = ContainerHarness(tmp_path / "data", podman, mounts=(str(place),))
    try:
        mounts = (Mount(str(place / "file"), "/file", read_only=True), Mount(str(place / "link"), "/link"))
        down, said = harness.ran("cat /file /link/name; echo more > /link/new", mounts=mounts)
    finally:
        harness.close()
    assert (down.exit_code, said) == (0, "a file\nby link\n")
    assert (place / "real" / "new").read_text() == "more\n"


def test_who_mounts_a_folder_around_the_server_s_data_is_in_no_ones_way(tmp_path: Path, place: Path, podman: Podman):
    harness = ContainerHarness(tmp_path / "data", podman)
    mounts = (Mount(str(place), "/place"), Mount(str(tmp_path), "/around"))
    try:
        down, said = harness.ran("echo ran", mounts=mounts)
    finally:
        harness.close()
    assert (down.exit_code, said) == (0, "ran\n")
    assert os.listdir(tmp_path / "data" / "run" / "mounts") == [], "the next task of this supervisor needs the names"
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text(), "nothing stays mounted"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can bind")
def test_what_a_supervisor_that_was_killed_has_left_is_let_go_and_the_data_stays(tmp_path: Path, place: Path):
    (place / "data").mkdir()
    (place / "data" / "precious").write_text("kept")
    killed = subprocess.run(
        [sys.executable, "-c", LEAVES_A_MOUNT, str(tmp_path), str(place / "data")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -9, killed.stderr
    assert str(tmp_path) in Path("/proc/self/mountinfo").read_text()
    Sources(str(tmp_path), "").clear()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert not list((tmp_path / "mounts").iterdir())
    assert (place / "data" / "precious").read_text() == "kept"


LEAVES_A_MOUNT = """
import os, sys
from corral.runtime.container.task.mounts import Sources
from corral.runtime.local.task.start import Account
Sources(sys.argv[1], "").hold(sys.argv[2], Account("root"), [], [])
os.kill(os.getpid(), 9)
"""
