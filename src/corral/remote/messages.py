"""The messages between agents and the server. Values only.

An agent sends requests and the server answers, never the other way round. Any message may be lost, repeated or late.
So a report names its session, its number and the version of what it describes; an answer names the epoch of the server
and the term of the node, and from which version to which it leads. The receiver ignores what is not newer. The gateway
answers `Hello` and `Renewal` itself and passes the others on.
"""

from __future__ import annotations

from msgspec import Struct

from corral.core.cluster.topology import NodeSpec
from corral.runtime.base import ActivityReport, HealthReport, LogPart, TaskKey, TaskOrder, TaskReport
from corral.wire.details import NodeDetails


class Hello(Struct, frozen=True, gc=False):
    """The first message on a connection: the name of the node and its credential."""

    node: str
    token: str

    def __repr__(self) -> str:
        return f"Hello(node={self.node!r})"  # the token must not get into a log


class No(Struct, frozen=True, gc=False):
    """Why the server refuses an agent or closes its connection. ``status`` as in HTTP: from 500 on it may retry."""

    status: int
    code: str
    why: str = ""


class Renewal(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """``seq`` counts the renewals of a session. ``epoch`` and ``term``: of the last answer that the agent has seen.
    ``left_ms``: what was left of its lease when this was sent."""

    seq: int
    epoch: int = 0
    term: int = 0
    session: int = 0
    left_ms: int = 0


class LeaseAnswer(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """``lease_ms``: how long after the renewal ``seq`` was *sent* the tasks of the node may run. 0: nothing is granted
    now. ``is_gone``: the node was declared lost, and its tasks must end before it can return."""

    seq: int
    epoch: int
    term: int
    lease_ms: int = 0
    heartbeat_ms: int = 2_000
    is_gone: bool = False


class ObservedTask(Struct, frozen=True, gc=False, omit_defaults=True):
    """What an agent knows of a task: nothing yet, its start, its end, the last step that it saved, and how long each
    rank is busy with one step."""

    key: TaskKey
    up: TaskReport | None = None
    step: int | None = None
    down: TaskReport | None = None
    busy_ms: tuple[tuple[int, int], ...] = ()
    stop: int | None = None  # after a warning: the first step at which its ranks can stop
    path: str = ""  # of the checkpoint that it saved last
    save_ms: int = 0
    stall_ms: int = 0


class AgentReport(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The state of a node. ``session`` counts the starts of its agent, ``seq`` the reports of a session. ``tasks`` are
    those that changed after version ``base``, or all of them in a full report. ``epoch`` and ``term`` are those of the
    last answer that the agent has seen, so that the server knows whether the report was sent before or after it."""

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
    activity: ActivityReport | None = None  # what the node and its tasks do; only if it was read since the last report
    spec: NodeSpec | None = None  # in full reports
    refused: int = 0  # orders that were too old, since the agent started
    leaves_in_ms: int | None = None  # the machine will be taken away: by then its tasks must have stopped
    lacks: dict[str, str] = {}  # in full reports: what the machine cannot run or limit, and why
    separation: dict[str, str] = {}  # in full reports: what is separated there, and by what


class AgentAnswer(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """``version``: up to which version the server knows the state of the node. ``is_gone``: the node was declared lost,
    and its tasks must end before it can return."""

    epoch: int
    term: int
    version: int = 0
    session: int = 0  # the newest session of the node that the server has seen
    is_gone: bool = False
    wants_full: bool = False
    is_leaving: bool = False  # the server knows that the machine will be taken away
    complaint: str = ""  # why the node cannot be used
    refused: str = ""  # why this report was refused, or what its agent has refused


class DesiredAsk(Struct, frozen=True, gc=False, kw_only=True):
    """A request for orders. The agent has applied everything up to ``version``."""

    node: str
    epoch: int
    term: int
    version: int = 0
    wait_ms: int = 20_000


class DesiredTask(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The desired state of a task: started, stopped within ``leave_in_ms``, killed, or forgotten. ``stop_at``: the
    step at which the ranks of its gang stop."""

    key: TaskKey
    order: TaskOrder | None = None
    leave_in_ms: int | None = None
    why: str = ""
    stop_at: int | None = None
    kill: bool = False
    forget: bool = False


class LogAsk(Struct, frozen=True, gc=False):
    """A user wants to read the log of a task."""

    id: int
    key: TaskKey
    stream: str
    offset: int
    limit: int


class StreamAsk(Struct, frozen=True, gc=False):
    """Someone wants a connection to a task: connect to the API with this ticket."""

    ticket: str
    key: TaskKey


class DesiredAnswer(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Everything that changed after version ``base``, up to ``version``."""

    epoch: int
    term: int
    base: int = 0
    version: int = 0
    tasks: tuple[DesiredTask, ...] = ()
    logs: tuple[LogAsk, ...] = ()
    streams: tuple[StreamAsk, ...] = ()


class LogChunk(Struct, frozen=True, gc=False, omit_defaults=True):
    """A part of a log for the server to store. ``is_over``: it is the last part."""

    key: TaskKey
    stream: str
    offset: int
    data: bytes = b""
    is_over: bool = False
    marks: tuple[tuple[int, int, int], ...] = ()  # as of `LogPart`


class LogReply(Struct, frozen=True, gc=False):
    """The answer to a `LogAsk`. No part: there is no such log."""

    id: int
    part: LogPart | None = None


class LogDelivery(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Logs from a node: replies to requests, and chunks to store."""

    node: str
    replies: tuple[LogReply, ...] = ()
    chunks: tuple[LogChunk, ...] = ()


class LogReceipt(Struct, frozen=True, gc=False):
    """Up to which offset the server has stored each of the delivered streams, in their order."""

    kept: tuple[int, ...] = ()


class JoinBody(Struct, frozen=True, gc=False):
    """A request of a machine to become a node with this name."""

    node: str


class JoinAnswer(Struct, frozen=True, gc=False):
    """``token``: the credential of the node, shown only once. ``agent_port``: the port of the gateway."""

    node: str
    token: str
    agent_port: int = 0
    expires_ms: int | None = None  # of the credential


class EndpointAnswer(Struct, frozen=True, gc=False):
    """The address of the leader's gateway: a port on the machine that gave this answer."""

    port: int
    tls: bool = False
