"""The model of jobs, gangs, queues and nodes: what users requested (frozen specs), and records of the state.

Specs are values. Records are changed only by the state when it applies an event. There are no reference cycles, so the
garbage collector need not track them (``gc=False``).
"""

from __future__ import annotations

from enum import IntFlag, StrEnum

from msgspec import Struct, field

from corral.core.cluster.resources import Amounts, Demand, Seat
from corral.core.cluster.topology import NodeSpec
from corral.core.gang_id import MAIN, index_of, role_of
from corral.core.work import Work

NEVER_MS = 1 << 62  # later than any time

#: This many consecutive attempts that failed within QUICK_MS, without a checkpoint, are a crash loop.
CRASH_LOOP = 5
QUICK_MS = 60_000

#: A node must be empty this long before it is withdrawn, so that agents can still report how tasks ended.
END_MARGIN_MS = 5_000


class FailureClass(StrEnum):
    """Why an attempt ended before its work was done."""

    USER_ERROR = "user_error"
    OUT_OF_MEMORY = "out_of_memory"
    VRAM_EXCEEDED = "vram_exceeded"  # more of a shared GPU's memory than its slice
    GPU_FAULT = "gpu_fault"
    NETWORK = "network"
    NODE_LOST = "node_lost"
    KILLED = "killed"  # by SIGKILL, and not by Corral: by the kernel (out of memory), or by a user of the machine
    STALLED = "stalled"  # its ranks made no step for its `stall_timeout`
    START_FAILED = "start_failed"
    TIME_LIMIT = "time_limit"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"


#: The largest training step: every database and every JSON parser can hold it.
STEP_MAX = (1 << 53) - 1

#: Failures of the infrastructure: they do not use up the user's retries.
INFRASTRUCTURE = frozenset(
    {FailureClass.GPU_FAULT, FailureClass.NETWORK, FailureClass.NODE_LOST, FailureClass.START_FAILED}
)


#: Failures with an external cause, which explain why other tasks of the gang fail.
OUTER = frozenset(
    {
        FailureClass.NODE_LOST,
        FailureClass.KILLED,
        FailureClass.STALLED,
        FailureClass.GPU_FAULT,
        FailureClass.OUT_OF_MEMORY,
    }
)


class GangState(StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    BROKEN = "broken"  # lost a task; the others keep their seats until the gang is repaired or stopped
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({GangState.SUCCEEDED, GangState.FAILED, GangState.CANCELLED})
#: States in which a gang holds its seats.
HOLDING = frozenset({GangState.STARTING, GangState.RUNNING, GangState.BROKEN, GangState.STOPPING})


class Cause(StrEnum):
    """Why a gang is evicted. The first four make room for another gang (preemption)."""

    RECLAIM = "reclaim"  # the owner reclaims what its queue had borrowed
    PRIORITY = "priority"
    TIME_SHARE = "time_share"
    SHRINK = "shrink"  # gives up some of its seats and continues with the rest
    GROW = "grow"
    MOVE = "move"  # continues on other nodes; it keeps its queue position
    DRAIN = "drain"
    TIME_LIMIT = "time_limit"
    START_TIMEOUT = "start_timeout"
    FAILURE = "failure"  # one of its tasks failed; the others are stopped
    UNREPAIRABLE = "unrepairable"
    CANCEL = "cancel"
    REQUEUE = "requeue"  # requested by a user


PREEMPTING = frozenset({Cause.RECLAIM, Cause.PRIORITY, Cause.TIME_SHARE, Cause.SHRINK})
#: Not caused by another gang: its queue is charged for it until it has stopped.
OWN_WILL = frozenset({Cause.CANCEL, Cause.TIME_LIMIT})


class Blocker(IntFlag):
    """Why a waiting gang is not queued, independent of the cluster."""

    NONE = 0
    HELD = 1
    DEPENDENCY = 2
    BEGIN = 4
    BACKOFF = 8
    ARRAY = 16
    SUSPENDED = 64  # its user may not run it as the account it was accepted with
    GANG_HELD = 128  # held by itself: as an element of an array, or as a role of a job
    STOPPED = 32  # between the end of an attempt and the decision on what follows; never visible outside a batch


class Suspension(StrEnum):
    """Why a job may not start: its user has changed since it was accepted."""

    USER_REMOVED = "user_removed"
    USER_DISABLED = "user_disabled"
    ACCOUNT_CHANGED = "account_changed"
    NO_ACCOUNT = "no_account"  # it was accepted without an account, and would run as the server


class After(StrEnum):
    OK = "ok"
    ANY = "any"
    NOT_OK = "not_ok"


class Dependency(Struct, frozen=True, gc=False):
    job: str
    after: After = After.OK


class RetryRule(Struct, frozen=True, gc=False):
    """What to do after a failure of one class. ``count`` None: no limit (a crash loop is stopped nevertheless)."""

    count: int | None = 0
    backoff_ms: int = 10_000
    avoid_node: bool = False
    grow_memory_percent: int = 0


DEFAULT_RETRIES: dict[FailureClass, RetryRule] = {
    FailureClass.USER_ERROR: RetryRule(0),
    FailureClass.OUT_OF_MEMORY: RetryRule(0),
    FailureClass.VRAM_EXCEEDED: RetryRule(0),
    FailureClass.GPU_FAULT: RetryRule(None, avoid_node=True),
    FailureClass.NETWORK: RetryRule(None),
    FailureClass.NODE_LOST: RetryRule(None, backoff_ms=0),
    FailureClass.KILLED: RetryRule(5, backoff_ms=1_000),
    FailureClass.STALLED: RetryRule(5, backoff_ms=1_000),
    FailureClass.START_FAILED: RetryRule(None, avoid_node=True),
    FailureClass.TIME_LIMIT: RetryRule(0),
}


class GangSpec(Struct, frozen=True, gc=False):
    demand: Demand
    role: str = MAIN
    work: Work | None = None


class JobSpec(Struct, frozen=True, gc=False, kw_only=True):
    """What a user submits. Times are absolute milliseconds or durations in milliseconds; None means not stated."""

    queue: str
    gangs: tuple[GangSpec, ...]
    name: str = ""
    priority: int = 0
    array: tuple[int, ...] = ()
    array_parallel: int | None = None
    after: tuple[Dependency, ...] = ()
    singleton: bool = False
    begin_ms: int | None = None
    deadline_ms: int | None = None
    time_limit_ms: int | None = None
    estimate_ms: int | None = None
    min_runtime_ms: int = 0
    grace_ms: int = 30_000
    start_timeout_ms: int = 300_000
    restart_cost_ms: int = 60_000
    checkpoints: bool = False
    leaves_slow_nodes: bool = False  # moves away from a slow node when it has saved
    preemptible: bool = True
    requeue_exit: int = 85
    retries: tuple[tuple[FailureClass, RetryRule], ...] = ()
    held: bool = False
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def saves(self) -> bool:
        """Whether it saves its work when it is preempted, and may be preempted: then it yields to equals."""
        return self.checkpoints and self.preemptible

    def retry_rule(self, failure: FailureClass) -> RetryRule:
        for known, rule in self.retries:
            if known is failure:
                return rule
        return DEFAULT_RETRIES.get(failure, RetryRule(0))

    @property
    def expected_ms(self) -> int | None:
        """The expected run time: the estimate if there is one, at most the limit."""
        if self.estimate_ms is None or self.time_limit_ms is None:
            return self.time_limit_ms if self.estimate_ms is None else self.estimate_ms
        return min(self.estimate_ms, self.time_limit_ms)

    @property
    def overrun_ms(self) -> int:
        """How much longer it may keep its seats: at its limit it may use its grace, too."""
        return self.grace_ms if self.time_limit_ms is not None and self.expected_ms == self.time_limit_ms else 0


def elements(spec: JobSpec) -> int:
    """The number of jobs: an array counts each of its elements."""
    return len(spec.array) or 1


class Settings(Struct, frozen=True, gc=False, kw_only=True):
    """Settings for folding events. Changing one of these needs a new journal or a new image."""

    levels: tuple[str, ...] = ()
    half_life_ms: int = 7 * 24 * 3_600_000
    entry_charge_ms: int = 3_600_000  # charged immediately at a start, so that bursts have no advantage
    default_expected_ms: int = 24 * 3_600_000  # for jobs with neither limit nor estimate
    judge_ms: int = 10_000  # after a plain failure on one of several nodes, if the fact does not specify it


class Job(Struct, gc=False):
    """A job in the state. Its outcome follows from its gangs."""

    id: str
    spec: JobSpec
    user: str
    submitted_ms: int
    priority: int
    gangs: list[str] = field(default_factory=list)
    unfinished: int = 0
    failed: int = 0  # gangs that did not succeed
    cancelled: bool = False
    held: bool = False
    active: int = 0  # array elements that are queued or hold seats; those held by themselves use no slot
    parked: list[str] = field(default_factory=list)  # array elements beyond array_parallel, last first
    held_why: str = ""  # why it is quarantined
    account: str | None = None  # of the machine, that it runs as: fixed when it was accepted; "": that of the server
    suspended: Suspension | None = None
    cancel_ms: int | None = None  # when it is cancelled, if it is still suspended then

    @property
    def array_slots(self) -> int:
        """The number of gangs of an array that may be queued or hold seats at the same time."""
        return (self.spec.array_parallel or len(self.gangs)) * len(self.spec.gangs)

    @property
    def has_slots(self) -> bool:
        """Whether it is an array of which only some elements may be queued or hold seats at the same time."""
        return bool(self.spec.array) and self.spec.array_parallel is not None

    @property
    def is_over(self) -> bool:
        return self.unfinished == 0

    @property
    def elements_left(self) -> int:
        """The number of unfinished elements, computed from the number of unfinished gangs."""
        return -(-self.unfinished // len(self.spec.gangs))

    @property
    def succeeded(self) -> bool:
        return self.is_over and self.failed == 0


def is_hopeless(parent: Job, after: After) -> bool:
    """Whether a job ended in a way that a dependency on it can no longer be fulfilled."""
    return parent.is_over and after is not After.ANY and parent.succeeded != (after is After.OK)


def unfulfilled(job: str, after: After) -> str:
    """The text for a dependency that can no longer be fulfilled."""
    if after is After.OK:
        return f"depends on the success of job {job}, which did not succeed"
    return f"depends on the failure of job {job}, which succeeded"


class Profile(Struct, frozen=True, gc=False, cache_hash=True):
    """The shape of a gang: waiting gangs of one user and queue with equal profiles differ only in age."""

    demand: Demand
    expected_ms: int | None = None
    avoid: tuple[str, ...] = ()
    pattern: str = ""  # its name without numbers, if gangs of such names have ended: they may run as long
    done: int = 0  # how long it has run already and kept, as a bin of run times


class FirstFailure(Struct, frozen=True, gc=False):
    """The failure from which the others of an attempt follow. ``at_ms``: by the clock of its node. ``said``: why, in
    words of the node or the last words of the process; only shown, nothing depends on it."""

    node: str
    task: int
    at_ms: int
    exit_code: int = 0
    rank: int | None = None  # None: the gang has one process
    said: str = ""

    @property
    def text(self) -> str:
        """In one line, without the exit code."""
        if self.rank is None:
            return self.said
        return f"rank {self.rank} on {self.node} failed first" + (f": {self.said}" if self.said else "")


def earlier(one: FirstFailure | None, other: FirstFailure | None) -> FirstFailure | None:
    """The earlier of two failures; of the same time, the one that was known first."""
    if one is None or other is None:
        return one or other
    return other if other.at_ms < one.at_ms else one


class Eviction(Struct, frozen=True, gc=False):
    """Why a gang is stopping, and its deadline."""

    cause: Cause
    since_ms: int
    deadline_ms: int
    beneficiary: str = ""
    failure: FailureClass | None = None
    exit_code: int | None = None
    node: str = ""
    judge_ms: int = 0  # the cause of a plain failure is decided then: another node may turn out to be lost
    is_charged: bool = False


class Reservation(Struct, frozen=True, gc=False):
    """A reserved start: no gang behind it in order may take what it needs from then on."""

    gang: str
    at_ms: int
    until_ms: int
    seats: tuple[Seat, ...]


class Right(StrEnum):
    """By which right a gang has its turn before one with a reservation."""

    PRIORITY = "priority"
    GUARANTEE = "guarantee"  # it is within its guarantee, and the other is not
    PATIENCE = "patience"  # it has waited longer than the patience of the policy
    RESERVATION = "reservation"  # it got its own reservation before, or is an earlier gang of the same user and queue
    LIMIT = "limit"  # it waits for a limit, or for a guarantee, that both share, and a part of that is kept for it


class StartMoved(Struct, frozen=True, gc=False):
    """A reserved start is later than before, or withdrawn, because another gang had its turn before, by this right."""

    gang: str
    by: str
    right: Right


class OutOfTurn(Struct, frozen=True, gc=False):
    """A gang was served out of turn because it had waited too long. ``until_ms``: until then no other gang of its
    priority and kinds of nodes is, if it runs for its expected time. ``gang``: empty once it has ended; then the time
    is final."""

    gang: str
    since_ms: int
    until_ms: int

    def until(self, now_ms: int, expected_ms: int) -> int:
        """The final time for a gang that ends now: in proportion to how long it ran."""
        return self.since_ms + (self.until_ms - self.since_ms) * (now_ms - self.since_ms) // max(1, expected_ms)


class Gang(Struct, gc=False):
    """A gang in the state. ``seats`` are in rank order; ``spares`` are held idle beside them."""

    id: str
    job: str
    queue: str
    user: str
    priority: int
    rank: int  # queue position: smaller is earlier
    profile: Profile
    submitted_ms: int
    waiting_since_ms: int
    state: GangState = GangState.WAITING
    blockers: int = 0
    attempt: int = 0
    seats: tuple[Seat, ...] = ()
    spares: tuple[Seat, ...] = ()
    claim: tuple[Seat, ...] = ()  # seats claimed for it until they are free
    started: int = 0  # masks over task numbers
    ended: int = 0
    lost: int = 0
    exit_code: int = 0  # of the first task that ended with anything but 0
    placed_ms: int = 0
    turn: int = 0  # version of the state when it last got or claimed seats: orders gangs of the same time
    started_ms: int = 0
    eviction: Eviction | None = None
    grace_over: bool = False
    saved_ms: int = 0  # when the newest checkpoint of this attempt was committed; 0: none yet
    saved_step: int = -1
    saved_path: str = ""
    slow_node: str = ""  # where a rank is slow, for which the others wait
    save_ms: int = 0  # how long saving takes: the longest of the last ones; 0: unknown
    done_ms: int = 0  # running time of earlier attempts that was not lost
    served_gpu_ms: int = 0  # GPU time of earlier attempts
    not_before_ms: int = 0
    quick_failures: int = 0
    charged: Amounts = ()  # what its queue is charged for it now
    metered: Amounts = ()  # what its queue is metered for: what it holds, also while it stops
    gpu_milli: int = 0  # the GPUs among that, in thousandths
    committed_gpu_ms: int = 0
    blamed: FailureClass | None = None  # external failure while it was stopping: the cause of the other failures
    blamed_node: str = ""
    first_failure: FirstFailure | None = None  # of this attempt
    overrun_ms: int = 0  # how much longer than expected it may keep its seats
    retries: dict[str, int] = field(default_factory=dict)
    cancelled: bool = False  # by itself, while it held seats; its job continues
    ran_ms: int = 0  # its run time, if it ends now: what was kept, and the last attempt
    in_line_ms: int = 0  # how long it has waited for seats in all, up to the last time it got some

    @property
    def role(self) -> str:
        return role_of(self.id)

    @property
    def index(self) -> int | None:
        """The index of the array element; None for a job that is not an array."""
        return index_of(self.id)

    @property
    def demand(self) -> Demand:
        return self.profile.demand

    @property
    def amounts(self) -> Amounts:
        return self.profile.demand.task.amounts

    @property
    def holds_seats(self) -> bool:
        return self.state in HOLDING

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL

    @property
    def everyone(self) -> int:
        """The mask of all its tasks."""
        return (1 << len(self.seats)) - 1

    @property
    def all_seats(self) -> tuple[Seat, ...]:
        return self.seats + self.spares


class QuotaChange(Struct, frozen=True, gc=False):
    """A scheduled change of quota, added to the other settings of the queue."""

    from_ms: int
    until_ms: int
    guarantee: Amounts = ()
    limit: Amounts = ()


class Budget(Struct, frozen=True, gc=False):
    """At most ``gpu_ms`` GPU-milliseconds in each window; the first window starts at ``anchor_ms``."""

    gpu_ms: int
    window_ms: int
    anchor_ms: int = 0


class QueueSpec(Struct, frozen=True, gc=False, kw_only=True):
    """The settings of a queue. ``name`` is its path: ``org/team/project``. What is not set is not limited."""

    name: str
    guarantee: Amounts = ()
    limit: Amounts = ()
    lend: Amounts = ()
    weight: int = 1
    user_limit: Amounts = ()
    max_jobs: int | None = None
    max_jobs_per_user: int | None = None
    budget: Budget | None = None
    changes: tuple[QuotaChange, ...] = ()
    priority_ceiling: int | None = None
    #: a gang may be asked to yield to an equal once it has run this many times the cost of a switch; 0: never
    time_share: int = 8
    grace_max_ms: int | None = None  # the longest grace period of a job
    preemptible: bool | None = None  # whether jobs that do not specify it may be preempted; None: as the parent

    @property
    def parent(self) -> str:
        return self.name.rpartition("/")[0]


class Health(StrEnum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"  # no new tasks; running ones continue
    DRAINING = "draining"  # running gangs save a checkpoint and are requeued
    FAILED = "failed"


class Node(Struct, gc=False):
    """A node in the state."""

    spec: NodeSpec
    health: Health = Health.HEALTHY
    lost: bool = False
    drained: bool = False  # by an operator
    gpu_health: dict[int, Health] = field(default_factory=dict)
    why: str = ""  # the reason for its health
    gpu_why: dict[int, str] = field(default_factory=dict)  # the reasons for the health of its GPUs
    until_ms: int | None = None  # when the node is withdrawn, if known
    cordoned: bool = False  # by an operator: no new tasks; running ones continue
