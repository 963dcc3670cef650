"""What happened, in the past tense. Events are the journal: state is nothing but their fold.

Every event carries its time. Gang events carry the attempt they speak of. Nothing here decides anything.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from corral.core.cluster.resources import Seat
from corral.core.cluster.topology import NodeSpec
from corral.core.model import (
    Cause,
    FailureClass,
    GangState,
    Health,
    JobSpec,
    Profile,
    QueueSpec,
    Reservation,
    Settings,
    Suspension,
)


class _Event(Struct, frozen=True, gc=False, tag=True):
    """Common base. The tag in the encoded form is the name of the class."""

    at_ms: int


class Founded(_Event, frozen=True, gc=False, tag=True):
    """The first event of a journal: what everything after it is folded with."""

    settings: Settings


class _NodeEvent(_Event, frozen=True, gc=False, tag=True):
    node: str


class NodeAdded(_Event, frozen=True, gc=False, tag=True):
    """A machine joined, or its description changed; tasks on it go on."""

    spec: NodeSpec


class NodeRemoved(_NodeEvent, frozen=True, gc=False, tag=True):
    pass


class NodeLost(_NodeEvent, frozen=True, gc=False, tag=True):
    """The lease of the node is over and its tasks are certainly dead."""


class NodeReturned(_NodeEvent, frozen=True, gc=False, tag=True):
    pass


class NodeHealthChanged(_NodeEvent, frozen=True, gc=False, tag=True):
    health: Health
    why: str = ""


class GpuHealthChanged(_NodeEvent, frozen=True, gc=False, tag=True):
    gpu: int
    health: Health
    why: str = ""


class NodeDrained(_NodeEvent, frozen=True, gc=False, tag=True):
    """An operator wants the node empty."""


class NodeUndrained(_NodeEvent, frozen=True, gc=False, tag=True):
    pass


class NodeEndSet(_NodeEvent, frozen=True, gc=False, tag=True):
    """The machine is lent until then, as far as is known; None: for no time that is known."""

    until_ms: int | None


class QueueSet(_Event, frozen=True, gc=False, tag=True):
    """A queue was made, or its terms changed."""

    spec: QueueSpec


class QueueRemoved(_Event, frozen=True, gc=False, tag=True):
    queue: str


class _JobEvent(_Event, frozen=True, gc=False, tag=True):
    job: str


class JobSubmitted(_JobEvent, frozen=True, gc=False, tag=True):
    """``account``: of the machine, that it runs as, whatever becomes of its user; None: an event of before there was
    one in it."""

    spec: JobSpec
    user: str
    account: str | None = None


class JobCancelled(_JobEvent, frozen=True, gc=False, tag=True):
    """Somebody wants the job gone. Its gangs leave each in its own time."""


class JobHeld(_JobEvent, frozen=True, gc=False, tag=True):
    """``why``: set where the server itself holds the job, because planning failed with it; then it is quarantined."""

    why: str = ""


class JobReleased(_JobEvent, frozen=True, gc=False, tag=True):
    pass


class JobSuspended(_JobEvent, frozen=True, gc=False, tag=True):
    """The job may not start any more: its user was removed or disabled, or has another account. ``cancel_ms``: when it
    is cancelled, if that lasts."""

    why: Suspension
    cancel_ms: int | None = None


class JobResumed(_JobEvent, frozen=True, gc=False, tag=True):
    """The job may start again. ``account``: what it runs as from here on; None: as before."""

    account: str | None = None


class JobEnded(_JobEvent, frozen=True, gc=False, tag=True):
    """All gangs of the job are over."""

    succeeded: bool


class JobForgotten(_JobEvent, frozen=True, gc=False, tag=True):
    """A job that is over leaves the state. What became of it stays in the journal and in what is kept of it."""


class PriorityChanged(_JobEvent, frozen=True, gc=False, tag=True):
    priority: int


class _GangEvent(_Event, frozen=True, gc=False, tag=True):
    gang: str
    attempt: int
    #: whether the event speaks of an attempt that is under way (False: of the gang as a whole)
    names_live_attempt: ClassVar[bool] = True


class GangAwoke(_GangEvent, frozen=True, gc=False, tag=True):
    """Something that kept a waiting gang out of the line is over."""

    blocker: int
    names_live_attempt: ClassVar[bool] = False


class GangPlaced(_GangEvent, frozen=True, gc=False, tag=True):
    """A new attempt begins on these seats; any claim it had is used up."""

    seats: tuple[Seat, ...]
    spares: tuple[Seat, ...] = ()
    names_live_attempt: ClassVar[bool] = False


class TasksStarted(_GangEvent, frozen=True, gc=False, tag=True):
    tasks: int


class GangStarted(_GangEvent, frozen=True, gc=False, tag=True):
    """All tasks of the attempt run."""


class CheckpointCommitted(_GangEvent, frozen=True, gc=False, tag=True):
    step: int


class TasksEnded(_GangEvent, frozen=True, gc=False, tag=True):
    """Some tasks are over while others are not."""

    tasks: int
    exit_code: int = 0


class TasksLost(_GangEvent, frozen=True, gc=False, tag=True):
    """Tasks died with their node or GPU; the gang is broken, its survivors keep their seats."""

    tasks: int
    node: str
    failure: FailureClass


class GangEvicted(_GangEvent, frozen=True, gc=False, tag=True):
    """The gang was told to save and leave. It frees nothing until it has stopped. ``is_charged``: its queue is charged
    for it until then, because it makes room for nobody."""

    cause: Cause
    deadline_ms: int
    beneficiary: str = ""
    price_gpu_ms: int = 0
    failure: FailureClass | None = None
    exit_code: int | None = None
    node: str = ""
    judge_ms: int = 0
    is_charged: bool = False


class GraceEnded(_GangEvent, frozen=True, gc=False, tag=True):
    """The deadline of an eviction passed: what still runs is to be killed."""


class GangClaimed(_GangEvent, frozen=True, gc=False, tag=True):
    """These seats are held for the gang until all of them are free. The last ``spares`` of them are spares."""

    seats: tuple[Seat, ...]
    names_live_attempt: ClassVar[bool] = False


class ClaimDropped(_GangEvent, frozen=True, gc=False, tag=True):
    names_live_attempt: ClassVar[bool] = False


class GangRepaired(_GangEvent, frozen=True, gc=False, tag=True):
    """A broken gang goes on as a new attempt: survivors where they were, lost tasks elsewhere, or fewer tasks."""

    seats: tuple[Seat, ...]
    spares: tuple[Seat, ...] = ()
    names_live_attempt: ClassVar[bool] = False


class GangStopped(_GangEvent, frozen=True, gc=False, tag=True):
    """Nothing of the attempt runs any more; its seats are free (or go to whoever claims them)."""

    failure: FailureClass | None = None
    exit_code: int = 0
    lost_gpu_ms: int = 0
    done_ms: int = 0


class GangRequeued(_GangEvent, frozen=True, gc=False, tag=True):
    """Back to waiting. ``counted``: the failure whose retry it used up; ``profile``: its new shape, if that changed.

    Its place in line is what it was, unless it goes to the head (not its fault), or to the end (its turn is over).
    """

    not_before_ms: int = 0
    at_head: bool = False
    counted: FailureClass | None = None
    is_quick: bool = False
    profile: Profile | None = None
    at_end: bool = False
    names_live_attempt: ClassVar[bool] = False


class GangFinished(_GangEvent, frozen=True, gc=False, tag=True):
    """The gang is over for good."""

    state: GangState
    why: str = ""
    failure: FailureClass | None = None
    names_live_attempt: ClassVar[bool] = False


class StartsPromised(_Event, frozen=True, gc=False, tag=True):
    """A policy that keeps its promises gave these gangs a start, or another one, and took back those of others."""

    promises: tuple[Reservation, ...]
    withdrawn: tuple[str, ...] = ()


NodeEvent = (
    NodeAdded
    | NodeRemoved
    | NodeLost
    | NodeReturned
    | NodeHealthChanged
    | GpuHealthChanged
    | NodeDrained
    | NodeUndrained
    | NodeEndSet
)
QueueEvent = QueueSet | QueueRemoved
JobEvent = (
    JobSubmitted
    | JobCancelled
    | JobHeld
    | JobReleased
    | JobSuspended
    | JobResumed
    | JobEnded
    | JobForgotten
    | PriorityChanged
)
GangEvent = (
    GangAwoke
    | GangPlaced
    | TasksStarted
    | GangStarted
    | CheckpointCommitted
    | TasksEnded
    | TasksLost
    | GangEvicted
    | GraceEnded
    | GangClaimed
    | ClaimDropped
    | GangRepaired
    | GangStopped
    | GangRequeued
    | GangFinished
)
Event = Founded | NodeEvent | QueueEvent | JobEvent | GangEvent | StartsPromised
