"""The map: one cell for each node, with a letter for the state of each GPU.

What does not depend on the reader is computed once for all of them (``GroundPlan``); which jobs are named is decided
for each. Reads the state; changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from corral.core.model import Gang, GangState, Health, Node
from corral.core.state import State
from corral.server.api.handlers.jobs import sees_gang
from corral.server.api.http.request import ApiRequest
from corral.server.api.http.shared_views import in_steps
from corral.wire.api import GpuCounts, JobOnMap, ModelCounts, NodeCell, TopologyView

RUNNING, HELD, FREE, CLOSED, SICK, LOST = "rhfcsl"
_FIELDS = {RUNNING: "running", HELD: "held", FREE: "free", CLOSED: "closed", SICK: "sick", LOST: "lost"}
NodeWord = Literal["open", "cordoned", "draining", "drained", "sick", "lost"]


class GroundPlan(Struct):
    """All cells, with every job named, by node in the order of the topology; and what is counted from them once for all
    readers. A cell that has not changed is the same object as before."""

    version: int
    cells: dict[str, NodeCell]
    counts: GpuCounts
    models: tuple[ModelCounts, ...]
    measured: tuple[float, tuple[int, int, int]] | None = None  # until when it holds, and what GPUs do


def _models(all_cells: Iterable[NodeCell]) -> tuple[ModelCounts, ...]:
    by_model: dict[str, list[NodeCell]] = {}
    for cell in all_cells:
        if cell.gpus:
            by_model.setdefault(cell.model, []).append(cell)
    return tuple(ModelCounts(model=model, gpus=_counted(cells)) for model, cells in sorted(by_model.items()))


def _counted(cells: Iterable[NodeCell]) -> GpuCounts:
    letters = "".join(cell.gpus for cell in cells)
    return GpuCounts(total=len(letters), **{name: letters.count(letter) for letter, name in _FIELDS.items()})


async def ground_plan(request: ApiRequest) -> GroundPlan:
    """The cells as of now; those of the last call if nothing has happened since."""
    state, shared = request.service.state, request.shared
    known = shared.ground_plan
    if isinstance(known, GroundPlan) and known.version == state.version:
        return known
    state.refresh()
    version = state.version
    before = known.cells if isinstance(known, GroundPlan) else {}
    cells = dict[str, NodeCell]()
    async for name in in_steps([spec.name for spec in state.topology.nodes]):
        if name in state.nodes:
            cell, old = _cell(request, name), before.get(name)
            cells[name] = old if old is not None and old == cell else cell
    made = shared.ground_plan = GroundPlan(version, cells, _counted(cells.values()), _models(cells.values()))
    return made


def _cell(request: ApiRequest, name: str) -> NodeCell:
    state = request.service.state
    node = state.nodes[name]
    holders = dict(_holders(state, name))
    letters = [_letter(node, slot, holders.get(slot)) for slot in range(len(node.spec.gpus))]
    return NodeCell(
        name=name,
        path=node.spec.path,
        state=node_word(node, bool(state.tenants.get(name))),
        gpus="".join(letters),
        model=node.spec.gpus[0].model if node.spec.gpus else "",
        jobs=tuple("" if (gang := holders.get(slot)) is None else gang.job for slot in range(len(letters))),
        fleet=request.service.fleets.by_node.get(name, ""),
        why=node.why or next(iter(node.gpu_why.values()), ""),
    )


def _holders(state: State, name: str) -> Iterator[tuple[int, Gang]]:
    for tenant in state.tenants.get(name, ()):
        gang = state.gangs[tenant]
        for seat in gang.all_seats:
            if seat.node == name:
                yield from ((slot, gang) for slot in range(seat.gpus.bit_length()) if seat.gpus >> slot & 1)


def _letter(node: Node, slot: int, gang: Gang | None) -> str:
    if node.lost:
        return LOST
    if gang is not None:
        return RUNNING if gang.state is GangState.RUNNING else HELD
    if node.health is not Health.HEALTHY or node.gpu_health.get(slot, Health.HEALTHY) is not Health.HEALTHY:
        return SICK
    return CLOSED if node.drained or node.cordoned else FREE


def node_word(node: Node, is_busy: bool) -> NodeWord:
    """One word for the state of a node."""
    if node.lost:
        return "lost"
    if node.health is not Health.HEALTHY:
        return "sick"
    if node.drained:
        return "draining" if is_busy else "drained"
    return "cordoned" if node.cordoned else "open"


# ---- for one reader ------------------------------------------------------------------------------------------


class Sights:
    """Which jobs one reader may see on the map; asked once for each job."""

    def __init__(self, request: ApiRequest) -> None:
        self._request = request
        self._known: dict[str, bool] = {"": True}

    def sees(self, job: str) -> bool:
        known = self._known.get(job)
        if known is None:
            known = self._known[job] = sees_gang(self._request, job)
        return known

    def shown(self, cell: NodeCell) -> NodeCell:
        """The cell without the names of jobs that the reader may not see."""
        if all(map(self.sees, cell.jobs)):
            return cell
        return replace(cell, jobs=tuple(job if self.sees(job) else "" for job in cell.jobs))


async def jobs_on(request: ApiRequest, cells: Iterable[NodeCell]) -> dict[str, JobOnMap]:
    """The jobs that are named in these cells."""
    state, found = request.service.state, dict[str, JobOnMap]()
    numbers = dict.fromkeys(number for cell in cells for number in cell.jobs if number)
    async for number in in_steps(numbers):
        job = state.jobs.get(number)
        if job is not None:
            gangs = [state.holders[name] for name in job.gangs if name in state.holders]
            saved = [gang.saved_ms for gang in gangs]
            found[number] = JobOnMap(
                name=job.spec.name,
                queue=job.spec.queue,
                user=job.user,
                started_ms=min((gang.started_ms for gang in gangs if gang.started_ms), default=None),
                saved_ms=(min(saved) or None) if saved else None,
            )
    return found


async def topology_view(request: ApiRequest) -> TopologyView:
    """The map as one reader may see it, with what each GPU does now."""
    plan, sights = await ground_plan(request), Sights(request)
    cells = [sights.shown(cell) async for cell in in_steps(list(plan.cells.values()))]
    jobs = await jobs_on(request, cells)
    cells = [_with_figures(request, cell) async for cell in in_steps(cells)]
    levels = tuple(request.service.state.settings.levels)
    return TopologyView(at_ms=request.service.now_ms(), levels=levels, nodes=tuple(cells), jobs=jobs)


def _with_figures(request: ApiRequest, cell: NodeCell) -> NodeCell:
    reading = request.service.activities.of(cell.name, request.service.now_ms())
    if reading is None:
        return cell
    known = [reading.gpus.get(slot) for slot in range(len(cell.gpus))]
    return replace(
        cell,
        utilisation_percent=tuple(None if gpu is None else gpu.utilisation_percent for gpu in known),
        temperature_c=tuple(None if gpu is None else gpu.temperature_c for gpu in known),
    )


def changed(before: Mapping[str, NodeCell], after: Mapping[str, NodeCell]) -> list[NodeCell]:
    return [cell for name, cell in after.items() if before.get(name) is not cell and before.get(name) != cell]
