"""Whether a server grows slow or fat with what it has done: jobs submitted, run and finished by the hundred thousand.

A server without its interface, on a real journal, with a backend whose tasks end at once. Rate, memory of server and
planner, and the size of the journal are printed at intervals; the last interval is compared with one after the caches
are full.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import uvloop

from corral.core.cluster.resources import Demand, TaskDemand, amounts
from corral.core.intake.refusal import Refusal
from corral.core.model import GangSpec, JobSpec
from corral.core.work import Work
from corral.runtime.base import TaskKey
from corral.runtime.fake import FakeBackend, FakeScript
from corral.server.recovery import load
from corral.server.server import Server
from corral.server.vault import secrets_of
from corral.store.sqlite.journal import SqliteJournal
from tests.e2e.live import children
from tests.e2e.serving import node
from tests.server.servers import found

AT_ONCE = 200
WAITING_MAX = 1_000
INTERVALS = 20
AT_HAND_JOBS = 40_000  # twice as many as a table of the journal keeps rows in memory


class _Forgetful(FakeBackend):
    """Keeps nothing of a task that is over, as a backend in memory for tests otherwise does."""

    def forget(self, key: TaskKey) -> None:
        super().forget(key)
        self.asked.clear()
        self._logs.pop(key, None)


def measure_history(folder: Path, jobs: int) -> dict[str, Any]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(folder, jobs))


async def _measure(folder: Path, jobs: int) -> dict[str, Any]:
    journal = SqliteJournal(folder)
    found(journal)
    backend = _Forgetful([node()], lambda _: FakeScript(runs_ms=0))
    server = Server(load(journal), journal, journal.lookup, backend, secrets_of(folder))
    await server.begin()
    rows = []
    try:
        for _ in range(INTERVALS):
            rows.append(await _interval(server, folder, jobs // INTERVALS))
            print("history", rows[-1], flush=True)
    finally:
        await server.close()
    first, last = _settled(rows), rows[-1]
    return {
        "history_jobs": sum(row["jobs"] for row in rows),
        "history_jobs_per_cpu_s_first": first["jobs_per_cpu_s"],
        "history_jobs_per_cpu_s_last": last["jobs_per_cpu_s"],
        "history_rate_ratio": round(last["jobs_per_cpu_s"] / first["jobs_per_cpu_s"], 3),
        "history_rss_mib_first": first["rss_mib"],
        "history_rss_mib_last": last["rss_mib"],
        "history_rss_ratio": round(last["rss_mib"] / first["rss_mib"], 3),
        "history_planner_rss_mib_first": first["planner_rss_mib"],
        "history_planner_rss_mib_last": last["planner_rss_mib"],
    }


def _settled(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The first interval in which everything that is kept in memory was full; of a short run, the middle one."""
    done = 0
    for row in rows:
        if done >= AT_HAND_JOBS:
            return row
        done += row["jobs"]
    return rows[len(rows) // 2]


async def _interval(server: Server, folder: Path, jobs: int) -> dict[str, Any]:
    """This many jobs, never more than some waiting."""
    spec, done = _spec(), 0
    began, cpu = time.monotonic(), time.process_time()
    while done < jobs:
        while server.service.state.backlog.count > WAITING_MAX:
            await asyncio.sleep(0.005)
        count = min(AT_ONCE, jobs - done)
        answer = await server.service.submit("root", [spec] * count)
        assert not isinstance(answer, Refusal), answer
        done += count
    while server.service.state.backlog.count or server.service.state.holders:
        await asyncio.sleep(0.005)
    return {
        "jobs": done,
        "jobs_per_s": round(done / (time.monotonic() - began)),
        "jobs_per_cpu_s": round(done / (time.process_time() - cpu)),
        "rss_mib": round(_rss_mib(os.getpid()), 1),
        "planner_rss_mib": round(sum(map(_rss_mib, children(os.getpid()))), 1),
        "journal_mib": round((folder / "journal.db").stat().st_size / 2**20),
    }


def _spec() -> JobSpec:
    demand = Demand(task=TaskDemand(gpus=0, amounts=amounts({"cpu_milli": 1000})), tasks=1)
    return JobSpec(queue="default", gangs=(GangSpec(demand, "main", Work(command=("true",))),))


def _rss_mib(pid: int) -> float:
    """Without what is only a page of a file in memory: the journal itself is none of the server's memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0
