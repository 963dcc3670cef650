"""Who read what, where the administrator wants to know; and tokens that are over do not stay for ever."""

from __future__ import annotations

import pytest

from corral.core import facts as f
from corral.core.accounts import accounts as a
from corral.core.accounts import commands
from corral.core.accounts.accounts import Role
from corral.core.engine import react
from corral.core.intake.refusal import Refusal
from corral.runtime.base import TaskKey
from corral.server.api.http.settings import ApiSettings
from tests.server.asgi import Stream, ask
from tests.server.in_memory_service import MemoryService
from tests.server.servers import running, until

JOB = {"queue": "team", "command": "true", "gpus": 1}


@pytest.fixture
def settings(request):
    return ApiSettings(audit_reads=getattr(request, "param", True))


def reads(setup) -> list[tuple[str, str, int]]:
    return [(e.user, e.what, e.left_out) for e in setup.service.events() if isinstance(e, a.Read)]


async def running_job(setup):
    owner = setup.service.user("owner", (Role.MEMBER, "team"))
    assert (await ask(setup.app, "POST", "/v1/jobs", owner, JOB)).status == 201
    setup.service.plan()
    setup.service.do("world", react(setup.service.state, f.TasksUp("1/main", 1, 1), setup.service.now_ms()))
    setup.service.backend.logs[TaskKey("1/main", 1, 0), "stdout"] = b"text"
    return owner


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/v1/jobs", "a list of others' jobs"),
        ("/v1/jobs/1", "job 1 of owner"),
        ("/v1/jobs/1/why", "job 1 of owner"),
        ("/v1/jobs/1/logs", "the log of job 1 of owner"),
        ("/v1/secrets", "the names of secrets"),
        ("/v1/events", "the record"),
    ],
)
async def test_reads_are_recorded_before_they_are_answered(setup, path, what):
    await running_job(setup)
    assert (await ask(setup.app, "GET", path, setup.member)).status == 200
    assert reads(setup) == [("member", what, 0)]


async def test_following_a_log_is_recorded(setup):
    await running_job(setup)
    async with Stream(setup.app, "/v1/jobs/1/logs?follow=true", setup.member) as stream:
        await stream.until(b"text")
    assert reads(setup) == [("member", "the log of job 1 of owner", 0)]


async def test_what_is_ones_own_and_what_is_refused_is_not_a_read_of_others(setup):
    owner = await running_job(setup)
    assert (await ask(setup.app, "GET", "/v1/jobs/1", owner)).status == 200
    assert (await ask(setup.app, "GET", "/v1/jobs", owner)).status == 200
    stranger = setup.service.user("stranger", (Role.MEMBER, "other"))
    assert (await ask(setup.app, "GET", "/v1/jobs/1", stranger)).status == 404
    assert not reads(setup)


@pytest.mark.parametrize("settings", [False], indirect=True, ids=["off"])
async def test_nothing_is_recorded_unless_it_is_wanted(setup):
    await running_job(setup)
    assert (await ask(setup.app, "GET", "/v1/jobs/1/logs", setup.member)).status == 200
    assert not reads(setup)


async def test_the_same_again_is_counted_and_reported_later(setup):
    await running_job(setup)
    for _ in range(20):
        await ask(setup.app, "GET", "/v1/jobs/1", setup.member)
    setup.service.time_ms += 61_000
    await ask(setup.app, "GET", "/v1/jobs/1", setup.member)
    assert reads(setup) == [("member", "job 1 of owner", 0), ("member", "job 1 of owner", 19)]


async def test_administrators_see_reads_and_members_do_not(setup):
    await running_job(setup)
    await ask(setup.app, "GET", "/v1/secrets", setup.member)
    told = (await ask(setup.app, "GET", "/v1/events?types=Read", setup.root)).json()["events"]
    assert [event["text"] for event in told] == ["member read the names of secrets", "root read the record"]
    assert not (await ask(setup.app, "GET", "/v1/events?types=Read", setup.member)).json()["events"]


# ---- tokens that are over --------------------------------------------------------------------------------


def issue(service: MemoryService, n: int, expires_ms: int | None):
    return commands.issue_token(
        service.accounts, f"{n:016x}", "root", "0" * 64, "", (), expires_ms, service.now_ms()
    )  # fmt: skip


def test_expired_tokens_do_not_count_and_are_dropped_when_there_are_many():
    service = MemoryService()
    service.user("root", (Role.ADMINISTRATOR, ""))
    for n in range(commands.TOKENS_MAX - 1):
        assert not isinstance(service.do_accounts("root", issue(service, n, service.now_ms() + 1_000)), Refusal)
    assert isinstance(issue(service, 10_000, None), Refusal)
    service.time_ms += 1_000
    assert not isinstance(service.do_accounts("root", issue(service, 10_001, None)), Refusal)
    assert len(service.accounts.tokens) == 2
    for n in range(20_000, 20_000 + commands.TOKENS_MAX - 2):
        assert not isinstance(service.do_accounts("root", issue(service, n, None)), Refusal)
    assert isinstance(issue(service, 30_000, None), Refusal)


def test_expired_tokens_stay_for_a_while_and_are_then_dropped():
    service = MemoryService()
    service.user("root", (Role.ADMINISTRATOR, ""))
    for n in range(2_500):
        service.token("root", expires_ms=service.now_ms() + 1 + n % 2)
    assert commands.drop_expired_tokens(service.accounts, service.now_ms() + 2) == []
    service.time_ms += commands.EXPIRED_KEPT_MS + 1
    dropped = commands.drop_expired_tokens(service.accounts, service.now_ms())
    assert not isinstance(dropped, Refusal)
    assert [len(event.tokens) for event in dropped if isinstance(event, a.TokensExpired)] == [1_000, 250]
    service.do_accounts("system", dropped)
    assert len(service.accounts.tokens) == 1 + 1_250


async def test_a_server_drops_expired_tokens_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr("corral.server.server.EXPIRED_S", 0.05)
    async with running(tmp_path) as server:
        accounts = server.service.accounts
        old_ms = server.service.now_ms() - commands.EXPIRED_KEPT_MS
        events = [a.TokenIssued(1, "a" * 16, "root", "0" * 64, expires_ms=old_ms),
                  a.TokenIssued(1, "b" * 16, "root", "0" * 64, expires_ms=None)]  # fmt: skip
        await server.service.change_accounts("root", lambda _accounts, _now_ms: events)
        await until(lambda: "a" * 16 not in accounts.tokens)
        assert "b" * 16 in accounts.tokens
