"""What agents and the server say to each other. Values only.

An agent asks, the server answers; never the other way round. Everything may be lost, repeated or late: a report names
its session, its number and the version of what it describes; an answer names the epoch of the server and the term of
the node, and says from which version to which it leads. Whoever gets something that is not newer leaves it aside.
`Hello`, `Renewal` and their answers are the gateway's; it passes on the others as they are.
"""

from __future__ import annotations

from msgspec import Struct

from corral.backends.base import HealthReport, LogPart, TaskKey, TaskOrder, TaskReport
from corral.core.cluster.topology import NodeSpec
from corral.wire.details import NodeDetails


class Hello(Struct, frozen=True, gc=False):
    """The first word on a connection: who speaks, and how that is proved."""

    node: str
    token: str

    def __repr__(self) -> str:
        return f"Hello(node={self.node!r})"  # a token has no business in a log


class No(Struct, frozen=True, gc=False):
    """Why an agent is not let in, or is put out; ``status`` as in HTTP: from 500 on it may try again."""

    status: int
    code: str
    why: str = ""


class Renewal(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """``seq`` counts the renewals of a session. ``epoch`` and ``term``: of the last answer that the agent has seen.
    ``left_ms``: of the lease that it has, when this was sent."""

    seq: int
    epoch: int = 0
    term: int = 0
    session: int = 0
    left_ms: int = 0


class LeaseAnswer(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """``lease_ms``: so long after the renewal ``seq`` was *sent* the tasks of the node may go on; 0: nothing is granted
    now. ``is_gone``: the node was given up, and its tasks must end before it is taken back."""

    seq: int
    epoch: int
    term: int
    lease_ms: int = 0
    heartbeat_ms: int = 2_000
    is_gone: bool = False


class ObservedTask(Struct, frozen=True, gc=False, omit_defaults=True):
    """What an agent has of a task: nothing yet, up, down, the last step that it saved, and how long its ranks are busy
    with one."""

    key: TaskKey
    up: TaskReport | None = None
    step: int | None = None
    down: TaskReport | None = None
    busy_ms: tuple[tuple[int, int], ...] = ()


class AgentReport(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a node observes. ``session`` counts the starts of its agent, ``seq`` the reports of a session. The tasks are
    those that changed after version ``base``, or, if it is full, all there are. ``epoch`` and ``term``: of the last
    answer that the agent has seen, so that the server knows whether this was said before or after it."""

    node: str
    session: int
    seq: int
    epoch: int = 0
    term: int = 0
    base: int = 0
    version: int = 0
    is_full: bool = False
    tasks: tuple[ObservedTask, ...] = ()
    health: tuple[HealthReport, ...] = ()
    details: NodeDetails | None = None
    spec: NodeSpec | None = None  # in full reports
    refused: int = 0  # orders that were too old, since the agent began
    leaves_in_ms: int | None = None  # the machine will be taken away: by then its work must have left
    lacks: dict[str, str] = {}  # in full reports: what the machine cannot run or limit, and why


class AgentAnswer(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """``version``: up to where the server knows what the node observes. ``is_gone``: the node was given up; its tasks
    must end before it is taken back."""

    epoch: int
    term: int
    version: int = 0
    session: int = 0  # the newest of the node's sessions that the server has heard of
    is_gone: bool = False
    wants_full: bool = False
    is_leaving: bool = False  # the server has heard that the machine will be taken away
    complaint: str = ""  # why the node cannot be used as it is
    refused: str = ""  # why this report was not taken, or what its agent has refused


class DesiredAsk(Struct, frozen=True, gc=False, kw_only=True):
    """What shall I do? I have everything up to this version."""

    node: str
    epoch: int
    term: int
    version: int = 0
    wait_ms: int = 20_000


class DesiredTask(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What shall become of a task: be there, leave so many milliseconds from now, end at once, be forgotten."""

    key: TaskKey
    order: TaskOrder | None = None
    leave_in_ms: int | None = None
    why: str = ""
    kill: bool = False
    forget: bool = False


class LogAsk(Struct, frozen=True, gc=False):
    """Somebody wants to read a log of a task."""

    id: int
    key: TaskKey
    stream: str
    offset: int
    limit: int


class DesiredAnswer(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """All that changed after version ``base``, up to ``version``."""

    epoch: int
    term: int
    base: int = 0
    version: int = 0
    tasks: tuple[DesiredTask, ...] = ()
    logs: tuple[LogAsk, ...] = ()


class LogChunk(Struct, frozen=True, gc=False, omit_defaults=True):
    """A part of a log for the server to keep. ``is_over``: there will be no more."""

    key: TaskKey
    stream: str
    offset: int
    data: bytes = b""
    is_over: bool = False


class LogReply(Struct, frozen=True, gc=False):
    """The answer to a `LogAsk`; no part: there is no such log."""

    id: int
    part: LogPart | None = None


class LogDelivery(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Logs from a node: what was asked for, and what is to be kept."""

    node: str
    replies: tuple[LogReply, ...] = ()
    chunks: tuple[LogChunk, ...] = ()


class LogReceipt(Struct, frozen=True, gc=False):
    """How far the server has each of the streams that were delivered, in their order."""

    kept: tuple[int, ...] = ()


class JoinBody(Struct, frozen=True, gc=False):
    """A machine asks to become a node of this name."""

    node: str


class JoinAnswer(Struct, frozen=True, gc=False):
    """``token``: the credential of the node, told once. ``agent_port``: where its agent will speak to the server."""

    node: str
    token: str
    agent_port: int = 0
    expires_ms: int | None = None  # of the credential


class EndpointAnswer(Struct, frozen=True, gc=False):
    """Where agents speak to the server that leads: a port of the machine that gave this answer."""

    port: int
    tls: bool = False
