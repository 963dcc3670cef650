"""Whatever the description allows, and whatever it does not, sent by every kind of user: no server error, no way in
without a token, and nothing that is not described. Single requests first, then sequences that follow what was answered.
"""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from corral.core.accounts.accounts import Role
from corral.core.intake import commands
from corral.core.model import JobSpec
from corral.server.api.app import make_app
from corral.server.api.http.settings import ApiSettings
from corral.wire.job import parse_job
from tests.server.in_memory_service import MemoryService

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
OPEN = {"/v1/health", "/v1/session"}  # and all below /v1/sign-in


class Fuzzed:
    """A place with something of everything in it; what is sent changes it as it goes."""

    def __init__(self) -> None:
        service = self.service = MemoryService()
        for queue in ("default", "team", "team/a"):
            service.queue(queue)
        self.tokens = {
            "none": "",
            "administrator": service.user("root", (Role.ADMINISTRATOR, "")),
            "operator": service.user("op", (Role.OPERATOR, "")),
            "lead": service.user("lead", (Role.LEAD, "team")),
            "member": service.user("member", (Role.MEMBER, "default")),
            "viewer": service.user("viewer", (Role.VIEWER, "")),
            "narrow": service.token("root", scope=("jobs.read",)),
        }
        self.spare = service.user("spare", (Role.ADMINISTRATOR, "")).split("_")[1]
        job = parse_job({"queue": "default", "command": "true", "gpus": 1})
        assert isinstance(job, JobSpec)
        service.do("member", commands.submit(service.state, "1", job, "member", service.now_ms()))
        service.plan()
        self.app = make_app(service, ApiSettings(failures_max=1_000_000))  # what is drawn has many bad tokens


PLACE = Fuzzed()
CONFIG = SchemathesisConfig(
    projects=ProjectsConfig(
        default=ProjectConfig(generation=GenerationConfig(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE]))
    )
)
schema = schemathesis.openapi.from_asgi("/v1/openapi.json", PLACE.app, config=CONFIG)


THERE = {"job": "1", "queue": "team", "node": "n0", "user": "member", "token": PLACE.spare, "secret": "key"}


def send(case, actor: str) -> None:
    if isinstance(case.query, dict):
        case.query.pop("follow", None)  # streams do not end: they have tests of their own
    token = PLACE.tokens[actor]
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    response = case.call(headers={"Accept": "application/json, */*;q=0.1", **headers})
    case.validate_response(response, checks=CHECKS)
    is_open = case.operation.path in OPEN or case.operation.path.startswith("/v1/sign-in")
    if not token and not is_open:
        assert response.status_code == 401, response.content


@schema.parametrize()
@settings(
    max_examples=4, deadline=None, database=None, phases=[Phase.generate], derandomize=True,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_single_requests(case):
    """As they were drawn, and about things that are there."""
    for actor in PLACE.tokens:
        send(case, actor)
    if case.path_parameters:
        case.path_parameters = {name: THERE.get(name, value) for name, value in case.path_parameters.items()}
        for actor in PLACE.tokens:
            send(case, actor)


@pytest.mark.filterwarnings("ignore")
def test_sequences():
    """What was answered (ids of jobs, names) is used in what is sent next."""

    class Everybody(schema.as_state_machine()):  # type: ignore[misc]
        def get_call_kwargs(self, case):
            if isinstance(case.query, dict):
                case.query.pop("follow", None)
            return {"headers": {"Authorization": f"Bearer {PLACE.tokens['administrator']}"}}

        def validate_response(self, response, case, **_):
            case.validate_response(response, checks=CHECKS)

    bounds = settings(
        max_examples=8, stateful_step_count=12, deadline=None, database=None, phases=[Phase.generate],
        derandomize=True, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    Everybody.run(settings=bounds)
