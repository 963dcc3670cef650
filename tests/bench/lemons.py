"""How fast a machine that spoils work is found, and how often a healthy one is condemned. The last line is JSON.

    PYTHONPATH=src:. python -m tests.bench.lemons [--seeds 3] [--nodes 1000] [--days 30]

A simulated month of events, through the very code with which the server judges (`EndHistory.take` and `.lemons`, a look
every 15 minutes); there is no engine, no placement and no agent: jobs go to nodes that are drawn evenly, and nobody
places work on a lemon that was found. There are 200 users and 20 jobs a day for each node; 20 % end by an error of the
user, of which some print what looks like a fault of the network or the GPU (always the same users more than others),
and some are arrays that fail as a whole. Healthy machines spoil 3 of 1,000 jobs. One machine in a hundred becomes a
lemon at a random time and spoils 30 % to 90 % of its jobs; of what it spoils, a fifth looks like a plain error of the
user. ``found_ratio``: lemons found before they had spoilt more than ten jobs.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from typing import Any

from corral.core import events as e
from corral.core.cluster.resources import Seat
from corral.core.model import Cause, FailureClass, JobSpec
from corral.server.watch.history import EndHistory
from corral.wire.health import HealthSettings

HOUR_MS = 3_600_000
USERS, JOBS_A_DAY = 200, 20  # the latter on each node
LEMONS, USER_ERRORS, BACKGROUND = 0.01, 0.2, 0.003
FAILURES_MAX = 10
LOOK_MS = HOUR_MS // 4
SPEC = JobSpec(queue="team", gangs=())
FAULTS = (FailureClass.GPU_FAULT, FailureClass.NETWORK, FailureClass.START_FAILED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--days", type=int, default=30)
    asked = parser.parse_args()
    months = []
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        months.append(Month(seed, asked.nodes, asked.days).run())
        print(json.dumps(months[-1]), flush=True)
    print(json.dumps(summed(months)))


def summed(months: list[dict[str, Any]]) -> dict[str, Any]:
    lemons = sum(month["lemons"] for month in months)
    return {
        "months": len(months),
        "lemons": lemons,
        "found_ratio": round(sum(month["found_soon"] for month in months) / max(1, lemons), 3),
        "healthy_condemned": max(month["healthy_condemned"] for month in months),  # in a month
        "failures_median": statistics.median(each for month in months for each in month["failures"] or [0]),
    }


class Month:
    def __init__(self, seed: int, nodes: int, days: int) -> None:
        self.rng = random.Random(seed)
        self.seed, self.days, self.nodes = seed, days, [f"n{n}" for n in range(nodes)]
        spoilt = self.rng.sample(self.nodes, max(1, round(nodes * LEMONS)))
        begins = {node: self.rng.uniform(0, 0.8) * days * 24 * HOUR_MS for node in spoilt}
        self.lemons = {node: (at, self.rng.uniform(0.3, 0.9)) for node, at in begins.items()}
        self.printers = [f"u{n}" for n in range(0, USERS, 20)]  # who print more than others
        self.history, self.settings = EndHistory(), HealthSettings()
        self.spoiling = dict.fromkeys(spoilt, 0)
        self.found: dict[str, int] = {}
        self.condemned: set[str] = set()
        self.jobs = 0

    def run(self) -> dict[str, Any]:
        step_ms = round(24 * HOUR_MS / (JOBS_A_DAY * len(self.nodes)))
        look_ms = now_ms = 0
        while now_ms < self.days * 24 * HOUR_MS:
            now_ms += step_ms
            self._job(now_ms)
            if now_ms >= look_ms:
                look_ms = now_ms + LOOK_MS
                self._look(now_ms)
        soon = sum(count <= FAILURES_MAX for count in self.found.values())
        return {
            "seed": self.seed, "jobs": self.jobs, "lemons": len(self.lemons), "found": len(self.found),
            "found_soon": soon, "healthy_condemned": len(self.condemned), "failures": sorted(self.found.values()),
        }  # fmt: skip

    def _job(self, now_ms: int) -> None:
        """One job, or, rarely, an array of one user that fails as a whole on few nodes."""
        user = f"u{self.rng.randrange(USERS)}"
        if self.rng.random() < 0.0005:
            failure = self.rng.choice((FailureClass.USER_ERROR, *FAULTS[:2]))
            nodes = self.rng.sample(self.nodes, 3)
            self.jobs += 1
            self._take(e.JobSubmitted(now_ms, str(self.jobs), SPEC, user))
            for index in range(60):
                self._ends(now_ms, f"{self.jobs}[{index}]/main", [self.rng.choice(nodes)], failure)
            return
        self.jobs += 1
        count = self.rng.choice((1,) * 18 + (2, 4))
        usable = [node for node in self.rng.sample(self.nodes, count + 12) if node not in self.found]
        self._take(e.JobSubmitted(now_ms, str(self.jobs), SPEC, user))
        nodes = usable[:count]
        self._ends(now_ms, f"{self.jobs}/main", nodes, *self._fate(now_ms, user, nodes))
        self._take(e.JobForgotten(now_ms, str(self.jobs)))

    def _fate(self, now_ms: int, user: str, nodes: list[str]) -> tuple[FailureClass | None, str]:
        rng = self.rng
        for node in nodes:
            at_ms, rate = self.lemons.get(node, (0.0, 0.0))
            if now_ms >= at_ms and rng.random() < rate:
                self.spoiling[node] += 1
                return (FailureClass.USER_ERROR if rng.random() < 0.2 else rng.choice(FAULTS)), node
        if rng.random() < BACKGROUND * len(nodes):
            return rng.choice(FAULTS), rng.choice(nodes)
        if rng.random() < USER_ERRORS:
            prints = rng.random() < (0.5 if user in self.printers else 0.05)
            return (rng.choice(FAULTS[:2]) if prints else FailureClass.USER_ERROR), rng.choice(nodes)
        return None, ""

    def _ends(self, now_ms: int, gang: str, nodes: list[str], failure: FailureClass | None, where: str = "") -> None:
        self._take(e.GangPlaced(now_ms, gang, 1, tuple(Seat(node, 1) for node in nodes)))
        if failure is not None and len(nodes) > 1:
            self._take(e.GangEvicted(now_ms, gang, 1, Cause.FAILURE, now_ms, failure=failure, node=where))
        self._take(e.GangStopped(now_ms, gang, 1, failure, int(failure is not None)))

    def _take(self, event: e.Event) -> None:
        self.history.take(event)

    def _look(self, now_ms: int) -> None:
        for node in self.history.lemons(now_ms, self.settings, {}):
            if node in self.lemons and now_ms >= self.lemons[node][0]:
                self.found.setdefault(node, self.spoiling[node])
            else:
                self.condemned.add(node)
                self._take(e.NodeUndrained(now_ms, node))


if __name__ == "__main__":
    main()
