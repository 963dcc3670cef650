"""A local backend for each test that asks for one, left without a process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.local_ground import Ground


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    ground = Ground(tmp_path)
    yield ground
    ground.close()
