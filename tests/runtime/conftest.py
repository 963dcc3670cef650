"""A local backend for each test that asks for one, left without a process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.local_backend import Harness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    yield harness
    harness.close()
