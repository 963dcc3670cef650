"""Batching queues in virtual time: the published example, the adaptive policy against the best possible, the page."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from corral.sim.batches.batch_example import PUBLISHED, run_example
from corral.sim.batches.batch_optimum import earliest_end_us
from corral.sim.batches.batch_run import ServiceTimes
from corral.sim.batches.batch_study import BatchStudy
from tests.cli.typed import typed


def test_the_example_needs_no_more_batches_and_less_time_than_the_published_run():
    ours = run_example()
    assert ours.completed == PUBLISHED.requests
    assert len(ours.batches) <= PUBLISHED.batches
    assert ours.mean_wait_ms < PUBLISHED.mean_wait_ms
    assert ours.items_per_s >= PUBLISHED.items_per_s


@pytest.mark.parametrize("rate", BatchStudy().rates)
def test_the_adaptive_policy_meets_the_target_at_nearly_the_best_throughput(rate: float):
    study = BatchStudy(items=600)
    arrivals = study.arrivals(rate)
    best = study.optimum_per_s(arrivals)
    adaptive = study.run(arrivals, latency_target_us=study.target_us)
    assert best is not None
    assert adaptive.latency_ms(95) <= study.target_us / 1000
    assert adaptive.items_per_s >= 0.95 * best


def test_the_optimum_is_that_of_all_divisions_of_a_short_line():
    times, arrivals = ServiceTimes(10, 3), [0, 1, 2, 30, 31, 60]
    for target_us, late_max in product((15, 20, 40), (0, 1, 2)):
        expected = []
        for cuts in product((False, True), repeat=len(arrivals) - 1):
            end, late, first = 0, 0, 0
            for last in range(1, len(arrivals) + 1):
                if last == len(arrivals) or cuts[last - 1]:
                    end = max(end, arrivals[last - 1]) + times.batch_us(last - first)
                    late += sum(end - at > target_us for at in arrivals[first:last])
                    first = last
            if late <= late_max:
                expected.append(end)
        found = earliest_end_us(arrivals, times, len(arrivals), target_us, late_max)
        assert found == min(expected, default=None)


def test_the_command_prints_the_published_run_beside_ours(capsys: pytest.CaptureFixture[str]):
    done = typed(capsys, "sim", "batch", "--example")
    assert done.code == 0
    assert "published         32       14         122.0        50.9" in done.out
    assert "assumptions:" in done.out


def test_the_command_compares_policies_and_draws_the_curve(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    page = tmp_path / "curve.html"
    done = typed(capsys, "sim", "batch", "--items", "200", "--rates", "0.5", "--html", str(page))
    assert done.code == 0
    assert [line.split()[1] for line in done.out.splitlines()[1:]] == ["one", "fixed", "adaptive", "optimum"]
    assert "size 32, wait 100 ms" in page.read_text(encoding="utf-8")


def test_rates_that_are_none_are_refused(capsys: pytest.CaptureFixture[str]):
    done = typed(capsys, "sim", "batch", "--rates", "fast")
    assert done.code == 2
    assert "--rates cannot be 'fast'" in done.err
