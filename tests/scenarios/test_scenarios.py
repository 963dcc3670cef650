"""Every scenario in this folder: what the engine does with what is given is what is expected."""

from pathlib import Path

import pytest

from tests.scenarios.scenario import LINE, play, split

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_plan_is_as_written(path, request):
    given, expected = split(path.read_text(encoding="utf-8"))
    told = play(given)
    if request.config.getoption("--accept") and told != expected:
        path.write_text(f"{given}\n{LINE}\n{told}", encoding="utf-8")
        pytest.skip("accepted; read the diff")
    assert told == expected


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_says_what_it_shows(path):
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# "), "the first line is a sentence on what the scenario shows"


def test_the_same_scenario_is_reported_the_same_way_twice():
    given, _ = split(SCENARIOS[0].read_text(encoding="utf-8"))
    assert play(given) == play(given)
