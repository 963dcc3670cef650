"""Figures over time, as far as the user may see what they are about."""

from __future__ import annotations

import math

from corral.server.api.handlers.jobs import is_number, owner_of
from corral.server.api.http.problems import ApiError
from corral.server.api.http.request import ApiRequest, Reply
from corral.server.auth import Verb, seen_queues
from corral.store.rings import RESOLUTIONS, Rings, resolution_for
from corral.wire.api import SeriesLine, SeriesPeriod, SeriesSummary, SeriesView

_NAMES_MAX = 100
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
#: About nodes, which every user with a role sees; the other figures of the cluster are sums over all queues.
_OF_NODES = frozenset({"cluster/gpus", "cluster/gpus_used", "cluster/utilisation"})
_COUNTED = ("starts", "wait_ms", "succeeded", "failed", "lost_gpu_ms")


async def series(request: ApiRequest) -> Reply:
    wanted, rings = request.query, request.service.series
    now_ms = request.service.now_ms()
    until_ms = min(wanted.until_ms or now_ms, now_ms)
    since_ms = until_ms - _HOUR_MS if wanted.since_ms is None else min(wanted.since_ms, until_ms)
    since_ms = max(since_ms, until_ms - RESOLUTIONS[-1].keep_ms)
    names = rings.expanded(wanted.names)[: _NAMES_MAX + 1]
    if len(names) > _NAMES_MAX:
        raise ApiError(400, "bad_parameter", f"more than {_NAMES_MAX} series", "ask for fewer at once", "names")
    seen = [name for name in names if await _is_seen(request, name)]
    resolution = resolution_for(until_ms - since_ms)
    found = await request.shared.look(rings.read, seen, resolution, since_ms, until_ms) if seen else {}
    sees_all = seen_queues(request.service.accounts, request.principal, Verb.QUEUES_READ) is None
    is_about_cluster = any(name.startswith("cluster/") for name in names)
    return SeriesView(
        from_ms=since_ms - since_ms % resolution.step_ms,
        step_ms=resolution.step_ms,
        points=(until_ms - (since_ms - since_ms % resolution.step_ms)) // resolution.step_ms + 1,
        series=tuple(SeriesLine(name=name, values=tuple(map(_known, values))) for name, values in found.items()),
        summary=await request.shared.look(_summary, rings, now_ms) if sees_all and is_about_cluster else None,
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.6g}")


async def _is_seen(request: ApiRequest, name: str) -> bool:
    kind, _, rest = name.partition("/")
    if kind == "cluster":
        accounts, who = request.service.accounts, request.principal
        return name in _OF_NODES or seen_queues(accounts, who, Verb.QUEUES_READ) is None
    if kind == "node":
        return request.may_somewhere(Verb.NODES_READ)
    if kind == "queue":
        queue = rest.rpartition("/")[0]
        return queue in request.service.state.queues.queues and request.may(Verb.QUEUES_READ, queue)
    job = rest.partition("/")[0]
    owner = await owner_of(request.shared, job) if kind == "job" and is_number(job) else None
    return owner is not None and request.may(Verb.JOBS_READ, *owner)


def _summary(rings: Rings, now_ms: int) -> SeriesSummary:
    return SeriesSummary(
        day=_period(rings, now_ms - _DAY_MS, now_ms), week=_period(rings, now_ms - 8 * _DAY_MS, now_ms - _DAY_MS)
    )


def _period(rings: Rings, since_ms: int, until_ms: int) -> SeriesPeriod:
    resolution = RESOLUTIONS[1]
    names = [f"cluster/{name}" for name in _COUNTED]
    found = rings.read(names, resolution, since_ms, until_ms)
    sums = {name: sum(value for value in found[f"cluster/{name}"] if not math.isnan(value)) for name in _COUNTED}
    starts = round(sums["starts"])
    return SeriesPeriod(
        starts=starts,
        succeeded=round(sums["succeeded"]),
        failed=round(sums["failed"]),
        lost_gpu_ms=round(sums["lost_gpu_ms"]),
        mean_ms=round(sums["wait_ms"] / sums["starts"]) if starts else None,
    )
