"""A server, a broker and an intake between them, each a process of its own that can be killed and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corral.client.blocking import Client
from corral.client.errors import Unreachable
from corral.integrations.broker import DeadLetter
from corral.integrations.broker_kinds import dead_letters_of
from corral.wire.brokers.broker_names import PASSWORD_VARIABLE
from tests.database import ending_with_us
from tests.e2e.live import ROOT, Live, environment
from tests.intake.brokers import PrivateBroker
from tests.intake.link import CuttableLink

SCOPE = ("intake.submit", "events.read", "jobs.read", "queues.read")


class IntakeProcess:
    """``corral intake`` over a link that can be cut. ``url``, ``token``: of the server, and of the intake."""

    def __init__(self, broker: PrivateBroker, url: str, token: str, log: Path, *words: str) -> None:
        self.broker, self.link = broker, CuttableLink(broker.port)
        self._env = environment() | {"CORRAL_URL": url, "CORRAL_TOKEN": token, PASSWORD_VARIABLE: broker.password}
        self._env["PYTHONFAULTHANDLER"] = "1"
        self._words, self.log = words, log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        address = self.broker.plain_url.replace(f":{self.broker.port}", f":{self.link.port}")
        words = [sys.executable, "-m", "corral", "intake", self.broker.kind, "--url", address]
        with self.log.open("ab") as errors:
            self.process = subprocess.Popen(
                [*ending_with_us(), *words, *self._words],
                cwd=ROOT,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stderr=errors,
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None

    def stop(self) -> int:
        """Ask it to end; its exit code."""
        assert self.process is not None
        self.process.terminate()
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait(30)
            raise AssertionError(f"the intake does not end:\n{self.log.read_text()[-6000:]}") from None
        self.process = None
        return code

    def close(self) -> None:
        self.kill()
        self.link.close()


@contextmanager
def intake_of(live: Live, broker: PrivateBroker, *words: str) -> Iterator[IntakeProcess]:
    """An intake of a running server, with a token for just that, once it has its queues in the broker."""
    with Client(live.url, live.token) as client:
        token = client.make_token("intake", scope=SCOPE).token
    log = live.data / f"intake-{time.monotonic_ns()}.log"  # one for each: tests wait for what is in it
    process = IntakeProcess(broker, live.url, token, log, *words)
    process.start()
    try:
        until(lambda: log.exists() and "broker_connected" in log.read_text(), "the intake's connection", 120)
        yield process
    finally:
        process.close()


def member(live: Live, name: str = "ann", queue: str = "default", scope: tuple[str, ...] = ("jobs.submit",)) -> str:
    """A token of a user who may submit, which is good for nothing else."""
    with Client(live.url, live.token) as client:
        client.set_user(name)
        client.grant(name, "member", queue)
        return client.make_token("through the broker", user=name, scope=scope).token


def publish_surely(client: Client, documents: list[dict[str, Any]], keys: list[str], broker: str) -> None:
    """Publish until it is confirmed, as a careful program does: again with the same ids."""
    end = time.monotonic() + 240
    while True:
        try:
            client.publish_many(documents, keys=keys, broker=broker)
            return
        except Unreachable:
            assert time.monotonic() < end, "the broker does not take messages"
            time.sleep(0.5)


async def dead_letters(url: str, most: int = 100_000) -> list[DeadLetter]:
    found: list[DeadLetter] = []

    async def keep(letter: DeadLetter) -> bool:
        found.append(letter)
        return False

    async with dead_letters_of(url) as letters:
        await letters.sift(keep, most)
    return found


def until(holds: Callable[[], bool], what: str, within_s: float = 60, state: Callable[[], Any] | None = None) -> None:
    end = time.monotonic() + within_s
    while not holds():
        shown = "" if state is None else f":\n{state()}"
        assert time.monotonic() < end, f"{what} did not happen within {within_s:g} s{shown}"
        time.sleep(0.1)
