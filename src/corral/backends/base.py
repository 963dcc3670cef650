"""What the server needs of whatever runs tasks: start, warn, kill, tell, and say what is there.

Knows tasks, not gangs or jobs: an order is complete in itself. Orders may be repeated and reports may be late or come
twice: both name (gang, attempt, task), and nothing else is needed to tell old from new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol, runtime_checkable

from msgspec import Struct

from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass, Health
from corral.core.work import EarlySignal, Mount, Work
from corral.wire.details import NodeDetails


class TaskKey(Struct, frozen=True, gc=False, order=True):
    gang: str
    attempt: int
    task: int


class Process(Struct, frozen=True, gc=False):
    """One process of a task: what it is told on top of the task's environment (RANK, LOCAL_RANK, its GPUs...)."""

    env: tuple[tuple[str, str], ...] = ()


class TaskOrder(Struct, frozen=True, gc=False, kw_only=True):
    """Everything needed to run one task on one node. ``epoch``: of the server that orders; older ones are refused."""

    key: TaskKey
    epoch: int
    node: str
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    secret_env: tuple[tuple[str, str], ...] = ()  # never written to disk, shown or logged
    processes: tuple[Process, ...] = (Process(),)
    gpus: tuple[str, ...] = ()  # UUIDs
    vram_mib: int = 0  # its slice, where it shares the GPU; 0: all of it
    cpu_milli: int | None = None
    memory_mib: int | None = None
    directory: str = ""
    account: str = ""  # the account of the machine to run as; empty: the server's own
    image: str = ""
    mounts: tuple[Mount, ...] = ()
    output: str = ""  # a file that gets the standard output too
    error: str = ""
    early_signal: EarlySignal | None = None
    requeue_exit: int = 85  # the exit code that means: saved, run me again
    hold_on_fail_ms: int = 0  # so long after a failure it keeps its place, unless it is called away
    log_mib_max: int = 256  # per stream; the oldest part goes first


class StaleEpoch(Exception):
    """The caller is not the newest server any more: a later one has opened this backend. It must stop."""

    def __init__(self, epoch: int, highest: int) -> None:
        super().__init__(
            f"epoch {epoch} is over: a server with epoch {highest} has taken over here. Stop this server; "
            "the other one goes on with its tasks."
        )
        self.epoch, self.highest = epoch, highest


class Phase(StrEnum):
    UP = "up"
    DOWN = "down"


class TaskReport(Struct, frozen=True, gc=False, kw_only=True):
    """What became of a task. ``failure`` is the backend's classification; None where the exit code tells all.

    ``unenforced`` names limits that could not be enforced here, and why. ``gpus``: those it was given; None: unknown.
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


class SavedReport(Struct, frozen=True, gc=False):
    """The task says that a checkpoint was committed at this step."""

    key: TaskKey
    step: int


class PaceReport(Struct, frozen=True, gc=False):
    """How long ranks of a task were busy with a step lately: each by its own word, and without waiting for others."""

    key: TaskKey
    node: str
    busy_ms: tuple[tuple[int, int], ...]  # rank, milliseconds


class HealthReport(Struct, frozen=True, gc=False):
    """How a node, or one of its GPUs (by slot), is, and why that is thought. Told when it changes and once at the
    beginning; told again in the same words it is no news."""

    node: str
    gpu: int | None
    health: Health
    why: str = ""


class NodePhase(StrEnum):
    JOINED = "joined"  # it is there, or describes itself anew
    GONE = "gone"  # none of its tasks runs any more, whether or not anyone can see it
    BACK = "back"
    LEAVING = "leaving"  # it will be taken away


class NodeReport(Struct, frozen=True, gc=False):
    """Machines come and go. ``spec``: what it is, when it has joined. ``until_ms``: when it will be
    gone, if it leaves."""

    node: str
    phase: NodePhase
    spec: NodeSpec | None = None
    until_ms: int | None = None


class DetailsReport(Struct, frozen=True, gc=False):
    """What a node is made of. Nothing is decided by it; it is shown."""

    node: str
    details: NodeDetails


Report = TaskReport | SavedReport | PaceReport | HealthReport | NodeReport | DetailsReport
Tell = Callable[[Report], None]


class LogPart(Struct, frozen=True, gc=False):
    """``data`` begins at byte ``offset`` of all that was ever written (what is older than is kept is skipped);
    ``is_over``: nothing will follow ``next_offset``."""

    offset: int
    data: bytes
    next_offset: int
    is_over: bool


#: Among what a machine lacks: the right to run tasks that name no account.
ACCOUNTLESS = "tasks without an account"


@runtime_checkable
class KnowsBeforehand(Protocol):
    """A backend may know that work can never run on what it has, so that it is refused and not tried, and what its
    machines cannot do."""

    def cannot_run(self, work: Work) -> str:
        """Why, in words for who asked for it; empty: it can, or nobody knows yet. Answers at once."""
        ...

    def cannot_run_as(self, account: str) -> str:
        """Why no task can run as this account; empty: it can, or nobody knows yet. Answers at once."""
        ...

    def lacks(self, node: str) -> Mapping[str, str]:
        """What a machine cannot run (``images``) or limit (``memory``, ``cpu``, ``pids``), and why. Answers at once."""
        ...


class Backend(Protocol):
    """Calls return quickly; what they lead to is told by reports. ``tell`` may be called from any thread, also from
    within a call; of one task it tells up before down."""

    def nodes(self) -> Sequence[NodeSpec]:
        """The machines it has."""
        ...

    def open(self, tell: Tell, epoch: int) -> None:
        """Begin. Tasks left by an earlier server are adopted: each is told again as up or down, with the last step it
        saved. Raises `StaleEpoch` when a later server was here."""
        ...

    def launch(self, orders: Sequence[TaskOrder]) -> None:
        """Start tasks. One that runs or ran already (same key) is told again, not started again. Raises `StaleEpoch`
        and starts none when an order is of an earlier epoch than this backend has seen."""
        ...

    def warn(self, key: TaskKey, deadline_ms: int, why: str) -> None:
        """Ask a task to save and leave by the deadline; at the deadline it is killed even if nobody asks again.

        Asked again, the earlier deadline holds. A task that is not known or over is left alone."""
        ...

    def kill(self, key: TaskKey) -> None:
        """End all of a task at once."""
        ...

    def known(self) -> Sequence[TaskKey]:
        """Tasks it still has anything of, running or over."""
        ...

    def forget(self, key: TaskKey) -> None:
        """Drop what is kept of a task that is over. Its logs stay as long as logs are kept."""
        ...

    def read_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None:
        """A part of ``stdout`` or ``stderr``; a negative offset counts from the end. None: there is no such log."""
        ...

    def close(self) -> None:
        """Stop watching. Tasks go on."""
        ...
