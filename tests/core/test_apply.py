"""Folding events: the state depends on the events alone, not on what was asked of it in between."""

import pytest

from corral.core import events as e
from corral.core import facts as f
from corral.core.apply import apply
from corral.core.cluster.resources import amounts
from corral.core.intake import commands
from corral.core.laws import check
from corral.core.model import Cause, FailureClass, GangSpec, GangState, JobSpec, QueueSpec, Settings
from corral.core.state import State
from tests.world import START_MS, World, demand_of, image, node_spec, seat

DEMAND = demand_of(amounts=amounts({"cpu_milli": 1000}))
NODE = node_spec("a0", 2, ("a",), cpu_milli=4000)
ADDED = e.NodeAdded(1, NODE)
BEFORE = (
    ADDED,
    e.QueueSet(1, QueueSpec(name="team")),
    e.JobSubmitted(1, "j", JobSpec(queue="team", gangs=(GangSpec(DEMAND),)), "ann"),
)
PLACED = e.GangPlaced(2, "j/main", 1, (seat("a0", 0),))
NEWS = e.NodeAdded(3, node_spec("a1", 2, ("a",), cpu_milli=4000))
EVICTED = e.GangEvicted(4, "j/main", 1, Cause.REQUEUE, 5)

#: Each ends with an event on a cluster that has just changed and that was not planned since.
STREAMS = {
    "a gang is placed": (*BEFORE, PLACED),
    "a gang is evicted": (*BEFORE, PLACED, NEWS, EVICTED),
    "a gang claims seats": (*BEFORE, NEWS, e.GangClaimed(4, "j/main", 0, (seat("a0", 0),))),
    "a gang breaks": (*BEFORE, PLACED, NEWS, e.NodeLost(4, "a0")),
    "a gang is repaired": (
        *BEFORE, PLACED, NEWS, e.TasksLost(4, "j/main", 1, 1, "a0", FailureClass.NODE_LOST), NEWS,
        e.GangRepaired(5, "j/main", 2, (seat("a1", 0),)),
    ),
    "a gang has stopped": (
        *BEFORE, PLACED, EVICTED, NEWS, e.GangStopped(5, "j/main", 1), e.GangRequeued(5, "j/main", 1),
    ),
    "a claim is dropped": (
        *BEFORE, e.GangClaimed(2, "j/main", 0, (seat("a0", 0),)), NEWS, e.ClaimDropped(3, "j/main", 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS.keys())
def test_the_columns_are_right_though_no_one_looked_before(stream):
    state = State(Settings(levels=("rack",)))
    for event in stream:
        apply(state, event)
    check(state)


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS.keys())
def test_looking_at_the_state_changes_nothing(stream):
    watched, alone = (State(Settings(levels=("rack",))) for _ in range(2))
    for event in stream:
        apply(watched, event)
        image(watched)
        apply(alone, event)
    assert image(watched) == image(alone)


def test_time_never_runs_back():
    state = State(Settings(levels=("rack",)))
    apply(state, e.NodeAdded(100, NODE))
    apply(state, e.NodeDrained(50, "a0"))
    assert state.now_ms == 100
    assert state.version == 2


def test_what_the_cluster_has_leaves_lost_nodes_out():
    made = World().rack("a", 2, 4, cpu_milli=1000)
    total = made.state.queues.total
    assert (total["gpu_milli"], total["gpu_milli:H100"], total["cpu_milli"]) == (8000, 8000, 2000)
    made.tell(f.NodeGone("a0"))
    assert (total["gpu_milli"], total["cpu_milli"]) == (4000, 1000)
    made.take(commands.remove_node(made.state, "a0", made.now))
    assert total["gpu_milli"] == 4000
    made.take(commands.remove_node(made.state, "a1", made.now))
    assert total["gpu_milli"] == 0


def test_a_node_described_again_while_it_is_lost_counts_once_when_it_returns():
    made = World().rack("a", 1, 4)
    made.tell(f.NodeGone("a0"))
    made.take(commands.add_node(made.state, node_spec("a0", 8, ("a",)), made.now))
    made.tell(f.NodeBack("a0"))
    assert made.state.queues.total["gpu_milli"] == 8000


@pytest.mark.parametrize(("cause", "charged"), [(Cause.CANCEL, 4000), (Cause.REQUEUE, 0), (Cause.RECLAIM, 0)])
def test_a_gang_is_metered_until_it_has_stopped_and_charged_unless_it_makes_room_for_others(cause, charged):
    made = World().rack("a", 1, 4).queue("team")
    gang = made.run("j", demand=demand_of(gpus=4))
    queue = made.state.queues.queues["team"]
    assert (queue.used["gpu_milli"], queue.usage.rates[0]) == (4000, 4000)
    made.take(commands.evict(made.state, gang, cause, made.now))
    assert (queue.used["gpu_milli"], queue.usage.rates[0]) == (charged, 4000)
    made.wait(10_000)
    made.down(gang, 85)
    assert (queue.used["gpu_milli"], queue.usage.rates[0]) == (0, 0)
    assert queue.used_gpu_ms == 4 * 10_000
    assert gang.state is (GangState.FAILED if charged else GangState.WAITING)
    assert made.now == START_MS + 10_000
