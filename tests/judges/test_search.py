"""A slice of the search: so many random scenarios, every plan of them judged."""

import pytest

from tests.judges.case import Case, Violation
from tests.judges.generate import generate
from tests.judges.scenario import Scenario, read, written
from tests.judges.shrink import shrink, tell, words_of
from tests.judges.table import JUDGES, NOT_ENFORCED
from tests.judges.trial import try_out

SETUPS = 32


@pytest.mark.parametrize("part", range(4))
def test_no_promise_is_broken_in_a_slice_of_the_search(part):
    for n in range(part, SETUPS, 4):
        seed = f"slice.{n}"
        broken = {violation.judge for _, violation in try_out(generate(seed)).violations} - NOT_ENFORCED.keys()
        assert not broken, "\n".join(tell(shrink(generate(seed), name, 200), name) for name in broken)


def test_the_same_seed_gives_the_same_scenario_and_it_can_be_written_and_read():
    scenario = generate("9.9")
    assert generate("9.9") == scenario
    assert generate("9.8") != scenario
    assert read(written(scenario)) == scenario


def test_a_scenario_is_shrunk_to_what_the_violation_needs(monkeypatch):
    """With a judge that dislikes every plan that serves a certain job, no other job, node or queue is left over."""

    def dislikes(case: Case) -> list[Violation]:
        return [Violation("order", "served") for d in case.plan.decisions if case.before.gangs[d.gang].ask.gpus == 2]

    monkeypatch.setitem(JUDGES, "order", dislikes)
    found = next(s for s in (generate(f"2.{n}") for n in range(100)) if words_of(s, "order"))
    small: Scenario = shrink(found, "order")
    assert words_of(small, "order") == "served"
    assert len(small.nodes) == 1
    assert len(small.queues) == 1
    assert [step.do for step in small.steps] == ["submit", "plan"]
