"""Options of the test run, and services that several folders of tests share."""

import signal
import threading
from collections.abc import Iterator

import hypothesis
import pytest

from tests.database import Database, NoServer
from tests.kubernetes.control_plane import ControlPlane, NoControlPlane
from tests.runtime.podman import podman, rootless

__all__ = ["podman", "rootless"]  # fixtures

# A machine that is busy with other things is no fault of what is tested.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


# A shell that runs tests in the background has them ignore Ctrl-C, and all that they start would inherit that.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A Kubernetes for all tests of this process, with its nodes ready; each test takes a namespace of its own."""
    try:
        plane = ControlPlane()
    except NoControlPlane as missing:
        pytest.skip(str(missing))
    yield plane
    plane.stop()
