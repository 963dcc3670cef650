"""Events, in the past tense. The journal is a log of events, and the state is their fold.

Every event has its time. Gang events have the attempt they are about. Nothing here decides anything.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from corral.core.cluster.resources import Seat
from corral.core.cluster.topology import NodeSpec
from corral.core.model import (
    Cause,
    FailureClass,
    FirstFailure,
    GangState,
    Health,
    JobSpec,
    Profile,
    QueueSpec,
    Reservation,
    Settings,
    StartMoved,
    Suspension,
)


class _Event(Struct, frozen=True, gc=False, tag=True):
    """Common base. The tag of the encoded form is the name of the class."""

    at_ms: int


class Founded(_Event, frozen=True, gc=False, tag=True):
    """The first event of a journal: the settings for folding all later events."""

    settings: Settings


class _NodeEvent(_Event, frozen=True, gc=False, tag=True):
    node: str


class NodeAdded(_Event, frozen=True, gc=False, tag=True):
    """A node joined, or its description changed; tasks on it continue."""

    spec: NodeSpec


class NodeRemoved(_NodeEvent, frozen=True, gc=False, tag=True):
    pass


class NodeLost(_NodeEvent, frozen=True, gc=False, tag=True):
    """The lease of the node has expired, and its tasks have certainly ended."""


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
    """An operator drained the node, or cordoned it: then running gangs stay until they end."""

    cordon: bool = False


class NodeUndrained(_NodeEvent, frozen=True, gc=False, tag=True):
    pass


class NodeEndSet(_NodeEvent, frozen=True, gc=False, tag=True):
    """The node will be withdrawn then; None: no end is known."""

    until_ms: int | None


class QueueSet(_Event, frozen=True, gc=False, tag=True):
    """A queue was created or changed."""

    spec: QueueSpec


class QueueRemoved(_Event, frozen=True, gc=False, tag=True):
    queue: str


class _JobEvent(_Event, frozen=True, gc=False, tag=True):
    job: str


class JobSubmitted(_JobEvent, frozen=True, gc=False, tag=True):
    """``account``: of the machine, that the job runs as, even if its user changes; None: an event of an older
    version."""

    spec: JobSpec
    user: str
    account: str | None = None


class JobCancelled(_JobEvent, frozen=True, gc=False, tag=True):
    """The job was cancelled. Its gangs stop with their grace periods."""


class JobHeld(_JobEvent, frozen=True, gc=False, tag=True):
    """The job was held. ``why``: set if the server holds it because planning failed with it (quarantine)."""

    why: str = ""


class JobReleased(_JobEvent, frozen=True, gc=False, tag=True):
    pass


class JobSuspended(_JobEvent, frozen=True, gc=False, tag=True):
    """The job may not start: its user was removed or disabled, or has another account. ``cancel_ms``: when it is
    cancelled if it is still suspended then."""

    why: Suspension
    cancel_ms: int | None = None


class JobResumed(_JobEvent, frozen=True, gc=False, tag=True):
    """The job may start again. ``account``: what it runs as from now on; None: as before."""

    account: str | None = None


class JobEnded(_JobEvent, frozen=True, gc=False, tag=True):
    """All gangs of the job have ended."""

    succeeded: bool


class JobForgotten(_JobEvent, frozen=True, gc=False, tag=True):
    """An ended job was dropped from the state. The journal and the lookups keep it."""


class PriorityChanged(_JobEvent, frozen=True, gc=False, tag=True):
    priority: int


class _GangEvent(_Event, frozen=True, gc=False, tag=True):
    gang: str
    attempt: int
    #: whether the event is about the current attempt (False: about the gang as a whole)
    names_live_attempt: ClassVar[bool] = True


class GangAwoke(_GangEvent, frozen=True, gc=False, tag=True):
    """A blocker of a waiting gang was removed."""

    blocker: int
    names_live_attempt: ClassVar[bool] = False


class GangPlaced(_GangEvent, frozen=True, gc=False, tag=True):
    """A new attempt starts on these seats; its claim, if any, is used up.

    ``out_of_turn_until_ms``: it was served out of turn because it had waited too long; no other gang of its priority
    and its kinds of nodes is served so before that time. 0: it was its turn.
    """

    seats: tuple[Seat, ...]
    spares: tuple[Seat, ...] = ()
    out_of_turn_until_ms: int = 0
    names_live_attempt: ClassVar[bool] = False


class TasksStarted(_GangEvent, frozen=True, gc=False, tag=True):
    tasks: int


class GangStarted(_GangEvent, frozen=True, gc=False, tag=True):
    """All tasks of the attempt are running."""


class CheckpointCommitted(_GangEvent, frozen=True, gc=False, tag=True):
    """``path``: where it is, in the words of the program. ``save_ms``: how long saving took, and ``stall_ms``
    for how much of that it stopped the work; 0: unknown."""

    step: int
    path: str = ""
    save_ms: int = 0
    stall_ms: int = 0


class GangSlowed(_GangEvent, frozen=True, gc=False, tag=True):
    """The ranks of the gang wait for a slow one on this node, which takes this percentage of the usual time for a step;
    100: no longer."""

    node: str
    percent: int


class TasksEnded(_GangEvent, frozen=True, gc=False, tag=True):
    """Some tasks have ended; others have not."""

    tasks: int
    exit_code: int = 0
    first_failure: FirstFailure | None = None  # of these tasks


class TasksLost(_GangEvent, frozen=True, gc=False, tag=True):
    """Tasks were lost with their node or GPU; the gang is broken, and the other tasks keep their seats."""

    tasks: int
    node: str
    failure: FailureClass


class GangEvicted(_GangEvent, frozen=True, gc=False, tag=True):
    """The gang must save a checkpoint and stop. It frees nothing until it has stopped. ``is_charged``: its queue is
    charged for it until then, because it is not preempted."""

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
    """The deadline of an eviction has passed: its running tasks are killed."""


class GangClaimed(_GangEvent, frozen=True, gc=False, tag=True):
    """These seats are claimed for the gang until all of them are free. The last ``spares`` of them are spares.

    ``out_of_turn_until_ms``: as of ``GangPlaced``.
    """

    seats: tuple[Seat, ...]
    out_of_turn_until_ms: int = 0
    names_live_attempt: ClassVar[bool] = False


class ClaimDropped(_GangEvent, frozen=True, gc=False, tag=True):
    names_live_attempt: ClassVar[bool] = False


class GangRepaired(_GangEvent, frozen=True, gc=False, tag=True):
    """A broken gang continues as a new attempt: other tasks where they were, lost tasks elsewhere, or fewer tasks.

    ``by_window``: as of ``GangStopped``.
    """

    seats: tuple[Seat, ...]
    spares: tuple[Seat, ...] = ()
    by_window: bool = False
    names_live_attempt: ClassVar[bool] = False


class GangStopped(_GangEvent, frozen=True, gc=False, tag=True):
    """All tasks of the attempt have ended; its seats are free, or go to the gang that claims them.

    ``by_window``: each window of a budget is charged for its part of the run, and not the last one for all of it.
    ``first_failure``: the one that ended it, if it ended by that.
    """

    failure: FailureClass | None = None
    exit_code: int = 0
    lost_gpu_ms: int = 0
    done_ms: int = 0
    by_window: bool = False
    first_failure: FirstFailure | None = None


class GangRequeued(_GangEvent, frozen=True, gc=False, tag=True):
    """The gang is queued again. ``counted``: the failure whose retry it used; ``profile``: its new shape, if changed.

    It keeps its queue position, unless it goes to the head (a failure of the infrastructure) or to the end (its time
    share is over).
    """

    not_before_ms: int = 0
    at_head: bool = False
    counted: FailureClass | None = None
    is_quick: bool = False
    profile: Profile | None = None
    at_end: bool = False
    names_live_attempt: ClassVar[bool] = False


class GangFinished(_GangEvent, frozen=True, gc=False, tag=True):
    """The gang has ended for good."""

    state: GangState
    why: str = ""
    failure: FailureClass | None = None
    names_live_attempt: ClassVar[bool] = False


class GangCancelled(_GangEvent, frozen=True, gc=False, tag=True):
    """One gang of a job was cancelled while it held seats, and stops with its grace period; its job continues."""

    names_live_attempt: ClassVar[bool] = False


class GangHeld(_GangEvent, frozen=True, gc=False, tag=True):
    """One gang of a job was held: it does not start, and uses no slot of its array."""

    names_live_attempt: ClassVar[bool] = False


class GangReleased(_GangEvent, frozen=True, gc=False, tag=True):
    names_live_attempt: ClassVar[bool] = False


class GangPriorityChanged(_GangEvent, frozen=True, gc=False, tag=True):
    """One gang of a job has another priority than the job, until that of the job is changed."""

    priority: int
    names_live_attempt: ClassVar[bool] = False


class StartsPromised(_Event, frozen=True, gc=False, tag=True):
    """Durable reservations were made or changed for these gangs, and withdrawn for others. ``moved``: which gangs, by
    which right, made a start later than the one reserved before."""

    promises: tuple[Reservation, ...]
    withdrawn: tuple[str, ...] = ()
    moved: tuple[StartMoved, ...] = ()


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
    | GangSlowed
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
    | GangCancelled
    | GangHeld
    | GangReleased
    | GangPriorityChanged
)
Event = Founded | NodeEvent | QueueEvent | JobEvent | GangEvent | StartsPromised
