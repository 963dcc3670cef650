"""The image of a state as plain values, saved and loaded so that a restart need not fold the whole journal.

Knows every field of a state that cannot be derived from others. What a state keeps for speed (columns, backlog, caches
of policies) is built again; the order of entries is kept, so that a loaded state behaves exactly like the saved one.
"""

from __future__ import annotations

from msgspec import Struct, field

from corral.core.apply_gangs import count_held, is_in_backlog, join_backlog
from corral.core.cluster.resources import TaskDemand
from corral.core.model import After, Gang, Job, Node, OutOfTurn, Profile, QueueSpec, Reservation, Settings
from corral.core.prediction import Kind, Lengths
from corral.core.queues.quota import ROOT, Queue
from corral.core.queues.usage import Usage
from corral.core.state import Namesakes, State, Timer, awaited_ends


class QueueImage(Struct, frozen=True, gc=False):
    """A queue, with its tables as rows."""

    spec: QueueSpec
    used: list[tuple[str, int]]
    user_used: list[tuple[str, str, int]]
    jobs: int
    user_jobs: list[tuple[str, int]]
    usage: Usage
    user_usage: list[tuple[str, Usage]]
    window: int
    spent_gpu_ms: int
    committed_gpu_ms: int
    loss_caused_gpu_ms: int
    loss_suffered_gpu_ms: int
    used_gpu_ms: int


class Image(Struct, frozen=True, gc=False, kw_only=True):
    """The image of a state. Ordered tables contain the names of gangs."""

    settings: Settings
    version: int
    now_ms: int
    next_rank: int
    next_job: int
    total: list[tuple[str, int]]
    nodes: list[Node]
    queues: list[QueueImage]
    jobs: list[Job]
    gangs: list[Gang]
    timers: list[Timer]
    orders: dict[str, list[str]]
    tenants: list[tuple[str, list[str]]]
    held_by: list[tuple[str, int, list[str]]]
    dependents: list[tuple[str, list[str]]]
    namesakes: list[tuple[str, str, list[str]]]
    reservations: list[Reservation] = field(default_factory=list, name="promises")  # its name in stored images
    out_of_turn: list[tuple[int, TaskDemand, OutOfTurn]] = []
    lengths: list[tuple[Kind, Lengths]] = []  # what is known of run times, by kind


#: Tables of gangs by name, and tables of names, whose order is kept: the name in the image, and that in the state.
_OF_GANGS = {name: name for name in ("holders", "claimants", "broken", "stopping", "elastic")} | {
    "spent": "gangs_to_settle"
}
_OF_NAMES = {"draining": "draining", "loose": "jobs_to_settle"}


def take_image(state: State) -> Image:
    """The state as values. Encode them before the state changes: they share objects with it."""
    return Image(
        settings=state.settings,
        version=state.version,
        now_ms=state.now_ms,
        next_rank=state.next_rank,
        next_job=state.next_job,
        total=list(state.queues.total.items()),
        nodes=list(state.nodes.values()),
        queues=[_queue_image(queue) for queue in state.queues.queues.values()],
        jobs=list(state.jobs.values()),
        gangs=list(state.gangs.values()),
        timers=state.timers,
        orders={name: list(getattr(state, table)) for name, table in (_OF_GANGS | _OF_NAMES).items()},
        tenants=[(node, list(gangs)) for node, gangs in state.tenants.items()],
        held_by=[(queue, priority, list(gangs)) for (queue, priority), gangs in state.held_by.items()],
        dependents=[(job, [name for name, _ in waiting]) for job, waiting in state.dependents.items()],
        namesakes=[(user, name, list(jobs)) for (user, name), jobs in state.namesakes.items()],
        reservations=list(state.reservations.values()),
        out_of_turn=[(priority, task, known) for (priority, task), known in state.out_of_turn.items()],
        lengths=list(state.predictions.kinds.items()),
    )


def _queue_image(queue: Queue) -> QueueImage:
    return QueueImage(
        queue.spec,
        list(queue.used.items()),
        [(user, dimension, amount) for user, used in queue.user_used.items() for dimension, amount in used.items()],
        queue.jobs,
        list(queue.user_jobs.items()),
        queue.usage,
        list(queue.user_usage.items()),
        queue.window,
        queue.spent_gpu_ms,
        queue.committed_gpu_ms,
        queue.loss_caused_gpu_ms,
        queue.loss_suffered_gpu_ms,
        queue.used_gpu_ms,
    )


def from_image(image: Image) -> State:
    """The state of an image; it behaves exactly like the original."""
    state = State(image.settings)
    state.version, state.now_ms = image.version, image.now_ms
    state.next_rank, state.next_job = image.next_rank, image.next_job
    for queue in image.queues:
        _restore_queue(state, queue)
    state.queues.total = dict(image.total)
    state.nodes = {node.spec.name: node for node in image.nodes}
    state.gpu_owners = {gpu.uuid: name for name, node in state.nodes.items() for gpu in node.spec.gpus}
    state.ending = {name: node.until_ms for name, node in state.nodes.items() if node.until_ms is not None}
    state.jobs = {job.id: job for job in image.jobs}
    state.suspended = {job.id: None for job in image.jobs if job.suspended is not None and not job.is_over}
    state.gangs = {gang.id: gang for gang in image.gangs}
    state.timers = image.timers
    for name, table in _OF_GANGS.items():
        setattr(state, table, {gang: state.gangs[gang] for gang in image.orders[name]})
    for name, table in _OF_NAMES.items():
        setattr(state, table, dict.fromkeys(image.orders[name]))
    state.tenants = {node: dict.fromkeys(gangs) for node, gangs in image.tenants}
    state.held_by = {(q, priority): {gang: state.gangs[gang] for gang in gangs} for q, priority, gangs in image.held_by}
    _restore_dependents(state, image)
    state.awaited = awaited_ends(state)
    state.namesakes = {(user, name): Namesakes.fromkeys(jobs) for user, name, jobs in image.namesakes}
    state.reservations = {each.gang: each for each in image.reservations}
    state.out_of_turn = {(priority, task): known for priority, task, known in image.out_of_turn}
    for gang in state.holders.values():
        count_held(state, gang, 1)
    state.predictions.kinds.update(image.lengths)
    _restore_counts(state)
    _restore_backlog(state)
    return state


def _restore_queue(state: State, image: QueueImage) -> None:
    if image.spec.name == ROOT:
        state.queues.queues[ROOT].spec = image.spec
    else:
        state.queues.put(image.spec)
    queue = state.queues.queues[image.spec.name]
    queue.used = dict(image.used)
    for user, dimension, amount in image.user_used:
        queue.user_used.setdefault(user, {})[dimension] = amount
    queue.jobs, queue.user_jobs = image.jobs, dict(image.user_jobs)
    queue.usage, queue.user_usage = image.usage, dict(image.user_usage)
    queue.window = image.window
    queue.spent_gpu_ms = image.spent_gpu_ms
    queue.committed_gpu_ms = image.committed_gpu_ms
    queue.loss_caused_gpu_ms, queue.loss_suffered_gpu_ms = image.loss_caused_gpu_ms, image.loss_suffered_gpu_ms
    queue.used_gpu_ms = image.used_gpu_ms


def _restore_dependents(state: State, image: Image) -> None:
    """Restore dependencies. An image has the names of dependent jobs; the kind of dependency is in their specs. Jobs
    that were cancelled and dropped meanwhile have none."""
    wanted: dict[tuple[str, str], list[After]] = {}
    for name in {name for _, waiting in image.dependents for name in waiting if name in state.jobs}:
        for dependency in reversed(state.jobs[name].spec.after):
            wanted.setdefault((dependency.job, name), []).append(dependency.after)
    for job, waiting in image.dependents:
        known = [(name, wanted.get((job, name), [After.ANY])) for name in waiting]
        state.dependents[job] = [(name, afters.pop() if len(afters) > 1 else afters[0]) for name, afters in known]


def _restore_counts(state: State) -> None:
    """Count unfinished elements. Equivalent to counting each job; for speed each pair of queue and user is added
    once."""
    left: dict[tuple[str, str], int] = {}
    for job in state.jobs.values():
        if job.unfinished:
            key = (job.spec.queue, job.user)
            left[key] = left.get(key, 0) + job.elements_left
    for (queue, user), count in left.items():
        state.queues.count_elements(queue, user, count)


def _restore_backlog(state: State) -> None:
    """Fill the backlog. Equal profiles become one object again: many gangs share few of them."""
    shapes: dict[Profile, Profile] = {}
    for gang in sorted(state.gangs.values(), key=lambda gang: gang.rank):
        gang.profile = shapes.setdefault(gang.profile, gang.profile)
        if is_in_backlog(gang):
            join_backlog(state, gang)
