"""No cliffs: what one request or one end makes the engine do grows with its size, never with its square."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from corral.core import events as e
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.laws import check
from corral.core.model import After, Blocker, Dependency, GangSpec, GangState, Job, JobSpec
from tests.steps import growth, steps, tracing
from tests.world import World, demand_of, state_of

LINEAR = 2.4  # twice the size, and a little for what is sorted


def one_gpu(after: tuple[Dependency, ...] = (), **terms: Any) -> JobSpec:
    return JobSpec(queue="team", gangs=(GangSpec(demand_of()),), after=after, **terms)


def world() -> World:
    made = World().rack("a", 1).queue("team")
    made.checks = False
    return made


def chain(length: int) -> dict[str, JobSpec]:
    """Each waits for the one before it; given last first, which is the hardest order to sort."""
    specs = {str(n): one_gpu((Dependency(str(n - 1)),) if n else ()) for n in range(length)}
    return dict(reversed(specs.items()))


def test_a_chain_of_dependencies_in_one_batch_is_sorted_in_linear_time():
    def measure(length: int) -> int:
        made = world()
        return steps(lambda: commands.submit_many(made.state, chain(length), "ann", made.now))

    assert growth(measure, 150) < LINEAR


def test_jobs_of_a_batch_come_by_depth_and_then_in_the_given_order():
    made = world()
    after = {"a": "", "b": "ac", "c": "e", "d": "", "e": "", "f": "d", "g": "b"}
    specs = {name: one_gpu(tuple(Dependency(each) for each in names)) for name, names in after.items()}
    answer = commands.submit_many(made.state, specs, "ann", made.now)
    assert isinstance(answer, list)
    assert [event.job for event in answer if isinstance(event, e.JobSubmitted)] == [*"ade", *"cf", "b", "g"]


def fan_in(parents: int, children: int, after: After) -> World:
    made = world()
    names = [f"p{n}" for n in range(parents)]
    specs = {name: one_gpu(held=True) for name in names}
    waits = tuple(Dependency(name, after) for name in names)
    specs |= {f"c{n}": one_gpu(waits) for n in range(children)}
    made.take(commands.submit_many(made.state, specs, "ann", made.now))
    return made


def test_the_end_of_one_of_many_parents_costs_what_depends_on_it_not_what_that_depends_on():
    def measure(parents: int) -> int:
        made = fan_in(parents, 20, After.ANY)
        return steps(lambda: made.take(commands.cancel(made.state, "p3", made.now)))

    assert growth(measure, 60) < 1.1


def test_nor_where_it_dooms_them():
    def measure(parents: int) -> int:
        made = fan_in(parents, 20, After.OK)
        return steps(lambda: made.take(commands.cancel(made.state, f"p{parents - 1}", made.now)))

    assert growth(measure, 60) < 1.1


def test_children_of_many_parents_wake_with_the_last_of_them():
    made = fan_in(3, 2, After.ANY)
    made.checks = True
    for n in range(3):
        waiting = [state_of(made.state.gangs[f"c{c}/main"]) for c in range(2)]
        assert waiting == [GangState.WAITING] * 2
        assert all(made.state.gangs[f"c{c}/main"].blockers & Blocker.DEPENDENCY for c in range(2))
        made.take(commands.cancel(made.state, f"p{n}", made.now))
    assert not any(made.state.gangs[f"c{c}/main"].blockers for c in range(2))
    check(made.state)


class Scanned(list[str]):
    """A list that counts how far it is searched."""

    scanned = 0

    def __contains__(self, name: object) -> bool:
        self.scanned += len(self) if not super().__contains__(name) else self.index(str(name)) + 1
        return super().__contains__(name)

    def remove(self, name: str) -> None:
        self.scanned += self.index(name) + 1
        super().remove(name)


def test_cancelling_an_array_searches_no_list_for_each_of_its_elements():
    made = world()
    made.take(commands.submit(made.state, "1", one_gpu(array=tuple(range(400)), array_parallel=2), "ann", made.now))
    job: Job = made.state.jobs["1"]
    parked = job.parked = Scanned(job.parked)
    made.take(commands.cancel(made.state, "1", made.now))
    assert job.is_over
    assert not job.parked
    assert parked.scanned < 10 * 400


class Name(str):
    """A name that counts how often it is compared with another."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += self is not other
        return super().__eq__(other)


def test_the_end_of_one_of_many_jobs_of_one_name_does_not_search_for_it():
    made = world()
    names = [Name(n) for n in range(100)]
    specs: dict[str, JobSpec] = {name: one_gpu(name="train", held=True) for name in names}
    made.take(commands.submit_many(made.state, specs, "ann", made.now))
    Name.compared = 0
    for name in reversed(names):
        made.take(commands.cancel(made.state, name, made.now))
    assert Name.compared < 10 * len(names)


def test_what_bounds_jobs_of_a_batch_is_looked_up_once_for_those_that_are_alike():
    """A queue far down costs a batch hardly more than one at the top."""
    made = world()
    for depth in range(2, 12):
        made.queue("/".join(["team"] + ["sub"] * (depth - 1)))
    deep = "/".join(["team"] + ["sub"] * 10)

    def measure(queue: str) -> int:
        specs = {f"j{n}": replace(one_gpu(), queue=queue) for n in range(200)}
        with tracing("corral.core.intake.site") as counted:
            assert isinstance(commands.submit_many(made.state, specs, "ann", made.now), list)
        return counted.lines

    assert measure(deep) < measure("team") + 200


def test_the_first_job_of_a_batch_that_is_over_a_bound_is_refused_with_its_own_numbers():
    made = world()
    made.queue("team", priority_ceiling=5, grace_max_ms=60_000)
    low, high, slow = one_gpu(), replace(one_gpu(), priority=6), replace(one_gpu(), grace_ms=90_000)
    for specs, code, told in (
        ([low, high, slow], "priority_too_high", "6"),
        ([low, slow, high], "grace_too_long", "90"),
    ):
        answer = commands.submit_many(made.state, {f"j{n}": s for n, s in enumerate(specs)}, "ann", made.now)
        assert isinstance(answer, Refusal)
        assert answer.code == code
        assert told in answer.why
