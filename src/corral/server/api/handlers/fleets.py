"""Fleets: whoever may change nodes has engines lend more of them. What carriers make of it is done elsewhere.

Like machines, fleets are of no queue; they are seen by operators and administrators only.
"""

from __future__ import annotations

import secrets
from typing import Any

from msgspec import structs

from corral.backends.carriers.catalog import BadSettings, kind_of, not_plain, read_settings
from corral.backends.gpus import simulated
from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, amounts
from corral.core.fleets import commands
from corral.core.fleets.fleets import Fleet, FleetSpec, NodeShape, Pilot
from corral.server.api.entry.asking import Ask, Reply, accepted
from corral.server.api.entry.problems import Unable, forbidden, not_found
from corral.server.auth import Verb
from corral.wire.api import ChangeAnswer, FleetBody, FleetList, FleetView, PilotView, ShapeBody


async def list_fleets(ask: Ask) -> Reply:
    _check(ask, Verb.FLEETS_READ)
    return FleetList(fleets=tuple(_view(ask, fleet) for _, fleet in sorted(ask.service.fleets.fleets.items())))


async def show_fleet(ask: Ask) -> Reply:
    _check(ask, Verb.FLEETS_READ)
    return _view(ask, _named(ask))


async def set_fleet(ask: Ask) -> Reply:
    _check(ask, Verb.FLEETS_CHANGE)
    if ask.service.fleet is None:
        why = "this server runs tasks on its own machine only"
        raise Unable(409, "no_fleet", why, "start it with: corral up --fleet")
    spec = _spec(ask.path["fleet"], ask.body)
    _check_programs(ask, spec)
    return await _changed(ask, spec)


async def scale_fleet(ask: Ask) -> Reply:
    _check(ask, Verb.FLEETS_CHANGE)
    spec = _named(ask).spec
    stated = {name: value for name in ask.body.__struct_fields__ if (value := getattr(ask.body, name)) is not None}
    if stated.get("nodes_max", spec.nodes_max) < stated.get("nodes_min", spec.nodes_min) and len(stated) == 1:
        stated |= {name: value for value in stated.values() for name in ("nodes_min", "nodes_max")}
    return await _changed(ask, structs.replace(spec, **stated))


async def recall_fleet(ask: Ask) -> Reply:
    _check(ask, Verb.FLEETS_CHANGE)
    name = _named(ask).spec.name
    done = accepted(
        await ask.service.change_fleets(ask.user, lambda fleets, now_ms: commands.recall_fleet(fleets, name, now_ms))
    )
    return ChangeAnswer(seq=done.seq)


def _check(ask: Ask, verb: Verb) -> None:
    if not ask.may(verb):
        raise forbidden(verb)


def _check_programs(ask: Ask, spec: FleetSpec) -> None:
    """What the server executes, reads or trusts for a fleet is said by administrators."""
    if ask.may(Verb.FLEETS_PROGRAMS):
        return
    known, kind = ask.service.fleets.fleets.get(spec.name), kind_of(spec.kind)
    is_same = known is not None and known.spec.kind == spec.kind
    try:
        before = read_settings(kind, known.spec.settings) if known is not None and is_same else None
    except BadSettings:
        before = None
    named = not_plain(kind, read_settings(kind, spec.settings), before)
    if named:
        why = f"for a fleet on {spec.kind}, {', '.join(named)} can be set by administrators only"
        hint = "they name what the server executes or where it logs in; an administrator can make the fleet for you"
        raise Unable(403, "administrators_only", why, hint, "settings")


def _named(ask: Ask) -> Fleet:
    name = ask.path["fleet"]
    fleet = ask.service.fleets.fleets.get(name)
    if fleet is None:
        raise not_found("fleet", name)
    return fleet


async def _changed(ask: Ask, spec: FleetSpec) -> ChangeAnswer:
    drawn = secrets.token_hex(4)
    done = accepted(
        await ask.service.change_fleets(
            ask.user, lambda fleets, now_ms: commands.set_fleet(fleets, spec, ask.user, drawn, now_ms)
        )
    )
    return ChangeAnswer(seq=done.seq)


def _spec(name: str, body: FleetBody) -> FleetSpec:
    try:
        read_settings(kind_of(body.on), body.settings)
        shape = None if body.shape is None else _shape(body.shape)
    except BadSettings as wrong:
        raise Unable(422, "bad_settings", str(wrong), field=wrong.field) from None
    return FleetSpec(
        name=name, kind=body.on, settings=body.settings, nodes_min=body.nodes_min, nodes_max=body.nodes_max,
        lasts_ms=body.lasts_ms, idle_ms=body.idle_ms, shape=shape, price_milli=body.price_milli,
        cost_max_milli=body.cost_max_milli,
    )  # fmt: skip


def _shape(body: ShapeBody) -> NodeShape:
    try:
        gpus = simulated(body.gpus) if body.gpus else ()
    except ValueError as wrong:
        raise BadSettings(str(wrong), "shape") from None
    said: dict[str, Any] = {CPU_MILLI: body.cpu_milli, MEMORY_MIB: body.memory_mib}
    return NodeShape(gpus, amounts({name: value for name, value in said.items() if value is not None}))


def _view(ask: Ask, fleet: Fleet) -> FleetView:
    spec, now_ms = fleet.spec, ask.service.now_ms()
    pilots = tuple(_pilot_view(ask, pilot) for pilot in fleet.pilots.values())
    return FleetView(
        name=spec.name, owner=fleet.owner, on=spec.kind, settings=spec.settings, nodes_min=spec.nodes_min,
        nodes_max=spec.nodes_max, wanted=0 if fleet.is_recalled else len(fleet.wanted),
        joined=sum(pilot.node for pilot in pilots), lasts_ms=spec.lasts_ms, idle_ms=spec.idle_ms,
        leaving=fleet.is_recalled, trouble=fleet.trouble, price_milli=spec.price_milli,
        cost_milli=fleet.cost_milli(now_ms), cost_max_milli=spec.cost_max_milli, pilots=pilots,
    )  # fmt: skip


def _pilot_view(ask: Ask, pilot: Pilot) -> PilotView:
    node = ask.service.state.nodes.get(pilot.name)
    return PilotView(
        name=pilot.name, phase=pilot.phase.value if pilot.phase is not None else "ordered", where=pilot.where,
        why=pilot.why, ordered_ms=pilot.ordered_ms, joined_ms=pilot.joined_ms, until_ms=pilot.until_ms,
        leaving=pilot.recalled_ms is not None, node=node is not None and not node.lost,
    )  # fmt: skip
