"""What is free over time, compared with a list that has a number for every moment."""

import random

import pytest

from corral.policy.backfill.supply import Supply

END = 40  # from here on nothing changes


def plain(changes: list[tuple[int, int]]) -> list[int]:
    return [sum(more for time, more in changes if time <= now) for now in range(END + 60)]


def drawn(chance: random.Random) -> list[tuple[int, int]]:
    return [(0, chance.randint(0, 6)), *((chance.randrange(END), chance.randint(-2, 4)) for _ in range(6))]


def plain_earliest(free: list[int], wanted: int, length: int, since: int) -> int | None:
    fitting = (at for at in range(since, END + 1) if min(free[at : at + length]) >= wanted)
    return next(fitting, None)


@pytest.mark.parametrize("seed", range(100))
def test_it_is_what_a_number_for_every_moment_would_be(seed):
    chance = random.Random(seed)
    changes = drawn(chance)
    supply, free = Supply(0, changes), plain(changes)
    for _ in range(12):
        begin, length, amount = chance.randrange(END), chance.randint(1, 20), chance.randint(-3, 3)
        assert supply.least(begin, begin + length) == min(free[begin : begin + length])
        wanted = chance.randint(0, 8)
        assert supply.earliest(wanted, length, begin) == plain_earliest(free, wanted, length, begin)
        until = min(END, begin + length)
        supply.take(begin, until, amount)
        free[begin:until] = [each - amount for each in free[begin:until]]


def test_what_has_changed_before_it_begins_counts_at_once():
    supply = Supply(10, [(0, 4), (7, 2), (12, 1)])
    assert (supply.times, supply.free) == ([10, 12], [6, 7])


def test_a_step_is_found_after_a_time_and_not_at_it():
    supply = Supply(10, [(0, 4), (12, 1)])
    assert [supply.next_step_ms(time) for time in (10, 11, 12)] == [12, 12, None]


def test_what_is_never_free_is_never_found():
    assert Supply(0, [(0, 4), (5, 2)]).earliest(7, 1, 0) is None
