"""The server, as the intake sees it: over its API, with a token that may hand over messages.

Knows which errors of the client mean that the server is away or behind, and which that something must be set up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TypeVar

from corral.client.asynchronous import AsyncClient
from corral.client.errors import BadCredentials, NotFound, Problem, Unreachable
from corral.integrations.intake_loop import RequestFailed, ServerAway
from corral.wire.api.answers import ProblemView
from corral.wire.api.batch import ItemView
from corral.wire.api.broker_intake import IntakeMessage, IntakeOutcome, IntakeStatus
from corral.wire.api.record import EventList
from corral.wire.brokers.broker_names import PUBLISHED

T = TypeVar("T")

_BUSY = (429, 502, 503, 504, 507)
_SET_UP_S = 10.0


class ApiPort:
    """``client`` must not repeat requests by itself: the intake does."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def hand_over(
        self, messages: Sequence[IntakeMessage], status: IntakeStatus | None
    ) -> Sequence[IntakeOutcome]:
        return (await _asked(self._client.hand_over(messages, status))).outcomes

    async def events(self, after: int | None) -> EventList:
        if after is None:
            newest = await _asked(self._client.newest_event())
            return EventList(events=(), next=newest, head=newest)
        return await _asked(self._client.event_page(after, types=PUBLISHED))

    async def results(self, batch: str, ids: Sequence[str]) -> Sequence[ItemView] | None:
        try:
            return (await _asked(self._client.item_results(batch, ids))).items
        except RequestFailed as failed:
            if failed.problem.status == 404:
                return None
            raise


async def _asked(call: Awaitable[T]) -> T:
    try:
        return await call
    except (Unreachable, BadCredentials) as error:
        raise ServerAway(str(error), is_misconfigured=isinstance(error, BadCredentials)) from None
    except Problem as error:
        if error.status in (401, 403):
            why = f"the token of the intake does not suffice: {error}"
            raise ServerAway(why, _SET_UP_S, is_misconfigured=True) from None
        if error.status in _BUSY or (error.status in (404, 405) and not isinstance(error, NotFound)):
            raise ServerAway(str(error)) from None
        if error.code in ("not_corral", "no_such_path", "no_such_route"):
            raise ServerAway(str(error), _SET_UP_S, is_misconfigured=True) from None
        raise RequestFailed(_view(error)) from None


def _view(error: Problem) -> ProblemView:
    return ProblemView(
        title="",
        status=error.status,
        code=error.code,
        detail=error.detail or str(error),
        hint=error.hint,
        field=error.field,
        request_id=error.request_id,
        type=f"urn:corral:problem:{error.code}",
        faults=error.faults,
    )
