"""Publishes state changes of jobs, and results of items, through a broker: at least once, in order of the journal.

The number of the last published record is stored in the broker after the events, so a relay that starts again
continues there, and what was published in between is published twice with the same id. Knows the seams only.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import structlog

from corral.integrations.broker import Broker, PendingItems, StateChange
from corral.integrations.intake_loop import IntakeLoop, RequestFailed, ServerAway, ServerPort
from corral.wire.api.batch import ItemView
from corral.wire.api.record import EventView
from corral.wire.brokers.broker_names import routing_key, state_word

log = structlog.get_logger(__name__)

_LOOK_S = 0.5
_AWAY_S = 2.0
_ITEMS_AT_ONCE = 1_000  # messages whose items are looked at together
#: What other programs need of an event. The rest, such as commands and variables of jobs, stays on the server.
_SHOWN = (
    "attempt", "cause", "deadline_ms", "exit_code", "failure", "path", "save_ms", "state", "step", "succeeded", "why",
)  # fmt: skip


class EventRelay:
    """State changes of jobs."""

    def __init__(self, server: ServerPort, intake: IntakeLoop) -> None:
        self._server = server
        self._intake = intake

    async def run(self, broker: Broker) -> None:
        cursor = await broker.cursor()
        if cursor is not None:
            log.info("events_continue", record=cursor)
        while True:
            try:
                cursor = await self._publish(broker, cursor)
            except ServerAway as away:
                await asyncio.sleep(max(away.wait_s, _AWAY_S))
            except RequestFailed as failed:
                log.error("events_not_published", why=str(failed))
                await asyncio.sleep(10 * _AWAY_S)

    async def _publish(self, broker: Broker, cursor: int | None) -> int:
        """Publish the next events. Without a cursor, only what happens from now on is published."""
        page = await self._server.events(cursor)
        if cursor is None or page.head < cursor:
            log.warning("events_begin", record=page.head, cursor=cursor)
            await broker.publish([], page.head)
            return page.head
        if page.next == cursor:
            await asyncio.sleep(_LOOK_S)
            return cursor
        await broker.publish([change_of(event) for event in page.events], page.next)
        self._intake.published = page.next
        return page.next


def change_of(event: EventView) -> StateChange:
    """The event as it is published, without what only its job needs."""
    state = state_word(event.type, event.data)
    shown: dict[str, Any] = {name: event.data[name] for name in _SHOWN if name in event.data}
    body = {
        "seq": event.seq, "at_ms": event.at_ms, "state": state, "job": event.job, "gang": event.gang,
        "queue": event.queue, "user": event.user, "type": event.type, "text": event.text, "data": shown,
    }  # fmt: skip
    return StateChange(str(event.seq), routing_key(state, event.user, event.queue), msgspec.json.encode(body))


class ItemRelay:
    """Results of items that came through the broker."""

    def __init__(self, server: ServerPort) -> None:
        self._server = server

    async def run(self, broker: Broker) -> None:
        held: list[tuple[Any, PendingItems]] = []
        while True:
            held += await broker.pending_items(_ITEMS_AT_ONCE - len(held))
            left = []
            for mark, pending in held:
                try:
                    changes = await self._results(pending)
                except (ServerAway, RequestFailed):
                    changes = None
                if changes is None:
                    left.append((mark, pending))
                    continue
                await broker.publish(changes, None)
                await broker.drop_items([mark])
            held = left
            await asyncio.sleep(_LOOK_S)

    async def _results(self, pending: PendingItems) -> list[StateChange] | None:
        """All of them together; None: some have not ended."""
        views = await self._server.results(pending.batch, pending.ids)
        if views is None:
            views = [ItemView(id=each, state="unknown", error="the batching queue was deleted") for each in pending.ids]
        if any(view.state == "waiting" for view in views):
            return None
        body = {
            "state": "items", "message": pending.message, "batch": pending.batch, "user": pending.user,
            "items": [msgspec.to_builtins(view) for view in views],
        }  # fmt: skip
        key = routing_key("items", pending.user, pending.batch)
        return [StateChange(f"items-{pending.message}", key, msgspec.json.encode(body))]
