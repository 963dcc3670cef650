"""A service in memory with two queues, an application over it, and tokens of an administrator and a member."""

from __future__ import annotations

import pytest

from corral.core.accounts.accounts import Role
from corral.server.api.app import make_app
from corral.server.api.http.settings import ApiSettings
from tests.server.in_memory_service import MemoryService


class Setup:
    def __init__(self, settings: ApiSettings) -> None:
        self.service = MemoryService()
        self.service.queue("team")
        self.service.queue("other")
        self.root = self.service.user("root", (Role.ADMINISTRATOR, ""))
        self.member = self.service.user("member", (Role.MEMBER, "team"))
        self.app = make_app(self.service, settings)


@pytest.fixture
def settings():
    return ApiSettings()


@pytest.fixture
async def setup(settings):
    made = Setup(settings)
    yield made
    made.app.close()
