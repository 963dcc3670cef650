"""A small simulated month: bad machines are found, good ones are left alone (`make bench-lemons` for whole ones)."""

from tests.bench.lemons import FAILURES_MAX, Month


def test_lemons_are_found_soon_and_healthy_machines_are_not_condemned():
    month = Month(seed=1, nodes=200, days=6).run()
    assert month["healthy_condemned"] == 0
    assert month["found"] == month["lemons"]
    assert sum(count <= FAILURES_MAX for count in month["failures"]) >= month["lemons"] / 2
