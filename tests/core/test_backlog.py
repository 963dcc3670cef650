"""Lines in order of rank, and the oldest of each priority."""

import random

import pytest

from corral.core.model import Gang, GangState, Profile
from corral.core.queues.backlog import Ages, Backlog, BacklogEntry
from tests.world import demand_of

PROFILE = Profile(demand_of())


def gang(rank: int, priority: int = 0, queue: str = "q", user: str = "ann", profile: Profile = PROFILE) -> Gang:
    return Gang(f"g{rank}", f"g{rank}", queue, user, priority, rank, profile, 0, 0)


def entry_of(*ranks: int) -> BacklogEntry:
    entry = BacklogEntry("q", 0, "ann", PROFILE)
    for rank in ranks:
        entry.add(gang(rank))
    return entry


def test_who_comes_later_stands_behind():
    assert list(entry_of(1, 2, 3)) == ["g1", "g2", "g3"]


def test_who_returns_gets_its_place_back():
    entry = entry_of(1, 2, 3)
    entry.remove(gang(2))
    assert list(entry) == ["g1", "g3"]
    entry.add(gang(2))
    assert list(entry) == ["g1", "g2", "g3"]


def test_who_goes_to_the_head_stands_before_all():
    entry = entry_of(5, 6)
    entry.remove(gang(5))
    entry.add(gang(-10))
    assert list(entry) == ["g-10", "g6"]
    assert (entry.gang(0), entry.rank(0), entry.rank(1)) == ("g-10", -10, 6)


def test_removing_one_who_does_not_stand_there_is_a_bug_that_is_seen():
    entry = entry_of(1, 3)
    with pytest.raises((AssertionError, IndexError)):
        entry.remove(gang(2))


@pytest.mark.parametrize("seed", range(4))
def test_a_line_that_moves_on_for_long_stays_in_order_and_forgets_who_left(seed):
    rng, entry, standing, away = random.Random(seed), entry_of(), [], []
    for rank in range(400):
        entry.add(gang(rank))
        standing.append(rank)
        for _ in range(rng.choice((0, 1, 2))):
            if standing:
                at = 0 if rng.random() < 0.7 else rng.randrange(len(standing))
                away.append(standing.pop(at))
                entry.remove(gang(away[-1]))
        if away and rng.random() < 0.2:
            back = away.pop(rng.randrange(len(away)))
            entry.add(gang(back))
            standing = sorted([*standing, back])
        assert [entry.rank(place) for place in range(len(entry))] == standing
    assert list(entry) == [f"g{rank}" for rank in standing]


def test_ages_give_the_oldest_first_who_came_back_among_them():
    ages = Ages()
    gangs = [gang(rank) for rank in range(6)]
    for each in gangs:
        ages.add(each)
    for at in (0, 4, 0):
        ages.remove(gangs[at])
        ages.add(gangs[at])
    assert [each.rank for each in ages.oldest(3)] == [0, 1, 2]
    assert [each.rank for each in ages.oldest(9)] == [0, 1, 2, 3, 4, 5]


def test_ages_leave_out_who_no_longer_stands_in_line():
    ages = Ages()
    gangs = [gang(rank) for rank in range(4)]
    for each in gangs:
        ages.add(each)
    for at in (1, 1, 0, 2):
        ages.remove(gangs[at])
        if at == 1 and len(ages) == 3:
            ages.add(gangs[at])
    assert [each.rank for each in ages.oldest(4)] == [3]


def test_the_oldest_is_found_behind_many_who_are_gone():
    ages = Ages()
    gangs = [gang(rank) for rank in range(100)]
    for each in gangs:
        ages.add(each)
    for each in gangs[1:99]:
        ages.remove(each)
    assert [each.rank for each in ages.oldest(2)] == [0, 99]


def test_equal_shapes_of_one_user_share_a_line_and_everything_else_has_its_own():
    backlog = Backlog()
    for each in (gang(1), gang(2), gang(3, user="bob"), gang(4, priority=1), gang(5, queue="p")):
        backlog.add(each)
    backlog.add(gang(6, profile=Profile(demand_of(), 1000)))
    assert sorted(list(entry) for entry in backlog.entries()) == [["g1", "g2"], ["g3"], ["g4"], ["g5"], ["g6"]]
    assert backlog.count == 6
    assert backlog.demands == {demand_of(): {None: 5, 1000: 1}}


def test_an_empty_backlog_keeps_nothing_of_its_history():
    backlog = Backlog()
    everyone = [gang(rank, rank % 3, f"q{rank % 2}", f"u{rank % 5}") for rank in range(30)]
    for each in everyone:
        backlog.add(each)
    for each in everyone:
        each.state = GangState.RUNNING
        backlog.remove(each)
    assert (backlog.count, backlog.buckets, backlog.demands) == (0, {}, {})


def test_who_has_left_is_not_kept_in_mind_for_ever():
    backlog = Backlog()
    everyone = [gang(rank) for rank in range(1000)]
    for each in everyone:
        backlog.add(each)
    for each in everyone[:-1]:
        each.state = GangState.RUNNING
        backlog.remove(each)
    assert len(backlog.ages[0]) == 1
    for _ in range(1000):
        backlog.remove(everyone[-1])
        backlog.add(everyone[-1])
    assert len(backlog.ages[0]) < 100


def test_from_which_length_on_no_gang_of_a_demand_is_gone_in_time():
    backlog = Backlog()
    lengths = ((10, 0), (20, 0), (20, 5), (30, 5), (None, 0))
    gangs = [gang(at, profile=Profile(demand_of(), expected)) for at, (expected, _) in enumerate(lengths)]
    for each, (_, overrun) in zip(gangs, lengths, strict=True):
        each.overrun_ms = overrun
        backlog.add(each)
    assert [backlog.not_gone_ms(demand_of(), within, 40) for within in (9, 10, 24, 34, 35, 40)] == [
        0,
        11,
        21,
        21,
        31,
        41,
    ]
    backlog.remove(gangs[1])
    assert [backlog.not_gone_ms(demand_of(), within, 40) for within in (24, 25)] == [11, 21]
