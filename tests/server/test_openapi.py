"""The description of the interface: valid, complete, true to the routes, and drawn by a page that loads nothing."""

from __future__ import annotations

import json
import re

import jsonschema_rs
import pytest

from corral.core.fleets.fleets import FleetSet, FleetSpec, PilotOrdered
from corral.server.api.app import all_routes
from corral.server.api.docs_page import PAGE, SCRIPT
from corral.server.api.http.route import BodyKind, RouteAccess
from corral.server.api.openapi import describe
from corral.server.api.routes import ROUTES
from corral.wire.api.batch import BatchQueueBody
from tests.server.asgi import ask

DOCUMENT = json.loads(json.dumps(describe(ROUTES)))


def references(value: object) -> set[str]:
    if isinstance(value, dict):
        found = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return found.union(*map(references, value.values())) if value else found
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_every_route_is_described():
    described = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert described == {(route.method, re.sub(r":path\}", "}", route.path)) for route in ROUTES}


def test_names_are_stable_and_different():
    names = [route.name for route in all_routes()]
    assert len(names) == len(set(names))
    assert "post_jobs" in names


def test_every_reference_leads_somewhere():
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert references(DOCUMENT) <= known


@pytest.mark.parametrize("name", sorted(DOCUMENT["components"]["schemas"]))
def test_every_shape_is_a_schema(name):
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": f"#/components/schemas/{name}"}
    jsonschema_rs.validator_for(schema | {"components": DOCUMENT["components"]})


def operations():
    for path, methods in DOCUMENT["paths"].items():
        for method, about in methods.items():
            yield pytest.param(about, id=f"{method} {path}")


@pytest.mark.parametrize("about", list(operations()))
def test_every_operation_is_whole(about):
    assert about["summary"]
    assert about["operationId"]
    problems = [status for status in about["responses"] if int(status) >= 400]
    assert {"400", "500"} <= set(problems)
    assert all("application/problem+json" in about["responses"][status]["content"] for status in problems)
    if about.get("security") != []:
        assert {"401", "403", "429", "503"} <= set(problems)
    if "requestBody" in about:
        [content] = about["requestBody"]["content"].values()
        schema = content["schema"] | {"components": DOCUMENT["components"]}
        assert jsonschema_rs.validator_for(schema).is_valid(content["example"])


def test_only_what_is_open_says_so():
    open_routes = {route.path for route in ROUTES if route.access in (RouteAccess.OPEN, RouteAccess.SIGN_IN)}
    assert {path for path in open_routes if not path.startswith("/v1/sign-in")} == {"/v1/health", "/v1/session"}
    assert {p for p, m in DOCUMENT["paths"].items() for o in m.values() if o.get("security") == []} == open_routes


def test_routes_name_a_verb_unless_they_are_about_oneself():
    without = {route.path for route in ROUTES if route.verb is None}
    known = {"/v1/health", "/v1/session", "/v1/whoami"}
    assert {path for path in without if not path.startswith("/v1/sign-")} == known
    assert all(route.body is not None for route in ROUTES if route.kind is BodyKind.SHAPE)


async def test_answers_are_as_described(setup):
    job = {"queue": "team", "command": "true", "gpus": 1}
    assert (await ask(setup.app, "POST", "/v1/jobs", setup.member, job)).status == 201
    setup.service.plan()
    wanted = FleetSet(setup.service.now_ms(), FleetSpec(name="gpu", kind="slurm"), "root", "c0ffee")
    setup.service.do_fleets("root", [wanted, PilotOrdered(wanted.at_ms, "gpu", "gpu-1")])
    setup.service.batches[0].put("embed", "root", BatchQueueBody("team", "embed:embed"))
    for route in ROUTES:
        if route.method != "GET" or not isinstance(route.answer, type) or route.tag in ("agents", "sessions"):
            continue
        path = route.path.replace("{job}", "1").replace("{queue:path}", "team").replace("{node}", "n0")
        path = path.replace("{fleet}", "gpu").replace("{batch}", "embed")
        answer = await ask(setup.app, "GET", path.replace("{user}", "member"), setup.root)
        assert answer.status == 200, path
        schema = {"$ref": f"#/components/schemas/{route.answer.__name__}", "components": DOCUMENT["components"]}
        jsonschema_rs.validator_for(schema).validate(answer.json())


async def test_the_description_and_its_page_are_served(setup):
    served = await ask(setup.app, "GET", "/v1/openapi.json")
    assert served.json() == DOCUMENT
    page = await ask(setup.app, "GET", "/v1/docs")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"(src|href)\s*=", PAGE)
    assert "http" not in SCRIPT.replace("https://", "http://").replace("http-", "")
    assert "innerHTML" not in SCRIPT
