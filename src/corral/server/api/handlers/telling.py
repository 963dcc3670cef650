"""Events as prose: one sentence for each kind, without the actor. For people; programs read the event itself.

Knows events. Must not know who reads: what may not be told has been taken out before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.core import events as e
from corral.core.fleets import fleets as fl
from corral.core.people import accounts as a
from corral.policy.reasons import span


def told(event: Any) -> str:
    """One sentence; the name of the event where there is none."""
    say = _SENTENCES.get(type(event))
    return type(event).__name__ if say is None else say(event)


def _gang(event: Any) -> str:
    return str(event.gang).removesuffix("/main")


def _submitted(event: e.JobSubmitted) -> str:
    name = f" ({event.spec.name})" if event.spec.name else ""
    return f"job {event.job}{name} was submitted to {event.spec.queue}"


def _placed(event: e.GangPlaced) -> str:
    nodes = list(dict.fromkeys(seat.node for seat in event.seats))
    shown = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    return f"{_gang(event)} starts on {shown} (run {event.attempt})"


def _evicted(event: e.GangEvicted) -> str:
    sake = f" for {event.beneficiary.removesuffix('/main')}" if event.beneficiary else ""
    return f"{_gang(event)} is asked to leave: {event.cause}{sake}"


def _stopped(event: e.GangStopped) -> str:
    how = f"failed: {event.failure}" if event.failure is not None else "stopped"
    return f"{_gang(event)} {how} (exit code {event.exit_code})"


def _requeued(event: e.GangRequeued) -> str:
    return f"{_gang(event)} waits again" + (f" after {event.counted}" if event.counted is not None else "")


def _finished(event: e.GangFinished) -> str:
    return f"{_gang(event)} {event.state}" + (f": {event.why}" if event.why else "")


def _because(why: str) -> str:
    return f": {why}" if why else ""


def _in(event: e.NodeEndSet) -> str:
    return f" in {span(max((event.until_ms or 0) - event.at_ms, 0))}"


def _nodes(spec: fl.FleetSpec) -> str:
    least, most = spec.nodes_min, spec.nodes_max
    return f"{most} nodes" if least == most else f"{least} to {most} nodes"


def _phase(event: fl.PilotSeen) -> str:
    where = f" ({event.where})" if event.where else ""
    words = {fl.PilotPhase.WAITING: "waits", fl.PilotPhase.STARTED: "was started", fl.PilotPhase.ENDED: "has ended"}
    return words[event.phase] + where


_SENTENCES: dict[type, Callable[[Any], str]] = {
    e.Founded: lambda v: f"the journal begins, with levels {', '.join(v.settings.levels) or 'of nodes alone'}",
    e.StartsPromised: lambda v: f"{len(v.promises)} gangs were promised a start, {len(v.withdrawn)} promises withdrawn",
    e.NodeAdded: lambda v: f"node {v.spec.name} joined with {len(v.spec.gpus)} GPUs",
    e.NodeRemoved: lambda v: f"node {v.node} was removed",
    e.NodeLost: lambda v: f"node {v.node} is lost",
    e.NodeReturned: lambda v: f"node {v.node} is back",
    e.NodeHealthChanged: lambda v: f"node {v.node} is {v.health}" + _because(v.why),
    e.GpuHealthChanged: lambda v: f"GPU {v.gpu} of node {v.node} is {v.health}" + _because(v.why),
    e.NodeDrained: lambda v: f"node {v.node} is being drained",
    e.NodeUndrained: lambda v: f"node {v.node} takes tasks again",
    e.NodeEndSet: lambda v: f"node {v.node} " + ("stays" if v.until_ms is None else "will be taken away" + _in(v)),
    e.QueueSet: lambda v: f"queue {v.spec.name} was set",
    e.QueueRemoved: lambda v: f"queue {v.queue} was removed",
    e.JobSubmitted: _submitted,
    e.JobCancelled: lambda v: f"job {v.job} was cancelled",
    e.JobHeld: lambda v: f"job {v.job} was held" + (f": planning failed because of it ({v.why})" if v.why else ""),
    e.JobReleased: lambda v: f"job {v.job} was released",
    e.JobSuspended: lambda v: f"job {v.job} may not start: {str(v.why).replace('_', ' ')}",
    e.JobResumed: lambda v: f"job {v.job} may start again" + (f" as {v.account}" if v.account else ""),
    e.JobEnded: lambda v: f"job {v.job} ended {'well' if v.succeeded else 'without success'}",
    e.JobForgotten: lambda v: f"job {v.job} left the engine's mind",
    e.PriorityChanged: lambda v: f"job {v.job} has priority {v.priority}",
    e.GangAwoke: lambda v: f"{_gang(v)} is in line",
    e.GangPlaced: _placed,
    e.TasksStarted: lambda v: f"{v.tasks.bit_count()} tasks of {_gang(v)} run",
    e.GangStarted: lambda v: f"{_gang(v)} runs",
    e.CheckpointCommitted: lambda v: f"{_gang(v)} saved step {v.step}",
    e.TasksEnded: lambda v: f"{v.tasks.bit_count()} tasks of {_gang(v)} ended",
    e.TasksLost: lambda v: f"{v.tasks.bit_count()} tasks of {_gang(v)} were lost on {v.node}: {v.failure}",
    e.GangEvicted: _evicted,
    e.GraceEnded: lambda v: f"the grace of {_gang(v)} is over",
    e.GangClaimed: lambda v: f"seats are held for {_gang(v)}",
    e.ClaimDropped: lambda v: f"seats are no longer held for {_gang(v)}",
    e.GangRepaired: lambda v: f"{_gang(v)} goes on with {len(v.seats)} tasks (run {v.attempt})",
    e.GangStopped: _stopped,
    e.GangRequeued: _requeued,
    e.GangFinished: _finished,
    fl.FleetSet: lambda v: f"fleet {v.spec.name} wants {_nodes(v.spec)} on {v.spec.kind}",
    fl.FleetRecalled: lambda v: f"fleet {v.fleet} gives its nodes back",
    fl.FleetRemoved: lambda v: f"fleet {v.fleet} is gone",
    fl.FleetTroubled: lambda v: f"fleet {v.fleet} has trouble: {v.why}" if v.why else f"fleet {v.fleet} is well again",
    fl.PilotOrdered: lambda v: f"pilot {v.pilot} is asked for",
    fl.PilotSeen: lambda v: f"pilot {v.pilot} {_phase(v)}" + _because(v.why),
    fl.PilotJoined: lambda v: f"pilot {v.pilot} joined with {len(v.shape.gpus)} GPUs",
    fl.PilotRecalled: lambda v: f"pilot {v.pilot} is to go back" + _because(v.why),
    fl.FarewellGiven: lambda v: f"the server stops; nodes have a lease of {v.lease_ms} ms until the next one is there",
    fl.PilotEnded: lambda v: f"pilot {v.pilot} is over" + _because(v.why),
    a.UserSet: lambda v: f"user {v.user} was {'disabled' if v.disabled else 'set'}",
    a.UserRemoved: lambda v: f"user {v.user} was removed",
    a.RoleGranted: lambda v: f"{v.user} became {v.role} of {v.queue or 'the cluster'}",
    a.RoleRevoked: lambda v: f"{v.user} is no longer {v.role} of {v.queue or 'the cluster'}",
    a.TokenIssued: lambda v: f"a token was issued to {v.user}",
    a.TokenRevoked: lambda v: f"token {v.token} was revoked",
    a.AccessRefused: lambda v: f"{v.user} was refused: {v.what}",
    a.TokensExpired: lambda v: f"{len(v.tokens)} expired tokens were dropped",
    a.Read: lambda v: f"{v.user} read {v.what}" + (f" (and {v.left_out} times more before)" if v.left_out else ""),
    a.SecretSet: lambda v: f"secret {v.secret} of {v.queue or 'the cluster'} was set",
    a.SecretRemoved: lambda v: f"secret {v.secret} of {v.queue or 'the cluster'} was removed",
}
