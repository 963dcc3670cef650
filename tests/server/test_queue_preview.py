"""What other settings of a queue would mean now, before they are set: by the planner, on a copy."""

from __future__ import annotations

from corral.core.accounts.accounts import Role
from corral.core.events import GangStarted
from corral.server.api.app import make_app
from tests.server.asgi import ask
from tests.server.in_memory_service import MemoryService


class Site:
    """One node of 8 GPUs: ``borrower`` uses all of them, a job of ``owner`` waits for 4."""

    def __init__(self) -> None:
        self.service = MemoryService()
        self.service.queue("owner")
        self.service.queue("borrower")
        self.admin = self.service.user("admin", (Role.ADMINISTRATOR, ""))
        self.lead = self.service.user("lead", (Role.LEAD, "owner"))
        self.app = make_app(self.service)

    async def fill(self) -> None:
        for _ in range(2):
            await self.ask("POST", "/v1/jobs", {"queue": "borrower", "command": "true", "gpus": 4, "time_limit": "9h"})
        self.service.plan()
        for name in ("1/main", "2/main"):
            self.service.do("node", [GangStarted(self.service.now_ms(), name, 1)])
        await self.ask("POST", "/v1/jobs", {"queue": "owner", "command": "true", "gpus": 4, "time_limit": "9h"})

    async def ask(self, method: str, path: str, body: object = b"", token: str = ""):
        return await ask(self.app, method, path, token or self.admin, body)

    async def preview(self, body: object, token: str = ""):
        answer = await self.ask("PUT", "/v1/queues/owner?dry_run=true", body, token)
        assert answer.status == 200, answer.body
        return answer.json()


async def test_a_guarantee_names_who_would_have_to_leave_and_changes_nothing():
    site = Site()
    await site.fill()
    before = site.service.durable_seq
    found = await site.preview({"guarantee": {"gpu_milli": 4000}})
    (reclaimed,) = found["reclaimed"]
    assert (reclaimed["queue"], reclaimed["gpu_milli"], reclaimed["beneficiary"]) == ("borrower", 4000, "3/main")
    assert found["starts"] == ["3/main"]
    assert site.service.durable_seq == before
    assert (await site.ask("GET", "/v1/queues/owner")).json()["guarantee"] == {}
    assert (await site.preview({"weight": 2}))["reclaimed"] == []


async def test_gangs_that_the_user_may_not_see_are_only_counted():
    site = Site()
    await site.fill()
    refused = await site.ask("PUT", "/v1/queues/owner?dry_run=true", {"guarantee": {"gpu_milli": 4000}}, site.lead)
    assert refused.status == 403, "who may not change the queue may not try it either"
    sub = await site.ask("PUT", "/v1/queues/owner/sub?dry_run=true", {"weight": 2}, site.lead)
    assert sub.status == 200
    assert "borrower" not in sub.body.decode()


async def test_what_would_be_refused_is_refused():
    site = Site()
    answer = await site.ask("PUT", "/v1/queues/nowhere/sub?dry_run=true", {"weight": 2})
    assert (answer.status, answer.json()["code"]) == (422, "no_such_queue")
