"""A state that is written down and read back is the same, decides the same and goes on the same."""

import msgspec
import pytest
from msgspec.structs import replace

from corral.core.apply import apply
from corral.core.image import Image, from_image, take_image
from corral.core.laws import check
from corral.core.snapshot import Snapshot
from corral.core.state import State
from tests.simulation.changing_cluster import ChangingDriver
from tests.simulation.driver import Driver


def written(state: State) -> bytes:
    return msgspec.json.encode(take_image(state))


def read(body: bytes) -> State:
    return from_image(msgspec.json.decode(body, type=Image))


@pytest.mark.parametrize("make", [Driver, ChangingDriver])
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("policy", ["standard", "conservative"])
def test_a_state_goes_on_from_its_image(make, seed, policy):
    driver = make(seed, policy, check_every=50)
    for _ in range(4):
        driver.run(60)
        body, length = written(driver.state), len(driver.journal)
        twin = read(body)
        check(twin)
        assert written(twin) == body
        plans = [driver.chosen(Snapshot(state, driver.now)) for state in (twin, driver.state)]
        assert replace(plans[0], why=None) == replace(plans[1], why=None)
        driver.run(40)
        for event in driver.journal[length:]:
            apply(twin, event)
        check(twin)
        assert written(twin) == written(driver.state)


def test_an_empty_state_has_an_image():
    body = written(State(Driver(0).state.settings))
    assert written(read(body)) == body


def test_stored_names_of_tables_are_those_of_earlier_versions():
    """Images outlive a version: a field of the state that gets another name keeps its name in the image."""
    stored = msgspec.json.decode(written(Driver(0).run(100)))
    assert stored.keys() >= {"orders", "promises", "out_of_turn"}
    assert stored["orders"].keys() == {
        "holders",
        "claimants",
        "broken",
        "stopping",
        "elastic",
        "draining",
        "loose",
        "spent",
    }
