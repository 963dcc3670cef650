"""Usage that is forgotten: half after a half-life, and the same however often one looks."""

import pytest

from corral.core.queues.usage import CELLS, Usage, decayed

HALF_LIFE_MS = 3_600_000
START_MS = 10 * HALF_LIFE_MS


def used(rate: int, ms: int) -> Usage:
    usage = Usage.none(1)
    usage.change((rate,), START_MS, HALF_LIFE_MS)
    usage.change((-rate,), START_MS + ms, HALF_LIFE_MS)
    return usage


@pytest.mark.parametrize("halvings", [1, 2, 5])
def test_what_was_used_is_halved_by_each_half_life(halvings):
    usage = used(1000, 60_000)
    then = usage.at(usage.at_ms, HALF_LIFE_MS)[0]
    later = usage.at(usage.at_ms + halvings * HALF_LIFE_MS, HALF_LIFE_MS)[0]
    assert later == pytest.approx(then / 2**halvings, rel=1e-6)


def test_decay_by_whole_half_lives_is_exact():
    assert decayed(1 << 20, 3 * CELLS) == 1 << 17


def test_use_of_a_short_while_is_rate_times_time():
    usage = Usage.none(1)
    usage.change((7,), START_MS, HALF_LIFE_MS)
    assert usage.at(START_MS + 100, HALF_LIFE_MS)[0] == 700


def test_steady_use_approaches_the_sum_of_the_series_and_never_passes_it():
    usage = Usage.none(1)
    usage.change((1000,), START_MS, HALF_LIFE_MS)
    bound = 1000 * HALF_LIFE_MS / 0.693147
    late = usage.at(START_MS + 40 * HALF_LIFE_MS, HALF_LIFE_MS)[0]
    assert late == pytest.approx(bound, rel=2e-3)


def test_steady_use_only_grows_from_border_to_border():
    usage = Usage.none(1)
    usage.change((1000,), START_MS, HALF_LIFE_MS)
    at_borders = [usage.at(START_MS + i * HALF_LIFE_MS // 64, HALF_LIFE_MS)[0] for i in range(1, 400)]
    assert at_borders == sorted(at_borders)


def test_without_use_it_only_shrinks():
    usage = used(1000, 60_000)
    seen = [usage.at(usage.at_ms + i * 77_777, HALF_LIFE_MS)[0] for i in range(200)]
    assert seen == sorted(seen, reverse=True)


def test_looking_a_thousand_times_gives_what_looking_once_gives():
    often, once = Usage.none(1), Usage.none(1)
    for usage in (often, once):
        usage.change((8000,), START_MS, HALF_LIFE_MS)
    for i in range(1, 1001):
        often.change((0,), START_MS + i * 12_345, HALF_LIFE_MS)
    end = START_MS + 1000 * 12_345
    assert often.at(end, HALF_LIFE_MS)[0] == pytest.approx(once.at(end, HALF_LIFE_MS)[0], rel=1e-6)


def test_a_time_before_the_last_change_changes_nothing():
    usage = used(1000, 60_000)
    assert usage.at(0, HALF_LIFE_MS)[0] == usage.values[0]


def test_a_half_life_of_zero_remembers_nothing():
    usage = Usage.none(1)
    usage.change((1000,), START_MS, 0)
    assert usage.at(START_MS + 1_000, 0)[0] == 0
