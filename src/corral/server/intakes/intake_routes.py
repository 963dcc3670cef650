"""The routes of intakes, as data; a part of the table in ``api.routes``."""

from __future__ import annotations

from corral.server.api.http.route import BodyKind, Route
from corral.server.auth import Verb
from corral.server.intakes import message_handlers
from corral.wire import api

INTAKE = (
    Route(
        method="POST", path="/v1/intake", tag="intake", verb=Verb.INTAKE, handler=message_handlers.take,
        summary="Hand over messages of a broker, each submitted as its own user",
        about="For `corral intake`. A message has the token of its user, or the name of the user that the broker has "
        "authenticated. Each is judged by itself; its id makes it submitted once.",
        kind=BodyKind.SHAPE, body=api.IntakeBody, answer=api.IntakeAnswer, statuses=(403, 422),
        example={"messages": [{"id": "run-17", "user": "ann", "body": '{"command": "true"}'}]},
    ),
    Route(
        method="GET", path="/v1/intake", tag="intake", verb=Verb.METRICS_READ, handler=message_handlers.show,
        summary="The intakes of brokers that reported lately", answer=api.IntakeList, statuses=(403,),
    ),
)  # fmt: skip
