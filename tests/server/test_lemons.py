"""Small simulated months: bad machines are found, good ones are left alone (`make bench-lemons` for whole ones)."""

import pytest

from tests.bench.lemons import FAILURES_MAX, KINDS, Month, summed


@pytest.mark.parametrize("kind", KINDS)
def test_lemons_are_found_soon_and_healthy_machines_are_not_condemned(kind):
    month = Month(seed=1, nodes=200, days=4, kind=kind).run()
    assert month["healthy_condemned"] == 0, month["why"]
    assert month["lemons"] == (0 if kind == "none" else 2)
    if kind in ("plain", "rerun"):
        assert month["found"] == month["lemons"]
        assert sum(count <= FAILURES_MAX for count in month["failures"]) >= month["lemons"] / 2


def test_the_sum_of_months_says_what_was_asked_for():
    plain = {"kind": "plain", "lemons": 10, "found_within_10": 9, "healthy_condemned": 0, "failures": [4, 6, 11]}
    none = {"kind": "none", "lemons": 0, "found_within_10": 0, "healthy_condemned": 1, "failures": []}
    told = summed([plain, none])
    assert (told["found_within_10"], told["healthy_condemned"], told["lemons"]) == (0.9, 1, 10)
    assert told["healthy_condemned_by_kind"] == {"plain": 0, "none": 1}
