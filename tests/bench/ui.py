"""The dashboard measured in a browser: `make bench-ui`. Ends with one line of JSON.

A server of its own with many nodes and jobs, in this process's child (`tests.bench.ui_site`): the real API, page and
handlers, with a journal in memory, so that what is measured is the page and what it asks for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, Request

from corral.server.api.ui.assets import assets
from tests.browser.chromium import chromium, program
from tests.e2e.live import free_port

BUSY = """() => { window.busy = []; new PerformanceObserver(list => { for (const each of list.getEntries())
    window.busy.push(each.duration); }).observe({ entryTypes: ["longtask"] }); }"""


class Site:
    """The child with the server. ``change`` sets how many changes it makes in a second."""

    def __init__(self, nodes: int, jobs: int) -> None:
        self.port = free_port()
        words = [sys.executable, "-m", "tests.bench.ui_site", str(self.port), str(nodes), str(jobs)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.token = self.process.stdout.readline().strip()
        self.url = f"http://127.0.0.1:{self.port}"

    def change(self, per_s: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{per_s}\n")
        self.process.stdin.flush()

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def signed_in(browser: Browser, site: Site) -> BrowserContext:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.goto(site.url + "/")
    page.fill("input[name=token]", site.token)
    page.click("button.primary")
    page.wait_for_selector(".shell .meter")
    page.close()
    return context


def first_page(context: BrowserContext, site: Site) -> tuple[float, int]:
    """The best of five: seconds from navigation until the numbers are drawn, and requests for data until then."""
    found = []
    for _ in range(5):
        page = context.new_page()
        asked: list[str] = []
        page.on("request", partial(_count, asked))
        page.add_init_script(
            "const see = () => document.querySelector('.shell .meter') ? (window.seen = performance.now())"
            " : requestAnimationFrame(see); requestAnimationFrame(see);"
        )
        page.goto(site.url + "/")
        page.wait_for_function("() => window.seen")
        found.append((page.evaluate("window.seen") / 1000, len(asked)))
        page.close()
    return min(found)


def _count(asked: list[str], request: Request) -> None:
    if "/v1/" in request.url:
        asked.append(request.url)


def updates(context: BrowserContext, site: Site, seconds: float) -> tuple[float, float]:
    """Milliseconds of the main thread for an update at 100 changes a second, and growth of memory meanwhile."""
    page = context.new_page()
    page.goto(site.url + "/#/map")
    page.wait_for_selector("canvas")
    session = context.new_cdp_session(page)
    session.send("Performance.enable")
    site.change(100)
    page.wait_for_timeout(5000)
    before, memory = _busy(session), _memory(session)
    count = page.evaluate("window.corralChanges || 0")
    page.wait_for_timeout(seconds * 1000)
    after, grown = _busy(session), _memory(session)
    site.change(0)
    many = max(1, round(seconds / 0.5)) if not count else page.evaluate("window.corralChanges") - count
    page.close()
    return (after - before) * 1000 / many, grown / memory - 1


def _busy(session: Any) -> float:
    metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])


def _memory(session: Any) -> float:
    session.send("HeapProfiler.collectGarbage")
    return float(session.send("Runtime.getHeapUsage")["usedSize"])


def viewers(site: Site, count: int, seconds: float) -> tuple[float, float]:
    """Part of a core that the server uses for many viewers at 10 changes a second; and the slowest answer meanwhile."""
    site.change(10)
    time.sleep(2)
    began, at = site.cpu_s(), time.monotonic()
    time.sleep(seconds)
    alone = (site.cpu_s() - began) / (time.monotonic() - at)
    threads = [threading.Thread(target=_view, args=(site, seconds + 6), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(4)
    began, at, slowest = site.cpu_s(), time.monotonic(), 0.0
    while time.monotonic() - at < seconds:
        asked = time.monotonic()
        with suppress(OSError):
            urllib.request.urlopen(f"{site.url}/v1/health", timeout=5).read()
        slowest = max(slowest, time.monotonic() - asked)
        time.sleep(0.1)
    used = (site.cpu_s() - began) / (time.monotonic() - at)
    site.change(0)
    return used - alone, slowest


def _view(site: Site, seconds: float) -> None:
    request = urllib.request.Request(
        f"{site.url}/v1/live?follow=true", headers={"Authorization": f"Bearer {site.token}"}
    )
    until = time.monotonic() + seconds
    with suppress(OSError), urllib.request.urlopen(request, timeout=10) as answer:
        while time.monotonic() < until and answer.readline():
            pass


def log_screen(context: BrowserContext, site: Site) -> tuple[float, float]:
    """Milliseconds until the first lines of a log of 1 GB are drawn, and the longest block while scrolling."""
    page: Page = context.new_page()
    page.goto(site.url + "/#/jobs/1")
    page.wait_for_selector(".tabs")
    page.evaluate(BUSY)
    began = time.monotonic()
    page.evaluate("location.hash = '#/jobs/1/logs'")
    page.wait_for_selector(".log .line")
    first_ms = (time.monotonic() - began) * 1000
    for _ in range(20):
        page.mouse.move(700, 500)
        page.mouse.wheel(0, -1500)
        page.wait_for_timeout(30)
    page.get_by_label("Search in the log").fill("step 7")
    page.wait_for_timeout(500)
    longest = page.evaluate("Math.max(0, ...window.busy)")
    page.close()
    return first_ms, longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    if not program():
        raise SystemExit("Chromium is not installed; see: make services")
    nodes, jobs, seconds, count = (125, 2_000, 5.0, 50) if asked.quick else (1_250, 100_000, 60.0, 200)
    files = [file for name, file in assets().files.items() if name.endswith((".js", ".css"))]
    result: dict[str, Any] = {"gz_kb": round(sum(len(file.packed) for file in files) / 1000, 1)}
    site = Site(nodes, jobs)
    try:
        with chromium() as browser:
            context = signed_in(browser, site)
            first_s, requests = first_page(context, site)
            result |= {"first_page_s": round(first_s, 3), "data_requests": requests}
            update_ms, growth = updates(context, site, seconds)
            result |= {"update_ms": round(update_ms, 1), "memory_growth": round(growth, 4)}
            first_ms, block_ms = log_screen(context, site)
            result |= {"log_first_screen_ms": round(first_ms), "log_block_ms": round(block_ms)}
        used, slowest = viewers(site, count, min(seconds, 20.0))
        result |= {"server_cpu_per_viewer": round(used / count, 5), "server_cpu_viewers": round(used, 3)}
        result |= {"viewers": count, "slowest_answer_ms": round(slowest * 1000), "load": os.getloadavg()[0]}
    finally:
        site.stop()
    print(json.dumps(result | {"nodes": nodes, "jobs": jobs}))


if __name__ == "__main__":
    main()
