"""What one team may not do to another: guarantees out of nothing, priorities and graces without bound, rights that
outlive the queue they were given for. Through the interface, as a user would try it."""

from __future__ import annotations

import pytest

from corral.core.accounts import accounts as a
from corral.core.accounts.accounts import Role
from corral.core.intake.site import SiteRules
from corral.core.model import Cause, GangState
from corral.server.api.app import make_app
from tests.server.asgi import ask
from tests.server.in_memory_service import MemoryService

HOUR_MS = 3_600_000


class Site:
    """Two teams under one organisation, each with a lead and a member; an operator and an administrator."""

    def __init__(self) -> None:
        service = self.service = MemoryService()
        for queue in ("org", "org/a", "org/b"):
            service.queue(queue)
        self.tokens = {
            "administrator": service.user("administrator", (Role.ADMINISTRATOR, "")),
            "org-administrator": service.user("org-administrator", (Role.ADMINISTRATOR, "org")),
            "operator": service.user("operator", (Role.OPERATOR, "")),
            "lead": service.user("lead", (Role.LEAD, "org/a")),
            "member": service.user("member", (Role.MEMBER, "org/a")),
            "other": service.user("other", (Role.MEMBER, "org/b")),
        }
        self.app = make_app(service)

    async def __call__(self, actor: str, method: str, path: str, body: object = b"") -> object:
        return await ask(self.app, method, path, self.tokens[actor], body)

    async def status(self, actor: str, method: str, path: str, body: object = b"") -> tuple[int, str]:
        answer = await ask(self.app, method, path, self.tokens[actor], body)
        told = answer.json() if answer.body else {}
        return answer.status, told.get("code", "") if isinstance(told, dict) else ""


@pytest.fixture
def site():
    return Site()


def guarantee(gpus: int, **more: object) -> dict[str, object]:
    return {"guarantee": {"gpu_milli": gpus * 1000}, **more}


class TestGuarantees:
    """They come out of the parent's, or from an administrator of the cluster."""

    async def test_a_lead_makes_none_where_the_parent_has_none(self, site):
        assert await site.status("lead", "PUT", "/v1/queues/org/a/x", guarantee(4)) == (403, "guarantee_not_given")
        assert await site.status("administrator", "PUT", "/v1/queues/org/a/x", guarantee(4)) == (200, "")

    async def test_a_lead_divides_what_the_queue_has(self, site):
        await site("administrator", "PUT", "/v1/queues/org/a", guarantee(4))
        assert await site.status("lead", "PUT", "/v1/queues/org/a/x", guarantee(4)) == (200, "")
        status, code = await site.status("lead", "PUT", "/v1/queues/org/a/y", guarantee(1))
        assert (status, code) == (422, "guarantees_exceed_parent")

    async def test_a_scheduled_change_makes_none_either(self, site):
        change = {"from_ms": 0, "until_ms": 1 << 50, "guarantee": {"gpu_milli": 8000}}
        body = {"changes": [change]}
        assert await site.status("lead", "PUT", "/v1/queues/org/a/x", body) == (403, "guarantee_not_given")
        await site("administrator", "PUT", "/v1/queues/org/a", guarantee(4))
        status, code = await site.status("lead", "PUT", "/v1/queues/org/a/x", body)
        assert (status, code) == (422, "guarantees_exceed_parent")

    async def test_what_lies_deeper_counts(self, site):
        """A queue that states nothing has what its children were given: it cannot be given away a second time."""
        await site("administrator", "PUT", "/v1/queues/org/a", guarantee(4))
        for path, body in (("x", guarantee(4)), ("x/deep", guarantee(4)), ("x", {})):
            assert await site.status("lead", "PUT", f"/v1/queues/org/a/{path}", body) == (200, "")
        status, code = await site.status("lead", "PUT", "/v1/queues/org/a/y", guarantee(4))
        assert (status, code) == (422, "guarantees_exceed_parent")

    async def test_other_terms_of_a_queue_with_a_guarantee_can_be_changed(self, site):
        await site("administrator", "PUT", "/v1/queues/org/a/x", guarantee(4))
        assert await site.status("lead", "PUT", "/v1/queues/org/a/x", guarantee(4, weight=3)) == (200, "")
        assert await site.status("lead", "PUT", "/v1/queues/org/a/x", guarantee(5)) == (403, "guarantee_not_given")

    async def test_an_administrator_of_a_part_does_not_change_the_terms_of_that_part(self, site):
        status, _ = await site.status("org-administrator", "PUT", "/v1/queues/org", guarantee(4))
        assert status == 403
        status, code = await site.status("org-administrator", "PUT", "/v1/queues/org/b", guarantee(4))
        assert (status, code) == (403, "guarantee_not_given")
        assert await site.status("org-administrator", "PUT", "/v1/queues/org/b", {"weight": 2}) == (200, "")


class TestPriorities:
    """They count across queues, so a queue has a ceiling even where none is set."""

    async def test_a_member_does_not_exceed_the_default_ceiling(self, site):
        job = {"command": "true", "gpus": 1, "queue": "org/a", "priority": 1}
        for path in ("/v1/jobs", "/v1/jobs?dry_run=true"):
            assert await site.status("member", "POST", path, job) == (422, "priority_too_high")
        assert await site.status("lead", "POST", "/v1/jobs", job) == (422, "priority_too_high")
        assert (await site.status("member", "POST", "/v1/jobs", job | {"priority": -5}))[0] == 201
        assert await site.status("member", "POST", "/v1/jobs/1/priority", {"priority": 1}) == (
            422, "priority_too_high",
        )  # fmt: skip

    async def test_a_queue_may_have_a_higher_ceiling(self, site):
        await site("administrator", "PUT", "/v1/queues/org/a", {"priority_ceiling": 50})
        job = {"command": "true", "gpus": 1, "queue": "org/a", "priority": 50}
        assert (await site.status("member", "POST", "/v1/jobs", job))[0] == 201
        assert await site.status("member", "POST", "/v1/jobs", job | {"priority": 51}) == (422, "priority_too_high")
        assert (await site.status("member", "POST", "/v1/jobs/1/priority", {"priority": 49}))[0] == 200

    async def test_a_lead_does_not_lift_it_for_the_own_team(self, site):
        assert (await site.status("lead", "PUT", "/v1/queues/org/a/x", {"priority_ceiling": 100}))[0] == 403
        await site("administrator", "PUT", "/v1/queues/org/a", {"priority_ceiling": 10})
        assert (await site.status("lead", "PUT", "/v1/queues/org/a/x", {"priority_ceiling": 10}))[0] == 200
        job = {"command": "true", "gpus": 1, "queue": "org/a/x", "priority": 11}
        assert await site.status("member", "POST", "/v1/jobs", job) == (422, "priority_too_high")

    async def test_operators_decide_for_themselves(self, site):
        job = {"command": "true", "gpus": 1, "queue": "org/a", "priority": 1000}
        assert (await site.status("operator", "POST", "/v1/jobs", job))[0] == 201
        assert (await site.status("administrator", "POST", "/v1/jobs/1/priority", {"priority": 2000}))[0] == 200


class TestGraces:
    """A job that was evicted keeps its GPUs for its grace, and not for as long as it likes."""

    async def test_a_grace_has_a_bound(self, site):
        job = {"command": "true", "gpus": 1, "queue": "org/a", "grace": "52w"}
        for path in ("/v1/jobs", "/v1/jobs?dry_run=true"):
            assert await site.status("member", "POST", path, job) == (422, "grace_too_long")
        assert (await site.status("member", "POST", "/v1/jobs", job | {"grace": "10m"}))[0] == 201

    async def test_a_queue_has_its_own_bound(self, site):
        await site("administrator", "PUT", "/v1/queues/org", {"grace_max_ms": 60_000})
        job = {"command": "true", "gpus": 1, "queue": "org/a", "grace": "2m"}
        assert await site.status("administrator", "POST", "/v1/jobs", job) == (422, "grace_too_long")
        assert (await site.status("member", "POST", "/v1/jobs", job | {"grace": "1m"}))[0] == 201
        await site("administrator", "PUT", "/v1/queues/org", {"grace_max_ms": HOUR_MS})
        assert (await site.status("member", "POST", "/v1/jobs", job | {"grace": "1h"}))[0] == 201

    async def test_a_lead_does_not_lift_it_for_the_own_team(self, site):
        assert (await site.status("lead", "PUT", "/v1/queues/org/a/x", {"grace_max_ms": HOUR_MS}))[0] == 403

    async def test_who_leaves_by_their_own_will_is_charged_until_then(self, site):
        service = site.service
        job = {"command": "true", "gpus": 8, "queue": "org/a", "grace": "10m"}
        assert (await site.status("member", "POST", "/v1/jobs", job))[0] == 201
        service.plan()
        assert (await site.status("member", "POST", "/v1/jobs/1/cancel"))[0] == 200
        gang = service.state.gangs["1/main"]
        assert (gang.state, gang.eviction.cause) == (GangState.STOPPING, Cause.CANCEL)
        assert service.state.queues.queues["org/a"].used["gpu_milli"] == 8000
        queue = (await site("administrator", "GET", "/v1/queues/org/a")).json()
        assert queue["used"]["gpu_milli"] == 8000

    async def test_cancelled_now_it_is_killed(self, site):
        service = site.service
        job = {"command": "true", "gpus": 1, "queue": "org/a", "grace": "10m"}
        for _ in range(2):
            assert (await site.status("member", "POST", "/v1/jobs", job))[0] == 201
        service.plan()
        assert (await site.status("member", "POST", "/v1/jobs/1/cancel?now=true"))[0] == 200
        assert service.state.gangs["1/main"].grace_over
        assert (await site.status("member", "POST", "/v1/jobs/2/cancel"))[0] == 200
        assert not service.state.gangs["2/main"].grace_over
        assert await site.status("member", "POST", "/v1/jobs/2/cancel") == (409, "job_over")
        assert (await site.status("lead", "POST", "/v1/jobs/2/cancel?now=true"))[0] == 200
        assert service.state.gangs["2/main"].grace_over
        assert await site.status("lead", "POST", "/v1/jobs/2/cancel?now=true") == (409, "job_over")


class TestRemovedQueues:
    """Who had a role in a queue, and which secrets it had, is over with it: the next of that name is another queue."""

    async def test_roles_and_secrets_go_with_the_queue(self, site):
        await site("administrator", "PUT", "/v1/queues/org/a/x", {})
        await site("administrator", "PUT", "/v1/users/other/roles", {"role": "lead", "queue": "org/a/x"})
        await site("administrator", "PUT", "/v1/secrets/key?queue=org/a/x", {"value": "hidden"})
        assert (await site.status("administrator", "DELETE", "/v1/queues/org/a/x"))[0] == 200
        assert ("org/a/x", Role.LEAD) not in site.service.accounts.users["other"].roles
        assert ("org/a/x", "key") not in site.service.accounts.secrets
        assert ("org/a/x", "key") not in site.service.secrets.values
        await site("administrator", "PUT", "/v1/queues/org/a/x", {})
        assert (await site.status("other", "GET", "/v1/queues/org/a/x"))[0] == 404
        job = {"command": "true", "queue": "org/a/x", "secrets": {"KEY": "key"}}
        assert await site.status("member", "POST", "/v1/jobs", job) == (422, "no_such_secret")
        assert (await site("administrator", "GET", "/v1/secrets")).json()["secrets"] == []

    async def test_what_an_older_server_left_is_not_inherited(self, site):
        site.service.do_accounts("root", [a.RoleGranted(1, "other", Role.LEAD, "org/new")])
        site.service.do_accounts("root", [a.SecretSet(1, "key", "org/new")])
        assert (await site.status("administrator", "PUT", "/v1/queues/org/new", {}))[0] == 200
        assert (await site.status("other", "GET", "/v1/queues/org/new"))[0] == 404
        assert ("org/new", "key") not in site.service.accounts.secrets

    async def test_a_queue_that_stays_keeps_them(self, site):
        await site("administrator", "PUT", "/v1/secrets/key?queue=org/a", {"value": "hidden"})
        job = {"command": "true", "queue": "org/a"}
        assert (await site.status("member", "POST", "/v1/jobs", job))[0] == 201
        assert (await site.status("administrator", "DELETE", "/v1/queues/org/a"))[0] == 409
        assert (await site.status("administrator", "PUT", "/v1/queues/org/a", {"weight": 2}))[0] == 200
        assert ("org/a", Role.LEAD) in site.service.accounts.users["lead"].roles
        assert ("org/a", "key") in site.service.accounts.secrets


class TestPreemptibleByDefault:
    """A site or a queue decides for jobs that do not say whether they may be preempted; it is fixed when accepted."""

    async def submitted(self, site: Site, **more: object) -> bool:
        job = {"command": "true", "gpus": 1, "queue": "org/a"}
        assert (await site.status("member", "POST", "/v1/jobs", job | more))[0] == 201
        return list(site.service.state.jobs.values())[-1].spec.preemptible

    async def test_jobs_may_be_preempted_unless_a_user_says_otherwise(self, site):
        assert await self.submitted(site)
        assert not await self.submitted(site, preemptible=False)

    async def test_a_site_decides_for_all_its_queues(self, site):
        site.service.rules = SiteRules(preemptible=False)
        assert not await self.submitted(site)
        assert await self.submitted(site, preemptible=True)

    async def test_the_nearest_queue_has_the_last_word(self, site):
        await site("administrator", "PUT", "/v1/queues/org", {"preemptible": False})
        assert not await self.submitted(site)
        await site("administrator", "PUT", "/v1/queues/org/a", {"preemptible": True})
        assert await self.submitted(site)

    async def test_what_was_accepted_stays_as_it_was(self, site):
        await site("administrator", "PUT", "/v1/queues/org/a", {"preemptible": False})
        assert not await self.submitted(site)
        await site("administrator", "PUT", "/v1/queues/org/a", {"preemptible": True})
        assert not site.service.state.jobs["1"].spec.preemptible
