"""Undo of a draft: whatever was tried on it, one undo restores all of it."""

from collections.abc import Callable

import pytest

from corral.core.cluster.resources import GPU_MILLI, amounts
from corral.core.events import GangClaimed
from corral.core.facts import NodeGone
from corral.core.model import Budget, GangState
from corral.core.snapshot import Draft
from tests.core.test_capacity import columns
from tests.world import World, demand_of, seat


def image_of(draft: Draft) -> dict[str, object]:
    """Everything that a draft holds, copied. Where it matters who came first, in order."""
    queues = draft.queues
    return {
        **columns(draft.capacity),
        "pledged": dict(draft.capacity.pledged),
        "used": {name: _not_zero(queue.used) for name, queue in queues.queues.items()},
        "user_used": {
            name: {user: _not_zero(used) for user, used in queue.user_used.items()}
            for name, queue in queues.queues.items()
        },
        "room": {name: queues.room(name, GPU_MILLI, draft.now_ms) for name in queues.queues},
        "charges": list(queues.charges),
        "runs": {name: dict(runs) for name, runs in queues.runs.items()},
        "leaving": list(draft.leaving),
        "served": list(draft.served),
        "dropped": list(draft.dropped),
        "seated": dict(draft.seated),
        "claimed_seats": dict(draft.claimed_seats),
        "touched": list(draft.touched),
    }


def _not_zero(used: dict[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in used.items() if amount}


def world() -> World:
    """``runs`` runs, ``breaks`` is broken, ``claims`` has a claim, ``waits`` waits; with a budget and lending."""
    made = World().rack("a", 3, gpus=4, cpu_milli=64_000)
    made.queue("org", budget=Budget(gpu_ms=10**9, window_ms=3_600_000)).queue("org/team", guarantee=4, lend=2)
    wants = demand_of(amounts=amounts({"cpu_milli": 1000}))
    made.run("runs", "org/team", wants, [seat("a0", 0)])
    made.run("breaks", "org/team", demand_of(tasks=2), [seat("a0", 1), seat("a2", 1)])
    made.tell(NodeGone("a2"))
    claims = made.submit("claims", "org/team", wants)
    made.apply(GangClaimed(made.now, claims.id, 0, (seat("a1", 0),)))
    made.submit("waits", "org/team", wants, user="bob")
    return made


CHARGE = amounts({GPU_MILLI: 1000, "cpu_milli": 1000})
CHANGES: dict[str, Callable[[World, Draft], None]] = {
    "place": lambda made, draft: draft.place(made.state.gangs["waits/main"], [seat("a1", 1)], CHARGE),
    "place on claim": lambda made, draft: draft.place_on_claim(made.state.gangs["claims/main"], [seat("a1", 0)]),
    "claim": lambda made, draft: draft.claim(made.state.gangs["waits/main"], [seat("a1", 1)], CHARGE),
    "drop a claim": lambda made, draft: draft.drop_claim(made.state.gangs["claims/main"]),
    "evict": lambda made, draft: draft.evict(made.state.gangs["runs/main"]),
    "move": lambda made, draft: draft.move(
        made.state.gangs["breaks/main"], [seat("a0", 2), seat("a0", 3)], CHARGE
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_undo_restores_all_of_a_draft(change):
    made = world()
    draft = made.snapshot().draft()
    before, mark = image_of(draft), draft.mark()
    change(made, draft)
    assert image_of(draft) != before
    draft.undo(mark)
    assert image_of(draft) == before


def test_undo_goes_back_to_the_mark_and_no_further():
    made = world()
    draft = made.snapshot().draft()
    CHANGES["place"](made, draft)
    kept, mark = image_of(draft), draft.mark()
    for name in ("drop a claim", "evict", "move"):
        CHANGES[name](made, draft)
    draft.undo(mark)
    assert image_of(draft) == kept


def test_the_columns_and_the_queues_of_a_draft_have_its_log():
    made = world()
    draft = made.snapshot().draft()
    before, mark = image_of(draft), draft.capacity.mark()
    draft.queues.charge("org/team", "ann", CHARGE, 1)
    draft.capacity.undo(mark)
    assert image_of(draft) == before


def test_what_is_kept_cannot_be_undone():
    made = world()
    draft = made.snapshot().draft()
    CHANGES["place"](made, draft)
    draft.keep()
    kept = image_of(draft)
    draft.undo(0)
    assert image_of(draft) == kept


def test_a_draft_leaves_the_state_as_it_was():
    made = world()
    assert made.state.gangs["breaks/main"].state is GangState.BROKEN
    before = image_of(made.snapshot().draft())
    draft = made.snapshot().draft()
    for name in ("place", "drop a claim", "evict", "move"):
        CHANGES[name](made, draft)
    assert image_of(made.snapshot().draft()) == before
