"""Hostile nodes: twenty-one kinds of them say what they like to a real fleet backend, dispatch and engine, by a seed.

``python -m tests.fuzz.nodes --cases 1000000``; the last line is JSON: ``cases``, ``ended`` (times the server would have
ended), ``accepted_foreign`` (claims about what a node was not given that changed something), ``files`` and ``seconds``.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from corral.remote.border import BadReport
from corral.remote.messages import AgentReport, DesiredAsk, LogDelivery
from corral.runtime.base import StaleEpoch
from tests.fuzz.files import read_hostile_files
from tests.fuzz.site import Node, Site

Raw = dict[str, Any]
#: The numbers that find the edges of what reads them.
NUMBERS = (0, 1, -1, 2, 63, 64, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63),
           -(2**70), 10**30)  # fmt: skip
TEXTS = ("", "x", "\0", "../../../etc/passwd", "n0", "\u202e\x1b[2J", "é" * 400, "w" * 5_000, "{}", "null", "%s%n")
LIE_EVERY = 40  # lies between two rounds in which all nodes speak honestly
CHECK_EVERY, RESTART_EVERY = 4_000, 25_000


class Liar:
    """A node that has a credential, gets real work, and lies between two honest reports."""

    def __init__(self, site: Site, node: Node, rng: random.Random) -> None:
        self.site, self.node, self.rng = site, node, rng

    # ---- parts of lies ---------------------------------------------------------------------------------------------

    def number(self) -> int:
        return self.rng.choice(NUMBERS)

    def text(self) -> str:
        return self.rng.choice(TEXTS)

    def base(self, **more: Any) -> Raw:
        node = self.node
        node.seq += 1
        return {"node": node.name, "session": node.session, "seq": node.seq, "epoch": node.epoch, "term": node.term,
                "version": node.version, "tasks": [], **more}  # fmt: skip

    def key(self, gang: str, attempt: int = 1, task: int = 0) -> Raw:
        return {"gang": gang, "attempt": attempt, "task": task}

    def own_key(self) -> Raw:
        """Of a task that it was given, if there is one."""
        own = list(self.node.tasks)
        return msgspec.to_builtins(self.rng.choice(own)) if own else self.key("1/main")

    def others_key(self) -> Raw:
        """Of a task that another node has now or had once."""
        gangs = [gang for gang in self.site.state.holders.values() if gang.seats]
        if not gangs:
            return self.key("1/main")
        gang = self.rng.choice(gangs)
        tasks = [task for task, seat in enumerate(gang.seats) if seat.node != self.node.name]
        return self.key(gang.id, gang.attempt, self.rng.choice(tasks) if tasks else 0)

    def said(self, key: Raw, phase: str = "down", **more: Any) -> Raw:
        return {"key": key, "phase": phase, "at_ms": self.site.now_ms, "node": self.node.name, **more}

    def task(self, key: Raw, **more: Any) -> Raw:
        ends = self.rng.choice(({}, {"up": self.said(key, "up")}, {"down": self.said(key)}))
        return {"key": key, **ends, **more}

    # ---- kinds -----------------------------------------------------------------------------------------------------

    def thief(self) -> Raw:
        """Says how tasks of other nodes have ended."""
        return self.base(tasks=[self.task(self.others_key()) for _ in range(self.rng.randint(1, 4))])

    def prophet(self) -> Raw:
        """Claims attempts of jobs that are still to come."""
        job = self.site.next_job + self.rng.randint(0, 3)
        return self.base(tasks=[self.task(self.key(f"{job}/main", self.rng.randint(0, 3), n)) for n in range(4)])

    def ghost(self) -> Raw:
        """Has earlier and later attempts of gangs that run now."""
        key = self.rng.choice((self.own_key, self.others_key))()
        key["attempt"] += self.rng.choice((-2, -1, 1, 2))
        return self.base(tasks=[self.task(key)])

    def miscounter(self) -> Raw:
        """Numbers tasks and attempts as no task can be numbered."""
        key = self.own_key()
        key[self.rng.choice(("task", "attempt"))] = self.number()
        return self.base(tasks=[self.task(key)])

    def hoarder(self) -> Raw:
        """Invents keys by the thousand."""
        count = 21_000 if self.rng.random() < 0.002 else self.rng.randint(1, 60)
        first = self.rng.randrange(10**9)
        return self.base(tasks=[{"key": self.key(f"{first + n}/main")} for n in range(count)])

    def novelist(self) -> Raw:
        """Writes long and strange texts wherever there is room for one."""
        long = "w" * (3_000_000 if self.rng.random() < 0.001 else 2_000) + self.text()
        key = self.own_key()
        return self.base(
            tasks=[self.task(key, down=self.said(key, why=long, unenforced=[long] * 3))] if self.node.tasks else [],
            health=[{"node": self.node.name, "gpu": None, "health": "suspect", "why": long}],
            lacks={long[:100]: long}, separation={long[:100]: long}, is_full=self.rng.random() < 0.5,
        )  # fmt: skip

    def impostor(self) -> Raw:
        """Describes another machine, one that is there or one that is not."""
        name = self.rng.choice((*self.site.nodes, "ghost", *TEXTS))
        return self.base(spec=msgspec.to_builtins(self.node.spec) | {"name": name})

    def card_thief(self) -> Raw:
        """Says that it has GPUs of other nodes."""
        other = self.site.nodes[self.rng.choice(self.site.honest)]
        spec = msgspec.to_builtins(self.node.spec)
        spec["gpus"][self.rng.randrange(4)]["uuid"] = self.rng.choice(other.spec.gpus).uuid
        return self.base(spec=spec)

    def giant(self) -> Raw:
        """Is a machine that cannot be."""
        spec = msgspec.to_builtins(self.node.spec)
        how = self.rng.randrange(6)
        if how == 0:
            spec["gpus"] *= self.rng.randint(2, 300)
        elif how == 1:
            spec["gpus"][0][self.rng.choice(("vram_mib", "island"))] = self.number()
        elif how == 2:
            spec["amounts"] = [[self.text(), self.number()] for _ in range(self.rng.randint(1, 100))]
        elif how == 3:
            spec["path"] = [self.text()] * self.rng.randint(1, 100)
        else:
            spec["gpus"][0][self.rng.choice(("uuid", "model"))] = self.text()
        return self.base(spec=spec)

    def shapeshifter(self) -> Raw:
        """Is another machine in every report."""
        spec = msgspec.to_builtins(self.node.spec)
        spec["gpus"] = spec["gpus"][: self.rng.randint(0, 4)]
        spec["amounts"] = [["cpu_milli", self.rng.randint(1, 64_000)]]
        return self.base(spec=spec)

    def hypochondriac(self) -> Raw:
        """Speaks of the health of others, of GPUs that are not there, and changes its mind."""
        return self.base(health=[
            {"node": self.rng.choice((*self.site.nodes, "ghost", self.node.name)),
             "gpu": self.rng.choice((None, 0, 3, 4, self.number())),
             "health": self.rng.choice(("healthy", "suspect")), "why": f"reason {self.rng.random()}"}
            for _ in range(self.rng.randint(1, 6))
        ])  # fmt: skip

    def oracle(self) -> Raw:
        """Has saved steps that cannot be, also of others."""
        key = self.rng.choice((self.own_key, self.others_key))()
        return self.base(tasks=[{"key": key, "step": self.number()}])

    def judge(self) -> Raw:
        """Says why a task has ended where only the server can know, with codes that there are not."""
        key = self.own_key()
        why = self.rng.choice(("time_limit", "preempted", "cancelled", "node_lost", "gpu_fault", "user_error", None))
        code, signal = self.number(), self.number()
        down = self.said(key, exit_code=code, signal=signal, failure=why, gpus=[self.text()])
        return self.base(tasks=[{"key": key, "down": down}])

    def pacemaker(self) -> Raw:
        """Says how long ranks are busy that are not its own, or not there."""
        key = self.rng.choice((self.own_key, self.others_key))()
        busy = [[self.number(), self.number()] for _ in range(self.rng.randint(1, 5))]
        return self.base(tasks=[{"key": key, "busy_ms": busy}])

    def time_traveller(self) -> Raw:
        """Speaks in sessions, epochs and versions that were never or will never be."""
        names = ("epoch", "term", "base", "version", "refused", "leaves_in_ms")
        more = {name: self.number() for name in self.rng.sample(names, 2)}
        key = self.own_key()
        return self.base(**more, tasks=[{"key": key, "up": self.said(key, "up", at_ms=self.number())}])

    def contradictor(self) -> Raw:
        """Says two things of one task at once, or one thing under two names."""
        key = self.own_key()
        lies = (
            {"key": key, "up": self.said(key, "down"), "down": self.said(key, "up")},
            {"key": key, "down": self.said(self.others_key())},
            {"key": self.others_key(), "down": self.said(key)},
            {"key": key, "up": self.said(key, "up") | {"node": self.rng.choice(self.site.honest)}},
            {"key": key, "down": self.said(key)},
        )
        return self.base(tasks=[self.rng.choice(lies) for _ in range(2)], is_full=self.rng.random() < 0.5)

    def deserter(self) -> Raw:
        """Leaves, comes back, has nothing any more, all within one moment."""
        return self.base(
            is_full=True, spec=msgspec.to_builtins(self.node.spec), leaves_in_ms=self.rng.choice((None, *NUMBERS)),
            details={"system": self.text(), "numa_nodes": self.number(), "disks": [{"path": self.text()}] * 3},
        )  # fmt: skip

    def forger(self) -> Raw:
        """Brings logs of tasks of others, and of its own to where they cannot be."""
        key = self.rng.choice((self.own_key, self.others_key, self.others_key))()
        stream = self.rng.choice(("stdout", "stderr", *TEXTS))
        data = self.rng.choice(("", "Zm9yZ2Vk", "!not base64"))
        chunk = {"key": key, "stream": stream, "offset": self.number(), "data": data, "is_over": True}
        return {"node": self.node.name, "chunks": [chunk]}

    def answerer(self) -> Raw:
        """Answers what was not asked, with parts that cannot be."""
        part = {"offset": self.number(), "data": "Zm9yZ2Vk", "next_offset": self.number(), "is_over": True}
        return {"node": self.node.name, "replies": [{"id": self.number(), "part": part}]}

    def asker(self) -> Raw:
        """Has seen orders that were never given."""
        named = {name: self.number() for name in ("epoch", "term", "version")}
        if self.rng.random() < 0.5:
            named |= {"epoch": self.node.epoch, "term": self.node.term}
        return {"node": self.node.name, **named, "wait_ms": 0}

    def garbler(self) -> bytes:
        """Sends bytes that were an honest report once."""
        body = bytearray(msgspec.json.encode(self.node.report()))
        for _ in range(self.rng.randint(1, 4)):
            at = self.rng.randrange(len(body))
            body[at : at + self.rng.randint(0, 3)] = self.rng.choice(
                (b"", b"-", b"9" * 30, b'"', b"null", b"[[[[", b"\xff", b"1e9", b"0")
            )
        return bytes(body)


REPORTS = ("thief", "prophet", "ghost", "miscounter", "hoarder", "novelist", "impostor", "card_thief", "giant",
           "shapeshifter", "hypochondriac", "oracle", "judge", "pacemaker", "time_traveller", "contradictor",
           "deserter", "garbler")  # fmt: skip
KINDS: dict[str, type[Any]] = dict.fromkeys(REPORTS, AgentReport) | {
    "forger": LogDelivery, "answerer": LogDelivery, "asker": DesiredAsk,
}  # fmt: skip


class Run:
    """``ended``: with what the server would have ended; ``foreign``: what was believed and should not have been."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.site = Site(folder, self.rng, ("n0", "n1", "n2"), ("h0", "h1"))
        self.ended: list[str] = []
        self.refused = self.cases = 0
        self.taken = dict.fromkeys(KINDS, 0)
        for _ in range(5):
            self.site.round()
        self.liars = [Liar(self.site, self.site.nodes[name], self.rng) for name in self.site.hostile]

    @property
    def foreign(self) -> list[str]:
        return self.site.foreign

    def lie(self, cases: int) -> None:
        names = tuple(KINDS)
        for _ in range(cases):
            self.cases += 1
            self.tell(self.rng.choice(self.liars), self.rng.choice(names))
            if self.cases % LIE_EVERY == 0:
                self.guarded(self.site.round)
            if self.cases % CHECK_EVERY == 0:
                self.guarded(self.site.check)
            if self.cases % RESTART_EVERY == 0:
                self.guarded(self.site.restart)

    def tell(self, liar: Liar, kind: str) -> None:
        """As it comes from the network: bytes, of a node whose identity was checked."""
        raw = getattr(liar, kind)()
        body = raw if isinstance(raw, bytes) else _bytes(raw)
        shape = KINDS[kind]
        try:
            said = msgspec.json.decode(body, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.refused += 1
            return
        if said.node != liar.node.name:
            self.refused += 1  # by the code that compares it with the credential
            return
        try:
            with self.site.speaking(liar.node.name):
                self._take(said)
            self.taken[kind] += 1
        except (BadReport, StaleEpoch):
            self.refused += 1
        except Exception:
            self.ended.append(f"{kind}: {traceback.format_exc(limit=-4)}")

    def _take(self, said: AgentReport | DesiredAsk | LogDelivery) -> None:
        if isinstance(said, AgentReport):
            self.site.fleet.report(said)
        elif isinstance(said, DesiredAsk):
            self.site.fleet.desired(said)
        else:
            self.site.fleet.take_logs(said)

    def guarded(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception:
            self.ended.append(traceback.format_exc(limit=-4))

    def finish(self) -> list[str]:
        """The liars fall silent; everything that was submitted must come to an end, and where honest nodes alone had
        it, to a good one. What did not."""
        for _ in range(400):
            self.guarded(lambda: self.site.round(submits=False))
            if all(job.is_over for job in self.site.state.jobs.values()):
                break
        self.guarded(self.site.check)
        return [f"job {job.id} never ended" for job in self.site.state.jobs.values() if not job.is_over]


def _bytes(raw: Raw) -> bytes:
    try:
        return msgspec.json.encode(raw)
    except OverflowError:  # msgspec writes no numbers beyond 64 bits; others do
        return json.dumps(raw).encode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="corral-fuzz-") as folder:
        run = Run(asked.seed, Path(folder))
        run.lie(asked.cases)
        stuck = run.finish()
        lied_s = time.monotonic() - began
        bad_files = read_hostile_files(asked.files, asked.seed, Path(folder) / "files")
    for what in (*run.ended[:10], *run.foreign[:10], *stuck[:10], *bad_files[:10]):
        print(what, file=sys.stderr)
    print(f"{run.cases / lied_s:.0f} messages a second; {run.refused} refused; taken: {run.taken}")
    print(json.dumps({
        "cases": run.cases, "ended": len(run.ended) + len(bad_files), "accepted_foreign": len(run.foreign),
        "stuck": len(stuck), "files": asked.files, "seconds": round(time.monotonic() - began, 1),
    }))  # fmt: skip
    return 1 if run.ended or run.foreign or stuck or bad_files else 0


if __name__ == "__main__":
    raise SystemExit(main())
