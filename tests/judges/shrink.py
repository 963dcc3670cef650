"""From a scenario in which a judge sees a violation to the smallest one in which it still does.

Drops steps, queues and nodes, simplifies what is left, field by field, for as long as that helps. Tells the result in
words, as JSON for tests/judges/findings, and as a scenario in the language of tests/scenarios.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

from msgspec.structs import replace

from tests.judges.scenario import Scenario, Step, Terms, Work, written
from tests.judges.trial import try_out

Test = Callable[[Scenario], bool]
Item = TypeVar("Item")


def shrink(scenario: Scenario, judge: str, most: int = 4_000) -> Scenario:
    """The smallest scenario found in which this judge still sees a violation. Tries no more than so many."""
    left = most

    def fails(tried: Scenario) -> bool:
        nonlocal left
        left -= 1
        return left > 0 and bool(words_of(tried, judge))

    small = _cut(scenario, judge)
    before = None
    while small != before:
        before = small
        small = _fewer_steps(small, fails)
        small = _simplified(small, fails)
    return replace(small, judge=judge)


def _size(scenario: Scenario) -> tuple[int, int]:
    text = written(scenario)
    return len(text), sum(map(int, re.findall(r"\d+", text)))


def words_of(scenario: Scenario, judge: str) -> str:
    """What the judge says of the first plan that it does not like; nothing if it likes all."""
    try:
        found = try_out(scenario, judge).violations
    except (KeyError, ValueError, AssertionError):
        return ""
    return found[0][1].words if found else ""


def _cut(scenario: Scenario, judge: str) -> Scenario:
    """Without what comes after the violation."""
    found = try_out(scenario, judge).violations
    if not found:
        return scenario
    plans = [at for at, step in enumerate(scenario.steps) if step.do == "plan"]
    return replace(scenario, steps=scenario.steps[: plans[found[0][0] - 1] + 1])


def _fewer_steps(scenario: Scenario, fails: Test) -> Scenario:
    """Leave out steps, many at a time at first."""
    steps, size = scenario.steps, max(1, len(scenario.steps) // 2)
    while size:
        at = 0
        while at < len(steps):
            fewer = steps[:at] + steps[at + size :]
            if fails(replace(scenario, steps=fewer)):
                steps = fewer
            else:
                at += size
        size //= 2
    return replace(scenario, steps=steps)


def _simplified(scenario: Scenario, fails: Test) -> Scenario:
    """With every simplification that keeps the violation."""
    at = 0
    while (tried := next(islice(_simpler(scenario), at, None), None)) is not None:
        if _size(tried) < _size(scenario) and fails(tried):
            scenario = tried
        else:
            at += 1
    return scenario


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    for at in range(len(scenario.nodes)):
        yield replace(scenario, nodes=scenario.nodes[:at] + scenario.nodes[at + 1 :])
    for at in range(len(scenario.queues)):
        yield replace(scenario, queues=scenario.queues[:at] + scenario.queues[at + 1 :])
    for at, node in enumerate(scenario.nodes):
        changes: tuple[dict[str, Any], ...] = (
            {"gpus": node.gpus // 2}, {"gpus": node.gpus - 1}, {"islands": 1}, {"has": {}}, {"rack": "r0"},
            {"model": "H100", "vram_mib": 80_000}, {"vram_mib": 80_000},
        )  # fmt: skip
        for change in changes:
            if change.get("gpus") != 0:
                yield replace(scenario, nodes=_with(scenario.nodes, at, replace(node, **change)))
    for at, terms in enumerate(scenario.queues):
        for simpler in _simpler_terms(terms):
            yield replace(scenario, queues=_with(scenario.queues, at, simpler))
    for at, step in enumerate(scenario.steps):
        for less in _simpler_step(step, scenario):
            yield replace(scenario, steps=_with(scenario.steps, at, less))
    yield replace(scenario, depth=1)
    yield replace(scenario, patience_ms=86_400_000, half_life_ms=86_400_000)


def _with(items: list[Item], at: int, item: Item) -> list[Item]:
    return [*items[:at], item, *items[at + 1 :]]


def _simpler_terms(terms: Terms) -> Iterator[Terms]:
    for field in ("guarantee", "limit", "lend", "user_limit"):
        stated: dict[str, int] = getattr(terms, field)
        if stated:
            yield replace(terms, **{field: {}})
            for name, amount in stated.items():
                yield replace(terms, **{field: {**stated, name: amount // 2000 * 1000}})
                if amount >= 1000:
                    yield replace(terms, **{field: {**stated, name: amount - 1000}})
    yield replace(terms, budget_gpu_ms=0, budget_window_ms=0)
    yield replace(terms, changes=[])
    yield replace(terms, weight=1)
    yield replace(terms, time_share=0)


def _simpler_step(step: Step, scenario: Scenario) -> Iterator[Step]:
    if step.do == "wait" and step.number > 60_000:
        yield replace(step, number=60_000)
        yield replace(step, number=step.number // 2 // 1000 * 1000)
    if step.terms is not None:
        for terms in _simpler_terms(step.terms):
            yield replace(step, terms=terms)
    if step.work is not None:
        plain = Work(name=step.work.name, queue=step.work.queue)
        for field in Work.__struct_fields__:
            if getattr(step.work, field) != getattr(plain, field):
                yield replace(step, work=replace(step.work, **{field: getattr(plain, field)}))
        for field in ("tasks", "gpus", "limit_ms", "runs_ms", "tasks_min", "priority"):
            value = getattr(step.work, field)
            if value and value > 1:
                yield replace(step, work=replace(step.work, **{field: value // 2}))
                yield replace(step, work=replace(step.work, **{field: value - 1}))
        for queue in scenario.queues:
            if len(queue.name) < len(step.work.queue):
                yield replace(step, work=replace(step.work, queue=queue.name))


def tell(scenario: Scenario, judge: str) -> str:
    """In words, and as JSON."""
    return f"# {judge}: {words_of(scenario, judge) or 'kept'}\n{written(scenario)}"
