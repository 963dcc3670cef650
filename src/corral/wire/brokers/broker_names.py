"""What Corral's queues, exchanges and message headers are called in a broker, and what its events are called there.

Knows texts, for publishers, for the intake, and for the commands that show dead letters. Knows no broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

#: Where submissions wait. The intake empties the urgent one first.
JOBS = "corral.jobs"
URGENT = "corral.jobs.urgent"
LANES = (URGENT, JOBS)
#: The exchange that submissions are published to, and its routing key for each lane.
SUBMIT = "corral.submit"
KEYS = {URGENT: "urgent", JOBS: "jobs"}
#: What was refused, with the reason.
DEAD = "corral.dead"
#: Where state changes of jobs are published: a topic exchange, or a stream.
EVENTS = "corral.events"
#: The number of the last published record of the journal.
CURSOR = "corral.events.cursor"
#: Accepted items of batching queues whose results are still to be published.
ITEMS = "corral.items"

#: Headers of a message.
TOKEN = "corral-token"  # of the user, as for the API
BATCH = "corral-batch"  # the batching queue, if the body has items and no job
#: Of a dead letter, for the broker's own tools.
CODE = "corral-code"

BODY_BYTES_MAX = 1 << 20
ID_CHARS_MAX = 120  # items get a number behind it
ROUTING_KEY_BYTES_MAX = 255

#: Variables of the environment: the broker's address, and its password.
BROKER_VARIABLE = "CORRAL_BROKER"
PASSWORD_VARIABLE = "CORRAL_BROKER_PASSWORD"

_WORDS = {
    "JobSubmitted": "submitted", "JobHeld": "held", "JobReleased": "released", "JobCancelled": "cancelling",
    "JobSuspended": "suspended", "JobResumed": "resumed", "GangPlaced": "starting", "GangStarted": "running",
    "CheckpointCommitted": "checkpoint", "GangEvicted": "stopping", "GangStopped": "stopped",
    "GangRequeued": "requeued", "GangFinished": "finished",
}  # fmt: skip
#: The types of events that are published.
PUBLISHED = (*_WORDS, "JobEnded")


def state_word(type_: str, data: Mapping[str, Any]) -> str:
    """What an event says about a job, as the first word of its routing key."""
    if type_ == "JobEnded":
        return "succeeded" if data.get("succeeded") else "failed"
    return _WORDS[type_]


def routing_key(state: str, user: str, queue: str) -> str:
    """``state.user.lab.vision``: the queue is last, with a word per level: ``*.*.lab.#`` means it and all below.

    Dots in names are written ``%2E``. What would be too long is cut after a whole word.
    """
    words = [state, _word(user or "-"), *map(_word, queue.split("/"))]
    while len(".".join(words)) > ROUTING_KEY_BYTES_MAX:
        words.pop()
    return ".".join(words)


def _word(name: str) -> str:
    return name.replace("%", "%25").replace(".", "%2E")


def broker_kind(url: str) -> str:
    """Which broker an address belongs to; empty: none that is known."""
    scheme = url.partition("://")[0].lower()
    return {"amqp": "rabbitmq", "amqps": "rabbitmq", "redis": "redis", "rediss": "redis"}.get(scheme, "")


def has_password(url: str) -> bool:
    try:
        return urlsplit(url).password is not None
    except ValueError:
        return False


def with_password(url: str, password: str) -> str:
    """The address with a password, which may have any characters."""
    from urllib.parse import quote

    parts = urlsplit(url)
    where = parts.netloc.rpartition("@")
    user = where[0].partition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{where[2]}"))


def shown_broker(url: str) -> str:
    """The address for display: without user and password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "..."
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
