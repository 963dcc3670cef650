"""The OpenAPI 3.1 description of the API, generated from the table of routes. Nothing in it is written by hand.

Knows routes and types. Must not know handlers or the state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

import corral
from corral.server.api.http.problems import PROBLEM_TYPE
from corral.server.api.http.route import BodyKind, Route, RouteAccess
from corral.wire.api import ProblemView
from corral.wire.api.constraints import IN_PATHS
from corral.wire.job import job_schema

REF = "#/components/schemas/{name}"
_JSON = "application/json"
SSE = "text/event-stream"
_DOCUMENT = {"$ref": REF.format(name="JobDocument")}

#: Error statuses of any route; of routes with a token; of routes with a body.
_ALWAYS = (400, 405, 406, 414, 431, 500)
_WITH_TOKEN = (401, 403, 429, 503)
_WITH_BODY = (408, 413, 415, 422, 503)

_PARAMETER = re.compile(r"\{(?P<name>\w+)(?::path)?\}")


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    """The whole document."""
    shapes = sorted({shape for route in routes for shape in _shapes(route)}, key=lambda shape: shape.__name__)
    _, schemas = msgspec.json.schema_components([*shapes, ProblemView], ref_template=REF)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(_PARAMETER.sub(r"{\g<name>}", route.path), {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Corral",
            "version": corral.__version__,
            "description": "A scheduler for machine-learning work on shared GPUs. Times are milliseconds since 1970. "
            "What you may not see is reported as not found (404). Every answer has an X-Request-Id.",
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in routes)],
        "paths": paths,
        "components": {
            "schemas": {**schemas, "JobDocument": _job_document()},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "corral_<id>_<secret>"},
            },
        },
    }


def _job_document() -> dict[str, Any]:
    return {key: value for key, value in job_schema().items() if key != "$schema"}


def _shapes(route: Route) -> Iterable[type[Any]]:
    if isinstance(route.answer, type):
        yield route.answer
    if route.instead is not None:
        yield route.instead
    if route.item is not None:
        yield route.item
    if route.body is not None and route.kind is BodyKind.SHAPE:
        yield route.body


def _operation(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [*_path_parameters(route), *_query_parameters(route), *_header_parameters(route)],
        "responses": {**dict(_answers(route)), **dict(_problems(route))},
    }
    parts = [route.about, f"Requires the right `{route.verb}`." if route.verb is not None else ""]
    if any(parts):
        found["description"] = " ".join(part for part in parts if part)
    if route.kind is not BodyKind.NONE:
        content: dict[str, Any] = {"schema": _body_schema(route)}
        if route.example is not None:
            content["example"] = route.example
        found["requestBody"] = {"required": not _may_be_missing(route), "content": {_JSON: content}}
    if route.access in (RouteAccess.OPEN, RouteAccess.SIGN_IN):
        found["security"] = []
    return found


def _may_be_missing(route: Route) -> bool:
    """An empty body is read as an empty object, which is enough if no field is required."""
    if route.kind is not BodyKind.SHAPE or route.body is None:
        return False
    return not any(field.required for field in msgspec.structs.fields(route.body))


def _body_schema(route: Route) -> dict[str, Any]:
    if route.kind is BodyKind.DOCUMENT:
        return _DOCUMENT
    if route.kind is BodyKind.BATCH:
        return {
            "type": "object",
            "required": ["jobs"],
            "properties": {"jobs": {"type": "array", "minItems": 1, "items": _DOCUMENT}},
            "additionalProperties": False,
        }
    assert route.body is not None
    return {"$ref": REF.format(name=route.body.__name__)}


def _path_parameters(route: Route) -> Iterable[dict[str, Any]]:
    for found in _PARAMETER.finditer(route.path):
        schema: dict[str, Any] = {"type": "string", "minLength": 1}
        if found["name"] == "job":
            schema["pattern"] = "^[0-9]{1,18}$"
        elif found["name"] in IN_PATHS:
            schema["pattern"] = f"^{IN_PATHS[found['name']]}$"
        yield {"name": found["name"], "in": "path", "required": True, "schema": schema}


def _query_parameters(route: Route) -> Iterable[dict[str, Any]]:
    if route.query is None:
        return
    schema = msgspec.json.schema(route.query)
    definitions = schema["$defs"]
    shape = definitions[route.query.__name__]
    for name, described in shape["properties"].items():
        parameter = {"name": name, "in": "query", "required": name in shape["required"]}
        inline = _without_references(described, definitions)
        if inline.get("type") == "array":
            inline = {key: value for key, value in inline.items() if key != "default"}
            parameter |= {"style": "form", "explode": False}
        yield parameter | {"schema": inline}


def _without_references(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _without_references(definitions[schema["$ref"].rpartition("/")[2]], definitions)
        return {key: _without_references(value, definitions) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_without_references(each, definitions) for each in schema]
    return schema


def _header_parameters(route: Route) -> Iterable[dict[str, Any]]:
    if route.kind in (BodyKind.DOCUMENT, BodyKind.BATCH):
        schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
        yield {"name": "Idempotency-Key", "in": "header", "required": False, "schema": schema}


def _answers(route: Route) -> Iterable[tuple[str, dict[str, Any]]]:
    yield str(route.status), _answer(route, route.answer, HTTPStatus(route.status).phrase)
    if route.instead is not None:
        yield "200", _answer(route, route.instead, "Dry run: nothing was submitted")


def _answer(route: Route, answer: type[Any] | str | None, about: str) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if isinstance(answer, str):
        content[answer] = {"schema": {"type": "string"}}
    elif answer is not None:
        content[_JSON] = {"schema": {"$ref": REF.format(name=answer.__name__)}}
    for other in route.also:
        content[other] = {"schema": _stream_schema(route) if other == SSE else {"type": "string"}}
    headers = {"X-Request-Id": {"schema": {"type": "string"}}}
    return {"description": about, "headers": headers, "content": content}


def _stream_schema(route: Route) -> dict[str, Any]:
    """Server-sent events: the data of each is JSON of this type."""
    assert route.item is not None, "a stream of events has a type of event"
    event = {"$ref": REF.format(name=route.item.__name__)}
    about = (
        "Server-sent events: lines `id:` (number of the record) and `data:` (JSON as below), an empty line after each."
    )
    return {"type": "string", "description": about, "contentMediaType": SSE, "contentSchema": event}


def _problems(route: Route) -> Iterable[tuple[str, dict[str, Any]]]:
    statuses = {*_ALWAYS, *route.statuses}
    if route.access not in (RouteAccess.OPEN, RouteAccess.SIGN_IN):
        statuses |= {*_WITH_TOKEN}
    if route.kind is not BodyKind.NONE:
        statuses |= {*_WITH_BODY}
    if "{" in route.path:
        statuses.add(404)
    problem = {PROBLEM_TYPE.decode(): {"schema": {"$ref": REF.format(name="ProblemView")}}}
    for status in sorted(statuses):
        yield str(status), {"description": HTTPStatus(status).phrase, "content": problem}
