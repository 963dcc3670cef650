"""Many jobs in one request, and parts of one: rights for each, counts before, and nothing else changes."""

from __future__ import annotations

import pytest

from corral.core.accounts.accounts import Role
from corral.server.api.app import make_app
from tests.server.asgi import ask
from tests.server.in_memory_service import MemoryService

JOB = {"command": "true", "gpus": 8, "queue": "a", "hold": True}


class Place:
    def __init__(self) -> None:
        service = self.service = MemoryService()
        service.queue("a")
        service.queue("b")
        self.ann = service.user("ann", (Role.MEMBER, "a"))
        self.bob = service.user("bob", (Role.MEMBER, "a"), (Role.MEMBER, "b"))
        self.root = service.user("root", (Role.ADMINISTRATOR, ""))
        self.app = make_app(service)

    async def submit(self, token: str, **more: object) -> str:
        answer = await ask(self.app, "POST", "/v1/jobs", token, JOB | more)
        assert answer.status == 201, answer.body
        return str(answer.json()["id"])

    async def change(self, token: str, status: int = 200, **body: object) -> dict:
        answer = await ask(self.app, "POST", "/v1/jobs/change", token, body)
        assert answer.status == status, answer.body
        found: dict = answer.json()
        return found

    async def states(self) -> dict[str, str]:
        answer = await ask(self.app, "GET", "/v1/jobs", self.root)
        return {job["id"]: job["state"] for job in answer.json()["jobs"]}


async def test_a_filter_changes_only_jobs_that_the_user_may_change() -> None:
    place = Place()
    mine, theirs = await place.submit(place.ann), await place.submit(place.bob)
    hidden = await place.submit(place.bob, queue="b")
    found = await place.change(place.ann, change="cancel", filter={"all": True})
    assert (found["matched"], found["changed"], found["refused"]) == (1, 1, 1)
    assert [(each["job"], each["code"]) for each in found["refusals"]] == [(theirs, "forbidden")]
    assert await place.states() == {mine: "cancelled", theirs: "waiting", hidden: "waiting"}


async def test_named_jobs_are_changed_even_if_some_are_hidden_or_wrong() -> None:
    place = Place()
    mine, hidden = await place.submit(place.ann), await place.submit(place.bob, queue="b")
    found = await place.change(place.ann, change="cancel", jobs=[mine, hidden, "99", "x"])
    assert found["changed"] == 1
    assert [each["code"] for each in found["refusals"]] == ["no_such_job"] * 3
    assert (await place.states())[hidden] == "waiting"


async def test_a_dry_run_counts_and_changes_nothing() -> None:
    place = Place()
    for _ in range(3):
        await place.submit(place.ann, name="sweep-1")
    wanted = {"name": "sweep*", "states": ["waiting"]}
    found = await place.change(place.ann, change="cancel", filter=wanted, dry_run=True)
    assert (found["matched"], found["changed"]) == (3, 0)
    assert set((await place.states()).values()) == {"waiting"}


async def test_nothing_is_changed_if_another_number_matches_than_expected() -> None:
    place = Place()
    await place.submit(place.ann)
    found = await place.change(place.ann, 409, change="cancel", filter={"all": True}, expect=2)
    assert found["code"] == "count_differs"
    assert set((await place.states()).values()) == {"waiting"}


BAD = {
    "a filter without a condition": {"change": "cancel", "filter": {}},
    "neither jobs nor a filter": {"change": "cancel"},
    "both": {"change": "cancel", "jobs": ["1"], "filter": {"all": True}},
    "jobs that have ended": {"change": "cancel", "filter": {"states": ["failed"]}},
    "no priority": {"change": "priority", "jobs": ["1"]},
    "too many names": {"change": "cancel", "jobs": ["1"] * 10_001},
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
async def test_a_request_that_is_not_clear_is_refused(body: dict) -> None:
    place = Place()
    await place.submit(place.ann)
    found = await place.change(place.ann, 422, **body)
    assert found["detail"]
    assert set((await place.states()).values()) == {"waiting"}


async def test_more_jobs_than_one_slice_holds_are_all_changed() -> None:
    place = Place()
    for _ in range(5):
        await place.submit(place.ann, array="0-119")
    seq = place.service.durable_seq
    found = await place.change(place.ann, change="release", filter={"all": True})
    assert (found["matched"], found["changed"]) == (5, 5)
    assert found["seq"] > seq


@pytest.mark.parametrize("name", ["{job}[1]", "{job}_1", "{job}[1]:main"])
async def test_an_address_may_name_an_element(name: str) -> None:
    place = Place()
    job = await place.submit(place.ann, array="0-2")
    answer = await ask(place.app, "POST", f"/v1/jobs/{name.format(job=job)}/cancel", place.ann)
    assert answer.status == 200, answer.body
    shown = (await ask(place.app, "GET", f"/v1/jobs/{job}", place.ann)).json()
    assert [gang["state"] for gang in shown["gangs"]] == ["waiting", "cancelled", "waiting"]
