"""A live fleet that follows demand, with your own commands: nodes come when work waits, and go when it is done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from corral.cli.fleet.testbed_parts import SERVER, Testbed
from corral.client.blocking import Client
from corral.wire.api.fleets import FleetBody, ShapeBody
from tests.providers.command_provider import end_all, hook_settings

pytestmark = pytest.mark.timeout(200)
IDLE_MS = 4_000


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Testbed]:
    """A server that has no machines, beside a cloud of three."""
    made = Testbed(tmp_path / "bed", nodes=0, lease_ms=2_000)
    (tmp_path / "cloud").mkdir()
    made.start()
    try:
        with made.client() as client:
            client.set_fleet("cloud", fleet(tmp_path, IDLE_MS))
        yield made
    finally:
        made.stop()
        end_all(tmp_path / "cloud")


def fleet(folder: Path, idle_ms: int) -> FleetBody:
    settings = msgspec.to_builtins(hook_settings(folder / "cloud", 3, "8xH100"))
    return FleetBody(
        on="command", settings=settings, nodes_min=0, nodes_max=3, idle_ms=idle_ms, shape=ShapeBody(gpus="8xH100")
    )


def until(what: str, holds: object, within_s: float = 90.0) -> None:
    assert callable(holds)
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, f"not within {within_s:g} s: {what}"
        time.sleep(0.2)


def is_done(client: Client, jobs: list[str]) -> bool:
    return all(client.job(job).state == "succeeded" for job in jobs)


def test_a_hundred_jobs_on_an_empty_fleet(bed: Testbed) -> None:
    document = {"command": "sleep 0.5", "gpus": 1, "cpus": 0.01, "queue": "default", "time_limit": "5m"}
    with bed.client() as client:
        jobs = [each.id for each in client.submit_many([document] * 100).jobs]
        until("the work is done", lambda: is_done(client, jobs))
        until("the nodes went back", lambda: not client.nodes().nodes and not client.fleet("cloud").pilots)
        events = list(
            client.events(0, types=("PilotOrdered", "PilotJoined", "PilotRecalled", "PilotEnded", "GangStopped"))
        )
    ordered = [event for event in events if event.type == "PilotOrdered"]
    assert len(ordered) == 3, "no more than fit, and none twice"
    recalled = [event.at_ms for event in events if event.type == "PilotRecalled"]
    last = max(event.at_ms for event in events if event.type == "GangStopped")
    assert max(recalled) - last <= IDLE_MS + 8_000, "none is held longer than the cool-down"


def test_waves_of_work_do_not_make_nodes_come_and_go_and_a_server_that_is_killed_goes_on(
    bed: Testbed, tmp_path: Path
) -> None:
    with bed.client() as client:
        client.set_fleet("cloud", fleet(tmp_path, 60_000))  # longer than a busy machine takes for a restart
    document = {"command": "sleep 1", "gpus": 8, "cpus": 0.01, "queue": "default", "time_limit": "5m"}
    for wave in range(4):
        with bed.client() as client:
            jobs = [each.id for each in client.submit_many([document] * 2).jobs]
            until("the wave is done", lambda client=client, jobs=jobs: is_done(client, jobs))
        if wave == 1:
            bed.restart(SERVER)
        time.sleep(1.5)
    with bed.client() as client:
        ordered = list(client.events(0, types=("PilotOrdered",)))
        assert len(ordered) == 2
        client.recall_fleet("cloud")
        until("all is given back", lambda: not client.fleets().fleets)
        assert client.nodes().nodes == ()
