"""The history of a run, folded from its events: each job with its attempts, and the GPUs in service over time.

Reads events and nothing else, so that a simulated run and the journal of a site give the same histories. Computes
no measures: ``report`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field

from corral.core import events as e
from corral.core.cluster.resources import GPU_MILLI, Seat
from corral.core.cluster.topology import NodeSpec
from corral.core.gang_id import gang_id
from corral.core.model import GangState

#: A step function: (time, value from then on), in order of time, at most one step a time.
StepList = list[tuple[int, int]]


class RunRecord(Struct, gc=False):
    """One attempt of a gang, from the time its seats were taken to the time they were free again."""

    gang: str
    attempt: int
    placed_ms: int
    gpu_milli: int  # of all its seats, spares included
    nodes: tuple[str, ...]  # one entry per seat, in rank order, spares last
    started_ms: int | None = None  # when all tasks ran; None: never
    ended_ms: int | None = None  # None: it still held seats at the end of the history
    cause: str = ""  # why it was preempted, if it was (a Cause)
    failure: str = ""  # how it failed, if it failed (a FailureClass)
    lost_gpu_ms: int = 0  # work that has to be done again
    saved_ms: int | None = None  # its newest checkpoint
    spares: int = 0  # number of seats held as spares
    is_last: bool = False  # the gang ended with it


class JobHistory(Struct, gc=False):
    """One job. ``gpu_milli``: requested by all its gangs together."""

    id: str
    queue: str
    user: str
    submitted_ms: int
    gpu_milli: int
    runs: list[RunRecord] = field(default_factory=list)
    ended_ms: int | None = None
    outcome: str = ""  # "succeeded", "failed", "cancelled"; "": not ended
    gangs: int = 1


class History(Struct):
    """A whole run. ``capacity`` has a step (time, GPU-milli in service) whenever that changed; ``nodes`` has the same
    for each node. A node is in service while it belongs to the cluster and is not lost, healthy or not.
    """

    jobs: dict[str, JobHistory] = field(default_factory=dict)
    capacity: StepList = field(default_factory=list)
    begin_ms: int = 0
    end_ms: int = 0
    events: int = 0
    refused: int = 0
    refusals: dict[str, int] = field(default_factory=dict)  # reason -> how many of the refused jobs
    nodes: dict[str, StepList] = field(default_factory=dict)


class Recorder:
    """Folds events into a history. Called with a batch of events, as an engine calls its ``write``."""

    def __init__(self) -> None:
        self.history = History()
        self._owner: dict[str, JobHistory] = {}  # gang -> its job, until the gang has ended
        self._latest: dict[str, RunRecord] = {}  # gang -> its newest attempt, until the gang has ended
        self._unhappy: dict[str, str] = {}  # job -> the worst end of its gangs, if one did not succeed
        self._specs: dict[str, NodeSpec] = {}
        self._folds: dict[type, Callable[[Any], None]] = {
            e.NodeAdded: self._node_added,
            e.NodeRemoved: self._node_gone,
            e.NodeLost: self._node_gone,
            e.NodeReturned: self._node_returned,
            e.JobSubmitted: self._submitted,
            e.JobEnded: self._job_ended,
            e.GangPlaced: self._placed,
            e.GangStarted: self._started,
            e.CheckpointCommitted: self._saved,
            e.TasksLost: self._tasks_lost,
            e.GangEvicted: self._evicted,
            e.GangRepaired: self._repaired,
            e.GangStopped: self._stopped,
            e.GangFinished: self._finished,
        }

    def __call__(self, events: Sequence[e.Event]) -> None:
        if not events:
            return
        history, folds = self.history, self._folds
        if not history.events:
            history.begin_ms = history.end_ms = events[0].at_ms
        for event in events:
            fold = folds.get(type(event))
            if fold is not None:
                fold(event)
        history.events += len(events)
        if events[-1].at_ms > history.end_ms:  # times within a batch do not decrease
            history.end_ms = events[-1].at_ms

    def refuse(self, why: str = "") -> None:
        """Record a refused job. There is no event for it, so the caller that submits must call this."""
        self.history.refused += 1
        if why:
            self.history.refusals[why] = self.history.refusals.get(why, 0) + 1

    # ---- nodes -------------------------------------------------------------------------------------------------

    def _node_added(self, event: e.NodeAdded) -> None:
        self._specs[event.spec.name] = event.spec
        self._serve(event.spec.name, 1000 * len(event.spec.gpus), event.at_ms)

    def _node_gone(self, event: e.NodeRemoved | e.NodeLost) -> None:
        self._serve(event.node, 0, event.at_ms)

    def _node_returned(self, event: e.NodeReturned) -> None:
        self._serve(event.node, 1000 * len(self._specs[event.node].gpus), event.at_ms)

    def _serve(self, node: str, gpu_milli: int, now_ms: int) -> None:
        steps, capacity = self.history.nodes.setdefault(node, []), self.history.capacity
        before = steps[-1][1] if steps else 0
        if gpu_milli != before or not steps:
            _step(steps, now_ms, gpu_milli)
            _step(capacity, now_ms, (capacity[-1][1] if capacity else 0) + gpu_milli - before)

    # ---- jobs --------------------------------------------------------------------------------------------------

    def _submitted(self, event: e.JobSubmitted) -> None:
        spec, owner = event.spec, self._owner
        asked = sum([gang.demand.charge(gang.demand.tasks).get(GPU_MILLI, 0) for gang in spec.gangs])
        indices = spec.array or (None,)
        job = JobHistory(event.job, spec.queue, event.user, event.at_ms, asked * len(indices))
        job.gangs = len(spec.gangs) * len(indices)
        self.history.jobs[job.id] = job
        for index in indices:
            for gang in spec.gangs:
                owner[gang_id(job.id, gang.role, index)] = job

    def _job_ended(self, event: e.JobEnded) -> None:
        job = self.history.jobs[event.job]
        job.ended_ms = event.at_ms
        ending = self._unhappy.pop(event.job, str(GangState.FAILED))
        job.outcome = str(GangState.SUCCEEDED) if event.succeeded else ending

    # ---- gangs -------------------------------------------------------------------------------------------------

    def _placed(self, event: e.GangPlaced | e.GangRepaired) -> None:
        seats = event.seats + event.spares if event.spares else event.seats
        gpu_milli = 0
        for seat in seats:
            gpu_milli += self._slice_milli(seat) if seat.slice_mib else 1000 * seat.gpus.bit_count()
        run = RunRecord(event.gang, event.attempt, event.at_ms, gpu_milli, tuple([seat.node for seat in seats]))
        if event.spares:
            run.spares = len(event.spares)
        self._latest[event.gang] = run
        self._owner[event.gang].runs.append(run)

    def _slice_milli(self, seat: Seat) -> int:
        """A slice holds its part of the GPU's memory, as the core charges it."""
        gpu = self._specs[seat.node].gpus[seat.gpus.bit_length() - 1]
        return seat.slice_mib * 1000 // gpu.vram_mib

    def _started(self, event: e.GangStarted) -> None:
        self._latest[event.gang].started_ms = event.at_ms

    def _saved(self, event: e.CheckpointCommitted) -> None:
        self._latest[event.gang].saved_ms = event.at_ms

    def _tasks_lost(self, event: e.TasksLost) -> None:
        self._latest[event.gang].failure = event.failure.value

    def _evicted(self, event: e.GangEvicted) -> None:
        self._latest[event.gang].cause = event.cause.value

    def _repaired(self, event: e.GangRepaired) -> None:
        """The broken attempt ends where the next one begins. Its unsaved work is lost; there is no event for it."""
        run = self._latest[event.gang]
        run.ended_ms = event.at_ms
        if run.started_ms is not None:
            safe_ms = max(run.started_ms, run.saved_ms or 0)
            run.lost_gpu_ms = run.gpu_milli * (event.at_ms - safe_ms) // 1000
        self._placed(event)

    def _stopped(self, event: e.GangStopped) -> None:
        run = self._latest[event.gang]
        run.ended_ms, run.lost_gpu_ms = event.at_ms, event.lost_gpu_ms
        run.failure = "" if event.failure is None else event.failure.value

    def _finished(self, event: e.GangFinished) -> None:
        job = self._owner.pop(event.gang)
        run = self._latest.pop(event.gang, None)
        if run is not None:
            run.is_last = True
        if event.state is not GangState.SUCCEEDED and self._unhappy.get(job.id) != GangState.FAILED:
            self._unhappy[job.id] = event.state.value


def record(events: Sequence[e.Event]) -> History:
    """The history of a whole journal."""
    recorder = Recorder()
    recorder(events)
    return recorder.history


def _step(steps: StepList, now_ms: int, value: int) -> None:
    if steps and steps[-1][0] == now_ms:
        steps[-1] = (now_ms, value)
    else:
        steps.append((now_ms, value))
