"""Published rules through the engine: against plain programs on small workloads, and against figures where they are."""

import random

import pytest

from corral.core.model import QueueSpec
from corral.sim.history import Recorder
from corral.sim.research.literature import (
    OVERHEAD_S,
    REAL,
    RULES,
    Comparison,
    comparisons,
    muri,
    overhead_s,
    philly_by_count,
)
from corral.sim.research.literature import policy_of as published
from corral.sim.research.literature import testbed as on_real_gpus
from corral.sim.research.taxed import TaxedSimulation
from corral.sim.run import Arrival
from tests.sim.runs import SECOND, cluster, job
from tests.sim.traces.files import PUBLIC, needs_public_traces

BEGIN = 1_000 * SECOND


def ends(arrivals: list[Arrival], rule: str, tax_ms: dict[str, int], nodes: str = "4x4") -> tuple[dict[str, int], int]:
    """When each job ends, and how often one lost its seats and waited."""
    recorder = Recorder()
    run = TaxedSimulation(
        cluster("count:16" if rule == "las" else nodes),
        arrivals,
        lambda world: published(rule, world, limits_gpu_s=(40, 90), second=SECOND),
        recorder,
        queues=[QueueSpec(name="all")],
        tax_ms=tax_ms,
    )
    run.run()
    jobs = recorder.history.jobs.values()
    return {each.id: each.ended_ms or 0 for each in jobs}, sum(r.cause == "priority" for j in jobs for r in j.runs)


# ---- the tax -----------------------------------------------------------------------------------------------


def test_every_event_costs_who_runs_its_tax():
    """Two come at once, one ends after 10 s: the other has then done 10 - 3 s of its 20."""
    arrivals = [job("a", BEGIN, 10 * SECOND, 1), job("b", BEGIN, 20 * SECOND, 1)]
    found, _ = ends(arrivals, "srtf", {"a": 5 * SECOND, "b": 3 * SECOND})
    assert found == {"a": BEGIN + 10 * SECOND, "b": BEGIN + 23 * SECOND}


def test_an_event_that_comes_sooner_than_the_tax_costs_no_more_than_there_was():
    arrivals = [job("a", BEGIN, 10 * SECOND, 1), job("b", BEGIN + 2 * SECOND, 1 * SECOND, 1)]
    found, _ = ends(arrivals, "srtf", {"a": 5 * SECOND})
    assert found["a"] == BEGIN + 13 * SECOND


def test_overheads_are_stated_for_every_power_of_two():
    assert {len(by_count) for by_count in OVERHEAD_S.values()} == {6}
    assert [overhead_s("a2c", gpus) for gpus in (1, 2, 8, 32)] == [38, 39, 46, 46]
    assert overhead_s("another", 4) == 10


# ---- against plain programs --------------------------------------------------------------------------------


class Job:
    def __init__(self, name: str, at_ms: int, left: int, gpus: int, tax: int) -> None:
        self.name, self.at_ms, self.left, self.gpus, self.tax = name, at_ms, left, gpus, tax
        self.runs, self.ran, self.level, self.lost = False, 0, 0, 0


def plainly(arrivals: list[Arrival], rule: str, tax_ms: dict[str, int]) -> tuple[dict[str, int], int]:
    """The published rules in the plainest way: lists, and everyone looked at for every event."""
    jobs = [
        Job(a.id, a.at_ms, a.work_ms, a.spec.gangs[0].demand.task.gpus * a.spec.gangs[0].demand.tasks, tax_ms[a.id])
        for a in arrivals
    ]
    here: list[Job] = []
    levels: tuple[list[Job], ...] = ([], [], [])
    coming, now, found = list(jobs), BEGIN, {}
    limits = (40 * SECOND, 90 * SECOND)
    while coming or here:
        times = [coming[0].at_ms] if coming else []
        for each in here:
            if each.runs:
                times.append(now + each.left)
                if rule == "las" and each.level < 2:
                    times.append(now + -(-limits[each.level] // each.gpus // SECOND) * SECOND - each.ran)
        passed, now = min(times) - now, min(times)
        for each in [each for each in here if each.runs and each.left <= passed]:
            here.remove(each)
            levels[each.level].remove(each)
            found[each.name] = now
        while coming and coming[0].at_ms <= now:
            here.append(coming.pop(0))
            levels[0].append(here[-1])
        for each in here:
            if each.runs:
                each.left -= max(0, passed - each.tax)
                each.ran += passed
                if rule == "las" and each.level < 2 and each.ran * each.gpus >= limits[each.level]:
                    levels[each.level].remove(each)
                    each.level += 1
                    levels[each.level].append(each)
        if rule == "las":
            count(levels)
        else:
            pack(here, rule)
    return found, sum(each.lost for each in jobs)


def count(levels: tuple[list[Job], ...]) -> None:
    free = 16
    for level in levels:
        for each in level:
            had, each.runs = each.runs, each.gpus <= free
            free -= each.gpus * each.runs
            each.lost += had and not each.runs
    for level in levels:
        level.sort(key=lambda each: not each.runs)


def pack(here: list[Job], rule: str) -> None:
    free = [4, 4, 4, 4]
    here.sort(key=lambda each: each.left * (each.gpus if rule == "srsf" else 1))
    for each in here:
        whole, part = max(1, each.gpus // 4), min(4, each.gpus)
        taken = [n for n in range(4) if free[n] >= part][:whole]
        had, each.runs = each.runs, len(taken) == whole
        each.lost += had and not each.runs
        for n in taken if each.runs else ():
            free[n] -= part


def workload(seed: int) -> tuple[list[Arrival], dict[str, int]]:
    rng = random.Random(seed)
    arrivals, now = [], BEGIN
    for i in range(30):
        now += rng.choice((0, 0, SECOND, 5 * SECOND, rng.randint(1, 9_000)))
        gpus = rng.choice((1, 1, 2, 4, 8, 16))
        work = rng.randint(1, 60_000)
        # to count, one task; to pack, one task on a node or whole nodes
        arrivals.append((f"j{i}", now, work, gpus))
    made = [job(name, at, work, gpus) for name, at, work, gpus in arrivals]
    return made, {each.id: rng.choice((0, 1, 3)) * SECOND for each in made}


def packed(arrival: Arrival) -> Arrival:
    gpus = arrival.spec.gangs[0].demand.task.gpus
    return job(arrival.id, arrival.at_ms, arrival.work_ms, min(4, gpus), max(1, gpus // 4))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(4))
def test_the_engine_gives_what_a_plain_program_gives(rule, seed):
    arrivals, tax = workload(seed)
    if rule != "las":
        arrivals = [packed(arrival) for arrival in arrivals]
    for charged in ({}, tax):
        taxes = {arrival.id: charged.get(arrival.id, 0) for arrival in arrivals}
        assert ends(arrivals, rule, taxes) == plainly(arrivals, rule, taxes)


# ---- against published figures -----------------------------------------------------------------------------


def test_a_comparison_fails_on_the_figure_or_on_the_count():
    good = Comparison("one", 100.0, 100.00001, 1e-6, 5, 5)
    assert good.agrees
    assert not Comparison("one", 100.0, 100.001, 1e-6, 5, 5).agrees
    assert not Comparison("one", 100.0, 100.0, 1e-6, 4, 5).agrees
    assert Comparison("one", 100.0, 100.0, 1e-6, 4).agrees


def test_there_is_a_comparison_for_every_figure_required():
    names = [name for name, _ in comparisons(PUBLIC)]
    assert len(names) == len(set(names)) == 6 + 6 + 12 + 3


@needs_public_traces
def test_philly_by_count_gives_the_published_average_and_preemptions():
    assert philly_by_count(PUBLIC, "A", "srtf").agrees


@needs_public_traces
def test_muri_with_its_overhead_gives_the_published_end_of_every_job():
    found = muri(PUBLIC, "trace3", "las")
    assert found.agrees
    assert found.worst_job_s is not None
    assert found.worst_job_s < 1e-6


@needs_public_traces
def test_a_simulated_cluster_comes_near_the_real_one_and_ranks_the_rules_as_it_does():
    found = {rule: on_real_gpus(PUBLIC, rule) for rule in RULES}
    assert all(each.agrees for each in found.values())
    by_rule = dict(zip(RULES, REAL, strict=True))
    assert sorted(RULES, key=lambda rule: found[rule].average_jct_s) == sorted(RULES, key=lambda rule: by_rule[rule])
