"""The description of the API agrees with what the server does: missing bodies, streams, names and ranges."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from corral.core.accounts import commands as accounts
from corral.core.fleets import commands as fleets
from corral.server.api.http.route import BodyKind
from corral.server.api.openapi import describe
from corral.server.api.routes import ROUTES
from corral.wire.api import constraints
from tests.server.asgi import ask

DOCUMENT = json.loads(json.dumps(describe(ROUTES)))


def operation(method: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][path][method]
    return found


def test_a_body_is_required_only_if_the_server_requires_one() -> None:
    optional = {
        (method, path)
        for path, methods in DOCUMENT["paths"].items()
        for method, about in methods.items()
        if "requestBody" in about and not about["requestBody"]["required"]
    }
    assert ("post", "/v1/nodes/{node}/drain") in optional
    assert ("post", "/v1/tokens") in optional
    assert ("post", "/v1/jobs") not in optional
    assert ("post", "/v1/jobs/{job}/priority") not in optional


async def test_requests_without_a_body_that_may_be_missing_are_not_refused_for_it(setup: Any) -> None:
    for route in ROUTES:
        if route.kind is not BodyKind.SHAPE or route.tag == "agents":
            continue
        path = route.path.replace(":path", "").format(
            job="1",
            queue="team",
            node="n0",
            user="member",
            fleet="none",
            secret="s",
            token="t",
            batch="none",
            template="t",
        )
        answer = await ask(setup.app, route.method, path, setup.root)
        about = operation(route.method.lower(), route.path.replace(":path", ""))
        is_refused = answer.status == 422 and answer.json()["code"] == "bad_body"
        assert is_refused == about["requestBody"]["required"], f"{route.method} {path}: {answer.json()}"


def test_events_are_described_as_a_stream_of_events() -> None:
    content = operation("get", "/v1/events")["responses"]["200"]["content"]
    schema = content["text/event-stream"]["schema"]
    assert schema["contentMediaType"] == "text/event-stream"
    assert schema["contentSchema"] == {"$ref": "#/components/schemas/EventView"}
    assert "EventView" in DOCUMENT["components"]["schemas"]


# ---- names and ranges ------------------------------------------------------------------------------------------------


def test_names_are_those_that_the_server_checks() -> None:
    for ours, checked in (
        (constraints.USER, accounts.USER),
        (constraints.SECRET, accounts.SECRET),
        (constraints.NODE, accounts.NODE),
        (constraints.ACCOUNT, accounts.ACCOUNT),
        (constraints.QUEUE, accounts.QUEUE),
        (constraints.FLEET, fleets.FLEET),
    ):
        assert ours == checked.pattern


@pytest.mark.parametrize(("path", "name"), [("/v1/users/{user}", "user"), ("/v1/queues/{queue}", "queue")])
def test_names_in_paths_have_a_pattern(path: str, name: str) -> None:
    (parameter,) = [each for each in operation("get", path)["parameters"] if each["name"] == name]
    assert parameter["schema"]["pattern"].startswith("^[A-Za-z0-9]")


WRONG = [
    ("POST", "/v1/jobs/1/priority", "PriorityBody", {"priority": 1_000_001}),
    ("POST", "/v1/jobs/1/priority", "PriorityBody", {"priority": -1_000_001}),
    ("PUT", "/v1/users/new", "UserBody", {"account": "Not An Account"}),
    ("PUT", "/v1/users/member/roles", "RoleBody", {"role": "member", "queue": "../x"}),
    ("POST", "/v1/tokens", "TokenBody", {"name": "x" * 101}),
    ("POST", "/v1/tokens", "TokenBody", {"expires_in_ms": 0}),
    ("POST", "/v1/join-tokens", "JoinTokenBody", {"expires_in_ms": 31 * 86_400_000}),
    ("POST", "/v1/join-tokens", "JoinTokenBody", {"node": "a b"}),
    ("PUT", "/v1/queues/team", "QueueBody", {"weight": (1 << 53) + 1}),
    ("PUT", "/v1/fleets/gpu", "FleetBody", {"on": "command", "nodes_max": 10_001}),
    ("PUT", "/v1/fleets/gpu", "FleetBody", {"on": "command", "idle_ms": 1}),
]


@pytest.mark.parametrize(("method", "path", "shape", "body"), WRONG, ids=lambda value: str(value)[:40])
async def test_what_the_description_excludes_the_server_refuses(
    setup: Any, method: str, path: str, shape: str, body: dict[str, Any]
) -> None:
    await ask(setup.app, "POST", "/v1/jobs", setup.member, {"queue": "team", "command": "true"})
    schema = {"$ref": f"#/components/schemas/{shape}", "components": DOCUMENT["components"]}
    assert not jsonschema_rs.validator_for(schema).is_valid(body)
    answer = await ask(setup.app, method, path, setup.root, body)
    assert 400 <= answer.status < 500, answer.json()
    assert answer.status != 404, answer.json()
