"""Every scenario that once violated a promise: each is played, and its judge sees no violation.

One that is not repaired yet is named in ``OPEN`` with the number of its finding; it must still be violated, so that the
list cannot grow old.
"""

from pathlib import Path

import pytest

from tests.judges.scenario import read
from tests.judges.shrink import words_of
from tests.judges.table import COMMITS, JUDGES, PLAN_MADE, STABLE

FINDINGS = sorted((Path(__file__).parent / "findings").glob("*.json"))
#: scenarios that are not repaired yet
OPEN: set[str] = set()


def _marked(path: Path):
    marks = [pytest.mark.xfail(strict=True, reason=f"finding {path.stem[:3]}")] if path.stem in OPEN else []
    return pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.parametrize("path", [_marked(path) for path in FINDINGS])
def test_the_promise_is_kept(path):
    scenario = read(path.read_text(encoding="utf-8"))
    assert words_of(scenario, scenario.judge) == ""


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.stem)
def test_a_finding_says_what_it_shows_and_names_a_judge(path):
    scenario = read(path.read_text(encoding="utf-8"))
    assert scenario.shows.endswith(".")
    assert scenario.judge in {*JUDGES, PLAN_MADE, COMMITS, STABLE}
    assert any(step.do == "plan" for step in scenario.steps)


def test_only_scenarios_that_are_there_are_open():
    assert {path.stem for path in FINDINGS} >= OPEN
