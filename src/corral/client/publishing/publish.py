"""Publishing submissions through a broker, for ``Client.publish``: returns when the broker has confirmed that it stores
them. No server is needed.

Knows how a message is written for each broker. Imports the library of a broker only when that is used.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from corral.client.errors import BadCredentials, ClientError, Unreachable
from corral.wire.brokers.broker_names import (
    BATCH,
    BODY_BYTES_MAX,
    BROKER_VARIABLE,
    ID_CHARS_MAX,
    JOBS,
    KEYS,
    PASSWORD_VARIABLE,
    SUBMIT,
    TOKEN,
    URGENT,
    broker_kind,
    has_password,
    shown_broker,
    with_password,
)

_CONNECT_S = 10.0
_CONFIRM_S = 60.0
_WINDOW = 200  # messages that are published before the first of them is confirmed


class Outgoing(msgspec.Struct, frozen=True):
    """A message to publish."""

    id: str
    body: bytes
    batch: str = ""


def outgoing(documents: Sequence[Any], keys: Sequence[str], batch: str = "") -> list[Outgoing]:
    """The messages of these documents. ``keys``: their message ids; random where none is given."""
    if keys and len(keys) != len(documents):
        raise ValueError(f"there are {len(keys)} keys for {len(documents)} documents")
    made = []
    for document, key in zip(documents, keys or [""] * len(documents), strict=True):
        name, body = key or str(uuid.uuid4()), msgspec.json.encode(document)
        if len(name) > ID_CHARS_MAX:
            raise ValueError(f"a key has at most {ID_CHARS_MAX} characters, not {len(name)}")
        if len(body) > BODY_BYTES_MAX:
            what = f"a document has {len(body)} bytes; a message of a broker may have {BODY_BYTES_MAX}"
            raise ClientError(what, "put the data into a file that the job reads, or submit to the server")
        made.append(Outgoing(name, body, batch))
    return made


def broker_address(given: str, environment: Mapping[str, str] | None = None) -> str:
    """The address with its password, from the argument and the environment."""
    env = os.environ if environment is None else environment
    address, password = given or env.get(BROKER_VARIABLE, ""), env.get(PASSWORD_VARIABLE, "")
    if not address:
        raise BadCredentials("no broker is named", f"give broker=, or set {BROKER_VARIABLE}")
    if not broker_kind(address):
        raise BadCredentials(f"{shown_broker(address)} is not a known broker", "write amqp://user@host/vhost")
    return with_password(address, password) if password and not has_password(address) else address


async def published(address: str, token: str, messages: Sequence[Outgoing], *, is_urgent: bool) -> list[str]:
    """The ids of the messages, when all of them are stored by the broker."""
    if not token:
        raise BadCredentials("there is no token to put into the message", "see corral login, or set CORRAL_TOKEN")
    kind = broker_kind(address)
    try:
        send = _to_rabbitmq if kind == "rabbitmq" else _to_redis
        async with asyncio.timeout(_CONFIRM_S):
            await send(address, token, messages, URGENT if is_urgent else JOBS)
    except ModuleNotFoundError:
        hint = f"pip install 'corral-scheduler[{kind}]'"
        raise ClientError(f"the library for {kind} is not installed", hint) from None
    except TimeoutError:
        raise _unconfirmed(address, "it did not answer in time") from None
    except OSError as error:
        raise _unconfirmed(address, str(error)) from None
    return [message.id for message in messages]


def _unconfirmed(address: str, why: str) -> Unreachable:
    what = f"the broker at {shown_broker(address)} did not confirm: {why}"
    return Unreachable(what, "publish again with the same keys: each becomes one job", connected=True)


def _headers(token: str, batch: str) -> dict[str, Any]:
    return {TOKEN: token} | ({BATCH: batch} if batch else {})


async def _to_rabbitmq(address: str, token: str, messages: Sequence[Outgoing], lane: str) -> None:
    import aio_pika
    from aio_pika.exceptions import AMQPError, DeliveryError

    for library in ("aio_pika", "aiormq"):  # without a handler, Python prints what they log
        logging.getLogger(library).addHandler(logging.NullHandler())
    try:
        connection = await aio_pika.connect(address, timeout=_CONNECT_S)
        async with connection:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            submit = await channel.get_exchange(SUBMIT)
            for start in range(0, len(messages), _WINDOW):
                confirms = (
                    submit.publish(
                        aio_pika.Message(
                            each.body,
                            message_id=each.id,
                            headers=_headers(token, each.batch),
                            content_type="application/json",
                            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                        ),
                        KEYS[lane],
                        mandatory=True,
                    )
                    for each in messages[start : start + _WINDOW]
                )
                await asyncio.gather(*confirms)
    except DeliveryError:
        raise _unconfirmed(address, "it has no queue for submissions; is an intake set up?") from None
    except AMQPError as error:
        raise _unconfirmed(address, f"{type(error).__name__}: {error}"[:200]) from None
    except (asyncio.InvalidStateError, RuntimeError) as error:
        raise _unconfirmed(address, str(error)[:200]) from None


async def _to_redis(address: str, token: str, messages: Sequence[Outgoing], lane: str) -> None:
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    redis: Any = Redis.from_url(address, socket_timeout=_CONFIRM_S, socket_connect_timeout=_CONNECT_S)
    try:
        for start in range(0, len(messages), _WINDOW):
            async with redis.pipeline(transaction=False) as pipe:
                for each in messages[start : start + _WINDOW]:
                    pipe.xadd(lane, {"id": each.id, "body": each.body, **_headers(token, each.batch)})
                await pipe.execute()
    except RedisError as error:
        raise _unconfirmed(address, f"{type(error).__name__}: {error}"[:200]) from None
    finally:
        await redis.aclose()
