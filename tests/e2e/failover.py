"""Two servers on one database, and the leader is killed again and again while people submit and jobs run.

`python -m tests.e2e.failover --trials 50` ends with one line of JSON. Submissions use the client as people do,
with both addresses, and finds the leader by itself. The killed server is started again and stands by. Both servers are
on this machine and share the folder of its tasks; everything else they keep apart.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from corral.client import Client
from corral.client.errors import Problem, Unreachable
from corral.core.laws import violations
from corral.server.recovery import load
from corral.store.journal import Record, all_records
from corral.store.postgres import PostgresReader, verify
from tests.database import Database
from tests.e2e import kill
from tests.e2e.kill import TASK, Submitter, Tally, Trial
from tests.e2e.live import Live, Refused, Unanswered

TAKEOVER_S_MAX = 10.0


class Pair(Live):
    """Two servers as one, for tests that do not care which of them leads."""

    def __init__(self, folder: Path, address: str, lease_s: float) -> None:
        super().__init__(folder / "a")
        self.address = address
        self.servers = [Live(folder / name, port=port) for name, port in (("a", self.port), ("b", 0))]
        for live in self.servers:
            live.more = ["--database", address, "--tasks", str(folder / "tasks"), "--lease-s", str(lease_s)]
        self._reader: PostgresReader | None = None
        self._client: Client | None = None

    def start(self) -> None:
        for live in self.servers:
            live.start()
            live._token = self.servers[0].token
        self._reader = PostgresReader(self.address)
        self._client = Client(",".join(live.url for live in self.servers), self.token, patience_s=0)

    def leader(self) -> Live | None:
        """Who leads, by the word of the database."""
        assert self._reader is not None
        now = self._reader.leadership()
        return next((live for live in self.servers if now.is_held and live.url == now.url), None)

    def submit(self, document: Any, key: str = "") -> str:
        assert self._client is not None
        try:
            return self._client.submit(document, key=key).id
        except Unreachable as gone:
            raise Unanswered(str(gone)) from None
        except Problem as problem:
            raise Refused(problem.status, problem.code) from None

    def ask(self, method: str, path: str, body: Any = None, *, timeout: float = 30, **headers: str) -> Any:
        return (self.leader() or self.servers[0]).ask(method, path, body, timeout=timeout, **headers)

    def stop(self) -> int:
        assert self._client is not None
        assert self._reader is not None
        self._client.close()
        self._reader.close()
        return max(live.stop() for live in self.servers if live.process is not None)


class Failover(Trial):
    """The leader is killed, the other takes over, the killed one comes back: over and over."""

    def __init__(self, folder: Path, address: str, trials: int, seed: int = 0, lease_s: float = 5.0) -> None:
        self.kills, self.random, self.tally = trials, random.Random(seed), Tally()
        self.live = self.pair = Pair(folder, address, lease_s)
        self.script, self.stop_file = folder / "task.sh", folder / "stop"
        (folder / "ran").mkdir()
        self.script.write_text(TASK)
        self.submitters = [Submitter(self.pair, self.tally, self.script, n) for n in range(2)]
        for each in self.submitters:
            each.pause_s = 0.2
        self.long_jobs: dict[str, str] = {}
        self.takeovers_s: list[float] = []

    def run(self) -> dict[str, Any]:
        self.pair.start()
        self.begin_long_jobs()
        for each in self.submitters:
            each.start()
        for n in range(self.kills):
            time.sleep(self.random.uniform(0.3, 1.0))
            self.fail_over(n)
        for each in self.submitters:
            each.ending.set()
        for each in self.submitters:
            each.join(60)
        figures = self.judge()
        takeovers = sorted(self.takeovers_s)
        return figures | {
            "trials": len(takeovers),
            "takeover_s": round(takeovers[-1], 2),
            "takeover_s_p50": round(takeovers[len(takeovers) // 2], 2),
        }

    def fail_over(self, number: int) -> None:
        killed = self.pair.leader()
        assert killed is not None, "no server leads"
        other = next(live for live in self.pair.servers if live is not killed)
        killed.kill()
        self.tally.killed["server"] += 1
        began = time.monotonic()
        document, key = kill.job(self.script, f"takeover-{number}", self.random)[0], f"takeover-{number}"
        document["command"][-1] = "0"
        while True:
            try:
                self.tally.acknowledged[key] = other.submit(document, key)
                break
            except (Unanswered, Refused) as waits:
                if time.monotonic() - began > 60:
                    raise AssertionError(f"no server took over: {waits}\n{other.errors()}") from None
                time.sleep(0.02)
        self.tally.ends[key] = "succeeded"
        self.takeovers_s.append(time.monotonic() - began)
        killed.start()
        self.tally.back_ms.append(killed.ready_ms)

    def findings(self) -> list[str]:
        """What is wrong with the journal, with the state that it gives, or with its writers."""
        found = [finding.text for finding in verify(self.pair.address)]
        reader = PostgresReader(self.pair.address)
        try:
            records, known = list(all_records(reader)), load(reader)
        finally:
            reader.close()
        return found + list(violations(known.state)) + wrong_writers(records)


def wrong_writers(records: list[Record]) -> list[str]:
    """Records of an epoch after those of a later one: two servers would have written at the same time."""
    return [
        f"record {b.seq} of epoch {b.epoch} follows epoch {a.epoch}" for a, b in pairwise(records) if b.epoch < a.epoch
    ]


def is_good(figures: dict[str, Any]) -> bool:
    return kill.is_good(figures) and figures["takeover_s"] <= TAKEOVER_S_MAX


def take_over(trials: int, seed: int = 0, keep: Path | None = None) -> dict[str, Any]:
    """On a database of its own."""
    database = Database(durable=True)
    try:
        with tempfile.TemporaryDirectory(prefix="corral-failover-") as temporary:
            folder = keep or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            return Failover(folder, database.new(), trials, seed).run()
    finally:
        database.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.failover", description=__doc__)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder to work in, and to leave as it is")
    asked = parser.parse_args()
    figures = take_over(asked.trials, asked.seed, asked.keep)
    print(json.dumps(figures | {"cpus": os.cpu_count()}))
    return 0 if is_good(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
