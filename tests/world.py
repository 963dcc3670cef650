"""A small cluster to write tests on: an engine, a journal, a clock, and short words for what usually happens.

Everything goes through commands, facts and cycles, as live. What a test sets by hand it applies as events.
"""

from __future__ import annotations

from collections.abc import Sequence

from corral.core import events as e
from corral.core import facts as f
from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import GPU_MILLI, Amounts, Demand, Gpu, Seat, TaskDemand, amounts
from corral.core.cluster.topology import NodeSpec, Topology
from corral.core.commit import commit
from corral.core.engine import Policy, apply_all, react
from corral.core.intake import commands
from corral.core.intake.commands import Answer
from corral.core.intake.refusal import Refusal
from corral.core.laws import check
from corral.core.model import Gang, GangSpec, GangState, JobSpec, QueueSpec, Settings
from corral.core.plan import Plan
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.policy.explain.advice import smallest_changes
from corral.policy.explain.holds import explain
from corral.policy.explain.reasons import Change, Hold
from corral.sim.research.published import policy as named_policy

START_MS = 1_000_000
VRAM_MIB = 80_000


def node_spec(
    name: str,
    gpus: int = 8,
    path: Sequence[str] = (),
    islands: int = 1,
    model: str = "H100",
    vram_mib: int = VRAM_MIB,
    **has: int,
) -> NodeSpec:
    devices = tuple(Gpu(f"{name}-{i}", model, vram_mib, i * islands // gpus) for i in range(gpus))
    return NodeSpec(name, devices, amounts(has), tuple(path))


def open_capacity(topology: Topology) -> Capacity:
    """All nodes up and empty, with an undo log."""
    capacity = Capacity(topology).copy()
    for n, node in enumerate(topology.nodes):
        capacity.set_up(n, True, (1 << len(node.gpus)) - 1)
    return capacity


def gpu_amounts(gpus: int) -> Amounts:
    return amounts({GPU_MILLI: gpus * 1000})


def demand_of(gpus: int = 1, tasks: int = 1, **terms: object) -> Demand:
    """``terms`` may name fields of the demand or of its task."""
    of_task = {name: terms.pop(name) for name in list(terms) if name in TaskDemand.__struct_fields__}
    return Demand(task=TaskDemand(gpus=gpus, **of_task), tasks=tasks, **terms)  # type: ignore[arg-type]


class World:
    """One engine with its journal. Times are absolute; ``now`` moves only by ``wait``."""

    def __init__(self, policy: Policy | str = "standard", levels: Sequence[str] = ("rack",), **settings: int) -> None:
        self.state = State(Settings(levels=tuple(levels), **settings))
        chosen = named_policy(policy) if isinstance(policy, str) else policy
        assert not isinstance(chosen, Refusal), chosen
        self.policy = chosen
        self.journal: list[e.Event] = []
        self.now = START_MS
        self.checks = True  # whether every law is checked after every step

    def _check(self) -> None:
        if self.checks:
            check(self.state)

    # ---- what there is --------------------------------------------------------------------------------

    def rack(self, rack: str, nodes: int, gpus: int = 8, islands: int = 1, model: str = "H100", **has: int) -> World:
        for i in range(nodes):
            spec = node_spec(f"{rack}{i}", gpus, (rack,), islands, model, **has)
            self.take(commands.add_node(self.state, spec, self.now))
        return self

    def queue(self, name: str, **terms: object) -> World:
        """Guarantee, limit, lend and user_limit may be given as a number of GPUs."""
        for field in ("guarantee", "limit", "lend", "user_limit"):
            if isinstance(terms.get(field), int):
                terms[field] = gpu_amounts(terms[field])  # type: ignore[arg-type]
        spec = QueueSpec(name=name, **terms)  # type: ignore[arg-type]
        self.take(commands.set_queue(self.state, spec, self.now))
        return self

    # ---- what people ask ------------------------------------------------------------------------------

    def ask(
        self, job: str, queue: str = "team", demand: Demand | None = None, user: str = "ann", **spec: object
    ) -> Answer:
        """The answer to a submission; nothing is changed."""
        gangs = (GangSpec(demand or demand_of()),)
        full = JobSpec(**{"queue": queue, "gangs": gangs, **spec})  # type: ignore[arg-type]
        return commands.submit(self.state, job, full, user, self.now)

    def submit(
        self, job: str, queue: str = "team", demand: Demand | None = None, user: str = "ann", **spec: object
    ) -> Gang:
        """Submit a job that must be accepted; its first gang."""
        self.take(self.ask(job, queue, demand, user, **spec))
        return self.state.gangs[self.state.jobs[job].gangs[0]]

    def run(
        self,
        job: str,
        queue: str = "team",
        demand: Demand | None = None,
        seats: Sequence[Seat] = (),
        **spec: object,
    ) -> Gang:
        """A job that runs on these seats, or wherever the policy puts it."""
        gang = self.submit(job, queue, demand, **spec)  # type: ignore[arg-type]
        if seats:
            size = len(seats) - gang.demand.spares
            self.apply(e.GangPlaced(self.now, gang.id, gang.attempt + 1, tuple(seats[:size]), tuple(seats[size:])))
        else:
            self.cycle()
        self.up(gang)
        assert gang.state is GangState.RUNNING, gang
        return gang

    # ---- what happens ---------------------------------------------------------------------------------

    def take(self, answer: Answer) -> None:
        assert not isinstance(answer, Refusal), answer
        self.journal += apply_all(self.state, answer, self.now).events
        self._check()

    def apply(self, *events: e.Event) -> None:
        self.take(list(events))

    def tell(self, fact: f.Fact) -> list[e.Event]:
        """Tell the engine a fact; the events that came of it."""
        before = len(self.journal)
        self.take(react(self.state, fact, self.now))
        return self.journal[before:]

    def up(self, gang: Gang) -> None:
        self.tell(f.TasksUp(gang.id, gang.attempt, gang.everyone))

    def down(self, gang: Gang, exit_code: int = 0, **more: object) -> list[e.Event]:
        fact = f.TasksDown(gang.id, gang.attempt, gang.everyone, exit_code, **more)  # type: ignore[arg-type]
        return self.tell(fact)

    def save(self, gang: Gang, step: int) -> list[e.Event]:
        return self.tell(f.Saved(gang.id, gang.attempt, step))

    def wait(self, ms: int) -> list[e.Event]:
        self.now += ms
        return self.tell(f.Ticked())

    def snapshot(self) -> Snapshot:
        return Snapshot(self.state, self.now)

    def hold(self, gang: str) -> Hold:
        """Why a gang waits."""
        hold = explain(self.snapshot(), self.policy, gang)
        assert not isinstance(hold, Refusal), hold
        return hold

    def changes(self, gang: str) -> list[Change]:
        """What would let a gang start."""
        return smallest_changes(self.snapshot(), self.policy, self.hold(gang))

    def cycle(self) -> Plan:
        plan = self.policy(self.snapshot())
        self.take(commit(self.state, plan, self.now))
        return plan


def seat(node: str, *gpus: int, slice_mib: int = 0) -> Seat:
    return Seat(node, sum(1 << gpu for gpu in gpus), slice_mib)


def state_of(gang: Gang) -> GangState:
    """Its state now. A function, so that no type checker believes it is still what it was a line before."""
    return gang.state


def image(state: State) -> dict[str, object]:
    """Everything a state is, in a form that can be compared: two equal images are two equal states."""
    capacity = state.capacity
    columns = ("open", "up", "used", "claimed", "free", "vram", "left", "rooms", "sizes")
    return {
        "now": state.now_ms,
        "nodes": state.nodes,
        "jobs": state.jobs,
        "gangs": state.gangs,
        "queues": dict(state.queues.queues.items()),
        "total": state.queues.total,
        "lines": [(ln.queue, ln.priority, ln.user, ln.profile, list(ln)) for ln in state.backlog.entries()],
        "capacity": {column: getattr(capacity, column) for column in columns},
        "pledged": {key: value for key, value in capacity.pledged.items() if value},
        "lists": [
            list(each)
            for each in (
                state.holders, state.claimants, state.broken, state.draining, state.jobs_to_settle,
                state.gangs_to_settle, state.reservations.values(),
            )
        ],
        "tenants": {node: list(tenants) for node, tenants in state.tenants.items()},
        "out_of_turn": state.out_of_turn,
        "links": (state.dependents, state.namesakes, state.next_rank),
        "timers": sorted(state.timers),
    }  # fmt: skip
