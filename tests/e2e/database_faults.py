"""Three servers on one database, to which everything happens that happens to databases, while people submit.

`python -m tests.e2e.database_faults --faults 20` ends with one line of JSON. Each server reaches a real PostgreSQL
through a proxy of its own; submissions use the client as people do, with all three addresses, and now and then the
command line. A server that ends is started again after a second, as systemd would.

Unavailable is the time without any submission acknowledged: from the fault on where another server could lead, and from
its end where none could use the database meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg

from corral.client import Client
from corral.client.errors import ClientError, Problem
from corral.core.laws import violations
from corral.server.recovery import load
from corral.store.journal import JournalUnusable, all_records
from corral.store.postgres import PostgresReader, verify
from tests.database import Database
from tests.e2e.failover import wrong_writers
from tests.e2e.kill import OVER, TASK
from tests.e2e.live import ROOT, Live, Refused, Unanswered, environment
from tests.e2e.proxy import DatabaseProxy, Mode

LEASE_S = 5.0
UNAVAILABLE_S_MAX = CLIENT_S_MAX = 10.0
SETTLE_S = 45.0  # a server that is not in order this long after the end of the fault is wedged
CLI_TIMEOUT_S = 60.0


class Trio:
    """Three servers, each with a proxy of its own to the database, started again whenever one ends."""

    def __init__(self, folder: Path, database: Database, address: str, lease_s: float = LEASE_S) -> None:
        self.address, self.database = address, database
        self.proxies = [DatabaseProxy(str(database.folder), address) for _ in range(3)]
        self.servers = [Live(folder / name) for name in "abc"]
        for live, proxy in zip(self.servers, self.proxies, strict=True):
            live.more = ["--database", proxy.url, "--tasks", str(folder / "tasks"), "--lease-s", str(lease_s)]
        self.restarts = 0
        self.restart_after_s = 1.0
        self._ending = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def start(self) -> None:
        for live in self.servers:
            live.start()
            live._token = self.servers[0].token
        self._keeper.start()

    @property
    def urls(self) -> str:
        return ",".join(live.url for live in self.servers)

    @property
    def token(self) -> str:
        return self.servers[0].token

    def client(self, patience_s: float = 60.0) -> Client:
        return Client(self.urls, self.token, patience_s=patience_s)

    def _keep(self) -> None:
        while not self._ending.wait(0.05):
            for live in self.servers:
                if live.process is not None and live.process.poll() is not None:
                    if self._ending.wait(self.restart_after_s):
                        return
                    live.begin()
                    self.restarts += 1

    def logged(self, problem: Problem) -> str:
        """What the servers have written about a request that failed."""
        logs = [(live.data / "server.log").read_text() for live in self.servers]
        found = [line for log in logs for line in log.splitlines() if problem.request_id and problem.request_id in line]
        return "".join(f"\n{line[-1500:]}" for line in found)

    # ---- who leads ---------------------------------------------------------------------------------------------

    def health(self, live: Live) -> dict[str, Any]:
        with suppress(Unanswered, Refused):
            found: dict[str, Any] = live.ask("GET", "/v1/health", timeout=2)
            return found
        return {}

    def leader(self) -> int:
        """The number of the server that leads, by its own word; waited for."""
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            for number, live in enumerate(self.servers):
                told = self.health(live)
                if told.get("role") == "leader" and told.get("status") == "ok":
                    return number
            time.sleep(0.05)
        raise AssertionError("no server leads:\n" + "\n".join(live.errors()[-800:] for live in self.servers))

    def wedged(self, within_s: float = SETTLE_S) -> list[int]:
        """The servers that are not in order after that time: one leads, the others follow it."""
        end = time.monotonic() + within_s
        while True:
            told = [self.health(live) for live in self.servers]
            leaders = [n for n, each in enumerate(told) if each.get("role") == "leader"]
            bad = [n for n, each in enumerate(told) if each.get("status") != "ok" or not each.get("following")]
            if not bad and len(leaders) == 1:
                return []
            if time.monotonic() > end:
                return bad or leaders
            time.sleep(0.1)

    # ---- the end -----------------------------------------------------------------------------------------------

    def stop(self) -> list[int]:
        """Ask all to end. The numbers of those that did not within a minute, and were killed."""
        self._ending.set()
        if self._keeper.is_alive():
            self._keeper.join(30)
        for proxy in self.proxies:
            proxy.heal()
        stuck = []
        for number, live in enumerate(self.servers):
            if live.process is None:
                continue
            try:
                live.stop()
            except subprocess.TimeoutExpired:
                stuck.append(number)
                live.kill()
        for proxy in self.proxies:
            proxy.close()
        return stuck


@dataclass
class Load:
    """What was submitted and acknowledged, and how long that took."""

    acknowledged: dict[str, str] = field(default_factory=dict)  # key -> job
    acks: list[tuple[float, float]] = field(default_factory=list)  # when a call began, and when it was answered
    faults: list[str] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)

    def longest_call_s(self, since_s: float) -> float:
        return max((end - max(began, since_s) for began, end in self.acks if end > since_s), default=0.0)

    def gap_s(self, since_s: float) -> float:
        """The longest time without an acknowledgement from then on."""
        ends = [since_s, *sorted(end for _, end in self.acks if end > since_s), time.monotonic()]
        return max(b - a for a, b in pairwise(ends))


def submit_on(trio: Trio, load: Load, script: Path, number: int, pause_s: float) -> threading.Thread:
    """A user who submits without end, each under a key of its own."""

    def run() -> None:
        count = 0
        with trio.client() as client:
            while not load.ending.is_set():
                count += 1
                key = f"{number}-{count}"
                ran = str(script.parent / "ran")
                document = {"command": ["sh", str(script), ran, "0"], "env": {"KEY": key}, "name": f"fault-{key}"}
                began = time.monotonic()
                try:
                    load.acknowledged[key] = client.submit(document, key=key).id
                    load.acks.append((began, time.monotonic()))
                except Problem as problem:
                    if problem.code in ("not_corral", "internal"):
                        load.faults.append(f"{key}: {problem.status} {problem.code}: {problem}{trio.logged(problem)}")
                except ClientError as error:
                    load.faults.append(f"{key}: {error}")
                load.ending.wait(pause_s)

    thread = threading.Thread(target=run, name=f"submitter-{number}", daemon=True)
    thread.start()
    return thread


@dataclass
class Outcome:
    kind: str
    unavailable_s: float
    client_s: float
    cli_s: float
    wedged: int


class Faults:
    """One fault after the other, each watched until everything is in order again."""

    def __init__(self, folder: Path, database: Database, seed: int, space: Path | None = None) -> None:
        self.folder, self.random, self.space = folder, random.Random(seed), space
        address = database.new(space)
        self.trio = Trio(folder, database, address)
        self.load = Load()
        self.script = folder / "task.sh"
        self.outcomes: list[Outcome] = []
        (folder / "ran").mkdir()
        self.script.write_text(TASK)

    @property
    def kinds(self) -> dict[str, Callable[[], float]]:
        """Each makes a fault, ends it, and tells from when on the service should have been there."""
        found = {
            "replies_lost": self.replies_lost,
            "standby_replies_lost": self.standby_replies_lost,
            "writer_stopped": self.writer_stopped,
            "table_locked": self.table_locked,
            "link_hanging": self.link_hanging,
            "read_only": self.read_only,
            "full": self.full,
            "restarted": self.restarted,
            "commit_cut": self.commit_cut,
            "leader_stopped": self.leader_stopped,
        }
        if self.space is None:
            del found["full"]
        return found

    def run(self, kinds: list[str], each: int, submitters: int = 2, pause_s: float = 0.3) -> dict[str, Any]:
        trio, order = self.trio, [kind for kind in kinds for _ in range(each)]
        self.random.shuffle(order)
        try:
            trio.start()
            _Cli.submitted = 0
            threads = [submit_on(trio, self.load, self.script, n, pause_s) for n in range(submitters)]
            self.until_acknowledged(time.monotonic())
            for kind in order:
                self.suffer(kind)
            self.load.ending.set()
            for thread in threads:
                thread.join(90)
            figures = self.judge()
            stuck = trio.stop()
            return figures | {"wedged": figures["wedged"] + len(stuck), "findings": self.findings()}
        finally:
            self.load.ending.set()
            trio.stop()

    def suffer(self, kind: str) -> None:
        time.sleep(self.random.uniform(0.5, 1.5))
        began = time.monotonic()
        cli = _Cli(self.trio)
        could_serve = self.kinds[kind]()
        self.until_acknowledged(max(could_serve, time.monotonic() - 0.001))
        unavailable_s = self.load.gap_s(could_serve)
        client_s = self.load.longest_call_s(could_serve)
        cli_s = cli.seconds_after(could_serve)
        wedged = self.trio.wedged()
        self.outcomes.append(Outcome(kind, unavailable_s, client_s, cli_s, len(wedged)))
        for number in wedged:
            self.load.faults.append(f"{kind}: server {number} is wedged: {self.trio.health(self.trio.servers[number])}")
            self.trio.servers[number].kill()
            self.trio.servers[number].start()
        print(
            f"{kind}: unavailable {unavailable_s:.1f} s, client {client_s:.1f} s, command line {cli_s:.1f} s,"
            f" wedged {len(wedged)}, all in order after {time.monotonic() - began:.1f} s",
            file=sys.stderr, flush=True,
        )  # fmt: skip

    def until_acknowledged(self, since_s: float) -> None:
        """Until something was acknowledged that was asked for afterwards, or not answered before."""
        end = time.monotonic() + 60
        while not any(answered > since_s for _, answered in self.load.acks):
            assert time.monotonic() < end, "nothing is acknowledged any more\n" + "\n".join(
                f"{self.trio.health(live)}\n{live.errors()[-1500:]}" for live in self.trio.servers
            )
            time.sleep(0.02)

    # ---- the faults --------------------------------------------------------------------------------------------

    def replies_lost(self) -> float:
        began, proxy = time.monotonic(), self.trio.proxies[self.trio.leader()]
        proxy.fail(Mode.LOSE_REPLIES)
        time.sleep(self.random.uniform(3, 8))
        proxy.heal(late=self.random.random() < 0.5)
        return began

    def standby_replies_lost(self) -> float:
        began, leader = time.monotonic(), self.trio.leader()
        number = (leader + self.random.choice([1, 2])) % 3
        self.trio.proxies[number].fail(Mode.LOSE_REPLIES)
        time.sleep(self.random.uniform(4, 8))
        self.trio.proxies[number].heal(late=True)  # connections that have lost replies stay open
        return began

    def writer_stopped(self) -> float:
        """A backend that is stopped in the middle of a transaction keeps its locks: then no server can write."""
        ((session,),) = self.ask("SELECT session FROM leader")
        began, epoch = time.monotonic(), self.epoch()
        os.kill(session, signal.SIGSTOP)
        try:
            time.sleep(0.2)
            is_held = not self.can_lock_writer()
            end = time.monotonic() + 12
            while time.monotonic() < end and self.epoch() == epoch:
                time.sleep(0.1)
        finally:
            with suppress(ProcessLookupError):
                os.kill(session, signal.SIGCONT)
        return time.monotonic() if is_held else began

    def table_locked(self) -> float:
        with self.session() as link:
            link.execute("BEGIN")
            link.execute("LOCK TABLE records IN ACCESS EXCLUSIVE MODE")
            time.sleep(self.random.uniform(5, 9))
            link.execute("ROLLBACK")
        return time.monotonic()

    def link_hanging(self) -> float:
        began, proxy = time.monotonic(), self.trio.proxies[self.trio.leader()]
        proxy.fail(Mode.HANG)
        time.sleep(self.random.uniform(3, 9))
        proxy.heal(late=self.random.random() < 0.5)
        return began

    def read_only(self) -> float:
        self.set_read_only("on")
        time.sleep(self.random.uniform(4, 8))
        self.set_read_only("off")
        return time.monotonic()

    def set_read_only(self, word: str) -> None:
        with self.session() as link:
            link.execute("SET default_transaction_read_only = off")
            link.execute(f"ALTER SYSTEM SET default_transaction_read_only = {word}".encode())
            link.execute("SELECT pg_reload_conf()")

    def full(self) -> float:
        assert self.space is not None
        ballast = self.space / "ballast"
        with ballast.open("wb") as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        time.sleep(self.random.uniform(5, 9))
        ballast.unlink()
        return time.monotonic()

    def restarted(self) -> float:
        self.trio.database.kill()
        time.sleep(self.random.choice([0.0, 1.0, 7.0]))
        self.trio.database.start()
        return time.monotonic()

    def commit_cut(self) -> float:
        began, proxy = time.monotonic(), self.trio.proxies[self.trio.leader()]
        cuts = proxy.cuts
        proxy.cut_next_commit(before=self.random.random() < 0.5)
        end = time.monotonic() + 10
        while proxy.cuts == cuts:
            assert time.monotonic() < end, "nothing was committed through the leader's proxy"
            time.sleep(0.01)
        return began

    def leader_stopped(self) -> float:
        """No fault of the database: SIGTERM, as in a rolling restart."""
        began, live = time.monotonic(), self.trio.servers[self.trio.leader()]
        assert live.process is not None
        live.process.send_signal(signal.SIGTERM)
        live.process.wait(60)
        return began

    # ---- the database, asked directly --------------------------------------------------------------------------

    @contextmanager
    def session(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.trio.address, autocommit=True) as link:
            yield link

    def ask(self, statement: str) -> list[Any]:
        with self.session() as link:
            return link.execute(statement.encode()).fetchall()

    def epoch(self) -> int:
        ((epoch,),) = self.ask("SELECT epoch FROM leader")
        return int(epoch)

    def can_lock_writer(self) -> bool:
        try:
            self.ask("SELECT 1 FROM writer FOR UPDATE NOWAIT")
        except psycopg.errors.LockNotAvailable:
            return False
        return True

    # ---- judging -----------------------------------------------------------------------------------------------

    def judge(self) -> dict[str, Any]:
        states = self.final_states()
        lost = [key for key, id in self.load.acknowledged.items() if id not in states]
        unfinished = [key for key, id in self.load.acknowledged.items() if states.get(id) not in (None, "succeeded")]
        outcomes = self.outcomes
        return {
            "kinds": sorted({each.kind for each in outcomes}),
            "faults": len(outcomes),
            "acknowledged": len(self.load.acknowledged),
            "lost": len(lost),
            "run_twice": len(self.run_twice()),
            "unfinished": len(unfinished),
            "surplus": len(states) - len(set(self.load.acknowledged.values()) & set(states)) - _Cli.submitted,
            "unavailable_s_max": round(max(each.unavailable_s for each in outcomes), 2),
            "client_s_max": round(max(each.client_s for each in outcomes), 2),
            "cli_s_max": round(max(each.cli_s for each in outcomes), 2),
            "wedged": sum(each.wedged for each in outcomes),
            "restarts": self.trio.restarts,
            "by_kind": {
                kind: round(max(each.unavailable_s for each in outcomes if each.kind == kind), 2)
                for kind in sorted({each.kind for each in outcomes})
            },
            "complaints": (self.load.faults + lost + unfinished)[:20],
            "load_average": round(os.getloadavg()[0], 1),
        }

    def final_states(self) -> dict[str, str]:
        """Of every job, once all are over or a minute has passed."""
        end = time.monotonic() + 60
        while True:
            live = self.trio.servers[self.trio.leader()]
            with suppress(Unanswered, Refused):
                states = {job["id"]: job["state"] for job in live.jobs()}
                if time.monotonic() > end or set(states.values()) <= set(OVER):
                    return states
            time.sleep(0.2)

    def run_twice(self) -> list[str]:
        """Tasks that were begun more than once."""
        found = []
        for file in (self.script.parent / "ran").iterdir():
            begun = [line for line in file.read_text().splitlines() if line.startswith("begin")]
            if len(begun) != 1:
                found.append(file.name)
        return found

    def findings(self) -> list[str]:
        found = [finding.text for finding in verify(self.trio.address)]
        reader = PostgresReader(self.trio.address)
        try:
            return found + list(violations(load(reader).state)) + wrong_writers(list(all_records(reader)))
        except JournalUnusable as wrong:
            return [*found, str(wrong)]
        finally:
            reader.close()


class _Cli:
    """`corral submit`, typed the moment a fault begins."""

    submitted = 0

    def __init__(self, trio: Trio) -> None:
        env = environment() | {"CORRAL_URL": trio.urls, "CORRAL_TOKEN": trio.token}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "corral", "submit", "--", "true"],
            cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._ended_s = 0.0
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        self._errors = self._process.communicate()[1]
        self._ended_s = time.monotonic()

    def seconds_after(self, could_serve_s: float) -> float:
        """How long it took from when it could have been served. One that gave up before is not counted."""
        self._thread.join(CLI_TIMEOUT_S)
        if self._thread.is_alive():
            self._process.kill()
            self._thread.join()
        _Cli.submitted += self._process.returncode == 0
        return max(0.0, self._ended_s - could_serve_s)


def is_good(figures: dict[str, Any]) -> bool:
    none = ("lost", "run_twice", "wedged", "unfinished", "findings")
    times = figures["unavailable_s_max"] <= UNAVAILABLE_S_MAX and figures["client_s_max"] <= CLIENT_S_MAX
    return not any(figures[name] for name in none) and times


@contextmanager
def small_disk(folder: Path, mib: int = 96) -> Iterator[Path | None]:
    """A file system that can be filled; None where none can be mounted."""
    folder.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    try:
        yield folder if done.returncode == 0 else None
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def suffer(kinds: list[str], each: int, seed: int = 0) -> dict[str, Any]:
    """On a database of its own."""
    with tempfile.TemporaryDirectory(prefix="corral-faults-") as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        database = Database(durable=True)
        try:
            with small_disk(folder / "disk") as space:
                try:
                    faults = Faults(folder, database, seed, space)
                    wanted = kinds or list(faults.kinds)
                    return faults.run([kind for kind in wanted if kind in faults.kinds], each)
                finally:
                    database.stop()
        finally:
            database.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.database_faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=20, help="of each kind")
    parser.add_argument("--kinds", default="", help="only these, with commas between")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    figures = suffer([kind for kind in asked.kinds.split(",") if kind], asked.faults, asked.seed)
    print(json.dumps(figures | {"seed": asked.seed, "cpus": os.cpu_count()}))
    return 0 if is_good(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
