"""The lifecycle of a gang: which events are allowed in which state. The table is the state machine; the rest reads it.

Knows nothing about the reasons of events.
"""

from __future__ import annotations

from corral.core import events as e
from corral.core.model import GangState

W = GangState.WAITING
S = GangState.STARTING
R = GangState.RUNNING
B = GangState.BROKEN
X = GangState.STOPPING
OK = GangState.SUCCEEDED
NOT_OK = GangState.FAILED
GONE = GangState.CANCELLED

#: What users may do to one gang in any state but the last ones, without changing the state.
ALWAYS = (e.GangHeld, e.GangReleased, e.GangPriorityChanged)

#: state -> event -> the states it may lead to
TRANSITIONS: dict[GangState, dict[type, tuple[GangState, ...]]] = {
    W: {
        e.GangAwoke: (W,),
        e.GangClaimed: (W,),
        e.ClaimDropped: (W,),
        e.GangPlaced: (S,),
        e.GangRequeued: (W,),  # right after GangStopped
        e.GangFinished: (OK, NOT_OK, GONE),
        **dict.fromkeys(ALWAYS, (W,)),
    },
    S: {
        e.TasksStarted: (S,),
        e.GangStarted: (R,),
        e.TasksEnded: (S,),
        e.TasksLost: (B,),
        e.GangEvicted: (X,),
        e.GangStopped: (W,),
        e.GangCancelled: (S,),
        **dict.fromkeys(ALWAYS, (S,)),
    },
    R: {
        e.CheckpointCommitted: (R,),
        e.GangSlowed: (R,),
        e.TasksEnded: (R,),
        e.TasksLost: (B,),
        e.GangEvicted: (X,),
        e.GangStopped: (W,),
        e.GangCancelled: (R,),
        **dict.fromkeys(ALWAYS, (R,)),
    },
    B: {
        e.CheckpointCommitted: (B,),
        e.TasksEnded: (B,),
        e.TasksLost: (B,),
        e.GangRepaired: (S,),
        e.GangEvicted: (X,),
        e.GangStopped: (W,),
        e.GangCancelled: (B,),
        **dict.fromkeys(ALWAYS, (B,)),
    },
    X: {
        e.CheckpointCommitted: (X,),
        e.TasksEnded: (X,),
        e.TasksLost: (X,),
        e.GangClaimed: (X,),  # a change of size: the seats it continues with
        e.ClaimDropped: (X,),
        e.GraceEnded: (X,),
        e.GangStopped: (W,),
        e.GangCancelled: (X,),
        **dict.fromkeys(ALWAYS, (X,)),
    },
    OK: {},
    NOT_OK: {},
    GONE: {},
}


def may_follow(state: GangState, event: type) -> bool:
    return event in TRANSITIONS[state]


def diagram() -> str:
    """The table as a Mermaid state diagram; docs/lifecycle.md is generated from it."""
    lines = ["stateDiagram-v2", "    [*] --> waiting"]
    for state, moves in TRANSITIONS.items():
        for event, nexts in moves.items():
            lines += [f"    {state} --> {after}: {event.__name__}" for after in nexts if after is not state]
    lines += [f"    {state} --> [*]" for state in (OK, NOT_OK, GONE)]
    return "\n".join(lines) + "\n"
