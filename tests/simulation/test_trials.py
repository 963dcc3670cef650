"""What a policy tries on a draft leaves no trace in it: the search for victims, at many times of random runs."""

import pytest

from corral.core.plan import Plan
from corral.policy.preemption.preemptor import Preemption, Preemptor
from tests.core.test_undo import image_of
from tests.simulation.changing_cluster import ChangingDriver
from tests.simulation.driver import Driver


def watched(kind: type[Driver], seed: int) -> tuple[Driver, list[bool]]:
    """A driver that searches for victims for each waiting gang before each plan; and whether each search found any."""
    driver, found = kind(seed), list[bool]()
    plan_of = driver.chosen

    def policy(snapshot) -> Plan:
        for line in list(snapshot.state.backlog.entries()):
            draft, gang = snapshot.draft(), snapshot.state.gangs[line.gang(0)]
            before = image_of(draft)
            found.append(Preemptor(draft, Preemption()).make(gang, gang.demand.smallest) is not None)
            assert image_of(draft) == before
        return plan_of(snapshot)

    driver.chosen = policy
    return driver, found


@pytest.mark.parametrize("kind", [Driver, ChangingDriver])
def test_a_search_for_victims_leaves_the_draft_as_it_was(kind):
    searches: list[bool] = []
    for seed in range(8):
        driver, found = watched(kind, seed)
        driver.run(150)
        searches += found
    assert searches.count(True) > 10
    assert searches.count(False) > 10
