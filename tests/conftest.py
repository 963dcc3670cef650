"""Options of the test run, and services that several folders of tests share."""

from collections.abc import Iterator

import hypothesis
import pytest

from tests.backends.podman import podman
from tests.database import Database, NoServer

__all__ = ["podman"]  # a fixture

# A machine that is busy with other things is no fault of what is tested.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--accept",
        action="store_true",
        help="rewrite what golden scenarios expect with what the engine does now; then read the diff",
    )


@pytest.fixture(scope="session")
def database() -> Iterator[Database]:
    """A PostgreSQL server for all tests of this process; each takes a database of its own from it."""
    try:
        server = Database()
    except NoServer as missing:
        pytest.skip(str(missing))
    yield server
    server.stop()
