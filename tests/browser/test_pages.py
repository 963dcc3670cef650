"""Every page in a real browser, with the whole server behind it: drawn, accessible, and its actions work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.chromium import PAGES, opened

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text(encoding="utf-8")
RUN_AXE = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
    .map(each => each.id + ": " + each.nodes.slice(0, 3).map(node => node.html.slice(0, 160)).join(" | "))"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_is_drawn_and_accessible(site, browser, theme):
    tab = opened(browser, site.live.url, site.tokens["admin"], theme=theme)
    wrong = []
    for name in PAGES:
        tab.go(name)
        wrong += [f"{name}: {each}" for each in violations(tab)]
    assert not wrong, "\n".join(wrong)
    assert not tab.errors
    tab.page.context.close()


def violations(tab) -> list[str]:
    """axe-core runs in a world of its own, so that the policy of the page does not stop it."""
    session = tab.page.context.new_cdp_session(tab.page)
    frame = session.send("Page.getFrameTree")["frameTree"]["frame"]["id"]
    world = session.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": "axe"})["executionContextId"]
    session.send("Runtime.evaluate", {"expression": AXE + "; 0", "contextId": world})
    asked = {"expression": f"({RUN_AXE})()", "contextId": world, "awaitPromise": True, "returnByValue": True}
    answer = session.send("Runtime.evaluate", asked)
    session.detach()
    assert "value" in answer["result"], answer
    return list(answer["result"]["value"])


def test_the_pages_fit_a_phone(site, browser):
    tab = opened(browser, site.live.url, site.tokens["admin"], width=360, height=740)
    for name in PAGES:
        tab.go(name)
        wide = tab.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, f"{name} is {wide} px wide"
    assert not tab.errors
    tab.page.context.close()


def test_a_job_is_submitted_watched_and_cancelled(site, browser):
    tab = opened(browser, site.live.url, site.tokens["ann"])
    page = tab.page
    tab.go("submit")
    page.get_by_label("Name", exact=True).fill("from-the-form")
    page.get_by_label("Command").fill("sleep 60")
    page.locator(".form select").select_option("research")
    page.wait_for_function("() => document.querySelector('.editor textarea').value.includes('command: sleep 60')")
    page.get_by_role("button", name="Try it: dry run").click()
    page.get_by_text("What would happen").wait_for()
    page.get_by_role("button", name="Submit", exact=True).click()
    page.get_by_role("heading", name="from-the-form").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("1 job will be stopped").wait_for()
    page.get_by_role("button", name="Cancel 1 job").click()
    page.locator(".head .state", has_text="cancelled").wait_for()
    assert not tab.errors
    page.context.close()


def test_a_job_file_is_kept_as_a_template(site, browser):
    tab = opened(browser, site.live.url, site.tokens["ann"])
    page = tab.page
    tab.go("submit")
    page.fill(".editor textarea", "name: kept-for-later\ncommand: 'true'\n")
    page.get_by_role("button", name="Save as…").click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_text("For all users").count() == 0, "ann may not change templates of the site"
    dialog.get_by_label("Name").fill("mine")
    dialog.get_by_role("button", name="Save").click()
    page.get_by_text("Template mine was saved").wait_for()
    page.reload()
    page.locator("main h1").wait_for()
    page.get_by_label("Begin with a template").select_option(label="mine")
    page.wait_for_function("() => document.querySelector('.form input').value === 'kept-for-later'")
    page.get_by_role("button", name="Remove…").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    page.get_by_text("The template was removed").wait_for()
    assert not tab.errors
    page.context.close()


def test_errors_of_a_job_file_have_their_line(site, browser):
    tab = opened(browser, site.live.url, site.tokens["ann"])
    tab.go("submit")
    tab.page.fill(".editor textarea", "command: true\ngpus: 1\nprioritty: 3\n")
    tab.page.get_by_text("3:1").wait_for()
    assert "priority" in tab.page.locator(".list").inner_text()
    tab.page.context.close()


def test_many_jobs_are_changed_with_the_keyboard_alone(site, browser):
    numbers = [site.submit(name="by-keyboard", queue="product", gpus=8, time_limit="9h") for _ in range(3)]
    tab = opened(browser, site.live.url, site.tokens["admin"])
    page = tab.page
    tab.go("jobs?search=by-keyboard")
    page.get_by_text("3 match").wait_for()
    page.locator(".scroller").focus()
    for _ in numbers:
        page.keyboard.press("ArrowDown")
        page.keyboard.press("x")
    page.get_by_text("3 selected").wait_for()
    page.locator("h1").focus()
    page.keyboard.press("c")
    page.get_by_text("3 jobs will be stopped").wait_for()
    focus_on(page, "Cancel 3 jobs")
    page.keyboard.press("Enter")
    page.get_by_text("3 jobs cancelled").wait_for()
    assert {site.live.ask("GET", f"/v1/jobs/{each}")["state"] for each in numbers} == {"cancelled"}
    for _ in range(2):
        site.submit(name="all-by-keyboard", queue="product", gpus=8, time_limit="9h")
    tab.go("jobs?search=all-by-keyboard")
    page.get_by_text("All 2 that match").wait_for()
    page.locator("h1").focus()
    page.keyboard.press("Shift+C")
    page.get_by_text("2 jobs will be stopped").wait_for()
    page.keyboard.press("Tab")
    focus_on(page, "Cancel 2 jobs")
    page.keyboard.press("Enter")
    page.get_by_text("2 jobs cancelled").wait_for()
    page.keyboard.press("?")
    page.get_by_text("Go to Queues").wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("Go to Queues").wait_for(state="hidden")
    page.locator("h1").first.focus()
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.get_by_role("heading", name="Queues", exact=True).first.wait_for()
    assert not tab.errors
    page.context.close()


def focus_on(page, text: str) -> None:
    """Press Tab until this is focused."""
    for _ in range(20):
        if page.evaluate("document.activeElement.textContent") == text:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{text} cannot be reached by the keyboard")


FASTER_THAN_THE_PAINT = """async () => {
    const table = document.querySelector(".scroller");
    for (const [target, key] of [[table, "ArrowDown"], [table, "x"], [document.body, "c"]]) {
        target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
        for (let turn = 0; turn < 20; turn++) await null;
    }
}"""


def test_a_key_acts_on_what_is_selected_at_that_moment(site, browser):
    site.submit(name="quick-keys", queue="product", gpus=8, time_limit="9h")
    tab = opened(browser, site.live.url, site.tokens["admin"])
    tab.go("jobs?search=quick-keys")
    tab.page.get_by_text("1 match").wait_for()
    tab.page.evaluate(FASTER_THAN_THE_PAINT)
    tab.page.get_by_text("1 job will be stopped").wait_for()
    assert not tab.errors
    tab.page.context.close()


def test_the_output_of_a_job_is_shown_with_its_colours(site, browser):
    tab = opened(browser, site.live.url, site.tokens["ann"])
    tab.go("jobs/1/logs")
    tab.page.locator(".log .f2", has_text="step").first.wait_for()
    tab.page.get_by_label("Search in the log").fill("loss 0.02")
    tab.page.locator(".log mark").first.wait_for()
    assert not tab.errors
    tab.page.context.close()


def test_the_output_of_one_rank_follows_what_is_written(site, browser):
    job = site.submit(name="one-rank", gpus=0)
    site.until(job, "running")
    tab = opened(browser, site.live.url, site.tokens["admin"])
    tab.go(f"jobs/{job}/logs")
    tab.page.get_by_label("Which output").select_option("0")
    tab.page.get_by_text("following").wait_for()
    last = "() => Number([...document.querySelectorAll('.log .line')].at(-1).textContent.split(' ')[1])"
    began = tab.page.evaluate(last)
    tab.page.wait_for_function(f"began => ({last})() > began + 2", arg=began)
    site.cancel(job)
    assert not tab.errors
    tab.page.context.close()


def test_a_node_is_drained_and_undrained(site, browser):
    tab = opened(browser, site.live.url, site.tokens["admin"])
    page = tab.page
    tab.go("nodes/here")
    page.get_by_role("button", name="Cordon").click()
    page.get_by_role("dialog").get_by_role("button", name="Cordon").click()
    page.get_by_role("button", name="Uncordon").click()
    page.get_by_role("dialog").get_by_role("button", name="Uncordon").click()
    page.get_by_role("button", name="Cordon", exact=True).wait_for()
    assert not tab.errors
    page.context.close()
