"""The routes of batching queues, as data; a part of the table in ``api.routes``."""

from __future__ import annotations

from corral.server.api.http.route import BodyKind, Route
from corral.server.auth import Verb
from corral.server.batches import batch_handlers as batch
from corral.wire import api

BATCH = (
    Route(
        method="GET", path="/v1/batch", tag="batch", verb=Verb.JOBS_READ, handler=batch.list_queues,
        summary="List batching queues", answer=api.BatchQueueList,
    ),
    Route(
        method="GET", path="/v1/batch/{batch}", tag="batch", verb=Verb.JOBS_READ, handler=batch.show_queue,
        summary="Show a batching queue with its statistics", answer=api.BatchQueueView, statuses=(404,),
    ),
    Route(
        method="PUT", path="/v1/batch/{batch}", tag="batch", verb=Verb.JOBS_SUBMIT, handler=batch.set_queue,
        summary="Create a batching queue or change its settings", kind=BodyKind.SHAPE, body=api.BatchQueueBody,
        answer=api.BatchDone, statuses=(403, 404, 409, 422),
        example={"queue": "default", "handler": "embed:embed", "max_batch_wait": "20ms"},
    ),
    Route(
        method="DELETE", path="/v1/batch/{batch}", tag="batch", verb=Verb.JOBS_CHANGE, handler=batch.remove_queue,
        summary="Delete a batching queue with all its items; its workers are cancelled", answer=api.BatchDone,
        statuses=(403, 404),
    ),
    Route(
        method="POST", path="/v1/batch/{batch}", tag="batch", verb=Verb.JOBS_SUBMIT, handler=batch.submit_items,
        summary="Submit items; wait for their results, or ask for them later",
        about="With wait_ms the answer has the results of all items that ended within that time. An item with a known "
        "id is not run again. Items that are refused have state `refused`, a reason and, if it helps, retry_ms.",
        kind=BodyKind.SHAPE, body=api.BatchItemsBody, answer=api.ItemList, statuses=(403, 404, 422),
        example={"items": ["a sentence", "another"], "wait_ms": 10000},
    ),
    Route(
        method="POST", path="/v1/batch/{batch}/results", tag="batch", verb=Verb.JOBS_READ, handler=batch.results,
        summary="Results of items by their ids",
        about="JSON; or with Accept: text/event-stream one server-sent event per item, when it has ended.",
        kind=BodyKind.SHAPE, body=api.BatchPollBody, answer=api.ItemList, also=(batch.KIND,), item=api.ItemView,
        statuses=(404, 422), example={"ids": ["1", "2"], "wait_ms": 10000},
    ),
    *(
        Route(
            method="POST", path=f"/v1/batch/{{batch}}/{word}", tag="batch", verb=Verb.JOBS_CHANGE, handler=handler,
            summary=summary, answer=api.BatchDone, statuses=(403, 404),
        )
        for word, handler, summary in (
            ("flush", batch.flush, "Dispatch the items that wait now without waiting for more"),
            ("drain", batch.drain, "Accept no more items; finish those that wait"),
            ("undrain", batch.undrain, "Accept items again"),
        )
    ),
)  # fmt: skip
