"""The text of events: one sentence for each type, without the actor. For people; programs read the event itself.

Knows events. Must not know the reader: what the reader may not see was removed before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.core import events as e
from corral.core.accounts import accounts as a
from corral.core.fleets import fleets as fl
from corral.core.gang_id import short_name
from corral.core.model import PREEMPTING, Cause, FailureClass
from corral.duration_text import span


def sentence(event: Any) -> str:
    """One sentence; the name of the event type if it has none."""
    say = _SENTENCES.get(type(event))
    return type(event).__name__ if say is None else say(event)


def _gang(event: Any) -> str:
    return short_name(event.gang)


def _founded(event: e.Founded) -> str:
    levels = ", ".join(event.settings.levels)
    return f"journal created, topology levels: {levels}" if levels else "journal created"


def _submitted(event: e.JobSubmitted) -> str:
    name = f" ({event.spec.name})" if event.spec.name else ""
    return f"job {event.job}{name} was submitted to {event.spec.queue}"


def _placed(event: e.GangPlaced) -> str:
    nodes = list(dict.fromkeys(seat.node for seat in event.seats))
    shown = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    return f"{_gang(event)} starts on {shown} (attempt {event.attempt})"


#: Why a gang is stopped when it is not preempted.
_STOPPING = {
    Cause.GROW: "restarts with more tasks",
    Cause.MOVE: "moves to other nodes",
    Cause.DRAIN: "is requeued because its node is drained",
    Cause.TIME_LIMIT: "has reached its time limit",
    Cause.START_TIMEOUT: "did not start in time",
    Cause.FAILURE: "is stopped because one of its tasks failed",
    Cause.UNREPAIRABLE: "is stopped because no replacement for a lost task was found",
    Cause.CANCEL: "is being cancelled",
    Cause.REQUEUE: "is being requeued",
}


def _evicted(event: e.GangEvicted) -> str:
    if event.cause not in PREEMPTING:
        return f"{_gang(event)} {_STOPPING[event.cause]}"
    beneficiary = short_name(event.beneficiary)
    if event.cause is Cause.SHRINK:
        return f"{_gang(event)} shrinks" + (f" to make room for {beneficiary}" if beneficiary else "")
    by = f" by {beneficiary}" if beneficiary else ""
    return f"{_gang(event)} preempted{by} ({event.cause.replace('_', ' ')})"


#: Ends that are not failures of the job, and the one that its exit code tells.
_HOW_ENDED = {
    FailureClass.USER_ERROR: "failed",
    FailureClass.PREEMPTED: "stopped after preemption",
    FailureClass.CANCELLED: "was cancelled",
    FailureClass.TIME_LIMIT: "was stopped at its time limit",
}


def _stopped(event: e.GangStopped) -> str:
    how = "stopped"
    if event.failure is not None:
        how = _HOW_ENDED.get(event.failure) or f"failed ({event.failure.replace('_', ' ')})"
    if event.first_failure is not None and event.first_failure.text:
        return f"{_gang(event)} failed: {event.first_failure.text} (exit {event.exit_code})"
    return f"{_gang(event)} {how}, exit code {event.exit_code}"


_AFTER = {
    FailureClass.USER_ERROR: "its failure",
    FailureClass.KILLED: "being killed",
    FailureClass.PREEMPTED: "preemption",
    FailureClass.STALLED: "a stall",
}


def _requeued(event: e.GangRequeued) -> str:
    if event.counted is None:
        return f"{_gang(event)} requeued"
    return f"{_gang(event)} requeued after {_AFTER.get(event.counted) or _words(event.counted)}"


def _finished(event: e.GangFinished) -> str:
    is_more = event.why.replace(" ", "_") not in ("", event.state, FailureClass.USER_ERROR)
    return f"{_gang(event)} {event.state}" + (f": {event.why}" if is_more else "")


def _tasks(event: Any) -> str:
    count = event.tasks.bit_count()
    return "1 task" if count == 1 else f"{count} tasks"


def _words(value: str) -> str:
    return value.replace("_", " ")


def _because(why: str) -> str:
    return f": {why}" if why else ""


def _node_end(event: e.NodeEndSet) -> str:
    if event.until_ms is None:
        return f"allocation of node {event.node} has no known end"
    return f"allocation of node {event.node} ends in {span(max(event.until_ms - event.at_ms, 0))}"


def _nodes(spec: fl.FleetSpec) -> str:
    least, most = spec.nodes_min, spec.nodes_max
    return f"{most} nodes" if least == most else f"{least} to {most} nodes"


def _phase(event: fl.PilotSeen) -> str:
    where = f" ({event.where})" if event.where else ""
    words = {fl.PilotPhase.WAITING: "is queued", fl.PilotPhase.STARTED: "started", fl.PilotPhase.ENDED: "ended"}
    return words[event.phase] + where


def _reservations(event: e.StartsPromised) -> str:
    moved = [f"; that of {each.gang} moved by {each.by} ({each.right})" for each in event.moved]
    made = "1 reservation" if len(event.promises) == 1 else f"{len(event.promises)} reservations"
    return f"{made} made, {len(event.withdrawn)} withdrawn" + "".join(moved)


def _slowed(event: e.GangSlowed) -> str:
    if event.percent <= 100:
        return f"{_gang(event)} no longer waits for a slow rank"
    return f"{_gang(event)} waits for a rank on {event.node} that takes {event.percent} % of the usual time for a step"


_SENTENCES: dict[type, Callable[[Any], str]] = {
    e.Founded: _founded,
    e.StartsPromised: _reservations,
    e.NodeAdded: lambda v: f"node {v.spec.name} joined with {len(v.spec.gpus)} GPUs",
    e.NodeRemoved: lambda v: f"node {v.node} was removed",
    e.NodeLost: lambda v: f"node {v.node} lost",
    e.NodeReturned: lambda v: f"node {v.node} returned",
    e.NodeHealthChanged: lambda v: f"node {v.node} is {v.health}" + _because(v.why),
    e.GpuHealthChanged: lambda v: f"GPU {v.gpu} of node {v.node} is {v.health}" + _because(v.why),
    e.NodeDrained: lambda v: f"node {v.node} {'cordoned' if v.cordon else 'draining'}",
    e.NodeUndrained: lambda v: f"node {v.node} takes jobs again",
    e.NodeEndSet: _node_end,
    e.QueueSet: lambda v: f"queue {v.spec.name} was created or changed",
    e.QueueRemoved: lambda v: f"queue {v.queue} was removed",
    e.JobSubmitted: _submitted,
    e.JobCancelled: lambda v: f"job {v.job} was cancelled",
    e.JobHeld: lambda v: f"job {v.job} was held" + (f": planning failed because of it ({v.why})" if v.why else ""),
    e.JobReleased: lambda v: f"job {v.job} was released",
    e.JobSuspended: lambda v: f"job {v.job} suspended: {_words(v.why)}",
    e.JobResumed: lambda v: f"job {v.job} resumed" + (f" as account {v.account}" if v.account else ""),
    e.JobEnded: lambda v: f"job {v.job} {'succeeded' if v.succeeded else 'did not succeed'}",
    e.JobForgotten: lambda v: f"job {v.job} dropped from memory",
    e.PriorityChanged: lambda v: f"job {v.job} has priority {v.priority}",
    e.GangAwoke: lambda v: f"{_gang(v)} queued",
    e.GangPlaced: _placed,
    e.TasksStarted: lambda v: f"{_tasks(v)} of {_gang(v)} running",
    e.GangStarted: lambda v: f"{_gang(v)} running",
    e.CheckpointCommitted: lambda v: f"{_gang(v)} saved a checkpoint at step {v.step}",
    e.GangSlowed: _slowed,
    e.TasksEnded: lambda v: f"{_tasks(v)} of {_gang(v)} ended",
    e.TasksLost: lambda v: f"{_tasks(v)} of {_gang(v)} lost on {v.node} ({_words(v.failure)})",
    e.GangEvicted: _evicted,
    e.GraceEnded: lambda v: f"grace period of {_gang(v)} expired",
    e.GangClaimed: lambda v: f"GPUs claimed for {_gang(v)}",
    e.ClaimDropped: lambda v: f"claim of {_gang(v)} dropped",
    e.GangRepaired: lambda v: f"{_gang(v)} repaired, continues with {len(v.seats)} tasks (attempt {v.attempt})",
    e.GangStopped: _stopped,
    e.GangRequeued: _requeued,
    e.GangFinished: _finished,
    e.GangCancelled: lambda v: f"{_gang(v)} was cancelled",
    e.GangHeld: lambda v: f"{_gang(v)} was held",
    e.GangReleased: lambda v: f"{_gang(v)} was released",
    e.GangPriorityChanged: lambda v: f"{_gang(v)} has priority {v.priority}",
    fl.FleetSet: lambda v: f"fleet {v.spec.name} set to {_nodes(v.spec)} on {v.spec.kind}",
    fl.FleetRecalled: lambda v: f"fleet {v.fleet} is giving its nodes back",
    fl.FleetRemoved: lambda v: f"fleet {v.fleet} was removed",
    fl.FleetTroubled: lambda v: f"fleet {v.fleet} has a problem: {v.why}" if v.why else f"fleet {v.fleet} works again",
    fl.PilotOrdered: lambda v: f"pilot {v.pilot} requested",
    fl.PilotSeen: lambda v: f"pilot {v.pilot} {_phase(v)}" + _because(v.why),
    fl.PilotJoined: lambda v: f"pilot {v.pilot} joined with {len(v.shape.gpus)} GPUs",
    fl.PilotRecalled: lambda v: f"pilot {v.pilot} is being given back" + _because(v.why),
    fl.FarewellGiven: lambda v: f"server stopping; nodes keep running tasks for {span(v.lease_ms)} without it",
    fl.PilotEnded: lambda v: f"pilot {v.pilot} ended" + _because(v.why),
    a.UserSet: lambda v: f"user {v.user} was {'disabled' if v.disabled else 'created or changed'}",
    a.UserRemoved: lambda v: f"user {v.user} was removed",
    a.RoleGranted: lambda v: (
        f"{v.user} was granted the role {v.role} in {v.queue or 'the cluster'}" + (f" by {v.by}" if v.by else "")
    ),
    a.RoleRevoked: lambda v: f"the role {v.role} of {v.user} in {v.queue or 'the cluster'} was revoked",
    a.TokenIssued: lambda v: f"{v.user} signed in" if v.session_of else f"a token was issued to {v.user}",
    a.TokenRevoked: lambda v: f"token {v.token} was revoked",
    a.UserLinked: lambda v: f"{v.user} signs in with {v.provider}",
    a.SignedIn: lambda v: f"{v.user} signed in with {v.provider}",
    a.SignInRefused: lambda v: (
        f"{v.user or v.subject or 'a client'} was refused to sign in{' with ' * bool(v.provider)}{v.provider}: {v.why}"
    ),
    a.AccessRefused: lambda v: f"{v.user} was refused: {v.what}",
    a.TokensExpired: lambda v: f"{len(v.tokens)} expired tokens were removed",
    a.Read: lambda v: f"{v.user} read {v.what}" + (f" ({v.left_out} earlier reads not recorded)" if v.left_out else ""),
    a.SecretSet: lambda v: f"secret {v.secret} of {v.queue or 'the cluster'} was set",
    a.SecretRemoved: lambda v: f"secret {v.secret} of {v.queue or 'the cluster'} was removed",
    a.TemplateSet: lambda v: f"template {v.template} of {v.user or 'the site'} was stored",
    a.TemplateRemoved: lambda v: f"template {v.template} of {v.user or 'the site'} was removed",
}

#: The names of all types of events.
TYPES = sorted(kind.__name__ for kind in _SENTENCES)
