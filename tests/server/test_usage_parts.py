"""GPU time by model with its cost, and lost work by cause: as users see it, never more than they may."""

from __future__ import annotations

from corral.core.accounts.accounts import Role
from corral.core.events import GangStarted, GangStopped
from corral.core.model import FailureClass
from corral.server.api.app import make_app
from corral.server.api.http.settings import ApiSettings
from corral.wire.config import Config, parse_config
from corral.wire.site.prices import SitePrices
from tests.server.asgi import ask
from tests.server.in_memory_service import MemoryService

HOUR_MS = 3_600_000
PRICES = SitePrices(currency="EUR", gpu_hour_milli=(("H100", 2500),), other_milli=1000)


class Site:
    def __init__(self) -> None:
        self.service = MemoryService()
        for queue in ("team", "other"):
            self.service.queue(queue)
        self.admin = self.service.user("admin", (Role.ADMINISTRATOR, ""))
        self.viewer = self.service.user("viewer", (Role.VIEWER, "other"))
        self.app = make_app(self.service, ApiSettings(prices=PRICES))

    async def run(self, number: int, queue: str, gpus: int, lost_gpu_ms: int = 0) -> None:
        job = {"queue": queue, "command": "true", "gpus": gpus, "name": f"job-{number}"}
        await ask(self.app, "POST", "/v1/jobs", self.admin, job)
        self.service.plan()
        gang, now_ms = f"{number}/main", self.service.now_ms
        self.service.do("node", [GangStarted(now_ms(), gang, 1)])
        self.service.time_ms += HOUR_MS
        ended = GangStopped(now_ms(), gang, 1, FailureClass.USER_ERROR, 1, lost_gpu_ms)
        self.service.do("node", [ended])

    async def parts(self, token: str = "", query: str = ""):
        answer = await ask(self.app, "GET", f"/v1/usage/parts{query}", token or self.admin)
        assert answer.status == 200, answer.body
        return answer.json()


async def test_time_is_by_model_and_priced():
    site = Site()
    await site.run(1, "team", 4, lost_gpu_ms=HOUR_MS)
    found = await site.parts()
    (part,) = found["parts"]
    assert (part["queue"], part["model"], part["gpu_ms"]) == ("team", "H100", 4 * HOUR_MS)
    assert (found["cost_milli"], found["currency"], found["is_complete"]) == (10_000, "EUR", True)
    (loss,) = found["losses"]
    assert (loss["cause"], loss["lost_gpu_ms"], loss["attempts"]) == ("user_error", HOUR_MS, 1)


async def test_another_team_sees_neither_time_nor_losses():
    site = Site()
    await site.run(1, "team", 4, lost_gpu_ms=HOUR_MS)
    await site.run(2, "other", 2)
    found = await site.parts(site.viewer)
    assert [part["queue"] for part in found["parts"]] == ["other"]
    assert found["losses"] == []
    assert found["cost_milli"] == 5_000
    assert [part["queue"] for part in (await site.parts(query="?queue=team"))["parts"]] == ["team"]


async def test_days_that_do_not_exist_are_refused():
    site = Site()
    answer = await ask(site.app, "GET", "/v1/usage/parts?since=2026-02-31", site.admin)
    assert (answer.status, answer.json()["code"]) == (400, "bad_parameter")


async def test_pages_know_the_prices():
    view = (await ask(Site().app, "GET", "/v1/live", Site().admin)).status
    assert view == 401, "a token of another site"
    site = Site()
    shown = (await ask(site.app, "GET", "/v1/live", site.admin)).json()["prices"]
    assert shown == {"currency": "EUR", "gpu_hour_milli": {"H100": 2500}, "other_milli": 1000}


def test_prices_are_read_from_the_configuration():
    found = parse_config({"prices": {"currency": "EUR", "gpu_hour": {"H100": 2.5}, "other": 1}})
    assert isinstance(found, Config)
    assert found.prices == PRICES
    wrong = parse_config({"prices": {"gpu_hour": {"H100": -1}}})
    assert isinstance(wrong, list)
    assert "price" in wrong[0].why
