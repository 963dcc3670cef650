"""What is to be done about a fleet: tables of what is wanted, what an engine says and how nodes are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from corral.core.fleets import commands
from corral.core.fleets import fleets as f
from corral.core.fleets.fleets import Fleet, Fleets, FleetSpec, NodeShape, PilotPhase
from corral.core.fleets.reconcile import ABSENT_MS, BACKOFF_MS, LEAD_MS, SILENT_MS, Actions, PilotNode, reconcile
from corral.core.intake.refusal import Refusal

NOW = 10_000_000
IDLE_MS = 60_000
WAITING, STARTED, ENDED = PilotPhase.WAITING, PilotPhase.STARTED, PilotPhase.ENDED


def fleets_with(*pilots: str, **spec: Any) -> Fleets:
    made = Fleets()
    wanted = {"nodes_min": 2, "nodes_max": 2, "idle_ms": IDLE_MS} | spec
    made.apply(f.FleetSet(1_000, FleetSpec(name="gpu", kind="fake", **wanted), "ann", "c0ffee"))
    for pilot in pilots:
        made.apply(f.PilotOrdered(2_000, "gpu", pilot))
    return made


def see(
    fleets: Fleets, pilot: str, phase: PilotPhase, until_ms: int | None = None, why: str = "", at_ms: int = NOW - 1_000
) -> None:
    fleets.apply(f.PilotSeen(at_ms, "gpu", pilot, phase, "job 1", until_ms, why))


def owed(
    fleets: Fleets,
    nodes: Mapping[str, PilotNode] | None = None,
    target: int = 2,
    absent: Mapping[str, int] | None = None,
    now_ms: int = NOW,
) -> Actions:
    names = [fleets.next_pilot("gpu", ahead) for ahead in range(8)]
    found = reconcile(fleets.fleets["gpu"], names, nodes or {}, target, absent or {}, now_ms)
    for event in found.events:
        fleets.apply(event)
    return found


def kinds(found: Actions) -> list[tuple[str, str]]:
    return [(type(event).__name__, getattr(event, "pilot", "")) for event in found.events]


def the(fleets: Fleets) -> Fleet:
    return fleets.fleets["gpu"]


def test_what_is_missing_is_written_down_before_it_is_asked_for() -> None:
    fleets = fleets_with()
    found = owed(fleets)
    assert kinds(found) == [("PilotOrdered", "gpu-1"), ("PilotOrdered", "gpu-2")]
    assert found.acquire == ["gpu-1", "gpu-2"]


def test_what_no_one_knows_of_is_asked_for_again_under_the_same_name() -> None:
    fleets = fleets_with("gpu-1", "gpu-2")
    see(fleets, "gpu-1", WAITING)
    found = owed(fleets)
    assert (kinds(found), found.acquire) == ([], ["gpu-2"])


def test_numbers_are_never_given_again_not_even_to_a_fleet_of_the_same_name() -> None:
    fleets = fleets_with("gpu-1")
    for event in (f.FleetRecalled(1, "gpu"), f.PilotEnded(2, "gpu", "gpu-1"), f.FleetRemoved(3, "gpu")):
        fleets.apply(event)
    fleets.apply(f.FleetSet(4, FleetSpec(name="gpu", kind="fake"), "ann"))
    assert fleets.next_pilot("gpu") == "gpu-2"


def test_a_node_that_is_there_has_joined_and_tells_what_it_brings() -> None:
    fleets = fleets_with("gpu-1", "gpu-2")
    see(fleets, "gpu-1", STARTED)
    see(fleets, "gpu-2", STARTED)
    shape = NodeShape((), (("cpu_milli", 4_000),))
    found = owed(fleets, {"gpu-1": PilotNode(shape=shape)})
    assert kinds(found) == [("PilotJoined", "gpu-1")]
    assert the(fleets).shape == shape


def test_the_lease_has_the_last_word_about_a_pilot_that_the_engine_calls_over() -> None:
    fleets = fleets_with("gpu-1", "gpu-2")
    see(fleets, "gpu-1", ENDED, why="cancelled")
    see(fleets, "gpu-2", STARTED)
    alive = {"gpu-1": PilotNode(since_ms=NOW), "gpu-2": PilotNode(since_ms=NOW)}
    assert "PilotEnded" not in dict(kinds(owed(fleets, alive)))
    lost = {"gpu-1": PilotNode(is_lost=True, since_ms=NOW), "gpu-2": PilotNode(since_ms=NOW)}
    found = owed(fleets, lost)
    assert kinds(found) == [("PilotEnded", "gpu-1"), ("PilotOrdered", "gpu-3")]
    assert found.remove == ["gpu-1"]
    assert found.events[0].why == "cancelled"  # type: ignore[union-attr]


@pytest.mark.parametrize(("for_ms", "is_over"), [(0, False), (ABSENT_MS - 1, False), (ABSENT_MS, True)])
def test_an_engine_that_forgot_a_pilot_is_asked_for_a_while_before_it_is_believed(for_ms: int, is_over: bool) -> None:
    fleets = fleets_with("gpu-1", "gpu-2")
    see(fleets, "gpu-1", WAITING)
    see(fleets, "gpu-2", WAITING)
    found = owed(fleets, absent={"gpu-1": NOW - for_ms})
    assert (("PilotEnded", "gpu-1") in kinds(found)) is is_over
    assert found.acquire == []  # never a second one under the name, and a new one only after a pause


def test_a_forgotten_pilot_whose_node_is_there_stays() -> None:
    fleets = fleets_with("gpu-1", "gpu-2")
    for pilot in ("gpu-1", "gpu-2"):
        see(fleets, pilot, STARTED)
    nodes = {pilot: PilotNode(is_busy=True) for pilot in ("gpu-1", "gpu-2")}
    found = owed(fleets, nodes, absent={"gpu-1": 0})
    assert {kind for kind, _ in kinds(found)} == {"PilotJoined"}


def test_pilots_that_end_without_having_joined_are_tried_again_more_and_more_slowly() -> None:
    fleets = fleets_with("gpu-1", "gpu-2")
    for pilot in ("gpu-1", "gpu-2"):
        see(fleets, pilot, ENDED, why="exit 1")
    assert dict(kinds(owed(fleets))) == {"PilotEnded": "gpu-2"}
    assert the(fleets).failures == 2
    assert the(fleets).last_end == "exit 1"
    assert kinds(owed(fleets, now_ms=NOW + 2 * BACKOFF_MS - 1)) == []
    assert kinds(owed(fleets, now_ms=NOW + 2 * BACKOFF_MS)) == [("PilotOrdered", "gpu-3")]  # one is enough to try
    owed(fleets, {"gpu-3": PilotNode()}, now_ms=NOW + 2 * BACKOFF_MS)
    assert the(fleets).failures == 0


def test_a_fleet_that_is_given_back_lets_work_leave_first() -> None:
    fleets = fleets_with("gpu-1", "gpu-2")
    see(fleets, "gpu-1", STARTED)
    see(fleets, "gpu-2", WAITING)
    fleets.apply(f.FleetRecalled(5_000, "gpu"))
    busy = {"gpu-1": PilotNode(is_busy=True)}
    first = owed(fleets, busy, target=0)
    assert (first.drain, first.release) == (["gpu-1"], ["gpu-2"])
    drained = {"gpu-1": PilotNode(is_busy=True, is_drained=True)}
    assert owed(fleets, drained, target=0, absent={"gpu-2": NOW}).release == []
    empty = {"gpu-1": PilotNode(is_drained=True)}
    assert owed(fleets, empty, target=0).release == ["gpu-1"]
    last = owed(fleets, {"gpu-1": PilotNode(is_lost=True)}, target=0, absent={"gpu-1": NOW})
    assert kinds(last) == [("PilotEnded", "gpu-1"), ("FleetRemoved", "")]
    assert fleets.fleets == {}


def test_idle_nodes_beyond_the_target_go_back_after_the_cool_down_and_busy_ones_never() -> None:
    fleets = fleets_with("gpu-1", "gpu-2", nodes_min=0, nodes_max=4)
    for pilot in ("gpu-1", "gpu-2"):
        see(fleets, pilot, STARTED)
    nodes = {"gpu-1": PilotNode(is_busy=True, since_ms=0), "gpu-2": PilotNode(since_ms=NOW - IDLE_MS + 1)}
    assert "PilotRecalled" not in dict(kinds(owed(fleets, nodes, target=0)))
    nodes["gpu-2"] = PilotNode(since_ms=NOW - IDLE_MS)
    found = owed(fleets, nodes, target=0)
    assert kinds(found) == [("PilotRecalled", "gpu-2")]


def test_what_still_waits_is_let_go_first_when_less_is_needed() -> None:
    fleets = fleets_with("gpu-1", "gpu-2", nodes_min=0, nodes_max=4)
    see(fleets, "gpu-1", STARTED)
    see(fleets, "gpu-2", WAITING)
    nodes = {"gpu-1": PilotNode(is_busy=True, since_ms=0)}
    assert ("PilotRecalled", "gpu-2") in kinds(owed(fleets, nodes, target=1))


def test_where_a_person_wants_fewer_the_idle_go_first_and_then_those_with_work() -> None:
    fleets = fleets_with("gpu-1", "gpu-2", nodes_min=1, nodes_max=1)
    for pilot in ("gpu-1", "gpu-2"):
        see(fleets, pilot, STARTED)
    nodes = {"gpu-1": PilotNode(is_busy=True, since_ms=0), "gpu-2": PilotNode(since_ms=NOW)}
    found = owed(fleets, nodes, target=1)
    assert ("PilotRecalled", "gpu-2") in kinds(found)
    assert found.drain == ["gpu-2"]


def test_a_machine_that_is_about_to_be_taken_away_is_replaced_before() -> None:
    fleets = fleets_with("gpu-1", "gpu-2")
    see(fleets, "gpu-1", STARTED, until_ms=NOW + LEAD_MS - 1, at_ms=3_000)
    see(fleets, "gpu-2", STARTED, until_ms=NOW + LEAD_MS, at_ms=3_000)
    nodes = {pilot: PilotNode(is_busy=True) for pilot in ("gpu-1", "gpu-2")}
    assert ("PilotOrdered", "gpu-3") in kinds(owed(fleets, nodes))
    see(fleets, "gpu-3", STARTED)
    nodes["gpu-3"] = PilotNode()
    assert kinds(owed(fleets, nodes)) == [("PilotJoined", "gpu-3")]  # and no node is given back for it


def test_a_machine_that_is_lent_for_a_minute_is_not_replaced_when_it_comes() -> None:
    fleets = fleets_with("gpu-1", "gpu-2")
    for pilot in ("gpu-1", "gpu-2"):
        see(fleets, pilot, STARTED, until_ms=NOW + 59_000)
    nodes = {pilot: PilotNode(is_busy=True) for pilot in ("gpu-1", "gpu-2")}
    assert "PilotOrdered" not in dict(kinds(owed(fleets, nodes)))
    assert ("PilotOrdered", "gpu-3") in kinds(owed(fleets, nodes, now_ms=NOW + 45_000))


@pytest.mark.parametrize("node", [None, PilotNode(is_lost=True, since_ms=NOW - SILENT_MS)])
def test_what_was_started_and_stays_silent_is_given_up(node: PilotNode | None) -> None:
    fleets = fleets_with("gpu-1", nodes_min=1, nodes_max=1)
    see(fleets, "gpu-1", STARTED, at_ms=NOW - SILENT_MS)
    found = owed(fleets, {} if node is None else {"gpu-1": node}, target=1)
    assert kinds(found)[0] == ("PilotRecalled", "gpu-1")
    assert found.release == ["gpu-1"]


def test_nothing_is_ordered_beyond_what_it_may_cost() -> None:
    spec = {"price_milli": 1_000, "cost_max_milli": 2_000}
    fleets = fleets_with("gpu-1", **spec)
    see(fleets, "gpu-1", STARTED, at_ms=3_000)
    nodes = {"gpu-1": PilotNode(is_busy=True)}
    assert ("PilotOrdered", "gpu-2") in kinds(owed(fleets, nodes, now_ms=3_000 + 2 * f.HOUR_MS - 4))
    dear = fleets_with("gpu-1", **spec)
    see(dear, "gpu-1", STARTED, at_ms=3_000)
    assert "PilotOrdered" not in dict(kinds(owed(dear, nodes, now_ms=3_000 + 2 * f.HOUR_MS)))


REFUSED = {
    "a name that is none": ({"name": "../up"}, "bad_name"),
    "fewer than none": ({"nodes_min": -1}, "bad_nodes"),
    "no nodes at all": ({"nodes_min": 0, "nodes_max": 0}, "bad_nodes"),
    "the least above the most": ({"nodes_min": 3, "nodes_max": 2}, "bad_nodes"),
    "no cool-down": ({"idle_ms": 0}, "bad_idle"),
    "10 ms": ({"lasts_ms": 10}, "bad_time"),
    "a bound without a price": ({"cost_max_milli": 5}, "no_price"),
    "a negative price": ({"price_milli": -5}, "bad_price"),
}


@pytest.mark.parametrize(("said", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_wanted_is_refused(said: dict[str, Any], code: str) -> None:
    spec = FleetSpec(**({"name": "gpu", "kind": "fake"} | said))
    answer = commands.set_fleet(Fleets(), spec, "ann", "c0ffee", NOW)
    assert isinstance(answer, Refusal)
    assert answer.code == code


def test_a_fleet_keeps_its_owner_and_its_provider() -> None:
    fleets = fleets_with()
    other = commands.set_fleet(fleets, FleetSpec(name="gpu", kind="slurm"), "bob", "beef", NOW)
    assert isinstance(other, Refusal)
    assert other.code == "other_provider"
    answer = commands.set_fleet(fleets, FleetSpec(name="gpu", kind="fake", nodes_max=9), "bob", "beef", NOW)
    assert not isinstance(answer, Refusal)
    for event in answer:
        fleets.apply(event)
    assert (the(fleets).owner, the(fleets).spec.nodes_max, fleets.cluster) == ("ann", 9, "c0ffee")
    assert commands.set_fleet(fleets, the(fleets).spec, "bob", "beef", NOW) == []
    fleets.apply(f.FleetRecalled(NOW, "gpu"))
    gone = commands.set_fleet(fleets, the(fleets).spec, "ann", "beef", NOW)
    assert isinstance(gone, Refusal)
    assert gone.code == "fleet_leaving"
    assert commands.recall_fleet(fleets, "gpu", NOW) == []
