"""How fast a machine that spoils work is found, and how often a healthy one is condemned. The last line is JSON.

    PYTHONPATH=src:. python -m tests.bench.lemons [--seeds 3] [--first-seed 0] [--kinds plain,rerun,...]

A simulated month of events, through the very code with which the server judges (`EndHistory.take` and `.lemons`, a look
every 15 minutes); there is no engine, no placement and no agent: jobs go to nodes that are drawn evenly, and no
work is placed on a found lemon. There are 200 users and 20 jobs a day for each node; 20 % end by an error of the
user, of which some print what looks like a fault of the network or the GPU (always the same users more than others),
and some are arrays that fail as a whole. Healthy machines spoil 3 of 1,000 jobs. One machine in a hundred becomes a
lemon at a random time and spoils 30 % to 90 % of its jobs; of what it spoils, a fifth looks like a plain error of the
user. That is the ``plain`` month, in which nothing runs twice. Others differ from it:

- ``rerun``: work that met what looks like a fault runs again elsewhere, as Corral does it; broken programs fail again.
- ``outage``: as ``rerun``, and on one day a shared filesystem fails for six hours: 80 % of the work everywhere.
- ``broken``: two teams of three users, 80 % of whose jobs are broken and half of those print what looks like a fault;
  each team runs on four nodes only.
- ``none``: as ``plain``, without a lemon.

``found_within_10``: the share of lemons in plain months that were found before they had spoilt more than ten jobs.
``healthy_condemned``: the most healthy machines that were condemned in any month of any kind.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

from corral.core import events as e
from corral.core.cluster.resources import Seat
from corral.core.model import Cause, FailureClass, JobSpec
from corral.server.node_health.end_history import EndHistory
from corral.wire.health import HealthSettings

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
USERS, JOBS_A_DAY = 200, 20  # the latter on each node
LEMONS, USER_ERRORS, BACKGROUND = 0.01, 0.2, 0.003
FAILURES_MAX = 10
LOOK_MS = HOUR_MS // 4
SPEC = JobSpec(queue="team", gangs=())
FAULTS = (FailureClass.GPU_FAULT, FailureClass.NETWORK, FailureClass.START_FAILED)
RUNS_MAX = 4  # of a program that fails each time
OUTAGE_HOURS, OUTAGE_RATE = 6, 0.8
BROKEN_TEAMS, BROKEN_RATE = 2, 0.8
KINDS = ("plain", "rerun", "outage", "broken", "none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--kinds", default=",".join(KINDS))
    asked = parser.parse_args()
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    wanted = [(seed, asked.nodes, asked.days, kind) for seed in seeds for kind in asked.kinds.split(",")]
    months = []
    with ProcessPoolExecutor() as pool:
        for month in pool.map(_month, wanted):
            months.append(month)
            print(json.dumps(month), flush=True)
    print(json.dumps({"nodes": asked.nodes, "seeds": asked.seeds} | summed(months)))


def _month(wanted: tuple[int, int, int, str]) -> dict[str, Any]:
    return Month(*wanted).run()


def summed(months: list[dict[str, Any]]) -> dict[str, Any]:
    plain = [month for month in months if month["kind"] == "plain"]
    kinds = dict.fromkeys(month["kind"] for month in months)
    return {
        "lemons": sum(month["lemons"] for month in plain),
        "found_within_10": _found(plain),
        "healthy_condemned": max(month["healthy_condemned"] for month in months),
        "failures_median": statistics.median([each for month in plain for each in month["failures"]] or [0]),
        "found_within_10_by_kind": {
            kind: _found([month for month in months if month["kind"] == kind]) for kind in kinds if kind != "none"
        },
        "healthy_condemned_by_kind": {
            kind: sum(month["healthy_condemned"] for month in months if month["kind"] == kind) for kind in kinds
        },
    }


def _found(months: list[dict[str, Any]]) -> float:
    found: int = sum(each["found_within_10"] for each in months)
    lemons: int = sum(each["lemons"] for each in months)
    return round(found / max(1, lemons), 3)


class Work(NamedTuple):
    """A job, as often as it runs. ``failure``: how its program fails by itself, each time."""

    job: str
    user: str
    nodes: int
    failure: FailureClass | None
    runs: int = 1
    avoid: str = ""


class Month:
    def __init__(self, seed: int, nodes: int, days: int, kind: str = "plain") -> None:
        self.rng = random.Random(seed)
        self.seed, self.days, self.kind, self.nodes = seed, days, kind, [f"n{n}" for n in range(nodes)]
        spoilt = self.rng.sample(self.nodes, 0 if kind == "none" else max(1, round(nodes * LEMONS)))
        begins = {node: self.rng.uniform(0, 0.8) * days * DAY_MS for node in spoilt}
        self.lemons = {node: (at, self.rng.uniform(0.3, 0.9)) for node, at in begins.items()}
        self.printers = {f"u{n}" for n in range(0, USERS, 20)}  # who print more than others
        self.bound = self._teams() if kind == "broken" else {}
        day_ms = self.rng.randrange(1, max(2, days - 1)) * DAY_MS
        starts = [self.rng.uniform(day_ms, day_ms + DAY_MS) for _ in range(OUTAGE_HOURS if kind == "outage" else 0)]
        self.outages = [(start_ms, start_ms + HOUR_MS) for start_ms in starts]
        self.again: list[tuple[int, Work]] = []  # a heap of what runs again, and when
        self.history, self.settings = EndHistory(), HealthSettings()
        self.spoiling = dict.fromkeys(spoilt, 0)
        self.found: dict[str, int] = {}
        self.condemned: dict[str, str] = {}
        self.jobs = 0

    def _teams(self) -> dict[str, list[str]]:
        """Users that are bound to few nodes."""
        teams = [self.rng.sample(self.nodes, 4) for _ in range(BROKEN_TEAMS)]
        return {f"u{1 + 3 * n + member}": team for n, team in enumerate(teams) for member in range(3)}

    def run(self) -> dict[str, Any]:
        began = time.perf_counter()
        step_ms = round(DAY_MS / (JOBS_A_DAY * len(self.nodes)))
        look_ms = now_ms = 0
        while now_ms < self.days * DAY_MS:
            now_ms += step_ms
            self._new_job(now_ms)
            while self.again and self.again[0][0] <= now_ms:
                self._run(now_ms, heapq.heappop(self.again)[1])
            if now_ms >= look_ms:
                look_ms = now_ms + LOOK_MS
                self._look(now_ms)
        soon = sum(count <= FAILURES_MAX for count in self.found.values())
        return {
            "kind": self.kind, "seed": self.seed, "jobs": self.jobs, "lemons": len(self.lemons),
            "found": len(self.found), "found_within_10": soon, "healthy_condemned": len(self.condemned),
            "failures": sorted(self.found.values()), "why": [*self.condemned.values()],
            "seconds": round(time.perf_counter() - began, 1),
        }  # fmt: skip

    def _new_job(self, now_ms: int) -> None:
        """One job, or, rarely, an array of one user that fails as a whole on few nodes."""
        rng = self.rng
        user = f"u{int(rng.random() * USERS)}"
        self.jobs += 1
        job = str(self.jobs)
        self.history.take(e.JobSubmitted(now_ms, job, SPEC, user))
        if rng.random() < 0.0005:
            failure = rng.choice((FailureClass.USER_ERROR, *FAULTS[:2]))
            nodes = rng.sample(self.nodes, 3)
            for index in range(60):
                self._ends(now_ms, f"{job}[{index}]/main", [rng.choice(nodes)], failure)
            return
        chance = rng.random()
        count = 1 if chance < 0.9 else 2 if chance < 0.95 else 4
        is_broken = rng.random() < (BROKEN_RATE if user in self.bound else USER_ERRORS)
        self._run(now_ms, Work(job, user, count, self._error(user) if is_broken else None))

    def _error(self, user: str) -> FailureClass:
        prints = self.rng.random() < (0.5 if user in self.printers or user in self.bound else 0.05)
        return self.rng.choice(FAULTS[:2]) if prints else FailureClass.USER_ERROR

    def _run(self, now_ms: int, work: Work) -> None:
        nodes = self._drawn(work)
        failure, where = self._fate(now_ms, work, nodes)
        self._ends(now_ms, f"{work.job}/main", nodes, failure, where)
        may_repeat = self.kind in ("rerun", "outage") and work.runs < RUNS_MAX
        if may_repeat and failure is not None and failure is not FailureClass.USER_ERROR:
            later_ms = now_ms + round(self.rng.uniform(0.2, 3) * HOUR_MS)
            heapq.heappush(self.again, (later_ms, work._replace(runs=work.runs + 1, avoid=where)))
        else:
            self.history.take(e.JobForgotten(now_ms, work.job))

    def _drawn(self, work: Work) -> list[str]:
        nodes = self.bound.get(work.user, self.nodes)
        drawn: dict[str, None] = {}
        while len(drawn) < work.nodes:
            node = nodes[int(self.rng.random() * len(nodes))]
            if nodes is not self.nodes or (node not in self.found and node != work.avoid):
                drawn[node] = None
        return list(drawn)

    def _fate(self, now_ms: int, work: Work, nodes: list[str]) -> tuple[FailureClass | None, str]:
        rng = self.rng
        for node in nodes:
            at_ms, rate = self.lemons.get(node, (0.0, 0.0))
            if rate and now_ms >= at_ms and rng.random() < rate:
                self.spoiling[node] += 1
                return (FailureClass.USER_ERROR if rng.random() < 0.2 else rng.choice(FAULTS)), node
        if rng.random() < BACKGROUND * len(nodes):
            return rng.choice(FAULTS), rng.choice(nodes)
        if any(start_ms <= now_ms < end_ms for start_ms, end_ms in self.outages) and rng.random() < OUTAGE_RATE:
            return rng.choice(FAULTS[1:]), rng.choice(nodes)
        return work.failure, rng.choice(nodes) if work.failure else ""

    def _ends(self, now_ms: int, gang: str, nodes: list[str], failure: FailureClass | None, where: str = "") -> None:
        take = self.history.take
        take(e.GangPlaced(now_ms, gang, 1, tuple(Seat(node, 1) for node in nodes)))
        if failure is not None and len(nodes) > 1:
            take(e.GangEvicted(now_ms, gang, 1, Cause.FAILURE, now_ms, failure=failure, node=where))
        take(e.GangStopped(now_ms, gang, 1, failure, int(failure is not None)))

    def _look(self, now_ms: int) -> None:
        for node, why in self.history.lemons(now_ms, self.settings, {}).items():
            if node in self.lemons and now_ms >= self.lemons[node][0]:
                self.found.setdefault(node, self.spoiling[node])
            else:
                self.condemned[node] = why
                self.history.take(e.NodeUndrained(now_ms, node))


if __name__ == "__main__":
    main()
