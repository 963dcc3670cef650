"""Templates of jobs on the server: of the site and of each user, bounded, and kept through images and removals."""

from __future__ import annotations

import pytest

from corral.core.accounts.accounts import Role, UserRemoved
from corral.core.accounts.template_commands import TEMPLATES_MAX, TEXT_MAX
from corral.server.api.app import make_app
from corral.server.journal_state import JournalState
from tests.server.asgi import ask
from tests.server.in_memory_service import MemoryService

TEXT = "name: finetune\ncommand: python train.py\ngpus: 8\n"


class Site:
    def __init__(self) -> None:
        self.service = MemoryService()
        self.service.queue("team")
        self.tokens = {
            "admin": self.service.user("admin", (Role.ADMINISTRATOR, "")),
            "ann": self.service.user("ann", (Role.MEMBER, "team")),
            "bob": self.service.user("bob", (Role.MEMBER, "team")),
        }
        self.app = make_app(self.service)

    async def ask(self, user: str, method: str, path: str, body: object = b""):
        return await ask(self.app, method, path, self.tokens[user], body)

    async def shown(self, user: str) -> list[tuple[str, bool, str]]:
        found = (await self.ask(user, "GET", "/v1/templates")).json()["templates"]
        return [(each["name"], each["site"], each["text"]) for each in found]


@pytest.fixture
def site() -> Site:
    return Site()


async def test_everybody_has_their_own_and_those_of_the_site(site):
    await site.ask("ann", "PUT", "/v1/templates/mine", {"text": TEXT})
    await site.ask("admin", "PUT", "/v1/templates/common?site=true", {"text": "command: true\n"})
    assert await site.shown("ann") == [("common", True, "command: true\n"), ("mine", False, TEXT)]
    assert await site.shown("bob") == [("common", True, "command: true\n")]
    await site.ask("ann", "PUT", "/v1/templates/mine", {"text": "gpus: 1\n"})
    assert (await site.shown("ann"))[1][2] == "gpus: 1\n"
    assert (await site.ask("bob", "DELETE", "/v1/templates/mine")).status == 404
    assert (await site.ask("ann", "DELETE", "/v1/templates/mine")).status == 200
    assert len(await site.shown("ann")) == 1


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("..", TEXT, "bad_name"),
        ("a" * 65, TEXT, "bad_name"),
        ("big", "x" * (TEXT_MAX + 1), "bad_template"),
        ("empty", " \n", "bad_template"),
        ("zero", "a\0b", "bad_template"),
    ],
)
async def test_what_is_no_template_is_refused(site, name, text, code):
    answer = await site.ask("ann", "PUT", f"/v1/templates/{name}", {"text": text})
    assert (answer.status, answer.json()["code"]) == (422, code)


async def test_nobody_can_keep_any_number(site):
    for number in range(TEMPLATES_MAX):
        await site.ask("ann", "PUT", f"/v1/templates/t{number}", {"text": TEXT})
    answer = await site.ask("ann", "PUT", "/v1/templates/more", {"text": TEXT})
    assert (answer.status, answer.json()["code"]) == (422, "too_many_templates")
    assert (await site.ask("ann", "PUT", "/v1/templates/t0", {"text": "gpus: 2\n"})).status == 200


async def test_they_are_in_images_and_go_with_their_user(site):
    await site.ask("ann", "PUT", "/v1/templates/mine", {"text": TEXT})
    service = site.service
    known = JournalState(service.state, service.accounts, service.fleets)
    again = JournalState.unpack(known.pack())
    assert again.accounts.templates == service.accounts.templates
    assert again.accounts.templates["ann", "mine"].text == TEXT
    service.do_accounts("admin", [UserRemoved(service.now_ms(), "ann")])
    assert service.accounts.templates == {}


async def test_events_show_the_text_to_its_user_only(site):
    await site.ask("ann", "PUT", "/v1/templates/mine", {"text": TEXT})

    async def told(user: str) -> list[str]:
        found = (await site.ask(user, "GET", "/v1/events?types=TemplateSet")).json()["events"]
        return [each["data"]["text"] for each in found]

    assert await told("ann") == [TEXT]
    assert await told("admin") == [""]
    assert await told("bob") == []
