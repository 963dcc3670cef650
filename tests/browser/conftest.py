"""A server and a browser for each module of tests of the dashboard; without Chromium they are skipped. Both end with
the module: while Playwright is open, no other test of the same process can have an event loop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser.chromium import chromium, program
from tests.browser.small_site import SmallSite


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not program():
        pytest.skip("Chromium is not installed; see: make services")
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallSite]:
    started = SmallSite(tmp_path_factory.mktemp("site")).start()
    try:
        started.fill()
        yield started
    finally:
        started.stop()
