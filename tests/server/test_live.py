"""The page that stays open: complete after one request, changed as things change, and never more than one may see."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest

from corral.core.accounts.accounts import Role, RoleGranted
from corral.core.intake import commands
from corral.server.api.app import make_app
from corral.server.api.handlers.live import live_page as page
from corral.server.api.handlers.live.overview import overview as live_overview
from tests.server.asgi import Stream, ask
from tests.server.in_memory_service import MemoryService

JOB = {"name": "train", "queue": "team", "command": "true", "gpus": 4}


class Site:
    def __init__(self, nodes: int = 2) -> None:
        self.service = MemoryService(nodes=nodes)
        self.service.queue("team")
        self.service.queue("other")
        self.admin = self.service.user("admin", (Role.ADMINISTRATOR, ""))
        self.viewer = self.service.user("viewer", (Role.VIEWER, "other"))
        self.app = make_app(self.service)

    async def get(self, path: str, token: str = ""):
        answer = await ask(self.app, "GET", path, token or self.admin)
        assert answer.status == 200, answer.body
        return answer.json()

    async def submit(self, **more: object) -> str:
        return str((await ask(self.app, "POST", "/v1/jobs", self.admin, JOB | more)).json()["id"])


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(page, "TICK_S", 0.01)
    return Site()


async def messages(stream: Stream, count: int):
    found: list[tuple[str, Any]] = []
    while len(found) < count:
        text = (await asyncio.wait_for(stream.parts.get(), 5)).decode()
        for part in text.split("\n\n"):
            lines = dict(line.split(": ", 1) for line in part.splitlines() if ": " in line and line[0] != ":")
            if "event" in lines:
                found.append((lines["event"], json.loads(lines["data"])))
    return found


class TestView:
    async def test_has_everything_that_was_asked_for(self, site):
        await site.submit()
        site.service.plan()
        view = await site.get("/v1/live?parts=nodes,queues")
        assert view["overview"]["gpus"]["total"] == 16
        assert view["overview"]["gpus"]["held"] == 4
        assert sorted(cell["gpus"] for cell in view["topology"]["nodes"]) == ["ffffffff", "hhhhffff"]
        assert view["topology"]["jobs"]["1"]["queue"] == "team"
        assert [queue["name"] for queue in view["queues"]] == ["", "other", "team"]
        assert view["seq"] == site.service.durable_seq
        assert any(event["type"] == "JobSubmitted" for event in view["events"])

    async def test_a_drained_node_is_closed(self, site):
        site.service.do("admin", commands.drain(site.service.state, "n0", site.service.now_ms()))
        view = await site.get("/v1/live?parts=nodes")
        assert {cell["name"]: cell["state"] for cell in view["topology"]["nodes"]} == {"n0": "drained", "n1": "open"}
        assert view["overview"]["gpus"]["closed"] == 8

    async def test_another_team_sees_neither_jobs_nor_their_queue(self, site):
        await site.submit()
        site.service.plan()
        for path in ("/v1/live?parts=nodes,queues", "/v1/topology", "/v1/line", "/v1/search?text=tr"):
            assert "train" not in json.dumps(await site.get(path, site.viewer))
        view = await site.get("/v1/live?parts=nodes,queues", site.viewer)
        assert view["topology"]["jobs"] == {}
        assert [queue["name"] for queue in view["queues"]] == ["other"]
        assert view["overview"]["gpus"]["held"] == 4, "every user with a role may know how full the cluster is"
        assert view["overview"]["gangs_running"] == 0


class TestStream:
    async def test_changes_follow_the_view(self, site):
        async with Stream(site.app, "/v1/live?follow=true&parts=nodes", site.admin) as stream:
            (first, me), (second, view) = await messages(stream, 2)
            assert (first, second) == ("me", "view")
            assert me["user"] == "admin"
            await site.submit()
            ((kind, change),) = await messages(stream, 1)
            assert kind == "change"
            assert change["seq"] > view["seq"]
            assert [job["name"] for job in change["jobs"]] == ["train"]
            site.service.plan()
            ((_, change),) = await messages(stream, 1)
            assert [cell["gpus"] for cell in change["nodes"]] == ["hhhhffff"]
            assert change["jobs_on_map"]["1"]["name"] == "train"

    async def test_views_and_changes_give_the_same(self, site):
        """A reader who follows changes has what a new reader gets."""
        async with Stream(site.app, "/v1/live?follow=true&parts=nodes", site.admin) as stream:
            (_, (_, view)) = await messages(stream, 2)
            cells = {cell["name"]: cell for cell in view["topology"]["nodes"]}
            overview = view["overview"]
            for number in range(6):
                await site.submit(gpus=1 + number % 4)
                site.service.plan()
                ((_, change),) = await messages(stream, 1)
                cells |= {cell["name"]: cell for cell in change["nodes"]}
                overview = change["overview"] or overview
            await asyncio.sleep(0.1)
            while not stream.parts.empty():
                for _, change in await messages(stream, 1):
                    cells |= {cell["name"]: cell for cell in change["nodes"]}
                    overview = change["overview"] or overview
            fresh = await site.get("/v1/live?parts=nodes")
            assert {cell["name"]: cell for cell in fresh["topology"]["nodes"]} == cells
            assert fresh["overview"] == overview

    async def test_a_reader_who_joins_later_has_what_the_others_have(self, site, monkeypatch):
        """What changes and changes back between two messages is not wrong for ever, and no event comes twice."""
        monkeypatch.setattr(page, "TICK_S", 0.3)
        service, live = site.service, "/v1/live?follow=true&parts=nodes"
        async with Stream(site.app, live, site.admin) as one:
            await messages(one, 2)
            await site.submit()
            await messages(one, 1)  # the next change comes in 0.3 s
            service.do("admin", commands.cordon(service.state, "n0", service.now_ms()))
            async with Stream(site.app, live, site.admin) as two:
                (_, (_, view)) = await messages(two, 2)
                service.do("admin", commands.uncordon(service.state, "n0", service.now_ms()))
                ((_, change),) = await messages(two, 1)
            cells = {cell["name"]: cell["state"] for cell in [*view["topology"]["nodes"], *change["nodes"]]}
            assert cells == {"n0": "open", "n1": "open"}
            records = [event["seq"] for event in [*change["events"], *view["events"]]]
            assert records == sorted(set(records), reverse=True)

    async def test_says_the_order_of_nodes_when_one_goes(self, site):
        async with Stream(site.app, "/v1/live?follow=true&parts=nodes", site.admin) as stream:
            await messages(stream, 2)
            service = site.service
            service.do("admin", commands.drain(service.state, "n0", service.now_ms()))
            service.do("admin", commands.remove_node(service.state, "n0", service.now_ms()))
            ((_, change),) = await messages(stream, 1)
            assert change["nodes_in_order"] == ["n1"]
            assert change["nodes_gone"] == ["n0"]

    async def test_a_change_is_made_once_for_all_readers(self, site, monkeypatch):
        made: list[object] = []
        real = live_overview

        def counted(*about: Any) -> object:
            made.append(about)
            return real(*about)

        monkeypatch.setattr(page, "overview", counted)
        async with (
            Stream(site.app, "/v1/live?follow=true", site.admin) as one,
            Stream(site.app, "/v1/live?follow=true", site.admin) as two,
        ):
            await messages(one, 2)
            await messages(two, 2)
            made.clear()
            await site.submit()
            assert await messages(one, 1) == await messages(two, 1)
            assert len(made) == 1

    async def test_many_viewers_with_different_rights_leave_time_for_the_rest(self, site, monkeypatch):
        """However many channels there are, together they use a part of the time of the event loop."""
        made: list[float] = []
        real = page._moment

        async def slow(request: Any) -> Any:
            until = time.thread_time() + 0.005
            while time.thread_time() < until:
                pass
            made.append(time.monotonic())
            return await real(request)

        people = [site.service.user(f"u{n}", (Role.VIEWER, "team")) for n in range(12)]
        async with AsyncExitStack() as open_streams:
            for token in people:
                stream = await open_streams.enter_async_context(Stream(site.app, "/v1/live?follow=true", token))
                await messages(stream, 2)
            monkeypatch.setattr(page, "_moment", slow)
            began = time.monotonic()
            while time.monotonic() < began + 1.0:
                await site.submit()
                await asyncio.sleep(0.01)
            late = [at for at in made if at > began]
            assert late, "changes are still sent"
            assert len(late) * 0.005 <= 0.3 * (time.monotonic() - began) + 0.01

    async def test_readers_start_again_when_rights_grow(self, site):
        """No reader goes on with what another in the same channel may see now."""
        async with Stream(site.app, "/v1/live?follow=true", site.viewer) as stream:
            await messages(stream, 2)
            site.service.do_accounts("root", [RoleGranted(site.service.now_ms(), "viewer", Role.VIEWER, "team")])
            await site.submit()
            await stream.rest()


class TestTable:
    async def test_sorts_searches_and_counts(self, site):
        for name, gpus in (("alpha", 1), ("beta", 3), ("gamma", 2)):
            await site.submit(name=name, gpus=gpus)
        found = await site.get("/v1/jobs?sort=gpus&descending=true&limit=2")
        assert [job["name"] for job in found["jobs"]] == ["beta", "gamma"]
        assert found["total"] == 3
        found = await site.get("/v1/jobs?sort=gpus&descending=true&limit=2&offset=2")
        assert [job["name"] for job in found["jobs"]] == ["alpha"]
        assert (await site.get("/v1/jobs?sort=name&search=BET"))["total"] == 1
        assert (await site.get("/v1/jobs?sort=name&search=a_"))["total"] == 0
        assert (await ask(site.app, "GET", "/v1/jobs?offset=3", site.admin)).status == 400

    async def test_finds_jobs_by_their_node(self, site):
        await site.submit()
        site.service.plan()
        on = next(cell["name"] for cell in (await site.get("/v1/topology"))["nodes"] if "h" in cell["gpus"])
        assert (await site.get(f"/v1/jobs?sort=submitted&node={on}"))["total"] == 1
        assert (await site.get("/v1/jobs?sort=submitted&node=n7"))["total"] == 0
        assert (await site.get("/v1/jobs?sort=submitted&gpu_model=H100"))["total"] == 1


class TestLine:
    async def test_is_in_the_order_of_service(self, site):
        await site.submit(name="fills", gpus=8)
        await site.submit(name="fills", gpus=8)
        site.service.plan()
        for name, priority in (("second", 0), ("first", 10), ("third", 0)):
            await site.submit(name=name, gpus=8, priority=priority)
        line = await site.get("/v1/line")
        places = [(each["place"], each["name"]) for each in line["gangs"]]
        assert places == [(1, "first"), (2, "second"), (3, "third")]
        assert line["waiting"] == 3
        assert line["gangs"][1]["reason"]

    async def test_search(self, site):
        await site.submit(name="resnet")
        found = await site.get("/v1/search?text=n")
        assert [job["name"] for job in found["jobs"]] == ["resnet"]
        assert found["nodes"] == ["n0", "n1"]
        assert (await site.get("/v1/search?text=tea"))["queues"] == ["team"]
        assert (await site.get("/v1/search?text=adm"))["users"] == ["admin"]


async def test_an_attempt_costs_what_it_really_holds(site):
    """An elastic job has fewer tasks than it could use."""
    await site.submit(tasks="1..4", gpus=8)
    site.service.plan()
    site.service.time_ms += 3_600_000
    shown = await site.get("/v1/jobs/1")
    (attempt,) = shown["history"]
    assert attempt["gpu_ms"] == 2 * 8 * 3_600_000
    assert attempt["gpu_ms"] == (await site.get("/v1/usage"))["gpu_ms"]
