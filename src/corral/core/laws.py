"""The laws that every state obeys. Checked after every event in simulation, and at recovery.

Each check recomputes from the gangs what ``apply`` maintains incrementally, and compares.
"""

from __future__ import annotations

from collections.abc import Iterator

from corral.core.cluster.resources import GPU_MILLI, size_class
from corral.core.model import HOLDING, Blocker, Gang, GangState
from corral.core.state import State, awaited_ends, leave_ms, seated


class LawBroken(AssertionError):
    """The state is inconsistent. Never caught: it is always a bug."""


def check(state: State) -> None:
    """Raise LawBroken with all violations."""
    broken = list(violations(state))
    if broken:
        raise LawBroken("; ".join(broken))


def violations(state: State) -> Iterator[str]:
    yield from _nothing_overcommitted(state)
    yield from _columns_are_right(state)
    yield from _gangs_are_whole(state)
    yield from _lines_are_right(state)
    yield from _queues_are_right(state)
    yield from _ends_are_kept(state)
    yield from _gpus_have_owners(state)
    yield from _counts_are_right(state)


def _nothing_overcommitted(state: State) -> Iterator[str]:
    """Law 1. No GPU has two live attempts, and no slices or amounts exceed the capacity."""
    owner: dict[tuple[int, int], str] = {}
    slices: dict[tuple[int, int], int] = {}
    used: dict[tuple[str, int], int] = {}
    topology = state.topology
    for gang in state.holders.values():
        for n, seat in seated(topology, gang.all_seats):
            for gpu in range(seat.gpus.bit_length()):
                if seat.gpus >> gpu & 1:
                    if seat.slice_mib:
                        slices[n, gpu] = slices.get((n, gpu), 0) + seat.slice_mib
                    elif (n, gpu) in owner:
                        yield f"GPU {gpu} of {seat.node} has two owners: {owner[n, gpu]} and {gang.id}"
                    else:
                        owner[n, gpu] = gang.id
            for name, amount in gang.amounts:
                used[name, n] = used.get((name, n), 0) + amount
    for (n, gpu), mib in slices.items():
        node = topology.nodes[n]
        if mib > node.gpus[gpu].vram_mib or (n, gpu) in owner:
            yield f"GPU {gpu} of {node.name} is overcommitted by slices"
    for (name, n), amount in used.items():
        have = dict(topology.nodes[n].amounts).get(name)
        if have is None or amount > have:
            yield f"{name} of {topology.nodes[n].name} is overcommitted: {amount} of {have}"
    yield from _claims_are_disjoint(state)


def _claims_are_disjoint(state: State) -> Iterator[str]:
    """A GPU is claimed at most once, and a gang that holds a claimed GPU is stopping."""
    claimed: dict[tuple[str, int], str] = {}
    for gang in state.claimants.values():
        for seat in gang.claim:
            for gpu in range(seat.gpus.bit_length()):
                if seat.gpus >> gpu & 1:
                    other = claimed.setdefault((seat.node, gpu), gang.id)
                    if other != gang.id:
                        yield f"GPU {gpu} of {seat.node} is claimed by {other} and {gang.id}"
    for gang in state.holders.values():
        if gang.state is not GangState.STOPPING:
            for seat in gang.all_seats:
                for gpu in range(seat.gpus.bit_length()):
                    if seat.gpus >> gpu & 1 and (seat.node, gpu) in claimed:
                        yield f"{claimed[seat.node, gpu]} claims a GPU of {gang.id}, which is not stopping"


def _columns_are_right(state: State) -> Iterator[str]:
    """Law 1. used + free = capacity: the columns that apply maintains equal those counted from the gangs."""
    kept, counted = state.capacity, state.recounted(state.topology)
    for column in ("open", "up", "used", "claimed", "free", "vram", "left", "rooms", "sizes"):
        if getattr(kept, column) != getattr(counted, column):
            yield f"column {column} is {getattr(kept, column)}, counted {getattr(counted, column)}"
    pledged = [{key: value for key, value in each.pledged.items() if value} for each in (kept, counted)]
    if pledged[0] != pledged[1]:
        yield f"pledged is {pledged[0]}, counted {pledged[1]}"


def _gangs_are_whole(state: State) -> Iterator[str]:
    """Law 2. A gang holds all of its seats or none, and is in the tables of its state."""
    for gang in state.gangs.values():
        holds = gang.state in HOLDING
        if holds != bool(gang.seats) or holds != (gang.id in state.holders):
            yield f"{gang.id} is {gang.state} with {len(gang.seats)} seats"
        if holds and len(gang.seats) not in gang.demand.sizes():
            yield f"{gang.id} runs with {len(gang.seats)} tasks, which its demand does not allow"
        if bool(gang.claim) != (gang.id in state.claimants) or (gang.is_over and gang.claim):
            yield f"{gang.id} has a claim left behind"
        if gang.blockers & Blocker.STOPPED:
            yield f"{gang.id} stopped, and no event decided what follows"
        if (gang.state is GangState.BROKEN) != (gang.id in state.broken):
            yield f"{gang.id} is {gang.state} but listed otherwise"
        if (gang.holds_seats and gang.demand.is_elastic) != (gang.id in state.elastic):
            yield f"{gang.id} is{'' if gang.id in state.elastic else ' not'} among the elastic gangs that hold seats"
        if (gang.state is GangState.STOPPING) != (gang.id in state.stopping):
            yield f"{gang.id} is {gang.state} but listed otherwise"
        if (gang.state is GangState.STOPPING) != (gang.eviction is not None):
            yield f"{gang.id} is {gang.state} with eviction {gang.eviction}"
    held = sorted(name for gangs in state.held_by.values() for name in gangs)
    if held != sorted(state.holders) or any(
        (gang.queue, gang.priority) != key for key, gangs in state.held_by.items() for gang in gangs.values()
    ):
        yield f"held by queue and priority: {held}, in all: {sorted(state.holders)}"
    yield from _held_is_counted(state)
    for node, tenants in state.tenants.items():
        for name in tenants:
            if all(seat.node != node for seat in state.gangs[name].all_seats):
                yield f"{name} is listed on {node} and has no seat there"


def _held_is_counted(state: State) -> Iterator[str]:
    counted: dict[tuple[str, int], tuple[int, int]] = {}
    for key, gangs in state.held_by.items():
        saving = sum(gang.gpu_milli for gang in gangs.values() if state.jobs[gang.job].spec.saves)
        held = sum(gang.gpu_milli for gang in gangs.values())
        if held:
            counted[key] = saving, held
    if counted != state.held_milli:
        yield f"GPUs held by queue and priority: {state.held_milli}, counted: {counted}"


def _lines_are_right(state: State) -> Iterator[str]:
    """Every waiting gang without blockers is in exactly one bucket of the backlog, in order."""
    queued: list[str] = []
    for entry in state.backlog.entries():
        names = list(entry)
        queued += names
        ranks = [state.gangs[name].rank for name in names]
        if ranks != sorted(ranks) or not names:
            yield f"a bucket of {entry.queue} is out of order or empty: {names}"
        for name in names:
            gang = state.gangs[name]
            if (gang.queue, gang.priority, gang.user, gang.profile) != (
                entry.queue,
                entry.priority,
                entry.user,
                entry.profile,
            ):
                yield f"{name} is in the wrong bucket"
    classes = {demand: size_class(demand) for entry in state.backlog.entries() for demand in [entry.profile.demand]}
    members = {kind: {d for d, each in classes.items() if each == kind} for kind in set(classes.values())}
    kept = {kind: set(demands) for kind, demands in state.backlog.classes.items()}
    if classes != state.backlog.class_of or members != kept or classes.keys() != state.backlog.demands.keys():
        yield f"classes of demands are {kept}, counted {members}"
    waiting: dict[str, tuple[int, int]] = {}
    for entry in state.backlog.entries():
        gangs, milli = waiting.get(entry.queue, (0, 0))
        each = entry.profile.demand.charge(entry.profile.demand.smallest).get(GPU_MILLI, 0)
        waiting[entry.queue] = (gangs + len(entry), milli + each * len(entry))
    counts = {queue: (each.gangs, each.gpu_milli) for queue, each in state.backlog.queues.items()}
    if counts != waiting:
        yield f"waiting by queue: {counts}, counted {waiting}"
    if not state.reservations.keys() <= set(queued):
        yield f"reserved a start but not queued: {sorted(state.reservations.keys() - set(queued))}"
    wanted = [gang.id for gang in state.gangs.values() if _belongs_in_line(gang)]
    if sorted(queued) != sorted(wanted) or state.backlog.count != len(wanted):
        yield f"queued: {sorted(queued)}, should be: {sorted(wanted)}"


def _belongs_in_line(gang: Gang) -> bool:
    return gang.state is GangState.WAITING and not gang.blockers and not gang.claim


def _queues_are_right(state: State) -> Iterator[str]:
    """The charge of a queue equals the sum over its gangs; a gang that makes room for another is not charged."""
    used: dict[tuple[str, str], int] = {}
    for gang in state.gangs.values():
        for dimension, amount in gang.charged:
            for name in state.queues.path(gang.queue):
                used[name, dimension] = used.get((name, dimension), 0) + amount
        makes_room = gang.eviction is not None and not gang.eviction.is_charged
        if gang.state is GangState.STOPPING and makes_room and gang.charged and not gang.claim:
            yield f"{gang.id} is stopping and still charged"
    left = _unfinished_elements(state)
    for name, queue in state.queues.queues.items():
        for dimension, amount in queue.used.items():
            if amount != used.get((name, dimension), 0):
                yield f"queue {name} is charged {amount} {dimension}, its gangs {used.get((name, dimension), 0)}"
        jobs = sum(1 for job in state.jobs.values() if job.spec.queue == name and not job.is_over)
        mine = left.get(name, {})
        if queue.elements != sum(mine.values()) or queue.user_elements != mine:
            yield f"queue {name} counts {queue.user_elements} unfinished elements and has {mine}"
        if jobs != queue.jobs:
            yield f"queue {name} counts {queue.jobs} jobs and has {jobs}"


def _unfinished_elements(state: State) -> dict[str, dict[str, int]]:
    """Unfinished elements by queue and user, including the queues below."""
    found: dict[str, dict[str, int]] = {}
    for job in state.jobs.values():
        gangs = sum(not state.gangs[gang].is_over for gang in job.gangs)
        for name in state.queues.path(job.spec.queue) if gangs else ():
            mine = found.setdefault(name, {})
            mine[job.user] = mine.get(job.user, 0) - (-gangs // len(job.spec.gangs))
    return found


def _ends_are_kept(state: State) -> Iterator[str]:
    """Law 6. A gang on a node that will be withdrawn has a timer to be evicted in time."""
    known = {name: node.until_ms for name, node in state.nodes.items() if node.until_ms is not None}
    if known != state.ending:
        yield f"nodes end {state.ending}, their records say {known}"
    timers = set(state.timers)
    for gang in state.holders.values():
        if gang.state in (GangState.STARTING, GangState.RUNNING):
            leave = leave_ms(state, gang)
            if leave is not None and (leave, gang.id, gang.attempt) not in timers:
                yield f"{gang.id} must be evicted at {leave}, but no timer is due then"


def _gpus_have_owners(state: State) -> Iterator[str]:
    """Law 7. The recorded owner of a GPU is a node that has it."""
    for uuid, owner in state.gpu_owners.items():
        if owner not in state.nodes or all(gpu.uuid != uuid for gpu in state.nodes[owner].spec.gpus):
            yield f"GPU {uuid} is recorded for {owner}, which does not have it"


def _counts_are_right(state: State) -> Iterator[str]:
    """Counters that are maintained incrementally equal those counted again."""
    if state.awaited != awaited_ends(state):
        yield f"open dependencies: {state.awaited}, counted {awaited_ends(state)}"
    for job in state.jobs.values():
        parked = [name for name in job.gangs if state.gangs[name].blockers & Blocker.ARRAY]
        if sorted(parked) != sorted(job.parked):
            yield f"{job.id} has parked {job.parked}, its gangs say {parked}"
        active = sum(_uses_slot(state.gangs[name]) for name in job.gangs)
        if job.has_slots and job.active != active:
            yield f"{job.id} counts {job.active} active gangs, and has {active}"


def _uses_slot(gang: Gang) -> bool:
    is_held = gang.state is GangState.WAITING and bool(gang.blockers & Blocker.GANG_HELD)
    return not gang.is_over and not gang.blockers & Blocker.ARRAY and not is_held
