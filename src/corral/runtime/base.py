"""The interface between the server and whatever runs tasks: start, warn, kill, report, and list what there is.

Knows tasks, not gangs or jobs: an order is complete in itself. Orders may be repeated, and reports may be late or come
twice. Both name (gang, attempt, task), and nothing else is needed to distinguish old from new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol, runtime_checkable

from msgspec import Struct

from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass, Health
from corral.core.work import EarlySignal, Mount, Work
from corral.wire.details import GpuActivity, NodeDetails, RankActivity


class TaskKey(Struct, frozen=True, gc=False, order=True):
    gang: str
    attempt: int
    task: int


class Process(Struct, frozen=True, gc=False):
    """One process of a task: what is added to the task's environment (RANK, LOCAL_RANK, its GPUs...)."""

    env: tuple[tuple[str, str], ...] = ()


class SeatOfGang(Struct, frozen=True, gc=False):
    """A seat of a gang, as its job steps see it."""

    node: str
    gpus: tuple[str, ...] = ()  # UUIDs


class TaskOrder(Struct, frozen=True, gc=False, kw_only=True):
    """Everything needed to run one task on one node. ``epoch``: of the server that orders; earlier ones are refused."""

    key: TaskKey
    epoch: int
    node: str
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    secret_env: tuple[tuple[str, str], ...] = ()  # never written to disk, shown or logged
    processes: tuple[Process, ...] = (Process(),)  # none: the seat is held for job steps
    script: str = ""  # the text of a script; the command is then its name and arguments
    has_shims: bool = False  # the commands of Slurm come first in its PATH
    seats: tuple[SeatOfGang, ...] = ()  # all of the gang, for its first task, which coordinates job steps
    gpus: tuple[str, ...] = ()  # UUIDs
    vram_mib: int = 0  # its slice, if it shares the GPU; 0: the whole GPU
    cpu_milli: int | None = None
    memory_mib: int | None = None
    directory: str = ""
    account: str = ""  # the Unix account to run as; empty: the server's own
    image: str = ""
    mounts: tuple[Mount, ...] = ()
    output: str = ""  # a file that gets the standard output too
    error: str = ""
    early_signal: EarlySignal | None = None
    requeue_exit: int = 85  # the exit code that means: checkpoint saved, run me again
    rerun_after_exit_0: bool = True  # exit code 0 after a signal of a preemption means the same
    umask: int = 0o022  # of its processes and of the files for its output
    grace_ms: int = 30_000  # how long it may take to save when it must stop
    tasks: int = 1  # of its gang; with more than one, their ranks agree through the server on the step to stop at
    hold_on_fail_ms: int = 0  # how long it keeps its seat after a failure, unless it is preempted
    stall_ms: int = 0  # after this time without a step it is ended as stalled; 0: never
    log_mib_max: int = 256  # per stream; the oldest part goes first


class StaleEpoch(Exception):
    """The caller is not the newest server: a later one has opened this backend. The caller must stop."""

    def __init__(self, epoch: int, highest: int) -> None:
        super().__init__(
            f"epoch {epoch} has ended: a server with epoch {highest} has taken over. Stop this server; the other one "
            "continues its tasks."
        )
        self.epoch, self.highest = epoch, highest


class BackendUnusable(Exception):
    """The backend cannot be opened. Says why, and what to do."""


class Phase(StrEnum):
    UP = "up"
    DOWN = "down"


class TaskReport(Struct, frozen=True, gc=False, kw_only=True):
    """The start or the end of a task. ``failure`` is the backend's classification; None if the exit code says it all.

    ``unenforced`` names limits that could not be enforced, and why. ``gpus``: those it was given; None: unknown.
    ``failed_ms``: when the first of its processes failed, by the clock of its node; 0: none did by itself. ``rank``: of
    that process, if it has one. ``said``: the last words of that process, which nothing may be judged by.
    """

    key: TaskKey
    phase: Phase
    at_ms: int
    node: str
    exit_code: int = 0  # 128 + n for signal n
    signal: int = 0
    failure: FailureClass | None = None
    why: str = ""
    unenforced: tuple[str, ...] = ()
    gpus: tuple[str, ...] | None = None
    failed_ms: int = 0
    rank: int | None = None
    said: str = ""


class SavedReport(Struct, frozen=True, gc=False):
    """The task reports that a checkpoint was committed at this step. ``path``: where it is, in words of the program.
    ``save_ms``: how long saving took, ``stall_ms``: for how much of that the work stopped; 0: unknown."""

    key: TaskKey
    step: int
    path: str = ""
    save_ms: int = 0
    stall_ms: int = 0


class StopReport(Struct, frozen=True, gc=False):
    """The task was warned. Its ranks can all stop at this step, but not earlier; they wait for `Backend.stop_at`."""

    key: TaskKey
    step: int


class PaceReport(Struct, frozen=True, gc=False):
    """How long ranks of a task were recently busy with a step, as each reports it, without waiting for other ranks."""

    key: TaskKey
    node: str
    busy_ms: tuple[tuple[int, int], ...]  # rank, milliseconds


class HealthReport(Struct, frozen=True, gc=False):
    """The health of a node, or of one of its GPUs (by slot), and why it is assumed. Sent at the start and after each
    change."""

    node: str
    gpu: int | None
    health: Health
    why: str = ""


class NodePhase(StrEnum):
    JOINED = "joined"  # it is there, or sends a new description
    GONE = "gone"  # none of its tasks runs any more, whether or not the node can be reached
    BACK = "back"
    LEAVING = "leaving"  # the machine will be taken away


class NodeReport(Struct, frozen=True, gc=False):
    """A node joins, leaves or returns. ``spec``: its description, when it has joined. ``until_ms``: when it will be
    gone, if it leaves."""

    node: str
    phase: NodePhase
    spec: NodeSpec | None = None
    until_ms: int | None = None


class DetailsReport(Struct, frozen=True, gc=False):
    """The hardware and software of a node. It is only displayed: no decision depends on it."""

    node: str
    details: NodeDetails


class TaskActivity(Struct, frozen=True, gc=False, omit_defaults=True):
    """What a running task uses now: thousandths of a CPU, and memory. None: unknown."""

    key: TaskKey
    cpu_milli: int | None = None
    memory_mib: int | None = None
    ranks: tuple[RankActivity, ...] = ()


class ActivityReport(Struct, frozen=True, gc=False, omit_defaults=True):
    """What a node and its tasks do now. It is only displayed, and not kept: the next one replaces it."""

    node: str
    cpu_milli: int | None = None
    memory_mib: int | None = None
    gpus: tuple[GpuActivity, ...] = ()
    tasks: tuple[TaskActivity, ...] = ()


Report = TaskReport | SavedReport | StopReport | PaceReport | HealthReport | NodeReport | DetailsReport | ActivityReport
Tell = Callable[[Report], None]


class LogPart(Struct, frozen=True, gc=False):
    """``data`` starts at byte ``offset`` of all that was ever written; deleted old parts are skipped. ``is_over``:
    nothing will follow ``next_offset``. ``marks``: from this offset on it was written at this time (milliseconds) by
    this rank; the first holds from the start of the part. None: times are not known."""

    offset: int
    data: bytes
    next_offset: int
    is_over: bool
    marks: tuple[tuple[int, int, int], ...] = ()


#: Among the things that a machine lacks: the permission to run tasks without an account.
ACCOUNTLESS = "tasks without an account"


@runtime_checkable
class Capabilities(Protocol):
    """What a backend knows it cannot run, so that the server refuses such work instead of trying it."""

    def cannot_run(self, work: Work) -> str:
        """Why, in words for the user who submitted it. Empty: it can run, or this is not known yet. Never waits."""

    def cannot_run_as(self, account: str) -> str:
        """Why no task can run as this account. Empty: it can, or this is not known yet. Never waits."""

    def lacks(self, node: str) -> Mapping[str, str]:
        """What a machine cannot run (``images``) or limit (``memory``, ``cpu``, ``pids``), and why. Never waits."""

    def separation(self, node: str) -> Mapping[str, str]:
        """What is separated on a machine and by what, in words. Never waits."""


@runtime_checkable
class NodeSource(Protocol):
    """A backend whose nodes join and leave while it is open."""

    def expect(
        self, node: NodeSpec, is_gone: bool, tasks: Sequence[TaskKey] = (), maybe: Sequence[TaskKey] = ()
    ) -> None:
        """Before `open`: add a node that an earlier server knew, and its tasks."""

    def complain(self, node: str, why: str) -> None:
        """Set why the node cannot be used. Empty: it can be used."""

    def prune_logs(self) -> None:
        """Delete old logs. May take long."""


class Backend(Protocol):
    """Calls return quickly; reports tell what follows from them. ``tell`` may be called from any thread, also during a
    call. It reports the start of a task before its end."""

    def nodes(self) -> Sequence[NodeSpec]:
        """The nodes of this backend."""

    def open(self, tell: Tell, epoch: int) -> None:
        """Start. Tasks of an earlier server are adopted: each is reported again as up or down, with the last step that
        it saved. Raises `StaleEpoch` when a later server has opened this backend."""

    def launch(self, orders: Sequence[TaskOrder]) -> None:
        """Start tasks. One that runs or ran already (same key) is reported again, not started again. Raises
        `StaleEpoch`, and starts none, when an order is of an earlier epoch than this backend has seen."""

    def warn(self, key: TaskKey, deadline_ms: int, why: str) -> None:
        """Ask a task to save a checkpoint and end by the deadline; at the deadline it is killed without another call.

        Of several deadlines the earliest holds. Does nothing if the task is unknown or has ended.
        """

    def stop_at(self, key: TaskKey, step: int) -> None:
        """Tell the ranks of a task that was warned at which step to stop: the largest that a task of its gang has
        reported (`StopReport`). May be repeated with the same step."""

    def kill(self, key: TaskKey) -> None:
        """Kill all processes of a task at once."""

    def known(self) -> Sequence[TaskKey]:
        """The tasks of which anything is kept, running or ended."""

    def forget(self, key: TaskKey) -> None:
        """Drop what is kept of a task that has ended. Its logs stay as long as logs are kept."""

    def read_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None:
        """A part of ``stdout`` or ``stderr``; a negative offset counts from the end. None: there is no such log."""

    def close(self) -> None:
        """Stop watching. Tasks keep running."""
