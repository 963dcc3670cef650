"""Which brokers there are, and what each needs. Imports the library of a broker only when that is used."""

from __future__ import annotations

from importlib.util import find_spec

from corral.integrations.broker import Broker, DeadLetters
from corral.wire.brokers.broker_names import broker_kind

#: The module of each, and the extra that installs it.
NEEDS = {"rabbitmq": "aio_pika", "redis": "redis"}


def missing(kind: str) -> str:
    """What has to be installed; empty: nothing."""
    return "" if find_spec(NEEDS[kind]) is not None else f"pip install 'corral-scheduler[{kind}]'"


def broker_of(url: str, *, held_max: int = 500) -> Broker:
    if broker_kind(url) == "rabbitmq":
        from corral.integrations.rabbitmq import RabbitBroker

        return RabbitBroker(url, held_max=held_max)
    from corral.integrations.redis_streams import RedisBroker

    return RedisBroker(url, held_max=held_max)


def dead_letters_of(url: str) -> DeadLetters:
    if broker_kind(url) == "rabbitmq":
        from corral.integrations.rabbitmq import RabbitDeadLetters

        return RabbitDeadLetters(url)
    from corral.integrations.redis_streams import RedisDeadLetters

    return RedisDeadLetters(url)
