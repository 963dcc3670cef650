"""A server whose machines are lent by a Slurm of its own: for tests of what becomes of fleets there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from corral.cli.fleet.testbed_parts import Testbed
from corral.client.blocking import Client
from corral.wire.api.fleets import FleetBody, FleetView
from corral.wire.api.jobs import JobView
from corral.wire.api.record import EventView
from tests.providers.private_slurm import PrivateSlurm
from tests.providers.slurm_cluster import pilot_settings

PATIENCE_S = 90.0


class SlurmServer:
    """``nodes``: of Slurm, with four GPUs each. The server has no machines but those that it is lent. ``slurm``: one to
    be used instead of a new one; it ends with the rest."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 4,
        lease_ms: int = 4_000,
        kill_wait_s: int = 15,
        slurm: PrivateSlurm | None = None,
    ) -> None:
        self.slurm = slurm or PrivateSlurm(nodes, gpus=4, kill_wait_s=kill_wait_s)
        self.bed = Testbed(folder, nodes=0, lease_ms=lease_ms)
        self._path = os.environ["PATH"]

    def __enter__(self) -> SlurmServer:
        self.slurm.start()
        os.environ["PATH"] = self.slurm.env["PATH"]
        self.bed.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.slurm.command("scancel", "--user=root")
        self.bed.stop()
        self.slurm.stop()
        os.environ["PATH"] = self._path

    # --- asking -------------------------------------------------------------------------------------------------------

    def ask(self, what: Callable[[Client], Any]) -> Any:
        with self.bed.client() as client:
            return what(client)

    def up(self, nodes: int, nodes_max: int | None = None, settings: dict[str, Any] | None = None, **said: Any) -> None:
        told = _plain(pilot_settings(self.slurm)) | (settings or {})
        body = FleetBody(on="slurm", settings=told, nodes_min=nodes, nodes_max=nodes_max or nodes, **said)
        self.ask(lambda client: client.set_fleet("gpu", body))

    def fleet(self) -> FleetView:
        found: FleetView = self.ask(lambda client: client.fleet("gpu"))
        return found

    def jobs_of_slurm(self) -> list[tuple[str, str, str]]:
        """(job, state, pilot) of all it knows, also those that ended."""
        told = self.slurm.command("squeue", "--noheader", "--states=all", "--format=%i|%T|%k")
        lines = [line.split("|") for line in told.splitlines()]
        return [(number, state, comment.rpartition(":")[2]) for number, state, comment in lines]

    def live_jobs(self) -> list[tuple[str, str, str]]:
        return [job for job in self.jobs_of_slurm() if job[1] in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING")]

    def job_of(self, pilot: str) -> str:
        return next(number for number, _, name in self.live_jobs() if name == pilot)

    def events(self, *types: str) -> list[EventView]:
        return self.ask(lambda client: list(client.events(0, types=types)))  # type: ignore[no-any-return]

    def submit(self, command: str, nodes: int = 1, gpus: int = 4, **said: Any) -> str:
        document = {"command": command, "nodes": nodes, "gpus": gpus, "queue": "default", **said}
        return str(self.ask(lambda client: client.submit(document)).id)

    def job(self, number: str) -> JobView:
        found: JobView = self.ask(lambda client: client.job(number))
        return found

    def until(self, what: str, holds: Callable[[], object], within_s: float = PATIENCE_S) -> float:
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > within_s:
                raise AssertionError(f"not within {within_s:g} s: {what}\n{self.told()}")
            time.sleep(0.1)
        return time.monotonic() - began

    def told(self) -> str:
        """For readers of a failed test."""
        lines = [f"{event.seq} {event.at_ms} {event.text}" for event in self.events()[-60:]]
        logs = [
            f"{path}: {path.read_text(errors='replace')[-600:]}"
            for path in self.slurm.folder.glob("spool/**/pilot.log")
        ]
        server = (self.bed.folder / "server" / "server.log").read_text(errors="replace")[-3000:]
        return "\n".join([*lines, *logs, str(self.jobs_of_slurm()), server])

    def until_joined(self, count: int) -> float:
        return self.until(f"{count} nodes joined", lambda: self.fleet().joined == count)


def _plain(settings: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(settings)
    return {name: value for name, value in found.items() if value not in (None, "", [], ())}
