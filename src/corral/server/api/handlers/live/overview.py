"""The cluster in numbers, and what is wrong with it now, each with what to do. Reads the state; changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice

from corral.server.api.handlers.cluster import queue_load
from corral.server.api.handlers.jobs import sees_gang
from corral.server.api.handlers.live.cells import SICK, GroundPlan
from corral.server.api.http.request import ApiRequest
from corral.server.auth import Verb
from corral.wire.api import AlarmView, ClusterOverview

_ALARMS_SHOWN = 20
_MEASURED_S = 0.4


def overview(request: ApiRequest, plan: GroundPlan) -> ClusterOverview:
    waiting, running, pending = _load(request)
    measured, busy, simulated = _utilisation(request, plan)
    alarms = list(islice(_alarms(request, plan), 10 * _ALARMS_SHOWN))
    alarms.sort(key=lambda alarm: alarm.level != "error")
    return ClusterOverview(
        gpus=plan.counts,
        models=plan.models,
        nodes=len(plan.cells),
        nodes_closed=sum(cell.state != "open" for cell in plan.cells.values()),
        gangs_waiting=waiting,
        gangs_running=running,
        gpu_milli_waiting=pending,
        utilisation_percent=round(busy / measured) if measured else None,
        gpus_measured=measured,
        gpus_simulated=simulated,
        alarms=tuple(alarms[:_ALARMS_SHOWN]),
        alarms_total=len(alarms),
    )


def _load(request: ApiRequest) -> tuple[int, int, int]:
    """Waiting and running gangs, and GPUs waited for, of the queues that the user may see."""
    tree, load = request.service.state.queues, queue_load(request.service.state)
    seen = [name for name in tree.queues if request.may(Verb.QUEUES_READ, name)]
    shown = set(seen)
    tops = [name for name in seen if tree.queues[name].parent not in shown]
    return (
        sum(load.waiting[name] for name in tops),
        sum(load.running[name] for name in tops),
        sum(load.pending[name] for name in tops),
    )


def _utilisation(request: ApiRequest, plan: GroundPlan) -> tuple[int, int, int]:
    """GPUs that are measured, the sum of what they do, and how many are simulated: read once for all readers."""
    if plan.measured is None or time.monotonic() > plan.measured[0]:
        plan.measured = (time.monotonic() + _MEASURED_S, _measured(request, plan))
    return plan.measured[1]


def _measured(request: ApiRequest, plan: GroundPlan) -> tuple[int, int, int]:
    measured = busy = simulated = 0
    now_ms = request.service.now_ms()
    for name in plan.cells:
        reading = request.service.activities.of(name, now_ms)
        for gpu in () if reading is None else reading.gpus.values():
            if gpu.utilisation_percent is not None:
                measured += 1
                busy += gpu.utilisation_percent
                simulated += gpu.is_simulated
    return measured, busy, simulated


def _alarms(request: ApiRequest, plan: GroundPlan) -> Iterator[AlarmView]:
    yield from _fleet_alarms(request)
    yield from _job_alarms(request)
    for name, cell in plan.cells.items():
        if cell.state == "lost":
            text = f"node {name} is lost: its agent does not answer"
            hint = "check the machine and its network; the node returns by itself when its agent does"
            yield AlarmView(level="error", code="node_lost", text=text, hint=hint, node=name)
        elif cell.state == "sick":
            text = f"node {name} is taken out: {cell.why or 'it is unhealthy'}"
            hint = f"repair it; it returns when its checks pass, or with: corral node undrain {name}"
            yield AlarmView(level="error", code="node_sick", text=text, hint=hint, node=name)
        elif SICK in cell.gpus:
            count = cell.gpus.count(SICK)
            text = f"{count} GPU{'s' if count > 1 else ''} of node {name} taken out: {cell.why or 'unhealthy'}"
            yield AlarmView(level="warning", code="gpu_sick", text=text, hint="repair or replace it", node=name)


def _fleet_alarms(request: ApiRequest) -> Iterator[AlarmView]:
    if request.may(Verb.FLEETS_READ):
        for name, fleet in request.service.fleets.fleets.items():
            if fleet.trouble:
                text = f"fleet {name}: {fleet.trouble}"
                hint = "the server tries again; check the provider"
                yield AlarmView(level="error", code="fleet_trouble", text=text, hint=hint, fleet=name)


def _job_alarms(request: ApiRequest) -> Iterator[AlarmView]:
    state = request.service.state
    for number in state.suspended:
        if number in state.jobs and sees_gang(request, number):
            text = f"job {number} may not start: its user has changed since it was submitted"
            yield AlarmView(level="warning", code="job_suspended", text=text, hint="see why it waits", job=number)
