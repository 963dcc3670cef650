"""Machines that join, and what their agents say. Each agent speaks for its own node and for no other.

Who asks is compared with whom they speak for, here and nowhere else; whoever speaks for another is refused, and that is
written down. What is said is for the fleet to judge.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TypeVar

import msgspec
import structlog

from corral.backends.base import StaleEpoch
from corral.backends.fleet.border import BadReport, NotYours
from corral.backends.fleet.messages import AgentReport, DesiredAsk, JoinAnswer, LogDelivery
from corral.core.intake import commands as cluster
from corral.core.people import accounts as a
from corral.core.people import commands
from corral.server.api.entry.asking import Ask, Reply, accepted
from corral.server.api.entry.problems import Unable, forbidden, not_found, out_of_scope
from corral.server.api.entry.seam import Fleet
from corral.server.auth import Verb, may, new_token
from corral.wire.api import ChangeAnswer, TokenMade

log = structlog.get_logger(__name__)
T = TypeVar("T")

_JOIN_MS_MAX = 30 * 86_400_000
_WAIT_S_MAX = 30.0


# ---- joining ---------------------------------------------------------------------------------------------


async def make_join_token(ask: Ask) -> Reply:
    if not ask.may(Verb.NODES_CHANGE):
        raise forbidden(Verb.NODES_CHANGE)
    node, span, now_ms = ask.body.node, ask.body.expires_in_ms, ask.service.now_ms()
    if not 0 < span <= _JOIN_MS_MAX:
        raise Unable(422, "bad_expiry", "such a token lives from 1 ms to 30 days", field="expires_in_ms")
    if node and not commands.NODE.fullmatch(node):
        raise Unable(422, "bad_name", f"{node[:100]!r} is not a name for a node", field="node")
    drawn, scope, name = new_token(), (str(Verb.NODE_JOIN),), f"{commands.JOIN}{node}"
    accepted(
        await ask.service.change_accounts(
            ask.user,
            lambda accounts, at_ms: commands.issue_token(
                accounts, drawn.id, ask.user, drawn.digest, name, scope, now_ms + span, at_ms
            ),
        )
    )
    return TokenMade(
        id=drawn.id, user=ask.user, name=name, scope=scope, issued_ms=now_ms, expires_ms=now_ms + span,
        token=drawn.text,
    )  # fmt: skip


async def join(ask: Ask) -> Reply:
    """A token with this scope is not enough: whoever made it must still be allowed to change nodes."""
    _fleet(ask)
    if Verb.NODE_JOIN not in ask.principal.scope:
        raise out_of_scope(Verb.NODE_JOIN)
    if not may(ask.service.accounts.users[ask.user], Verb.NODES_CHANGE, ""):
        raise forbidden(Verb.NODES_CHANGE)
    node, drawn = ask.body.node, new_token()
    accepted(
        await ask.service.change_accounts(
            ask.user,
            lambda accounts, now_ms: commands.admit_node(
                accounts, node, ask.principal.token, drawn.id, drawn.digest, now_ms
            ),
        )
    )
    log.info("node_joined", node=node, by=ask.user)
    return JoinAnswer(node, drawn.text)


async def remove_node(ask: Ask) -> Reply:
    """The credential goes first: nobody can speak for a node that is not there."""
    name = ask.path["node"]
    if not ask.may_somewhere(Verb.NODES_READ):
        raise forbidden(Verb.NODES_READ)
    if name not in ask.service.state.nodes:
        raise not_found("node", name)
    if not ask.may(Verb.NODES_CHANGE):
        raise forbidden(Verb.NODES_CHANGE)
    accepted(cluster.remove_node(ask.service.state, name, ask.service.now_ms()))
    await ask.service.change_accounts(ask.user, lambda accounts, now_ms: commands.dismiss_node(accounts, name, now_ms))
    done = accepted(await ask.service.change(ask.user, lambda state, now_ms: cluster.remove_node(state, name, now_ms)))
    if ask.service.fleet is not None:
        ask.service.fleet.remove(name)
    return ChangeAnswer(seq=done.seq)


# ---- agents ----------------------------------------------------------------------------------------------


async def report(ask: Ask) -> Reply:
    fleet, said = _fleet(ask), _read(ask, AgentReport)
    await _check_speaks_for(ask, said.node)
    try:
        answer = fleet.report(said)
    except StaleEpoch as stale:
        log.warning("newer_server", node=said.node, epoch=stale.highest)
        raise Unable(409, "not_leader", str(stale), "ask the other server") from None
    except NotYours as wrong:
        await _write_down(ask, str(wrong))
        raise Unable(403, "not_yours", str(wrong), "is the agent's data folder that of another machine?") from None
    except BadReport as wrong:
        raise _refused(wrong) from None
    if answer.refused:
        await _write_down(ask, answer.refused)
    return answer


async def desired(ask: Ask) -> Reply:
    """A question stays open until there is something to say. What waits for long is asked again; not of a server that
    is about to end, which would wait for it."""
    fleet, wanted = _fleet(ask), _read(ask, DesiredAsk)
    await _check_speaks_for(ask, wanted.node)
    if ask.shared.closing.is_set():
        raise Unable(503, "not_ready", "the server is going down", "ask again", headers={"Connection": "close"})
    try:
        answer = fleet.desired(wanted)
    except BadReport as wrong:
        raise _refused(wrong) from None
    if answer is not None or wanted.wait_ms <= 0:
        return answer
    thread, news = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the server has ended meanwhile
            thread.call_soon_threadsafe(news.set)

    fleet.when_desired(wanted.node, wake)
    try:
        async with asyncio.timeout(min(wanted.wait_ms / 1000, _WAIT_S_MAX)):
            await news.wait()
    except TimeoutError:
        return None
    return fleet.desired(wanted)


async def logs(ask: Ask) -> Reply:
    fleet, delivery = _fleet(ask), _read(ask, LogDelivery)
    await _check_speaks_for(ask, delivery.node)
    try:
        return await ask.shared.look(fleet.take_logs, delivery)
    except BadReport as wrong:
        raise _refused(wrong) from None


def _refused(wrong: BadReport) -> Unable:
    return Unable(422, "bad_report", str(wrong)[:500], "is the agent of the same version as the server?")


def _fleet(ask: Ask) -> Fleet:
    fleet = ask.service.fleet
    if fleet is None:
        why = "this server runs tasks on its own machine only"
        raise Unable(404, "no_fleet", why, "start it with: corral up --fleet")
    return fleet


def _read(ask: Ask, shape: type[T]) -> T:
    """As the door would, without looking for keys that are there twice: agents are programs, and there are many."""
    try:
        return msgspec.json.decode(ask.body, type=shape)
    except msgspec.ValidationError as error:
        raise Unable(422, "bad_body", str(error)[:300]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unable(400, "bad_json", str(error)[:300]) from None


async def _check_speaks_for(ask: Ask, node: str) -> None:
    if ask.user == commands.node_user(node) and Verb.NODE_SYNC in ask.principal.scope:
        return
    await _write_down(ask, f"{ask.user} tried to speak for node {node[:100]!r}")
    why = f"you are {ask.user}, and do not speak for node {node[:100]!r}"
    raise Unable(403, "not_your_node", why, "each node has a credential of its own: corral node join")


async def _write_down(ask: Ask, what: str) -> None:
    """Into the record, but not as often as somebody may like."""
    log.warning("access_refused", user=ask.user, what=what, request_id=ask.request_id)
    if ask.shared.refusals.take(ask.user, ask.service.now_ms() / 1000) == 0:
        event = a.AccessRefused(ask.service.now_ms(), ask.user, what)
        await ask.service.change_accounts(ask.user, lambda _accounts, _now_ms: [event])
