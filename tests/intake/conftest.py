"""Brokers and a server for the tests of this folder: one of each kind for each test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.live import Live
from tests.intake.brokers import NoBroker, PrivateBroker, PrivateRabbit, PrivateRedis


@pytest.fixture(scope="session")
def rabbit() -> Iterator[PrivateRabbit]:
    try:
        broker = PrivateRabbit()
    except NoBroker as missing:
        pytest.skip(str(missing))
    yield broker
    broker.close()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[PrivateRedis]:
    try:
        broker = PrivateRedis()
    except NoBroker as missing:
        pytest.skip(str(missing))
    yield broker
    broker.close()


@pytest.fixture(scope="module", params=["rabbitmq", "redis"])
def broker(request: pytest.FixtureRequest) -> PrivateBroker:
    found: PrivateBroker = request.getfixturevalue("rabbit" if request.param == "rabbitmq" else "redis_server")
    return found


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    server = Live(tmp_path_factory.mktemp("intake") / "data")
    server.start()
    yield server
    server.stop()
    server.end_tasks()
