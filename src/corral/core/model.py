"""What is known of jobs and gangs: what was asked (frozen specs) and what became of it (records of the state).

Specs are values. Records are changed by the state when it applies an event, and by nothing else. Neither refers to
anything that refers back to it, so the garbage collector need not look at them (``gc=False``).
"""

from __future__ import annotations

from enum import IntFlag, StrEnum

from msgspec import Struct, field

from corral.core.cluster.resources import Amounts, Demand, Seat
from corral.core.cluster.topology import NodeSpec
from corral.core.work import Work

NEVER_MS = 1 << 62  # later than any time

#: So many runs in a row that failed within so short a time, without a checkpoint, are a crash loop.
CRASH_LOOP = 5
QUICK_MS = 60_000

#: So long before a machine is taken away nothing may run on it any more: what is left is for telling how it ended.
END_MARGIN_MS = 5_000


class FailureClass(StrEnum):
    """Why a run ended before its work was done."""

    USER_ERROR = "user_error"
    OUT_OF_MEMORY = "out_of_memory"
    VRAM_EXCEEDED = "vram_exceeded"  # more of a shared GPU's memory than its slice
    GPU_FAULT = "gpu_fault"
    NETWORK = "network"
    NODE_LOST = "node_lost"
    KILLED = "killed"  # by SIGKILL, and not by Corral: the kernel for want of memory, or somebody on the machine
    START_FAILED = "start_failed"
    TIME_LIMIT = "time_limit"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"


#: Steps of training above this are nobody's: every database and every reader of JSON can hold what is below.
STEP_MAX = (1 << 53) - 1

#: Faults of the infrastructure: they never use up the user's retries.
INFRASTRUCTURE = frozenset(
    {FailureClass.GPU_FAULT, FailureClass.NETWORK, FailureClass.NODE_LOST, FailureClass.START_FAILED}
)


#: What comes over a task from outside, and explains why others of its gang fail.
OUTER = frozenset({FailureClass.NODE_LOST, FailureClass.KILLED, FailureClass.GPU_FAULT, FailureClass.OUT_OF_MEMORY})


class GangState(StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    BROKEN = "broken"  # lost a task; survivors keep their seats until it is repaired or given up
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({GangState.SUCCEEDED, GangState.FAILED, GangState.CANCELLED})
#: States in which a gang holds its seats.
HOLDING = frozenset({GangState.STARTING, GangState.RUNNING, GangState.BROKEN, GangState.STOPPING})


class Cause(StrEnum):
    """Why a gang was told to leave. The first four make room for another gang (they preempt)."""

    RECLAIM = "reclaim"  # its queue had borrowed what the owner wants back
    PRIORITY = "priority"
    TIME_SHARE = "time_share"
    SHRINK = "shrink"  # gives up a part of its seats and goes on with the rest
    GROW = "grow"
    MOVE = "move"  # goes on elsewhere; it has lost its seats, not its turn
    DRAIN = "drain"
    TIME_LIMIT = "time_limit"
    START_TIMEOUT = "start_timeout"
    FAILURE = "failure"  # one of its tasks failed; the others are told to stop
    UNREPAIRABLE = "unrepairable"
    CANCEL = "cancel"
    REQUEUE = "requeue"  # somebody asked for it


PREEMPTING = frozenset({Cause.RECLAIM, Cause.PRIORITY, Cause.TIME_SHARE, Cause.SHRINK})
#: Nobody else makes it leave: its queue is charged for it until it has stopped.
OWN_WILL = frozenset({Cause.CANCEL, Cause.TIME_LIMIT})


class Blocker(IntFlag):
    """What keeps a waiting gang out of the line, whatever the cluster looks like."""

    NONE = 0
    HELD = 1
    DEPENDENCY = 2
    BEGIN = 4
    BACKOFF = 8
    ARRAY = 16
    SUSPENDED = 64  # its user may not run it as what it was accepted with
    STOPPED = 32  # between the end of an attempt and the word on what follows; never seen outside a batch of events


class Suspension(StrEnum):
    """Why a job may not start, whoever asks: its user is no longer who it was accepted from."""

    USER_REMOVED = "user_removed"
    USER_DISABLED = "user_disabled"
    ACCOUNT_CHANGED = "account_changed"
    NO_ACCOUNT = "no_account"  # it was accepted without one, and would run as the server


class After(StrEnum):
    OK = "ok"
    ANY = "any"
    NOT_OK = "not_ok"


class Dependency(Struct, frozen=True, gc=False):
    job: str
    after: After = After.OK


class RetryRule(Struct, frozen=True, gc=False):
    """What to do after a failure of one class. ``count`` None: for ever (a crash loop is stopped all the same)."""

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
    FailureClass.START_FAILED: RetryRule(None, avoid_node=True),
    FailureClass.TIME_LIMIT: RetryRule(0),
}


class GangSpec(Struct, frozen=True, gc=False):
    demand: Demand
    role: str = "main"
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
    preemptible: bool = True
    requeue_exit: int = 85
    retries: tuple[tuple[FailureClass, RetryRule], ...] = ()
    held: bool = False
    labels: tuple[tuple[str, str], ...] = ()

    def retry_rule(self, failure: FailureClass) -> RetryRule:
        for known, rule in self.retries:
            if known is failure:
                return rule
        return DEFAULT_RETRIES.get(failure, RetryRule(0))

    @property
    def expected_ms(self) -> int | None:
        """How long a run is thought to last: the estimate if there is one, never beyond the limit."""
        if self.estimate_ms is None or self.time_limit_ms is None:
            return self.time_limit_ms if self.estimate_ms is None else self.estimate_ms
        return min(self.estimate_ms, self.time_limit_ms)


def elements(spec: JobSpec) -> int:
    """How many jobs it is: an array counts each of its elements."""
    return len(spec.array) or 1


class Settings(Struct, frozen=True, gc=False, kw_only=True):
    """What the state must know to fold events. Changing one of these means a new journal or a new image."""

    levels: tuple[str, ...] = ()
    half_life_ms: int = 7 * 24 * 3_600_000
    entry_charge_ms: int = 3_600_000  # what a start is charged at once, so that a burst gains nothing
    default_expected_ms: int = 24 * 3_600_000  # for work that states neither limit nor estimate
    judge_ms: int = 10_000  # after a plain failure of one of several machines, where the fact does not say it


class Job(Struct, gc=False):
    """A job as the state knows it. Its outcome follows from its gangs."""

    id: str
    spec: JobSpec
    user: str
    submitted_ms: int
    priority: int
    gangs: list[str] = field(default_factory=list)
    unfinished: int = 0
    failed: int = 0  # gangs that ended otherwise than well
    cancelled: bool = False
    held: bool = False
    active: int = 0  # array elements that are in line or hold seats
    parked: list[str] = field(default_factory=list)  # array elements beyond array_parallel, last first
    held_why: str = ""  # why the server itself holds it: it is quarantined
    account: str | None = None  # of the machine, to run as: fixed when it was accepted; "": the server's own
    suspended: Suspension | None = None
    cancel_ms: int | None = None  # when it is cancelled, if it is still suspended then

    @property
    def abreast(self) -> int:
        """How many gangs of an array may be in line or hold seats at once."""
        return (self.spec.array_parallel or len(self.gangs)) * len(self.spec.gangs)

    @property
    def is_over(self) -> bool:
        return self.unfinished == 0

    @property
    def elements_left(self) -> int:
        """How many of its elements are not over, as far as the number of gangs says so."""
        return -(-self.unfinished // len(self.spec.gangs))

    @property
    def succeeded(self) -> bool:
        return self.is_over and self.failed == 0


def is_hopeless(parent: Job, after: After) -> bool:
    """Whether a job ended in a way that a dependent can no longer wait for."""
    return parent.is_over and after is not After.ANY and parent.succeeded != (after is After.OK)


class Profile(Struct, frozen=True, gc=False, cache_hash=True):
    """What makes two waiting gangs of one user and queue the same to the scheduler, age aside: a shape."""

    demand: Demand
    expected_ms: int | None = None
    avoid: tuple[str, ...] = ()


class Eviction(Struct, frozen=True, gc=False):
    """Why and by when a gang leaves."""

    cause: Cause
    since_ms: int
    deadline_ms: int
    beneficiary: str = ""
    failure: FailureClass | None = None
    exit_code: int | None = None
    node: str = ""
    judge_ms: int = 0  # a plain failure is not judged before: another machine may be found lost
    is_charged: bool = False


class Reservation(Struct, frozen=True, gc=False):
    """A start promised for later: nobody behind it in order may take what it needs from then on."""

    gang: str
    at_ms: int
    until_ms: int
    seats: tuple[Seat, ...]


class Gang(Struct, gc=False):
    """A gang as the state knows it. ``seats`` are in rank order; ``spares`` are held idle beside them."""

    id: str
    job: str
    queue: str
    user: str
    priority: int
    rank: int  # place in line: smaller is earlier
    profile: Profile
    submitted_ms: int
    waiting_since_ms: int
    state: GangState = GangState.WAITING
    blockers: int = 0
    attempt: int = 0
    seats: tuple[Seat, ...] = ()
    spares: tuple[Seat, ...] = ()
    claim: tuple[Seat, ...] = ()  # seats held for it until they are free
    started: int = 0  # masks over task numbers
    ended: int = 0
    lost: int = 0
    exit_code: int = 0  # of the first task that ended with anything but 0
    placed_ms: int = 0
    turn: int = 0  # the state's version when it was last given, or promised, seats: of one moment, who came first
    started_ms: int = 0
    eviction: Eviction | None = None
    grace_over: bool = False
    saved_ms: int = 0  # when the newest checkpoint of this attempt was committed; 0: none yet
    saved_step: int = -1
    done_ms: int = 0  # running time of earlier attempts that was not lost
    served_gpu_ms: int = 0  # what it has received so far, without the present attempt
    not_before_ms: int = 0
    quick_failures: int = 0
    charged: Amounts = ()  # what its queue is charged for it at present
    metered: Amounts = ()  # what its queue is metered for: what it holds, also while it leaves
    gpu_milli: int = 0  # the GPUs among that, in thousandths
    committed_gpu_ms: int = 0
    blamed: FailureClass | None = None  # what took tasks away while it was leaving, and where: the cause of the rest
    blamed_node: str = ""
    retries: dict[str, int] = field(default_factory=dict)

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
    """A change of quota from one time to another, added to what the queue has otherwise."""

    from_ms: int
    until_ms: int
    guarantee: Amounts = ()
    limit: Amounts = ()


class Budget(Struct, frozen=True, gc=False):
    """At most ``gpu_ms`` GPU-milliseconds in each window; windows follow one another from ``anchor_ms``."""

    gpu_ms: int
    window_ms: int
    anchor_ms: int = 0


class QueueSpec(Struct, frozen=True, gc=False, kw_only=True):
    """A share of the cluster. ``name`` is its path: ``org/team/project``. What is not stated is not bounded."""

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
    time_share: int = 0  # 0: off; n: a gang may be asked to yield once it ran n times what a switch costs
    grace_max_ms: int | None = None  # the longest grace of a job here
    preemptible: bool | None = None  # whether jobs that do not say so may be preempted; None: as above it

    @property
    def parent(self) -> str:
        return self.name.rpartition("/")[0]


class Health(StrEnum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"  # nothing new is placed here; what runs goes on
    DRAINING = "draining"  # what runs is asked to save and leave
    FAILED = "failed"


class Node(Struct, gc=False):
    """A machine as the state knows it."""

    spec: NodeSpec
    health: Health = Health.HEALTHY
    lost: bool = False
    drained: bool = False  # an operator asked for it
    gpu_health: dict[int, Health] = field(default_factory=dict)
    why: str = ""  # what was last said about its health, and about that of its GPUs
    gpu_why: dict[int, str] = field(default_factory=dict)
    until_ms: int | None = None  # when the machine is taken away, if that is known
