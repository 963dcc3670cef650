"""Requests about messages of brokers. Each method describes its request; see ``call``."""

from __future__ import annotations

from collections.abc import Sequence

from corral.client.call import ApiCall, call, path
from corral.wire.api.broker_intake import IntakeAnswer, IntakeBody, IntakeList, IntakeMessage, IntakeStatus
from corral.wire.api.record import EventList


class IntakeCalls:
    """Messages of brokers, for ``corral intake``; users publish with ``Client.publish``."""

    @call
    def hand_over(self, messages: Sequence[IntakeMessage], status: IntakeStatus | None = None) -> ApiCall[IntakeAnswer]:
        """Hand over messages of a broker, each submitted as its own user. Repeatable: each message has an id."""
        return ApiCall("POST", path("intake"), IntakeAnswer, body=IntakeBody(messages=list(messages), status=status))

    @call
    def event_page(self, after: int, *, types: Sequence[str] = (), limit: int = 500) -> ApiCall[EventList]:
        """One page of records after a number, with the number at which the next one begins."""
        return ApiCall("GET", path("events"), EventList, {"after": after, "types": tuple(types), "limit": limit})

    @call
    def intakes(self) -> ApiCall[IntakeList]:
        """The intakes of brokers that reported lately."""
        return ApiCall("GET", path("intake"), IntakeList)
