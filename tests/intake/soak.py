"""Submit through a broker while server, broker and intake are killed in turns and connections are cut.

    python -m tests.intake.soak --messages 100000

Each message that the broker confirmed must be exactly one job, or a dead letter with its reason. Ends with one line of
JSON: ``messages``, ``lost``, ``twice``, ``dead_lettered``, ``jobs_per_s`` (a backlog, without faults), and
``jobs_per_s_with_faults``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corral.client.blocking import Client
from tests.e2e.live import Live, Refused, Unanswered
from tests.intake.brokers import PrivateBroker, PrivateRabbit, PrivateRedis
from tests.intake.running import IntakeProcess, dead_letters, intake_of, member, publish_surely

AT_ONCE = 500
BAD_EVERY = 100  # every 100th message is refused
FAULTS = ("server", "broker", "intake", "network")
_QUIET_MOST = 20_000
_SETTLE_S = 180.0


def document(key: str, number: int) -> dict[str, Any]:
    """A held job, so that nothing runs. Some have a key that no job has."""
    wanted: dict[str, Any] = {"command": "true", "name": key, "hold": True, "export": "NONE"}
    return wanted | ({"no_such_key": 1} if number % BAD_EVERY == BAD_EVERY - 1 else {})


def fault(kind: str, live: Live, broker: PrivateBroker, intake: IntakeProcess) -> None:
    if kind == "server":
        live.kill()
        time.sleep(0.5)
        live.start()
    elif kind == "broker":
        broker.kill()
        broker.start()
    elif kind == "intake":
        intake.kill()
        intake.start()
    else:
        intake.link.cut()
        time.sleep(0.5)
        intake.link.join()


class Publishing(threading.Thread):
    """Publishes messages ``first`` up to ``last``, until the broker has confirmed all of them."""

    def __init__(self, live: Live, broker: PrivateBroker, token: str, first: int, last: int) -> None:
        super().__init__(daemon=True)
        self._client, self._broker = Client(live.url, token), broker
        self._numbers = range(first, last)
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for start in range(self._numbers.start, self._numbers.stop, AT_ONCE):
                numbers = range(start, min(start + AT_ONCE, self._numbers.stop))
                keys = [f"m{number}" for number in numbers]
                documents = [document(key, number) for key, number in zip(keys, numbers, strict=True)]
                publish_surely(self._client, documents, keys, self._broker.url)
        except BaseException as error:
            self.failure = error


def counted(live: Live) -> int:
    """How many jobs there are."""
    try:
        return int(live.ask("GET", "/v1/jobs?limit=1")["jobs"][0]["id"])
    except (IndexError, Unanswered, Refused):
        return 0


def soak(
    folder: Path, broker: PrivateBroker, messages: int, faults: Sequence[str], every_s: float, quiet: int
) -> dict[str, Any]:
    live = Live(folder / "data")
    live.start()
    try:
        token = member(live)
        with intake_of(live, broker) as intake:
            began = time.monotonic()
            publishing = Publishing(live, broker, token, 0, messages)
            publishing.start()
            for kind in faults:
                time.sleep(every_s)
                fault(kind, live, broker, intake)
            publishing.join()
            assert publishing.failure is None, publishing.failure
            good = messages - messages // BAD_EVERY
            _settle(live, good)
            faulty_s = time.monotonic() - began
            rate = _quiet_rate(live, broker, intake, token, messages, quiet) if quiet else 0.0
            total = messages + quiet
            found = _judged(live, broker, total)
        return {
            "messages": total,
            **found,
            "jobs_per_s": round(rate),
            "jobs_per_s_with_faults": round(good / faulty_s),
            "faults": dict(Counter(faults)),
            "broker": broker.kind,
        }
    finally:
        live.stop()


def _settle(live: Live, wanted: int) -> None:
    """Wait until there are as many jobs as there should be, or no more come."""
    seen, since = -1, time.monotonic()
    while (now := counted(live)) < wanted:
        if now != seen:
            seen, since = now, time.monotonic()
        if time.monotonic() - since > _SETTLE_S:
            return
        time.sleep(0.05)


def _quiet_rate(live: Live, broker: PrivateBroker, intake: IntakeProcess, token: str, first: int, quiet: int) -> float:
    """Durable jobs a second, from a backlog that was there when the intake started."""
    intake.stop()
    publishing = Publishing(live, broker, token, first, first + quiet)
    publishing.start()
    publishing.join()
    assert publishing.failure is None, publishing.failure
    wanted = first + quiet
    intake.start()
    _settle(live, wanted - wanted // BAD_EVERY)
    new = {f"m{number}" for number in range(first, wanted)}
    times = sorted(job["submitted_ms"] for job in live.jobs() if job["name"] in new)
    return len(times) / max(0.001, (times[-1] - times[0]) / 1000) if times else 0.0


def _judged(live: Live, broker: PrivateBroker, total: int) -> dict[str, int]:
    end = time.monotonic() + 60
    wanted = total // BAD_EVERY
    while True:
        letters = asyncio.run(dead_letters(broker.url))
        named = {letter.id for letter in letters if letter.problem.code == "bad_job" and letter.problem.detail}
        if len(named) >= wanted or time.monotonic() > end:
            break
        time.sleep(1)
    jobs = Counter(job["name"] for job in live.jobs())
    lost = [number for number in range(total) if f"m{number}" not in jobs and f"m{number}" not in named]
    both = [name for name in named if name in jobs]
    twice = sum(count - 1 for count in jobs.values()) + len(both)
    return {"lost": len(lost), "twice": twice, "dead_lettered": len(named), "dead_copies": len(letters) - len(named)}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--messages", type=int, default=100_000)
    options.add_argument("--rounds", type=int, default=4, help="of one fault of each kind")
    options.add_argument("--every-s", type=float, default=2.0, help="between faults")
    options.add_argument("--redis", action="store_true", help="the other broker")
    given = options.parse_args()
    quiet = min(_QUIET_MOST, given.messages // 5)
    broker: PrivateBroker = PrivateRedis() if given.redis else PrivateRabbit()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            faults = FAULTS * given.rounds
            found = soak(Path(scratch), broker, given.messages - quiet, faults, given.every_s, quiet)
    finally:
        broker.close()
    print(json.dumps(found))
    return 1 if found["lost"] or found["twice"] or found["dead_lettered"] != given.messages // BAD_EVERY else 0


if __name__ == "__main__":
    sys.exit(main())
