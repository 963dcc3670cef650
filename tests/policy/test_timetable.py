"""Promises that are kept: by count, from plan to plan, moved forward and never back."""

import random
from typing import Any

import pytest

from corral.core import events as e
from corral.core import facts as f
from corral.core.cluster.resources import amounts
from corral.core.intake import commands
from corral.core.model import Health
from tests.world import World, demand_of, seat


def world(nodes: int = 1, gpus: int = 8, **has: Any) -> World:
    return World("conservative").rack("a", nodes, gpus, **has).queue("team")


def promised(made: World) -> dict[str, int]:
    return {name.partition("/")[0]: each.at_ms - made.now for name, each in made.state.reservations.items()}


def test_everyone_who_waits_is_promised_a_start_that_fits_beside_the_others():
    made = world()
    made.run("all", demand=demand_of(8), estimate_ms=100_000)
    made.submit("six", demand=demand_of(6), estimate_ms=50_000)
    made.submit("four", demand=demand_of(4), estimate_ms=50_000)
    made.submit("two", demand=demand_of(2), estimate_ms=200_000)
    made.cycle()
    assert promised(made) == {"six": 100_000, "four": 150_000, "two": 100_000}


def test_who_is_behind_takes_what_nobody_was_promised():
    made = world()
    made.run("six", demand=demand_of(6), estimate_ms=100_000)
    made.submit("eight", demand=demand_of(8), estimate_ms=50_000)
    long = made.submit("long", demand=demand_of(1), estimate_ms=100_001)
    short = made.submit("short", demand=demand_of(1), estimate_ms=100_000)
    made.cycle()
    assert (long.holds_seats, short.holds_seats) == (False, True)
    assert promised(made) == {"eight": 100_000, "long": 150_000}


def test_a_promise_is_by_count_and_needs_no_gpu_of_its_own_from_beginning_to_end():
    """Four GPUs become free one after another. By name, the one that ends last would be kept for too long."""
    made = world(gpus=2)
    made.run("first", demand=demand_of(1), seats=[seat("a0", 0)], estimate_ms=100_000)
    made.run("second", demand=demand_of(1), seats=[seat("a0", 1)], estimate_ms=200_000)
    for name in ("a", "b", "c"):
        made.submit(name, demand=demand_of(1), estimate_ms=150_000)
    made.cycle()
    assert promised(made) == {"a": 100_000, "b": 200_000, "c": 250_000}


def test_when_work_ends_early_nobody_is_moved_back():
    """The large one could start earlier on what was promised to the small one: it may not."""
    made = world(gpus=4)
    early = made.run("early", demand=demand_of(2), estimate_ms=100_000)
    made.run("late", demand=demand_of(2), estimate_ms=200_000)
    made.submit("large", demand=demand_of(4), estimate_ms=100_000)
    made.submit("small", demand=demand_of(2), estimate_ms=100_000)
    made.cycle()
    assert promised(made) == {"large": 200_000, "small": 100_000}
    made.wait(10_000)
    made.down(early)
    made.cycle()
    assert promised(made) == {"large": 190_000}
    assert made.state.gangs["small/main"].holds_seats


def test_a_promise_that_stays_as_it_is_is_no_event():
    made = world()
    made.run("all", demand=demand_of(8), estimate_ms=100_000)
    made.submit("next", demand=demand_of(8), estimate_ms=100_000)
    made.cycle()
    made.wait(1_000)
    before = len(made.journal)
    made.cycle()
    assert made.journal[before:] == []


def test_the_plan_is_made_again_when_the_first_of_them_is_due():
    made = world()
    made.run("all", demand=demand_of(8), estimate_ms=100_000)
    made.submit("next", demand=demand_of(8), estimate_ms=100_000)
    assert made.cycle().look_again_ms == made.now + 100_000


def test_what_runs_longer_than_it_should_moves_promises_back():
    made = world()
    made.run("all", demand=demand_of(8), estimate_ms=100_000)
    made.submit("next", demand=demand_of(8), estimate_ms=100_000)
    made.submit("last", demand=demand_of(8), estimate_ms=100_000)
    made.cycle()
    made.wait(100_000)
    made.cycle()
    assert promised(made) == {"next": 100_000, "last": 200_000}


def test_whoever_leaves_the_line_leaves_its_promise():
    made = world()
    made.run("all", demand=demand_of(8), estimate_ms=100_000)
    made.submit("next", demand=demand_of(8), estimate_ms=100_000)
    made.cycle()
    made.take(commands.cancel(made.state, "next", made.now))
    assert made.state.reservations == {}


def test_a_promise_on_a_node_that_fell_sick_is_found_anew_elsewhere():
    made = world(nodes=2)
    made.run("short", demand=demand_of(8), seats=[seat("a0", *range(8))], estimate_ms=100_000)
    made.run("long", demand=demand_of(8), seats=[seat("a1", *range(8))], estimate_ms=200_000)
    made.submit("next", demand=demand_of(8), estimate_ms=100_000)
    made.cycle()
    assert promised(made) == {"next": 100_000}
    made.tell(f.NodeObserved("a0", Health.SUSPECT))
    made.cycle()
    assert promised(made) == {"next": 200_000}


def test_amounts_are_promised_with_the_gpus():
    made = world(gpus=4, cpu_milli=8_000)
    cpu = {name: amounts({"cpu_milli": 1_000 * cores}) for name, cores in (("one", 1), ("four", 4), ("eight", 8))}
    made.run("now", demand=demand_of(1, amounts=cpu["four"]), estimate_ms=100_000)
    made.submit("all", demand=demand_of(1, amounts=cpu["eight"]), estimate_ms=100_000)
    long = made.submit("long", demand=demand_of(1, amounts=cpu["one"]), estimate_ms=100_001)
    short = made.submit("short", demand=demand_of(1, amounts=cpu["one"]), estimate_ms=100_000)
    made.cycle()
    assert (long.holds_seats, short.holds_seats) == (False, True)
    assert promised(made) == {"all": 100_000, "long": 200_000}


def test_a_gang_of_several_nodes_is_promised_the_first_time_at_which_enough_of_them_are_free_long_enough():
    made = world(nodes=3)
    for at in range(3):
        made.run(f"r{at}", demand=demand_of(8), seats=[seat(f"a{at}", *range(8))], estimate_ms=100_000 * (at + 1))
    made.submit("one", demand=demand_of(8), estimate_ms=150_000)
    made.submit("two", demand=demand_of(8, 2), estimate_ms=50_000)
    made.cycle()
    assert promised(made) == {"one": 100_000, "two": 250_000}


def test_what_cannot_be_counted_is_promised_by_name_and_not_kept():
    made = world(gpus=2)
    made.run("all", demand=demand_of(2), estimate_ms=100_000)
    made.submit("slice", demand=demand_of(0, slice_mib=10_000), estimate_ms=100_000)
    plan = made.cycle()
    assert [each.at_ms - made.now for each in plan.reservations] == [100_000]
    assert made.state.reservations == {}


# ---- compared with the plain definition ----------------------------------------------------------------------------


class Plain:
    """Conservative backfill by count with a number for every second: nothing but its definition."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self.running: dict[str, tuple[int, int]] = {}  # until, GPUs
        self.promises: dict[str, int] = {}

    def plan(self, now: int, line: list[tuple[str, int, int]]) -> list[str]:
        """Who of these (name, GPUs, seconds), in order, starts now."""
        started: list[str] = []
        for name, gpus, length in line:
            free = [self.gpus] * 400
            taken = [(now, until, held) for until, held in self.running.values()]
            waiting = [each for each in line if each[0] in self.promises and each[0] != name and each[0] not in started]
            taken += [(self.promises[other], self.promises[other] + each, held) for other, held, each in waiting]
            for begin, until, held in taken:
                for at in range(begin, until):
                    free[at] -= held
            begin = next(at for at in range(now, 400) if min(free[at : at + length]) >= gpus)
            self.promises[name] = begin
            if begin == now:
                started.append(name)
                self.running[name] = (now + length, gpus)
        return started


@pytest.mark.parametrize("seed", range(25))
def test_it_is_what_the_definition_says(seed):
    chance = random.Random(seed)
    made, plain = world(gpus=6), Plain(6)
    ends: dict[str, int] = {}
    line: list[tuple[str, int, int]] = []
    for now in range(40):
        for name in [name for name, end in ends.items() if end == now]:
            made.down(made.state.gangs[f"{name}/main"])
            del ends[name], plain.running[name]
        if chance.random() < 0.5:
            line.append((f"j{now}", chance.randint(1, 6), chance.randint(1, 12)))
            made.submit(line[-1][0], demand=demand_of(line[-1][1]), estimate_ms=line[-1][2] * 1_000)
        made.cycle()
        started = plain.plan(now, line)
        ours = [name for name, _, _ in line if made.state.gangs[f"{name}/main"].holds_seats]
        assert ours == started
        for name, _, length in [each for each in line if each[0] in started]:
            made.up(made.state.gangs[f"{name}/main"])
            ends[name] = now + chance.randint(1, length)  # many end early
        line = [each for each in line if each[0] not in started]
        assert {name: now + ms // 1_000 for name, ms in promised(made).items()} == {
            name: plain.promises[name] for name, _, _ in line
        }
        made.wait(1_000)


def test_a_gang_without_gpus_that_loses_its_claim_is_counted_too():
    """It waits again in the same plan, and reservations by count know only gangs with GPUs."""
    made = world(nodes=2, cpu_milli=4_000)
    cpus = amounts({"cpu_milli": 4_000})
    for n in range(2):
        made.run(f"full{n}", demand=demand_of(8, amounts=cpus), estimate_ms=100_000)
    gang = made.submit("cpus", demand=demand_of(0, amounts=cpus))
    made.apply(e.GangClaimed(made.now, gang.id, 1, (seat("a0"),)))
    made.take(commands.drain(made.state, "a0", made.now))
    made.cycle()
    assert not gang.claim
