"""A real Slurm that keeps accounts: what they tell of pilots that it has forgotten, and what they are not believed."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.providers.base import PilotOrder, PilotPhase, Provider
from corral.providers.slurm import opened
from tests.e2e.slurm_server import SlurmServer
from tests.providers.private_slurmdbd import AccountedSlurm, why_not
from tests.providers.slurm_cluster import pilot_settings

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(bool(why_not()), reason=f"Slurm's accounts: {why_not()}"),
]

PATIENCE_S = 30.0
CLUSTER = "c0ffee"
#: Slurm's sacct, counted.
_SACCT = """#!/bin/sh
PATH=${PATH#*:}
echo asked >>"$(dirname "$0")/asked"
exec sacct "$@"
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[AccountedSlurm]:
    made = AccountedSlurm(nodes=2)
    made.start()
    script = made.folder / "bin" / "sacct"
    script.write_text(_SACCT)
    script.chmod(0o755)
    path, os.environ["PATH"] = os.environ["PATH"], made.env["PATH"]
    yield made
    os.environ["PATH"] = path
    made.stop()


def provider(slurm: AccountedSlurm, runs: str = "exec sleep 1000", nodelist: str = "") -> Provider:
    """A new one remembers nothing, as after a restart of the server. ``runs``: in place of an agent."""
    return opened(pilot_settings(slurm, corral=("sh", "-c", runs), gpus=4, nodelist=nodelist), CLUSTER)


def order(pilot: str) -> PilotOrder:
    return PilotOrder(pilot=pilot, urls=("http://127.0.0.1:1",), token="once")


def until(what: str, holds: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.1)


def is_running(slurm: AccountedSlurm, pilot: str) -> bool:
    return slurm.command("squeue", "-h", f"--name=corral-{CLUSTER}-{pilot}", "--format=%T").strip() == "RUNNING"


def recorded(slurm: AccountedSlurm, pilot: str) -> list[str]:
    words = ["sacct", "-nPXD", f"--name=corral-{CLUSTER}-{pilot}", "--starttime=now-1days", "--format=State"]
    return slurm.command(*words).splitlines()


def cancel(slurm: AccountedSlurm, pilot: str) -> None:
    slurm.command("scancel", f"--name=corral-{CLUSTER}-{pilot}")


def until_forgotten(slurm: AccountedSlurm, pilot: str) -> None:
    words = ["squeue", "-h", "--states=all", f"--name=corral-{CLUSTER}-{pilot}", "--format=%i"]
    until(f"Slurm has forgotten {pilot}", lambda: not slurm.command(*words).strip())


def until_recorded(slurm: AccountedSlurm, pilot: str, *states: str) -> None:
    until(f"{pilot} is {' or '.join(states)} in the accounts", lambda: set(recorded(slurm, pilot)) & set(states))


def asked(slurm: AccountedSlurm) -> int:
    path = slurm.folder / "bin" / "asked"
    return len(path.read_text().split()) if path.exists() else 0


def told(slurm: AccountedSlurm, *pilots: str) -> dict[str, str]:
    """What a server that has just started gets: why each has ended."""
    sightings = provider(slurm).look(pilots)
    assert all(each.phase is PilotPhase.ENDED and each.left_ms is None for each in sightings)
    return {each.pilot: each.why for each in sightings}


@pytest.fixture(scope="module")
def over(slurm: AccountedSlurm) -> tuple[str, ...]:
    """One was cancelled, one lost its node, one was cancelled while it waited, one failed; Slurm has forgotten all."""
    provider(slurm, nodelist="n0").acquire([order("cancelled")])
    provider(slurm, nodelist="n1").acquire([order("lost")])
    until("both run", lambda: is_running(slurm, "cancelled") and is_running(slurm, "lost"))
    provider(slurm).acquire([order("waiting")])
    time.sleep(0.5)
    cancel(slurm, "waiting")
    cancel(slurm, "cancelled")
    slurm.command("scontrol", "update", "nodename=n1", "state=down", "reason=test")
    slurm.command("scontrol", "update", "nodename=n1", "state=resume")
    provider(slurm, runs="exit 3").acquire([order("failed")])
    for pilot in (pilots := ("cancelled", "lost", "waiting", "failed")):
        until_forgotten(slurm, pilot)
        until_recorded(slurm, pilot, "CANCELLED by 0", "NODE_FAIL", "FAILED")
    return pilots


def test_how_a_pilot_ended_is_reported_when_slurm_has_forgotten_it(
    slurm: AccountedSlurm, over: tuple[str, ...]
) -> None:
    why = told(slurm, *over, "never")
    assert why.keys() == set(over)
    assert why["cancelled"].endswith("was cancelled by root")
    assert why["waiting"].endswith("was cancelled by root")
    assert why["lost"].endswith("lost its node")
    assert "failed with exit code 3; see pilot.log" in why["failed"]

    before, lasting = asked(slurm), provider(slurm)
    for _ in range(5):
        assert len(lasting.look([*over, "never"])) == 4
    assert asked(slurm) - before == 1, "the same is not asked at every look"


def test_no_one_asks_the_accounts_about_what_slurm_knows(slurm: AccountedSlurm) -> None:
    seen = provider(slurm)
    seen.acquire([order("known")])
    until("it runs", lambda: is_running(slurm, "known"))
    before = asked(slurm)
    assert [each.phase for each in seen.look(["known"])] == [PilotPhase.STARTED]
    seen.acquire([order("known")])
    seen.release("known")
    assert asked(slurm) == before
    cancel(slurm, "known")


def test_what_the_accounts_hold_to_be_running_is_not_there_and_is_submitted_again(slurm: AccountedSlurm) -> None:
    """The controller comes back with an older state: the record of what it lost stays as it is, for ever."""
    old = slurm.folder / "old"
    slurm.stop_controller()
    shutil.copytree(slurm.folder / "state", old)
    slurm.start_controller()
    provider(slurm).acquire([order("runaway")])
    until_recorded(slurm, "runaway", "RUNNING")
    slurm.kill_controller()
    shutil.rmtree(slurm.folder / "state")
    old.rename(slurm.folder / "state")
    slurm.start_controller()
    until_forgotten(slurm, "runaway")
    assert recorded(slurm, "runaway") == ["RUNNING"]
    assert told(slurm, "runaway") == {}

    again = provider(slurm)
    again.acquire([order("runaway")])
    again.acquire([order("runaway")])
    assert len(slurm.command("squeue", "-h", f"--name=corral-{CLUSTER}-runaway", "--format=%i").split()) == 1
    assert [each.phase for each in again.look(["runaway"])] != [PilotPhase.ENDED]
    cancel(slurm, "runaway")


def test_what_a_controller_without_its_state_writes_off_says_nothing(
    slurm: AccountedSlurm, over: tuple[str, ...]
) -> None:
    provider(slurm).acquire([order("orphan")])
    until_recorded(slurm, "orphan", "RUNNING")
    slurm.kill_controller()
    slurm.start_controller("-c")
    until_recorded(slurm, "orphan", "CANCELLED")
    assert told(slurm, *over, "orphan").keys() == set(over), "but what ended before is still known"


def test_accounts_that_are_down_or_hang_do_no_harm(slurm: AccountedSlurm, over: tuple[str, ...]) -> None:
    assert told(slurm, *over).keys() == set(over)
    slurm.signal_accounting(signal.SIGSTOP)
    began = time.monotonic()
    hung = provider(slurm)
    assert list(hung.look(over)) == []
    assert time.monotonic() - began < 10
    began = time.monotonic()
    assert list(hung.look(over)) == []
    assert time.monotonic() - began < 2, "it is not waited for again"

    slurm.kill_accounting()
    alone = provider(slurm)
    assert list(alone.look(over)) == []
    alone.acquire([order("present")])
    until("a pilot runs", lambda: is_running(slurm, "present"))
    assert [each.phase for each in alone.look([*over, "present"])] == [PilotPhase.STARTED]
    alone.release("present")
    cancel(slurm, "present")

    slurm.start_accounting()
    assert told(slurm, *over).keys() == set(over)


def test_a_server_that_was_away_learns_how_a_pilot_ended_meanwhile(tmp_path: Path) -> None:
    with SlurmServer(tmp_path / "bed", slurm=AccountedSlurm(nodes=2)) as slurm_server:
        slurm_server.up(1)
        slurm_server.until_joined(1)
        [(number, _, pilot)] = slurm_server.live_jobs()
        slurm_server.bed.kill("server")
        slurm_server.slurm.command("scancel", number)
        until("Slurm has forgotten it", lambda: not slurm_server.jobs_of_slurm())
        slurm_server.bed.restart("server")
        slurm_server.until("its end is reported", lambda: slurm_server.events("PilotEnded"))
        [ended] = slurm_server.events("PilotEnded")
        assert (ended.data["pilot"], ended.data["why"]) == (pilot, f"job {number} was cancelled by root")
        slurm_server.until("another takes its place", lambda: slurm_server.fleet().joined == 1)
