"""The advised interval is the one that loses least."""

import pytest

from corral.checkpoints.interval import advise, expect, mtbf_of_nodes_s


@pytest.mark.parametrize("stall_s", [0.05, 1.0, 30.0])
@pytest.mark.parametrize("mtbf_s", [3_600.0, 28_440.0, 1_000_000.0])
def test_no_other_interval_is_better(stall_s: float, mtbf_s: float):
    best = advise(stall_s, 0.0, mtbf_s, 60.0)
    for factor in (0.5, 0.8, 1.25, 2.0):
        other = expect(best.interval_s * factor, stall_s, 0.0, mtbf_s, 60.0)
        assert other.loss >= best.loss * 0.999 or other.interval_s < 5.0


def test_an_interval_is_not_shorter_than_a_save():
    assert advise(0.1, 300.0, 3_600.0, 60.0).interval_s == 300.0


def test_failures_that_were_seen_outweigh_the_published_rate():
    published = mtbf_of_nodes_s(100)
    assert published == pytest.approx(86_400_000 / 6.5 / 100)
    assert mtbf_of_nodes_s(100, failures=50, node_s=100 * 86_400.0) < published / 30
    assert mtbf_of_nodes_s(100, failures=0, node_s=100 * 86_400.0 * 365) > published
