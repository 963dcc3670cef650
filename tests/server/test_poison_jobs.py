"""A job with which planning fails is held by the server, with an alarm, and the others go on."""

import asyncio

import pytest

from corral.core import events as e
from corral.core.intake.commands import drain, quarantine, release, undrain
from corral.core.laws import violations
from corral.policy.explain.reasons import Quarantined
from corral.server.metrics import Metrics
from corral.server.planner.bisect import CULPRITS_MAX, find
from corral.server.planner.client import Planner
from corral.server.planner.questions import WhyAnswer
from corral.server.recovery import load
from corral.store.memory import MemoryJournal
from tests.server.asgi import ask
from tests.server.servers import ended, job, reopened, running, until, written


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    monkeypatch.setattr(Planner, "program", "tests.server.failing_planner")


def held(journal: MemoryJournal) -> list[str]:
    return [event.job for event in written(journal) if isinstance(event, e.JobHeld)]


async def test_a_job_that_makes_the_policy_raise_is_quarantined_and_the_others_run(tmp_path):
    journal = MemoryJournal()
    async with running(tmp_path, journal) as server:
        metrics = server.loop.meter = Metrics(server.service.state)
        others = [job(gpus=8) for _ in range(6)]
        await server.service.submit("root", [*others[:3], job(name="raises"), *others[3:]])
        await until(lambda: len(ended(journal)) == 6, 60)
        assert held(journal) == ["4"]
        bad = server.service.state.jobs["4"]
        assert bad.held
        assert "KeyError" in bad.held_why
        told = metrics.text(0).decode()
        assert "corral_jobs_quarantined_total 1.0" in told
        assert "corral_plan_failures_total" in told
        why = await server.service.explain("4/main")
        assert isinstance(why, WhyAnswer)
        assert isinstance(why.hold.reasons[0], Quarantined)
        assert "corral release 4" in why.hold.reasons[0].text(0)
        assert not list(violations(server.service.state))
    again = load(reopened(journal)).state
    assert again.jobs["4"].held_why == bad.held_why


async def test_a_job_that_is_released_and_still_poisonous_is_quarantined_again(tmp_path):
    journal = MemoryJournal()
    async with running(tmp_path, journal) as server:
        await server.service.submit("root", [job(name="raises")])
        await until(lambda: held(journal) == ["1"])
        await server.service.change("root", lambda state, now: release(state, "1", now))
        assert not server.service.state.jobs["1"].held_why
        await until(lambda: held(journal) == ["1", "1"])


@pytest.mark.parametrize("how", ["hangs", "crashes"])
async def test_a_job_that_makes_the_policy_hang_or_crash_is_quarantined(tmp_path, how):
    journal = MemoryJournal()
    async with running(tmp_path, journal) as server:
        server.planning.patience_s = 2.0
        await server.service.submit("root", [job(), job(name=how), job()])
        await until(lambda: held(journal) == ["2"], 120)
        server.planning.patience_s = 30.0
        await until(lambda: ended(journal) == {"1": True, "3": True}, 60)


async def test_a_failure_that_no_job_explains_holds_no_one_and_is_tried_again(tmp_path):
    journal = MemoryJournal()
    async with running(tmp_path, journal) as server:
        await server.service.change("root", lambda state, now: drain(state, "here", now))
        await server.service.submit("root", [job(), job()])
        await asyncio.sleep(1.0)
        assert not ended(journal)
        await server.service.change("root", lambda state, now: undrain(state, "here", now))
        await until(lambda: len(ended(journal)) == 2, 60)
        assert not held(journal)


def test_the_search_finds_every_culprit_and_no_other():
    bad = {"3", "500", "77"}
    tries = []

    def trial(without):
        tries.append(len(without))
        return "wrong" if bad - set(without) else ""

    verdict = find([str(n) for n in range(1000)], trial)
    assert {each.job for each in verdict.culprits} == bad
    assert len(tries) < 50


def test_the_search_is_bounded():
    tries = []

    def trial(without):
        tries.append(without)
        return "wrong" if len(without) < 1000 else ""

    assert len(find([str(n) for n in range(1000)], trial).culprits) == CULPRITS_MAX
    assert len(tries) < CULPRITS_MAX * 15
    assert find(["1"], lambda _: "always").culprits == ()
    assert find(["1"], lambda _: "").fault == ""


async def test_a_quarantined_job_says_why_and_is_an_operators_to_release(setup):
    service = setup.service
    await ask(setup.app, "POST", "/v1/jobs", setup.member, {"command": "true", "gpus": 1, "queue": "team"})
    await service.change("scheduler", lambda state, now: quarantine(state, "1", "KeyError: 'x' (order.py:7)", now))
    shown = (await ask(setup.app, "GET", "/v1/jobs/1", setup.member)).json()
    assert shown["held"]
    assert shown["why"] == "quarantined: planning failed because of this job (KeyError: 'x' (order.py:7))"
    refused = await ask(setup.app, "POST", "/v1/jobs/1/release", setup.member)
    assert (refused.status, refused.json()["code"]) == (409, "quarantined")
    assert (await ask(setup.app, "POST", "/v1/jobs/1/release", setup.root)).status == 200
    shown = (await ask(setup.app, "GET", "/v1/jobs/1", setup.member)).json()
    assert (shown["held"], shown["why"]) == (False, "")
