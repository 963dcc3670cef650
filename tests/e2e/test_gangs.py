"""A gang with real collectives goes on when a machine is lost under it, and when one of its ranks is killed."""

from pathlib import Path

import pytest

from tests.bench.gangs import measure
from tests.e2e.live import ROOT

PYTHON = ROOT / ".venv-torch" / "bin" / "python"


@pytest.mark.timeout(280)
@pytest.mark.skipif(not PYTHON.exists(), reason="no torch beside the checkout: make services")
def test_a_gang_with_real_collectives_is_repaired(tmp_path: Path):
    found = measure(tmp_path, str(PYTHON), 1)
    assert found == {"rounds": 1, "node_lost_repaired": 1, "rank_killed_repaired": 1}
