"""The dashboard among hostile texts, teams that may not see each other, and connections that break."""

from __future__ import annotations

import json
import os
import random
from contextlib import suppress

import pytest

from tests.browser.chromium import PAGES, Tab, opened
from tests.e2e.live import Refused

#: How often the connection is broken; 100 for the long form: BREAKS=100.
BREAKS = int(os.environ.get("BREAKS", "4"))
MARK = "window.__executed=1"
PAYLOADS = (
    f"<script>{MARK}</script>",
    f"<img src=x onerror={MARK}>",
    f'"><svg onload={MARK}>',
    f"javascript:{MARK}",
    f"${{{MARK}}}",
    f"{{{{constructor.constructor('{MARK}')()}}}}",
    "</textarea><iframe srcdoc='<script>parent.__executed=1</script>'>",
    f"' autofocus onfocus={MARK} x='",
)
STATE = """async () => {
    const live = await import(new URL("lib/live.js", document.querySelector("script[type=module]").src));
    const me = { ...live.me.value, token: "", expires_ms: 0 };
    return JSON.parse(JSON.stringify({
        me, overview: live.overview.value, queues: live.queues.value, nodes: [...live.nodes.value.values()],
        jobs: live.jobsOnMap.value, levels: live.levels.value,
        events: live.events.value.filter(event => event.type !== "TokenIssued").slice(0, 20) }));
}"""


def test_texts_of_others_are_never_executed(site, browser):
    numbers = []
    for payload in PAYLOADS:
        says = f"import sys; print({payload!r}, flush=True); sys.stderr.write({payload!r}); sys.exit({payload!r})"
        document = {"name": "hostile", "gpus": 0, "command": ["python3", "-c", says], "env": {"X": payload}}
        numbers.append(site.submit(**document, labels={"label": payload}))
        with suppress(Refused):  # most of them are not allowed as names
            numbers.append(site.submit(**document | {"name": payload}))
    for number in numbers:
        site.until(number, "failed")
    tab = opened(browser, site.live.url, site.tokens["admin"])
    tab.page.on("dialog", lambda dialog: tab.errors.append(f"dialog: {dialog.message}"))
    for name in ("overview", "jobs", "gantt", "events", "usage", f"submit?from={numbers[0]}"):
        tab.go(name)
    for number in numbers:
        for part in ("", "/logs", "/events", "/specification"):
            tab.go(f"jobs/{number}{part}")
    for payload in PAYLOADS[:3]:
        tab.page.get_by_label("Search", exact=True).fill(payload[:20])
        tab.page.wait_for_timeout(300)
    assert tab.page.evaluate("window.__executed") is None
    assert not tab.errors
    tab.page.context.close()


def test_a_viewer_of_one_team_sees_nothing_of_another(site, browser):
    site.submit(name="project-bluebird", queue="research", gpus=1, labels={"codename": "bluebird"})
    tab = opened(browser, site.live.url, site.tokens["bob"])
    answers: list[str] = []
    tab.page.on("response", lambda answer: answers.append(answer.url) if "/v1/" in answer.url else None)
    for name in PAGES:
        if name.startswith(("fleets", "jobs/1", "access/secrets")):
            continue
        tab.go(name)
        shown = tab.page.inner_text("body")
        for hidden in ("bluebird", "llama-pretrain", "research", "WANDB"):
            assert hidden not in shown, f"{hidden} on {name}"
    for offered in ("Submit", "Fleets"):
        assert tab.page.locator(".side a", has_text=offered).count() == 0
    state = json.dumps(tab.page.evaluate(STATE))
    assert "bluebird" not in state
    assert "research" not in state
    assert answers
    tab.page.context.close()


def test_after_a_break_the_page_equals_a_new_one(site, browser):
    """The server is killed, the network is cut, or the page reconnects by itself; meanwhile jobs and nodes change."""
    drawn = random.Random(7)
    tab = opened(browser, site.live.url, site.tokens["admin"])
    tab.go("map")
    for number in range(BREAKS):
        way = "kill" if number == 0 else drawn.choice(("cut", "cut", "reopen", "kill" if BREAKS > 10 else "cut"))
        if way == "kill":
            site.live.kill()
            site.live.start()
        elif way == "cut":
            tab.page.context.set_offline(True)
        change(site, drawn)
        if way == "cut":
            tab.page.context.set_offline(False)
        elif way == "reopen":
            tab.page.evaluate("dispatchEvent(new Event('online'))")
        change(site, drawn)
        compare(site, browser, tab, f"break {number} ({way})")
    tab.page.context.close()


def change(site, drawn: random.Random) -> None:
    site.submit(name=f"during-{drawn.randrange(1000)}", queue=drawn.choice(("product", "research")), gpus=8)
    word = "uncordon" if site.live.ask("GET", "/v1/nodes/here")["cordoned"] else "cordon"
    site.live.ask("POST", f"/v1/nodes/here/{word}", {} if word == "cordon" else None)


def compare(site, browser, tab: Tab, what: str) -> None:
    fresh = opened(browser, site.live.url, site.tokens["admin"])
    fresh.go("map")
    found: tuple[object, object] = (None, None)
    for _ in range(60):
        found = (tab.page.evaluate(STATE), fresh.page.evaluate(STATE))
        if found[0] == found[1]:
            break
        tab.page.wait_for_timeout(500)
    fresh.page.context.close()
    assert found[0] == found[1], what


@pytest.mark.parametrize("token", ["", "corral_0000_wrongwrongwrong"])
def test_a_page_without_a_session_shows_only_the_sign_in(site, browser, token):
    context = browser.new_context()
    tab = Tab(context, site.live.url)
    tab.page.goto(site.live.url + "/#/jobs")
    tab.page.wait_for_selector("input[name=token]")
    if token:
        tab.page.fill("input[name=token]", token)
        tab.page.click("button.primary")
        tab.page.get_by_text("unknown or was revoked").wait_for()
    assert tab.page.locator(".shell").count() == 0
    context.close()
