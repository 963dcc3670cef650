"""Amounts: canonical form; decay of usage; lines in order; shares."""

from hypothesis import given
from hypothesis import strategies as st

from corral.core.cluster.resources import amounts
from corral.core.cluster.topology import natural
from corral.core.queues.usage import CELLS, Usage, decayed
from tests.core.test_backlog import entry_of, gang

NAMED = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 1 << 40))
HALF_LIVES = st.sampled_from([1_000, 60_000, 3_600_000, 7 * 86_400_000, 999_983])


@given(NAMED)
def test_amounts_do_not_depend_on_the_order_of_names(named):
    assert amounts(named) == amounts(dict(reversed(named.items())))
    assert dict(amounts(named)) == named


@given(st.integers(0, 1 << 60), st.integers(0, 5 * CELLS), st.integers(0, 5 * CELLS))
def test_decay_in_two_steps_is_decay_in_one(value, first, second):
    once, twice = decayed(value, first + second), decayed(decayed(value, first), second)
    assert abs(once - twice) <= 4 + once // 10**9


@given(st.integers(0, 1 << 60), st.integers(0, 4 * CELLS), st.integers(0, 4 * CELLS))
def test_decay_never_grows_with_time(value, first, more):
    assert decayed(value, first + more) <= decayed(value, first) <= value


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50), st.integers(0, 4 * CELLS))
def test_decay_keeps_order(one, other, cells):
    small, large = sorted((one, other))
    assert decayed(small, cells) <= decayed(large, cells)


@given(HALF_LIVES, st.integers(1, 10**6), st.lists(st.integers(0, 10**8), min_size=1, max_size=20))
def test_usage_does_not_depend_on_how_often_it_is_looked_at(half_life, rate, times_ms):
    often, once = Usage.none(1), Usage.none(1)
    often.change((rate,), 0, half_life)
    once.change((rate,), 0, half_life)
    for now in sorted(times_ms):
        often.change((0,), now, half_life)
    end = max(times_ms)
    found, wanted = often.at(end, half_life)[0], once.at(end, half_life)[0]
    assert abs(found - wanted) <= 1e-6 * wanted + 100 * rate


@given(HALF_LIVES, st.integers(0, 10**6), st.integers(0, 10**9), st.integers(0, 10**9))
def test_usage_at_a_higher_rate_is_never_less(half_life, rate, begin, lasting):
    slow, fast = Usage.none(1), Usage.none(1)
    slow.change((rate,), begin, half_life)
    fast.change((rate + 1,), begin, half_life)
    assert 0 <= slow.at(begin + lasting, half_life)[0] <= fast.at(begin + lasting, half_life)[0]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 200)), max_size=150))
def test_a_line_keeps_order_through_any_coming_and_going(moves):
    line, standing = entry_of(), set()
    for comes, rank in moves:
        if comes and rank not in standing:
            line.add(gang(rank))
            standing.add(rank)
        elif not comes and standing:
            leaver = min(standing) if rank % 2 else sorted(standing)[rank % len(standing)]
            line.remove(gang(leaver))
            standing.remove(leaver)
        assert list(line) == [f"g{each}" for each in sorted(standing)]
        assert len(line) == len(standing)


@given(st.lists(st.text("a0195²٣-", max_size=5), max_size=5))
def test_every_name_has_a_place_in_natural_order(names):
    ordered = sorted(names, key=natural)
    assert sorted(ordered) == sorted(names)
