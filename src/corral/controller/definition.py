"""The definition of the custom resource `CorralJob`, made from the keys of the job file.

A schema of Kubernetes is stricter than a JSON Schema: every value has one type, and alternatives may only narrow it.
What may be text or a number becomes int-or-string; what may also be a list or a mapping is left open, and Corral
itself checks it when the job is submitted. Knows schemas, not jobs.
"""

from __future__ import annotations

from io import StringIO
from typing import Any

from corral.wire.job.keys import GANG_KEYS, JOB_KEYS
from corral.wire.job.parse import GANGS_KEY, JOB_FILE

GROUP = "corral.dev"
VERSION = "v1"
KIND = "CorralJob"
PLURAL = "corraljobs"
KIND_PATH = f"apis/{GROUP}/{VERSION}/{PLURAL}"
#: Keys of a job file that only mean something where a person submits it.
NOT_HERE = ("export",)
_KEPT = ("pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems")
_TYPE_OF = {str: "string", bool: "boolean", int: "integer"}

Schema = dict[str, Any]


def custom_resource_definition() -> dict[str, Any]:
    """The object that ``kubectl apply`` needs before there can be a `CorralJob`."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": _columns(),
        "schema": {"openAPIV3Schema": _object_schema()},
    }
    names = {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "singular": "corraljob", "shortNames": ["cjob"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def definition_text() -> str:
    """The same as YAML."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 120
    out = StringIO()
    yaml.dump(custom_resource_definition(), out)
    return out.getvalue()


def structural(schema: Schema) -> Schema:
    """A JSON Schema as Kubernetes accepts it: it accepts all that the original does, and refuses most of the rest."""
    kinds = _types(schema)
    found: Schema = {"description": schema["description"]} if "description" in schema else {}
    if kinds == {"string", "integer"}:
        return found | {"x-kubernetes-int-or-string": True}
    if len(kinds) != 1:
        return found | {"x-kubernetes-preserve-unknown-fields": True}
    found["type"] = kinds.pop()
    found |= {name: schema[name] for name in _KEPT if name in schema}
    if "enum" in schema:
        found["enum"] = list(schema["enum"])
    if "properties" in schema:
        found["properties"] = {name: structural(each) for name, each in schema["properties"].items()}
        if "required" in schema:
            found["required"] = list(schema["required"])
    elif isinstance(schema.get("additionalProperties"), dict):
        found["additionalProperties"] = structural(schema["additionalProperties"])
    if found["type"] == "array":
        found["items"] = structural(schema.get("items", {}))
    return found


def _types(schema: Schema) -> set[str]:
    stated = schema.get("type")
    if stated is not None:
        return {stated} if isinstance(stated, str) else set(stated)
    if "anyOf" in schema:
        return set[str]().union(*(_types(each) for each in schema["anyOf"]))
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return {_TYPE_OF[type(each)] for each in values}


def _object_schema() -> Schema:
    keys = {key.name: key for key in (*JOB_KEYS.keys, *GANG_KEYS.keys, GANGS_KEY) if key.name not in NOT_HERE}
    properties = JOB_FILE.schema["properties"]
    spec = {
        "type": "object",
        "description": "The keys of a job file: docs/job-file.md. Needs command or gangs.",
        "properties": {name: structural(properties[name]) for name in keys},
    }
    return {
        "type": "object",
        "description": "A job of Corral. It is cancelled when this object is deleted.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": _status_schema(),
        },
    }


def _status_schema() -> Schema:
    time = {"type": "string", "format": "date-time"}
    fields: dict[str, tuple[Schema, str]] = {
        "observedGeneration": ({"type": "integer"}, "Generation of the object that the rest is about."),
        "job": ({"type": "string"}, "Id of the job in Corral."),
        "submitted": ({"type": "string"}, "Identifies what was submitted, without priority and hold."),
        "queue": ({"type": "string"}, "Queue that is charged."),
        "phase": ({"type": "string"}, "Waiting, Starting, Running, Stopping, Succeeded, Failed, Cancelled or Refused."),
        "reason": ({"type": "string"}, "Why it waits, or why it ended."),
        "expectedStart": (time, "When it is expected to start, if that is known."),
        "startTime": (time, "When it started first."),
        "completionTime": (time, "When it ended."),
        "gpus": ({"type": "integer"}, "GPUs that it requests in total."),
        "nodes": ({"type": "array", "items": {"type": "string"}}, "The first of the nodes that it runs on."),
        "nodesTotal": ({"type": "integer"}, "How many nodes it runs on."),
        "restarts": ({"type": "integer"}, "How often it started again."),
        "exitCode": ({"type": "integer"}, "Its exit code."),
        "failure": ({"type": "string"}, "Class of its failure, such as user_error or gpu_fault."),
    }
    texts = {name: {"type": "string"} for name in ("type", "status", "reason", "message")}
    condition = {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": texts | {"lastTransitionTime": time, "observedGeneration": {"type": "integer"}},
    }
    conditions = {
        "type": "array",
        "description": "Accepted, Running, Complete, Failed.",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": condition,
    }
    described = {name: schema | {"description": about} for name, (schema, about) in fields.items()}
    return {"type": "object", "description": "What Corral says.", "properties": described | {"conditions": conditions}}


def _columns() -> list[dict[str, Any]]:
    def column(name: str, path: str, kind: str = "string", priority: int = 0) -> dict[str, Any]:
        return {"name": name, "type": kind, "jsonPath": path} | ({"priority": priority} if priority else {})

    return [
        column("Phase", ".status.phase"),
        column("Job", ".status.job"),
        column("Queue", ".status.queue"),
        column("GPUs", ".status.gpus", "integer"),
        column("Nodes", ".status.nodesTotal", "integer"),
        column("Restarts", ".status.restarts", "integer"),
        column("Age", ".metadata.creationTimestamp", "date"),
        column("Exit", ".status.exitCode", "integer", 1),
        column("Expected start", ".status.expectedStart", "date", 1),
        column("Reason", ".status.reason", "string", 1),
    ]
