"""A framework that exits with 0 when it is preempted is run again, and completes (`make bench-frameworks` for all)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.framework_programs import PYTHON
from tests.e2e.frameworks import measure


@pytest.mark.timeout(290)
@pytest.mark.skipif(not PYTHON.exists(), reason="no training frameworks beside the checkout: make services")
def test_accelerate_saves_when_it_is_preempted_and_completes(tmp_path: Path) -> None:
    found = measure(tmp_path, 1, ["accelerate"])
    assert found == {"preemptions": 1, "false_successes": 0, "deadlocks": 0, "unsaved": 0, "lost_more": 0, "failed": []}
