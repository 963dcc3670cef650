"""The interface over the real service: loop, planner process, journal on SQLite; only the tasks pretend."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from corral.core.accounts.accounts import TokenIssued
from corral.runtime.fake import FakeBackend, FakeScript
from corral.server.api.app import make_app
from corral.server.auth import new_token
from corral.server.metrics import Metrics
from corral.server.recovery import load
from corral.server.server import Server
from corral.server.totals import fold
from corral.server.vault import secrets_of
from corral.store.sqlite.journal import SqliteJournal
from corral.wire.codec import decode
from tests.server.asgi import Stream, ask
from tests.server.servers import NODE, found, until

JOB = {"name": "train", "command": "true", "gpus": 2}


@asynccontextmanager
async def whole(folder, backend, token=None):
    """A server with its interface. ``token``: of the administrator, from an earlier one on the same folder."""
    journal = SqliteJournal(folder)
    if journal.head.seq == 0:
        found(journal)
    secrets = secrets_of(folder)
    server = Server(load(journal), journal, journal.lookup, backend, secrets)
    await server.begin()
    service = server.service
    try:
        if token is None:
            drawn = new_token()
            now_ms = service.now_ms()
            issued = [TokenIssued(now_ms, drawn.id, "root", drawn.digest)]
            await service.change_accounts("founder", lambda *_: issued)
            token = drawn.text
        metrics = Metrics(service.state, service.now_ms())
        server.durability.watchers.append(metrics.take)
        app = make_app(service, None, metrics)
        yield app, server, token
        app.close()
    finally:
        await server.close()


async def test_a_job_from_submission_to_its_log(tmp_path):
    backend = FakeBackend([NODE], lambda _: FakeScript(runs_ms=50, stdout=b"hello\n"))
    async with whole(tmp_path, backend) as (app, server, token):
        async with Stream(app, "/v1/events?follow=true", token) as stream:
            answer = await ask(app, "POST", "/v1/jobs", token, JOB, [("Idempotency-Key", "once")])
            assert answer.status == 201
            told = await stream.until(b"event: JobEnded")
        for name in (b"JobSubmitted", b"GangPlaced", b"GangStarted", b"GangStopped"):
            assert b"event: " + name in told
        job = (await ask(app, "GET", "/v1/jobs/1", token)).json()
        assert (job["state"], job["exit_code"], job["command"][-1]) == ("succeeded", 0, "true")
        assert [run["nodes"] for run in job["history"]] == [["here"]]
        assert (await ask(app, "GET", "/v1/jobs/1/logs", token)).body == b"hello\n"
        events = (await ask(app, "GET", "/v1/events?job=1", token)).json()["events"]
        actors = {event["type"]: event["actor"] for event in events}
        assert actors["GangPlaced"] == "system", "the planner is not a user"
        assert actors["GangStarted"].startswith("node "), "its node reported it"
        usage = (await ask(app, "GET", "/v1/usage", token)).json()
        assert usage["gpu_ms"] > 0
        records = server.service.journal.read(0, 1_000)
        totals, counted = app.metrics.fold.totals, fold(decode(each.format, each.body) for each in records)
        assert totals.submitted == counted.submitted == {"default": 1}
        assert totals.ended == counted.ended == {("default", "succeeded"): 1}


async def test_a_key_is_remembered_by_the_next_server(tmp_path):
    backend = FakeBackend([NODE])
    key = [("Idempotency-Key", "once")]
    async with whole(tmp_path, backend) as (app, _, token):
        first = await ask(app, "POST", "/v1/jobs", token, JOB, key)
        batch = await ask(app, "POST", "/v1/jobs/batch", token, {"jobs": [JOB, JOB | {"after": "#0"}]}, key[:0])
        assert (first.status, batch.status) == (201, 201)
    async with whole(tmp_path, backend, token) as (app, _, _):
        again = await ask(app, "POST", "/v1/jobs", token, JOB, key)
        assert again.json() == first.json()
        assert (await ask(app, "POST", "/v1/jobs", token, JOB | {"gpus": 1}, key)).status == 409
        jobs = (await ask(app, "GET", "/v1/jobs", token)).json()["jobs"]
        assert [job["id"] for job in jobs] == ["3", "2", "1"]
        assert (await ask(app, "GET", "/v1/jobs/3", token)).json()["after"] == ["ok:2"]


async def test_why_and_what_would_happen(tmp_path):
    backend = FakeBackend([NODE])
    async with whole(tmp_path, backend) as (app, server, token):
        await ask(app, "POST", "/v1/jobs", token, JOB | {"gpus": 6, "time_limit": "1h"})
        await until(lambda: bool(server.service.state.holders))
        await ask(app, "POST", "/v1/jobs", token, JOB | {"tasks": 2})
        [gang] = (await ask(app, "GET", "/v1/jobs/2/why", token)).json()["gangs"]
        assert gang["reasons"][0]["code"] == "NoCapacity"
        assert gang["in_the_way"][0]["job"] == "1"
        assert any(change["field"] == "tasks" for change in gang["changes"])
        tried = (await ask(app, "POST", "/v1/jobs?dry_run=true", token, JOB)).json()
        assert tried["gangs"][0]["outcome"] == "starts"
        tried = (await ask(app, "POST", "/v1/jobs?dry_run=true", token, JOB | {"gpus": 8})).json()
        assert tried["gangs"][0]["outcome"] == "waits"
        assert (await ask(app, "POST", "/v1/jobs?dry_run=true", token, JOB | {"gpus": 9})).status == 422


async def test_many_clients_at_once(tmp_path):
    backend = FakeBackend([NODE], lambda _: FakeScript(runs_ms=5))
    async with whole(tmp_path, backend) as (app, _, token):

        async def client(number: int) -> list[str]:
            found = []
            for n in range(5):
                key = [("Idempotency-Key", f"{number}-{n}")]
                found.append((await ask(app, "POST", "/v1/jobs", token, JOB, key)).json()["id"])
            return found

        ids = [number for found in await asyncio.gather(*map(client, range(20))) for number in found]
        assert sorted(map(int, ids)) == list(range(1, 101))
