"""Facts: reports of clocks, agents and providers. A fact may be late, repeated or stale.

``react`` turns a fact into events only if it changes something.
"""

from __future__ import annotations

from msgspec import Struct

from corral.core.model import FailureClass, FirstFailure, Health


class Ticked(Struct, frozen=True, gc=False):
    """Time has passed; timers may be due. ``gang``: check this one; empty: all."""

    gang: str = ""


class TasksUp(Struct, frozen=True, gc=False):
    """These tasks (a mask over task numbers) of an attempt are running."""

    gang: str
    attempt: int
    tasks: int


class TasksDown(Struct, frozen=True, gc=False):
    """These tasks of an attempt have ended. ``failure``: the reporter's classification, if any. ``judge_ms``: after
    this time the loss of another node would be known; 0: as the settings say. ``first_failure``: of their processes,
    if one failed by itself."""

    gang: str
    attempt: int
    tasks: int
    exit_code: int = 0
    failure: FailureClass | None = None
    node: str = ""
    judge_ms: int = 0
    first_failure: FirstFailure | None = None


class Saved(Struct, frozen=True, gc=False):
    """The job reported a committed checkpoint, where it is (in its own words), and how long saving took."""

    gang: str
    attempt: int
    step: int
    path: str = ""
    save_ms: int = 0
    stall_ms: int = 0  # the part of it for which the work stopped


class Slowed(Struct, frozen=True, gc=False):
    """The ranks of a gang wait for a slow one on this node: it takes this percentage of the usual time for a step. 100:
    no longer."""

    gang: str
    attempt: int
    node: str
    percent: int


class NodeGone(Struct, frozen=True, gc=False):
    """The lease of the node has expired: its tasks have stopped, even if the server cannot see that."""

    node: str


class NodeBack(Struct, frozen=True, gc=False):
    node: str


class NodeObserved(Struct, frozen=True, gc=False):
    """The health of a node, and why. The same health with the same reason changes nothing."""

    node: str
    health: Health
    why: str = ""


class NodeEnds(Struct, frozen=True, gc=False):
    """The node will be withdrawn then; None: no end is known."""

    node: str
    until_ms: int | None


class GpuObserved(Struct, frozen=True, gc=False):
    node: str
    gpu: int
    health: Health
    why: str = ""


Fact = Ticked | TasksUp | TasksDown | Saved | Slowed | NodeGone | NodeBack | NodeObserved | NodeEnds | GpuObserved
