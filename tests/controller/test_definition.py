"""The schema of `CorralJob` has the keys of the job file, in the form that Kubernetes wants."""

from __future__ import annotations

from typing import Any

import pytest

from corral.controller.definition import NOT_HERE, custom_resource_definition, structural
from corral.wire.job.parse import JOB_FILE


def schema() -> Any:
    return custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def test_the_specification_has_every_key_of_a_job_file_but_those_of_a_shell():
    assert set(schema()["properties"]["spec"]["properties"]) == set(JOB_FILE.by_name) - set(NOT_HERE)


def test_every_part_is_structural():
    """One type for each value, none inside alternatives: otherwise the API server refuses the definition."""

    def check(part: dict, where: str) -> None:
        assert "anyOf" not in part, where
        assert "examples" not in part, where
        kind = part.get("type")
        has_type = isinstance(kind, str)
        is_open = part.get("x-kubernetes-preserve-unknown-fields") or part.get("x-kubernetes-int-or-string")
        assert has_type != bool(is_open), where
        for name, each in (part.get("properties") or {}).items():
            check(each, f"{where}.{name}")
        for name in ("items", "additionalProperties"):
            if name in part:
                check(part[name], f"{where}.{name}")

    check(schema(), "")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"type": ["string", "integer"]}, {"x-kubernetes-int-or-string": True}),
        ({"anyOf": [{"enum": ["low"]}, {"type": "integer"}]}, {"x-kubernetes-int-or-string": True}),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, {"x-kubernetes-preserve-unknown-fields": True}),
        ({"const": "forever"}, {"type": "string"}),
        ({"enum": [True]}, {"type": "boolean", "enum": [True]}),
        ({}, {"x-kubernetes-preserve-unknown-fields": True}),
        ({"type": "object", "additionalProperties": False, "properties": {"a": {"type": "string", "pattern": "x"}}},
         {"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}}),
        ({"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}},
         {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}}),
    ],
)  # fmt: skip
def test_a_json_schema_becomes_one_of_kubernetes(given, wanted):
    assert structural(given) == wanted
