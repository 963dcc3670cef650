"""Pages that are made from the code are as the code has them. `pytest --accept` writes them anew."""

from __future__ import annotations

import pytest

from corral.core.lifecycle import diagram
from corral.wire.job.schema import reference_page
from tests.architecture.repository import ROOT

PAGE = ROOT / "docs" / "lifecycle.md"
HEAD = """# The life of a gang

Made from the table in `corral.core.lifecycle`; `make accept` writes it anew.

"""


def test_the_page_of_the_life_of_a_gang_is_current(request: pytest.FixtureRequest) -> None:
    wanted = f"{HEAD}```mermaid\n{diagram()}```\n"
    if request.config.getoption("--accept"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted


def test_the_reference_of_the_job_file_is_current(request: pytest.FixtureRequest) -> None:
    page = ROOT / "docs" / "job-file.md"
    if request.config.getoption("--accept"):
        page.write_text(reference_page())
    assert page.read_text() == reference_page()
