"""Fleets: users who may change nodes request nodes from providers. The provisioning controller does the rest.

Like nodes, fleets belong to no queue; only operators and administrators see them.
"""

from __future__ import annotations

import secrets
from typing import Any

from msgspec import structs

from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, amounts
from corral.core.fleets import commands
from corral.core.fleets.fleets import Fleet, FleetSpec, NodeShape, Pilot
from corral.providers.catalog import BadSettings, kind_of, not_plain, read_settings
from corral.runtime.gpus import simulated
from corral.server.api.handlers.views import copy_fields
from corral.server.api.http.problems import ApiError, forbidden, not_found
from corral.server.api.http.request import ApiRequest, Reply
from corral.server.auth import Verb
from corral.wire.api import ChangeAnswer, FleetBody, FleetList, FleetView, PilotView, ShapeBody


async def list_fleets(request: ApiRequest) -> Reply:
    _check(request, Verb.FLEETS_READ)
    return FleetList(fleets=tuple(_view(request, fleet) for _, fleet in sorted(request.service.fleets.fleets.items())))


async def show_fleet(request: ApiRequest) -> Reply:
    _check(request, Verb.FLEETS_READ)
    return _view(request, _named(request))


async def set_fleet(request: ApiRequest) -> Reply:
    _check(request, Verb.FLEETS_CHANGE)
    if request.service.fleet is None:
        why = "this server runs tasks only on its own machine"
        raise ApiError(409, "no_fleet", why, "start it with: corral up --cluster")
    spec = _spec(request.path["fleet"], request.body)
    _check_programs(request, spec)
    return await _changed(request, spec)


async def scale_fleet(request: ApiRequest) -> Reply:
    _check(request, Verb.FLEETS_CHANGE)
    spec = _named(request).spec
    stated = {
        name: value for name in request.body.__struct_fields__ if (value := getattr(request.body, name)) is not None
    }
    if stated.get("nodes_max", spec.nodes_max) < stated.get("nodes_min", spec.nodes_min) and len(stated) == 1:
        stated |= {name: value for value in stated.values() for name in ("nodes_min", "nodes_max")}
    return await _changed(request, structs.replace(spec, **stated))


async def recall_fleet(request: ApiRequest) -> Reply:
    _check(request, Verb.FLEETS_CHANGE)
    name = _named(request).spec.name
    return await request.change_fleets(lambda fleets, now_ms: commands.recall_fleet(fleets, name, now_ms))


def _check(request: ApiRequest, verb: Verb) -> None:
    if not request.may(verb):
        raise forbidden(verb)


def _check_programs(request: ApiRequest, spec: FleetSpec) -> None:
    """Only administrators may set what the server executes, reads or trusts for a fleet."""
    if request.may(Verb.FLEETS_PROGRAMS):
        return
    known, kind = request.service.fleets.fleets.get(spec.name), kind_of(spec.kind)
    is_same = known is not None and known.spec.kind == spec.kind
    try:
        before = read_settings(kind, known.spec.settings) if known is not None and is_same else None
    except BadSettings:
        before = None
    named = not_plain(kind, read_settings(kind, spec.settings), before)
    if named:
        why = f"for a fleet on {spec.kind}, only administrators can set {', '.join(named)}"
        hint = "these settings name what the server executes or where it logs in; ask an administrator to set the fleet"
        raise ApiError(403, "administrators_only", why, hint, "settings")


def _named(request: ApiRequest) -> Fleet:
    name = request.path["fleet"]
    fleet = request.service.fleets.fleets.get(name)
    if fleet is None:
        raise not_found("fleet", name)
    return fleet


async def _changed(request: ApiRequest, spec: FleetSpec) -> ChangeAnswer:
    drawn = secrets.token_hex(4)
    return await request.change_fleets(
        lambda fleets, now_ms: commands.set_fleet(fleets, spec, request.user, drawn, now_ms)
    )


def _spec(name: str, body: FleetBody) -> FleetSpec:
    try:
        read_settings(kind_of(body.on), body.settings)
        shape = None if body.shape is None else _shape(body.shape)
    except BadSettings as wrong:
        raise ApiError(422, "bad_settings", str(wrong), field=wrong.field) from None
    return copy_fields(FleetSpec, body, name=name, kind=body.on, shape=shape)


def _shape(body: ShapeBody) -> NodeShape:
    try:
        gpus = simulated(body.gpus) if body.gpus else ()
    except ValueError as wrong:
        raise BadSettings(str(wrong), "shape") from None
    given: dict[str, Any] = {CPU_MILLI: body.cpu_milli, MEMORY_MIB: body.memory_mib}
    return NodeShape(gpus, amounts({name: value for name, value in given.items() if value is not None}))


def _view(request: ApiRequest, fleet: Fleet) -> FleetView:
    pilots = tuple(_pilot_view(request, pilot) for pilot in fleet.pilots.values())
    return copy_fields(
        FleetView,
        fleet,
        fleet.spec,
        on=fleet.spec.kind,
        wanted=0 if fleet.is_recalled else len(fleet.wanted),
        joined=sum(pilot.node for pilot in pilots),
        leaving=fleet.is_recalled,
        cost_milli=fleet.cost_milli(request.service.now_ms()),
        pilots=pilots,
    )


def _pilot_view(request: ApiRequest, pilot: Pilot) -> PilotView:
    node = request.service.state.nodes.get(pilot.name)
    return copy_fields(
        PilotView,
        pilot,
        phase=pilot.phase.value if pilot.phase is not None else "ordered",
        leaving=pilot.recalled_ms is not None,
        node=node is not None and not node.lost,
    )
