"""The feed of the dashboard, broken again and again: `make soak-breaks`. Ends with one line of JSON.

Two servers on one database, behind one address that leads to the leader. A page stays open while the leader is killed
and the other takes over, while the connection is cut or the server hangs, and while the computer of the viewer sleeps.
After each break the page is compared, field by field, with one that has just been loaded: the data that it holds and
the text that it shows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from tests.browser.chromium import Tab, chromium, opened, program
from tests.database import Database
from tests.e2e.failover import Pair
from tests.e2e.live import Live, Refused, Unanswered

#: Pages, and what of the live view each has.
PAGES = {
    "overview": (), "jobs": (), "jobs?states=waiting": (), "jobs/1": ("nodes",), "map": ("nodes",),
    "nodes/here": ("nodes",), "queues": ("queues",), "queues?view=line": ("queues",), "events": (), "fleets": (),
    "access/users": ("queues",), "access/tokens": ("queues",),
}  # fmt: skip
KINDS = ("killed", "leader", "cut", "hang", "asleep", "reopen")
STATE = """async () => {
    const live = await import(new URL("lib/live.js", document.querySelector("script[type=module]").src));
    const me = { ...live.me.value, token: "", expires_ms: 0 };
    return JSON.parse(JSON.stringify({ me, connection: live.connection.value, leads: live.leads.value, overview:
        live.overview.value, queues: live.queues.value, nodes: [...live.nodes.value.values()],
        levels: live.levels.value, jobs: live.jobsOnMap.value, events: live.events.value.slice(0, 40) }));
}"""
#: What is shown: times as they are in the record, without charts.
TEXT = """() => {
    const shown = document.querySelector("main").cloneNode(true);
    for (const time of shown.querySelectorAll("time")) time.textContent = time.dateTime;
    for (const gone of shown.querySelectorAll(".chart, canvas, .tip")) gone.remove();
    return [...shown.querySelectorAll("h1, h2, h3, th, td, dt, dd, li, p, .stat, .vrow, .notice, .legend, .head")]
        .map(each => each.textContent.replace(/\\s+/g, " ").trim());
}"""
_SPANS = re.compile(r"(\d+(\.\d+)? (ms|s|m|h|d)\b ?)+|< 0\.01|\d+ % used|\d+(\.\d+)? GPU-hours")
WITHIN_S = 60.0


class Door:
    """One address for both servers. ``target``: where new connections lead; ``moving``: if not set, all hang."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port: int = self._listener.getsockname()[1]
        self.target, self.moving = 0, threading.Event()
        self.moving.set()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            here, _ = self._listener.accept()
            try:
                there = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            except OSError:
                here.close()
                continue
            there.settimeout(None)
            self._open |= {here, there}
            for pair in ((here, there), (there, here)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.moving.wait()
                target.sendall(data)
        self._open -= {source, target}
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class Breaks:
    def __init__(self, folder: Path, address: str, browser: Browser, seed: int) -> None:
        self.pair, self.door, self.browser = Pair(folder, address, 2.0), Door(), browser
        self.random, self.counts, self.differ, self.slowest_s = random.Random(seed), Counter[str](), 0, 0.0
        self.tab: Tab | None = None

    def leader(self) -> Live:
        end = time.monotonic() + 60
        while True:
            found = self.pair.leader()
            if found is not None and found.process is not None and found.is_serving():
                with suppress(Unanswered, Refused):
                    found.ask("GET", "/v1/line?limit=1")
                    self.door.target = found.port
                    return found
            assert time.monotonic() < end, "no server leads"
            time.sleep(0.05)

    def change(self) -> None:
        """What people do meanwhile: submit, cancel, cordon, create queues and users."""
        ask, drawn = self.leader().ask, self.random
        for _ in range(drawn.randrange(1, 6)):
            seconds = drawn.choice(("0", "1", "3", "600"))
            job = {"name": f"job-{drawn.randrange(1000)}", "queue": drawn.choice("ab"), "gpus": drawn.choice((1, 4))}
            ask("POST", "/v1/jobs", job | {"command": ["sleep", seconds], "time_limit": "1h"})
        with suppress(Refused):  # it may have ended
            running = ask("GET", "/v1/jobs?states=running,waiting&limit=50")["jobs"]
            for job in drawn.sample(running, min(len(running), drawn.randrange(1, 4))):
                if job["id"] != "1":
                    ask("POST", f"/v1/jobs/{job['id']}/cancel?now=true")
        word = "uncordon" if ask("GET", "/v1/nodes/here")["cordoned"] else drawn.choice(("cordon", ""))
        if word:
            ask("POST", f"/v1/nodes/here/{word}", {} if word == "cordon" else None)
        ask("PUT", f"/v1/queues/{drawn.choice('ab')}", {"guarantee": {"gpu_milli": 1000 * drawn.randrange(4)}})
        if drawn.random() < 0.3:
            ask("PUT", f"/v1/users/user-{drawn.randrange(50)}", {})

    def one(self, number: int) -> None:
        assert self.tab is not None
        name, kind = self.random.choice(list(PAGES)), self.random.choice(KINDS)
        self.tab.go(name)
        self.counts[kind] += 1
        getattr(self, f"_{kind}")()
        self.leader()
        self.compare(name, f"break {number} ({kind}) on {name}")

    # ---- ways to break it ----------------------------------------------------------------------------------------

    def _killed(self) -> None:
        """The leader ends and starts again at once; one of the two leads then."""
        leader = self.leader()
        leader.kill()
        leader.start()
        self.change()

    def _leader(self) -> None:
        """The other server takes over, and changes are made there; the first comes back as a standby."""
        leader = self.leader()
        leader.kill()
        self.door.cut()
        self.change()
        leader.start()
        self.change()

    def _cut(self) -> None:
        assert self.tab is not None
        self.tab.page.context.set_offline(True)
        self.change()
        self.tab.page.context.set_offline(False)
        self.change()

    def _hang(self) -> None:
        """The network stands still for a while, then breaks, or goes on."""
        self.door.moving.clear()
        self.change()
        time.sleep(self.random.uniform(0, 3))
        if self.random.random() < 0.5:
            self.door.cut()
        self.door.moving.set()
        self.change()

    def _asleep(self) -> None:
        """All processes of the browser stand still, and maybe the connections are gone when they go on."""
        found = browser_processes()
        for process in found:
            os.kill(process, signal.SIGSTOP)
        try:
            self.change()
            time.sleep(self.random.choice((0.5, 2, 4, 22)))
            if self.random.random() < 0.5:
                self.door.cut()
            self.change()
        finally:
            for process in found:
                os.kill(process, signal.SIGCONT)

    def _reopen(self) -> None:
        assert self.tab is not None
        self.change()
        self.tab.page.evaluate("dispatchEvent(new Event('online'))")
        self.change()

    # ---- the comparison ------------------------------------------------------------------------------------------

    def compare(self, name: str, what: str) -> None:
        assert self.tab is not None
        began = time.monotonic()
        fresh = opened(self.browser, f"http://127.0.0.1:{self.door.port}", self.pair.token)
        fresh.go(name)
        found: tuple[Any, Any] = ({}, {})
        while time.monotonic() - began < WITHIN_S:
            found = fields(self.tab, name), fields(fresh, name)
            if found[0] == found[1] and found[0]["connection"] == "live":
                break
            fresh.page.wait_for_timeout(300)
        else:
            self.differ += 1
            keys = [key for key in found[0] if found[0][key] != found[1][key]]
            print(f"{what}: {keys} differ: {[difference(found[0][key], found[1][key]) for key in keys]}", flush=True)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        fresh.page.context.close()


def fields(tab: Tab, name: str) -> dict[str, Any]:
    """What the page holds and shows, without what differs between two sessions and from second to second."""
    state: dict[str, Any] = tab.page.evaluate(STATE)
    if "nodes" not in PAGES[name]:
        for field in ("nodes", "jobs", "levels"):
            state.pop(field)
    if "queues" not in PAGES[name]:
        state.pop("queues")
    shown = [_SPANS.sub("…", line.replace(" this one", "")) for line in tab.page.evaluate(TEXT)]
    return state | {"shown": shown}


def difference(one: Any, other: Any) -> Any:
    if isinstance(one, list) and isinstance(other, list):
        at = next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), -1)
        return len(one), len(other), (one[at : at + 1], other[at : at + 1]) if at >= 0 else ""
    return one, other


def browser_processes() -> list[int]:
    """Chromium and what it has started, of this process only."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError):
                head, _, rest = (entry / "stat").read_text().rpartition(")")
                parents[int(entry.name)] = int(rest.split()[1])
                names[int(entry.name)] = head.partition("(")[2]
    ours = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return [process for process in ours if "chrom" in names.get(process, "")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--breaks", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if not program():
        raise SystemExit("Chromium is not installed; see: make services")
    database = Database()
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        breaks = Breaks(Path(folder), database.new(), browser, asked.seed)
        try:
            breaks.pair.start()
            leader = breaks.leader()
            for queue in "ab":
                leader.ask("PUT", f"/v1/queues/{queue}", {"guarantee": {"gpu_milli": 2000}})
            leader.ask("POST", "/v1/jobs", {"name": "first", "queue": "a", "gpus": 1, "command": ["sleep", "3600"]})
            breaks.tab = opened(browser, f"http://127.0.0.1:{breaks.door.port}", breaks.pair.token)
            for number in range(asked.breaks):
                breaks.one(number)
            errors = [text for text in breaks.tab.errors if "Failed to load" not in text and "net::" not in text]
        finally:
            clean_up(breaks)
            database.stop()
    result = {"breaks": asked.breaks, "differ": breaks.differ, "slowest_s": round(breaks.slowest_s, 1)}
    print(json.dumps(result | dict(breaks.counts) | {"errors": errors[:5], "load": os.getloadavg()[0]}))
    raise SystemExit(breaks.differ > 0)


def clean_up(breaks: Breaks) -> None:
    with suppress(Exception):
        leader = breaks.leader()
        for job in leader.ask("GET", "/v1/jobs?states=running,starting,waiting&limit=1000")["jobs"]:
            leader.ask("POST", f"/v1/jobs/{job['id']}/cancel?now=true")
        time.sleep(1)
    breaks.pair.stop()


if __name__ == "__main__":
    main()
