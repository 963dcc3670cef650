"""What the world reports: clocks, agents and engines. A fact may be late, repeated or plainly stale.

Facts are not trusted to be news: ``react`` turns a fact into events only if it changes something.
"""

from __future__ import annotations

from msgspec import Struct

from corral.core.model import FailureClass, Health


class Ticked(Struct, frozen=True, gc=False):
    """Time has passed; whatever was due is due. ``gang``: for this one; empty: for all of them."""

    gang: str = ""


class TasksUp(Struct, frozen=True, gc=False):
    """These tasks (a mask over task numbers) of an attempt run."""

    gang: str
    attempt: int
    tasks: int


class TasksDown(Struct, frozen=True, gc=False):
    """These tasks of an attempt are over. ``failure`` is the reporter's classification, if it made one. ``judge_ms``:
    after this time it would be known that another machine was lost meanwhile; 0: as the settings say."""

    gang: str
    attempt: int
    tasks: int
    exit_code: int = 0
    failure: FailureClass | None = None
    node: str = ""
    judge_ms: int = 0


class Saved(Struct, frozen=True, gc=False):
    """The job acknowledged a committed checkpoint."""

    gang: str
    attempt: int
    step: int


class NodeGone(Struct, frozen=True, gc=False):
    """The node's lease is over: its tasks have stopped, whether or not anyone can see it."""

    node: str


class NodeBack(Struct, frozen=True, gc=False):
    node: str


class NodeObserved(Struct, frozen=True, gc=False):
    """How a node is, and why that is thought. What is observed again in the same words is no news."""

    node: str
    health: Health
    why: str = ""


class NodeEnds(Struct, frozen=True, gc=False):
    """The machine will be taken away then; None: nobody knows of an end."""

    node: str
    until_ms: int | None


class GpuObserved(Struct, frozen=True, gc=False):
    node: str
    gpu: int
    health: Health
    why: str = ""


Fact = Ticked | TasksUp | TasksDown | Saved | NodeGone | NodeBack | NodeObserved | NodeEnds | GpuObserved
