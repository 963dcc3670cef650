"""The system's Chromium, driven by Playwright: started, signed in, and watched for errors of the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
#: Two slow cores may be shared with other tests.
WAIT_MS = 90_000
#: Every page, by its address.
PAGES = (
    "overview", "jobs", "jobs/1", "jobs/1/logs", "jobs/1/metrics", "jobs/1/events", "jobs/1/specification", "submit",
    "map", "nodes/here", "gantt", "queues", "queues?view=line", "batching", "usage", "fleets", "access/users",
    "access/tokens", "access/secrets", "events",
)  # fmt: skip


def program() -> str:
    """Where Chromium is; "" if it is not installed."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A page of the dashboard. ``errors``: what its console said, apart from refusals that a test wants."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.page: Page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.url, self.errors = url, list[str]()
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and "401" not in message.text:
            self.errors.append(message.text)

    def sign_in(self, token: str) -> None:
        self.page.goto(self.url + "/")
        self.page.fill("input[name=token]", token)
        self.page.click("button.primary")
        self.page.wait_for_selector(".shell")

    def go(self, where: str) -> None:
        """Go to a page, and wait until it is drawn and current."""
        self.page.evaluate("where => { location.hash = '#/' + where }", where)
        first, _, rest = where.partition("?")[0].partition("/")
        name = "job" if first == "jobs" and rest else first
        self.page.wait_for_selector(f'[data-page="{name}"]', state="attached", timeout=WAIT_MS)
        self.page.wait_for_selector("main h1", timeout=WAIT_MS)
        self.page.wait_for_selector(".link-state:not(.wait):not(.off)", timeout=WAIT_MS)
        self.page.wait_for_timeout(150)  # until it has asked for what it shows
        self.page.wait_for_function("() => !document.documentElement.dataset.asking", timeout=WAIT_MS)


def opened(browser: Browser, url: str, token: str, width: int = 1440, height: int = 900, theme: str = "light") -> Tab:
    scheme: Literal["dark", "light"] = "dark" if theme == "dark" else "light"
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    tab = Tab(context, url)
    tab.sign_in(token)
    return tab
