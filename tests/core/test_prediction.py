"""What is known of run times: which gangs are alike, how a distribution is mixed, and what follows from it."""

from __future__ import annotations

from random import Random

import pytest

from corral.core.prediction import (
    BINS,
    EDGES_MS,
    ENOUGH,
    KINDS_MAX,
    Forecast,
    Predictions,
    bin_of,
    kinds_of,
    pattern_of,
)
from tests.world import World, demand_of

MINUTE, HOUR = 60_000, 3_600_000
ANN = kinds_of("lab", "ann", 8000, None, "")


def after(*lengths_ms: int) -> Predictions:
    known = Predictions()
    for length in lengths_ms:
        known.add(ANN, length)
    return known


def forecast(known: Predictions, kinds: list[tuple[str, ...]] | None = None) -> Forecast:
    found = known.forecast(kinds or ANN)
    assert found is not None
    return found


def test_a_length_is_in_the_bin_that_begins_before_it() -> None:
    for length in (0, 999, 1000, 1188, 1189, HOUR, EDGES_MS[-1], EDGES_MS[-1] * 100):
        at = bin_of(length)
        assert 0 <= at < BINS
        assert EDGES_MS[at] <= max(length, 1000)
    assert bin_of(1188) == 0
    assert bin_of(1189) == 1


def test_names_that_differ_in_numbers_are_alike() -> None:
    assert pattern_of("train-17") == pattern_of("train-8") == "train-#"
    assert len(pattern_of("x" * 1000)) == 64


def test_nothing_is_predicted_until_enough_gangs_have_ended() -> None:
    assert after(*[HOUR] * (ENOUGH - 1)).forecast(ANN) is None
    assert after(*[HOUR] * ENOUGH).forecast(ANN) is not None


def test_most_of_what_is_predicted_is_what_was_seen() -> None:
    known = forecast(after(*[HOUR] * 100))
    low, high = known.interval_ms()
    assert HOUR * 8 // 10 <= low <= HOUR <= high <= HOUR * 13 // 10


def test_who_has_run_long_is_expected_to_run_on() -> None:
    known = forecast(after(*[MINUTE] * 50, *[10 * HOUR] * 50))
    assert known.quantile_ms(50) < 2 * MINUTE < HOUR < known.quantile_ms(50, done_ms=5 * MINUTE)
    assert known.index_ms(0) < 5 * MINUTE
    assert known.index_ms(5 * MINUTE) > HOUR


def test_beyond_all_that_was_seen_a_gang_is_expected_to_run_as_long_again() -> None:
    known = forecast(after(*[HOUR] * 20))
    assert known.index_ms(300 * 24 * HOUR) >= 200 * 24 * HOUR
    assert known.quantile_ms(50, done_ms=300 * 24 * HOUR) > 300 * 24 * HOUR


@pytest.mark.parametrize("seed", range(20))
def test_the_index_is_the_least_run_time_for_each_gang_that_ends(seed: int) -> None:
    rng = Random(seed)
    shares = [rng.choice((0, 0, rng.randrange(1, 1000))) for _ in range(BINS)]
    known = Forecast((), 1, shares)
    edges = (*EDGES_MS, 2 * EDGES_MS[-1])
    left = [sum(shares[at:]) for at in range(BINS + 1)]
    for at in range(BINS):
        if not left[at]:
            continue
        best, ran = None, 0.0
        for end in range(at + 1, BINS + 1):
            ran += (edges[end] - edges[end - 1]) * (left[end - 1] + left[end]) / 2
            if left[at] > left[end] and (best is None or ran / (left[at] - left[end]) < best):
                best = ran / (left[at] - left[end])
        assert best is not None
        assert known.index_ms(EDGES_MS[at]) == pytest.approx(best, rel=0.001, abs=1)


def test_a_user_without_history_is_like_others_with_as_many_gpus() -> None:
    known = after(*[HOUR] * 20)
    other = forecast(known, kinds_of("lab", "bob", 8000, None, ""))
    assert other.kind == ("8000", "lab")
    assert other.words().startswith("like 20 earlier jobs with 8 GPUs in queue lab: 80 % ended within 1h")


def test_the_latest_count_most() -> None:
    known = forecast(after(*[10 * HOUR] * 300, *[MINUTE] * 600))
    assert known.quantile_ms(80) < 5 * MINUTE


def test_the_kinds_without_news_for_longest_are_forgotten() -> None:
    known = Predictions()
    for number in range(KINDS_MAX + 10):
        known.add(kinds_of("lab", f"u{number}", 1000, None, ""), HOUR)
    assert len(known.kinds) == KINDS_MAX
    assert not known.is_known(("1000", "lab", "u0"))
    assert known.is_known(())


def test_a_run_counts_when_it_has_ended_with_what_was_kept_before() -> None:
    world = World().rack("a", 1, 8).queue("team")
    gang = world.run("first", demand=demand_of(gpus=8), checkpoints=True)
    world.submit("urgent", demand=demand_of(gpus=8), priority=5)
    world.wait(HOUR)
    world.cycle()
    world.save(gang, 1)
    world.down(gang, 85)
    assert not world.state.predictions.kinds
    urgent = world.state.gangs["urgent/main"]
    world.cycle()
    world.up(urgent)
    world.wait(MINUTE)
    world.down(urgent, 0)
    world.cycle()
    world.up(gang)
    world.wait(HOUR)
    world.down(gang, 0)
    counts = world.state.predictions.kinds[()].counts
    assert [at for at, count in enumerate(counts) if count] == [bin_of(MINUTE), bin_of(2 * HOUR)]
