"""Queues with their settings and usage; nodes and the gangs on them.

Nodes belong to no queue: every user with a role sees them, but only those gangs on them that the user may see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

from msgspec import structs

from corral.core.accounts import commands as account_commands
from corral.core.accounts.commands import QUEUE
from corral.core.cluster.resources import amounts
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.model import Budget, Health, Node, QueueSpec, QuotaChange
from corral.core.state import State, is_open
from corral.runtime.gpu_visibility import is_simulated
from corral.server.api.handlers.jobs import sees_gang
from corral.server.api.handlers.views import copy_fields, plain
from corral.server.api.http.problems import forbidden, not_found, refused
from corral.server.api.http.request import ApiRequest, Content, Reply, accepted
from corral.server.api.http.shared_views import JSON, encode_json, in_steps
from corral.server.auth import Verb, seen_queues
from corral.server.planner.questions import QueueOutcome, ReclaimedGang
from corral.wire.api import (
    BudgetBody,
    GpuView,
    NodeList,
    NodeView,
    QueueBody,
    QueueList,
    QueuePreview,
    QueueView,
    QuotaChangeBody,
    ReclaimedView,
)

_NAME_MAX = 256
_AMOUNT_MAX = 1 << 53


# ---- queues ----------------------------------------------------------------------------------------------


async def list_queues(request: ApiRequest) -> Reply:
    return Content(await request.shared.views.of(("queues", request.rights), partial(_all_queues, request)), JSON)


async def _all_queues(request: ApiRequest) -> bytes:
    return encode_json(QueueList(queues=await queue_views(request)))


async def queue_views(request: ApiRequest) -> tuple[QueueView, ...]:
    """The queues that the user may see, each before its children."""
    tree, load = request.service.state.queues.queues, queue_load(request.service.state)
    views = [
        _queue_view(request, name, load)
        async for name in in_steps(sorted(tree))
        if name in tree and request.may(Verb.QUEUES_READ, name)
    ]
    return tuple(views)


async def show_queue(request: ApiRequest) -> Reply:
    name = _named_queue(request, Verb.QUEUES_READ)
    return _queue_view(request, name, queue_load(request.service.state))


def _named_queue(request: ApiRequest, verb: Verb) -> str:
    name = request.path["queue"]
    if name not in request.service.state.queues.queues:
        raise not_found("queue", name)
    request.require(verb, "queue", name, name)
    return name


class QueueLoad:
    """Waiting and running gangs of each queue, summed up the tree."""

    def __init__(self) -> None:
        self.waiting: Counter[str] = Counter()
        self.pending: Counter[str] = Counter()
        self.running: Counter[str] = Counter()


def queue_load(state: State) -> QueueLoad:
    """Sum the counters that the state keeps. The cost depends on the number of queues, not of gangs."""
    load = QueueLoad()
    for queue, waiting in state.backlog.queues.items():
        for name in state.queues.path(queue):
            load.waiting[name] += waiting.gangs
            load.pending[name] += waiting.gpu_milli
    for (queue, _), gangs in state.held_by.items():
        for name in state.queues.path(queue):
            load.running[name] += len(gangs)
    return load


def _queue_view(request: ApiRequest, name: str, load: QueueLoad) -> QueueView:
    tree, now_ms = request.service.state.queues, request.service.now_ms()
    queue = tree.queues[name]
    stated = {each for terms in (queue.spec.guarantee, queue.spec.limit) for each, _ in terms} | queue.used.keys()
    guarantee = plain({each: tree.guarantee(name, each, now_ms) for each in sorted(stated)})
    used = {each: amount for each, amount in sorted(queue.used.items()) if amount}
    return copy_fields(
        QueueView,
        queue,
        name=name,
        children=tuple(child for child in queue.children if request.may(Verb.QUEUES_READ, child)),
        terms=_terms(queue.spec),
        guarantee=guarantee,
        limit=plain({each: tree.limit(name, each, now_ms) for each in sorted(stated)}),
        used=used,
        borrowed={each: used[each] - had for each, had in guarantee.items() if used.get(each, 0) > had},
        gangs_waiting=load.waiting[name],
        gangs_running=load.running[name],
        gpu_milli_pending=load.pending[name],
        budget_spent_gpu_ms=None if queue.spec.budget is None else tree.spent_gpu_ms(name, now_ms),
    )


def _terms(spec: QueueSpec) -> QueueBody:
    return copy_fields(
        QueueBody,
        spec,
        guarantee=dict(spec.guarantee),
        limit=dict(spec.limit),
        lend=dict(spec.lend),
        user_limit=dict(spec.user_limit),
        budget=None if spec.budget is None else copy_fields(BudgetBody, spec.budget),
        changes=tuple(
            copy_fields(QuotaChangeBody, each, guarantee=dict(each.guarantee), limit=dict(each.limit))
            for each in spec.changes
        ),
    )


async def set_queue(request: ApiRequest) -> Reply:
    name, body = request.path["queue"], request.body
    if not QUEUE.fullmatch(name) or len(name) > _NAME_MAX:
        hint = "use letters, digits and . _ -; begin each part with a letter or digit; separate parts with /"
        raise refused(Refusal("bad_name", f"{name[:80]!r} is not a queue name", hint, "name"))
    request.require(Verb.QUEUES_CHANGE, "queue", name, name)
    _check_amounts(body)
    spec = _spec(name, body)
    rules = None if request.may(Verb.QUEUES_GIVE) else request.service.rules
    if request.query.dry_run:
        accepted(commands.set_queue(request.service.state, spec, request.service.now_ms(), rules))
        return _preview(request, accepted(await request.service.try_queue(spec)))
    if name not in request.service.state.queues.queues:
        await _detach(request, name)  # an older server may have left roles and secrets of a queue of this name
    return await request.change(lambda state, now_ms: commands.set_queue(state, spec, now_ms, rules))


def _preview(request: ApiRequest, outcome: QueueOutcome) -> QueuePreview:
    starts = tuple(gang for gang in outcome.starts if sees_gang(request, gang))
    return QueuePreview(
        reclaimed=tuple(_reclaimed(request, each) for each in outcome.reclaimed),
        starts=starts,
        starts_hidden=len(outcome.starts) - len(starts),
        kept_waiting=tuple(gang for gang in outcome.kept_waiting if sees_gang(request, gang)),
    )


def _reclaimed(request: ApiRequest, each: ReclaimedGang) -> ReclaimedView:
    gang = request.service.state.gangs.get(each.gang)
    gpu_milli = 0 if gang is None else gang.gpu_milli
    if gang is None or not sees_gang(request, each.gang):
        return ReclaimedView(gpu_milli=gpu_milli)
    return ReclaimedView(
        gpu_milli=gpu_milli,
        gang=each.gang,
        job=gang.job,
        queue=gang.queue,
        user=gang.user,
        beneficiary=each.beneficiary if sees_gang(request, each.beneficiary) else "",
    )


def _check_amounts(body: QueueBody) -> None:
    every: list[int | None] = [body.weight, body.max_jobs, body.max_jobs_per_user, body.priority_ceiling]
    every += [body.time_share, body.grace_max_ms]
    for stated in (body.guarantee, body.limit, body.lend, body.user_limit):
        every += stated.values()
    for change in body.changes:
        every += [*change.guarantee.values(), *change.limit.values()]
    every += [when for each in body.changes for when in (each.from_ms, each.until_ms)]
    if body.budget is not None:
        every += [body.budget.gpu_ms, body.budget.window_ms, body.budget.anchor_ms]
    if any(abs(each or 0) > _AMOUNT_MAX for each in every):
        raise refused(Refusal("bad_amount", "a number is too large", f"at most {_AMOUNT_MAX}"))


def _spec(name: str, body: QueueBody) -> QueueSpec:
    return copy_fields(
        QueueSpec,
        body,
        name=name,
        guarantee=amounts(body.guarantee),
        limit=amounts(body.limit),
        lend=amounts(body.lend),
        user_limit=amounts(body.user_limit),
        budget=None if body.budget is None else copy_fields(Budget, body.budget),
        changes=tuple(
            copy_fields(QuotaChange, each, guarantee=amounts(each.guarantee), limit=amounts(each.limit))
            for each in body.changes
        ),
    )


async def remove_queue(request: ApiRequest) -> Reply:
    name = request.path["queue"]
    request.require(Verb.QUEUES_CHANGE, "queue", name, name)
    if name not in request.service.state.queues.queues:
        raise not_found("queue", name)
    accepted(commands.remove_queue(request.service.state, name, request.service.now_ms()))
    await _detach(request, name)
    done = await request.change(lambda state, now_ms: commands.remove_queue(state, name, now_ms))
    await _detach(request, name)  # what was granted or set meanwhile
    return done


async def _detach(request: ApiRequest, queue: str) -> None:
    """Revoke the roles in a queue and drop its secrets, so that a later queue of that name inherits nothing."""
    orphaned = [secret for scope, secret in request.service.accounts.secrets if scope == queue]
    await request.change_accounts(lambda accounts, now_ms: account_commands.part_from_queue(accounts, queue, now_ms))
    for secret in orphaned:
        await request.shared.look(request.service.secrets.drop, queue, secret)


# ---- nodes -----------------------------------------------------------------------------------------------


async def list_nodes(request: ApiRequest) -> Reply:
    check_sees_nodes(request)
    # gangs on a node are shown to users who may see their jobs: all jobs, or their own and those of some queues
    own = "" if seen_queues(request.service.accounts, request.principal, Verb.JOBS_READ) is None else request.user
    return Content(await request.shared.views.of(("nodes", own, request.rights), partial(_all_nodes, request)), JSON)


async def _all_nodes(request: ApiRequest) -> bytes:
    state = request.service.state
    state.refresh()
    names = [spec.name for spec in state.topology.nodes]
    views = [_node_view(request, name) async for name in in_steps(names) if name in state.nodes]
    return encode_json(NodeList(nodes=tuple(views)))


async def show_node(request: ApiRequest) -> Reply:
    name = _named_node(request)
    return structs.replace(_node_view(request, name), separation=dict(request.service.separation(name)))


def check_sees_nodes(request: ApiRequest) -> None:
    if not request.may_somewhere(Verb.NODES_READ):
        raise forbidden(Verb.NODES_READ)


def _named_node(request: ApiRequest) -> str:
    check_sees_nodes(request)
    name = request.path["node"]
    if name not in request.service.state.nodes:
        raise not_found("node", name)
    return name


def _node_to_change(request: ApiRequest) -> str:
    """The node of the path. Every user with a role sees nodes, so a missing right is answered with 403, not 404."""
    name = _named_node(request)
    if not request.may(Verb.NODES_CHANGE):
        raise forbidden(Verb.NODES_CHANGE)
    return name


def _node_view(request: ApiRequest, name: str) -> NodeView:
    state = request.service.state
    state.refresh()
    node, n = state.nodes[name], state.topology.number[name]
    tenants = [state.gangs[gang] for gang in state.tenants.get(name, ())]
    seen = {gang.id for gang in tenants if sees_gang(request, gang.id)}
    on_gpu: dict[int, list[str]] = {}
    for gang in tenants:
        for seat in gang.all_seats:
            if seat.node == name:
                for slot in _slots(seat.gpus):
                    on_gpu.setdefault(slot, []).append(gang.id)
    pilot = request.service.fleets.pilot(name)
    left = {each: state.capacity.amount_left(n, each) for each, _ in node.spec.amounts}
    return copy_fields(
        NodeView,
        node,
        name=name,
        domains=dict(zip(state.settings.levels, node.spec.path, strict=False)),
        open=is_open(node),
        amounts=dict(node.spec.amounts),
        free=plain(left),
        gpus=tuple(_gpu_views(node, on_gpu, seen)),
        gpus_free=state.capacity.free[n].bit_count(),
        gangs=tuple(sorted(seen)),
        gangs_hidden=len(tenants) - len(seen),
        details=request.service.details.get(name),
        lacks=dict(request.service.lacks(name)),
        fleet=request.service.fleets.by_node.get(name, ""),
        where="" if pilot is None else pilot.where,
    )


def _slots(mask: int) -> Iterable[int]:
    return (slot for slot in range(mask.bit_length()) if mask >> slot & 1)


def _gpu_views(node: Node, on_gpu: dict[int, list[str]], seen: set[str]) -> Iterable[GpuView]:
    for slot, gpu in enumerate(node.spec.gpus):
        gangs = on_gpu.get(slot, [])
        yield GpuView(
            slot=slot,
            uuid=gpu.uuid,
            model=gpu.model,
            vram_mib=gpu.vram_mib,
            health=node.gpu_health.get(slot, Health.HEALTHY),
            simulated=is_simulated(gpu.uuid),
            busy=bool(gangs),
            gangs=tuple(gang for gang in gangs if gang in seen),
            why=node.gpu_why.get(slot, ""),
        )


async def drain(request: ApiRequest) -> Reply:
    name = _node_to_change(request)
    return await request.change(lambda state, now_ms: commands.drain(state, name, now_ms))


async def undrain(request: ApiRequest) -> Reply:
    name = _node_to_change(request)
    return await request.change(lambda state, now_ms: commands.undrain(state, name, now_ms))


async def cordon(request: ApiRequest) -> Reply:
    name = _node_to_change(request)
    return await request.change(lambda state, now_ms: commands.cordon(state, name, now_ms))


async def uncordon(request: ApiRequest) -> Reply:
    name = _node_to_change(request)
    return await request.change(lambda state, now_ms: commands.uncordon(state, name, now_ms))
