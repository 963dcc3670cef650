"""Programs that the server runs, and places where it logs in, are named by administrators only, never by operators."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from corral.core.accounts.accounts import Role
from corral.providers import catalog
from corral.server.api.app import make_app
from corral.server.api.http.settings import ApiSettings
from tests.server.asgi import ask
from tests.server.in_memory_service import MemoryService

#: A fleet of each kind as an administrator makes it, and what an operator may change about it.
MADE: dict[str, dict[str, Any]] = {
    "command": {"acquire": ["a"], "release": ["r"], "look": ["l"]},
    "slurm": {"partition": "gpu"},
    "ssh": {"hosts": [{"host": "n1"}]},
    "ray": {"address": "head:6379", "is_open": True},
}
#: Everything that names a program, a file or a place of the server's, or what it trusts: each by itself.
NAMED: dict[str, dict[str, Any]] = {
    "command": {
        "acquire": ["/bin/sh", "-c", "id"], "release": ["x"], "look": ["x"], "env": {"LD_PRELOAD": "x"},
        "timeout_ms": 5_000,
    },
    "slurm": {
        "user": "root", "slurm_conf": "/tmp/x", "folder": "/tmp/x", "corral": ["/tmp/x"], "pythonpath": "/tmp/x",
        "extra": ["--prolog=/tmp/x"],
    },
    "ssh": {
        "hosts": [{"host": "n1", "python": "/tmp/x"}], "user": "root", "port": 2222, "python": "/tmp/x",
        "folder": "/tmp/x", "identity": "/etc/ssh/key", "known_hosts": "/tmp/x", "accept_new": True,
        "wheels": "/tmp/x", "ca": "x",
    },
    "ray": {
        "address": "ray://elsewhere:1", "python": "/tmp/x", "token_file": "/etc/shadow", "is_open": True,
        "agent_python": "/tmp/x", "folder": "/tmp/x", "wheels": "/tmp/x", "ca": "x",
    },
}  # fmt: skip
PLAIN: dict[str, dict[str, Any]] = {
    "slurm": {"partition": "big", "gpus": 4, "grace_ms": 5_000},
    "ssh": {"grace_ms": 5_000},
    "ray": {"labels": {"a": "b"}, "grace_ms": 5_000},
}


class Harness:
    def __init__(self) -> None:
        self.service = MemoryService()
        self.service.fleet = object()  # type: ignore[assignment]  # that there is one is all that is asked
        self.app = make_app(self.service, ApiSettings())
        self.admin = self.service.user("root", (Role.ADMINISTRATOR, ""))
        self.operator = self.service.user("op", (Role.OPERATOR, ""))

    async def put(self, who: str, kind: str, **settings: Any) -> int:
        return (await self.problem(who, kind, **settings))[0]

    async def problem(self, who: str, kind: str, **settings: Any) -> tuple[int, Any]:
        body = {"on": kind, "settings": settings, "nodes_min": 0, "nodes_max": 2}
        answer = await ask(self.app, "PUT", f"/v1/fleets/{kind}", who, body)
        return answer.status, answer.json()


@pytest.mark.parametrize("kind", MADE)
async def test_an_operator_makes_no_fleet_that_names_a_program_or_a_place(kind: str) -> None:
    harness = Harness()
    is_plain = kind == "slurm"
    assert await harness.put(harness.operator, kind, **MADE[kind]) == (200 if is_plain else 403)
    assert await harness.put(harness.admin, kind, **MADE[kind]) == 200


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, named in NAMED.items() for name in named])
async def test_an_operator_changes_no_program_or_place(kind: str, name: str) -> None:
    harness = Harness()
    made = dict(MADE[kind])
    if name == "is_open":
        made = {"address": "head:6379", "token_file": "/etc/ray"}
        changed = {"address": "head:6379", "is_open": True}
    else:
        changed = made | {name: NAMED[kind][name]}
    if name == "token_file":
        del changed["is_open"]
    assert await harness.put(harness.admin, kind, **made) == 200
    status, problem = await harness.problem(harness.operator, kind, **changed)
    assert (status, problem["code"]) == (403, "administrators_only")
    assert name in str(problem)
    assert await harness.put(harness.admin, kind, **changed) == 200


@pytest.mark.parametrize("kind", PLAIN)
async def test_an_operator_changes_what_harms_no_one(kind: str) -> None:
    harness = Harness()
    assert await harness.put(harness.admin, kind, **MADE[kind]) == 200
    assert await harness.put(harness.operator, kind, **MADE[kind] | PLAIN[kind]) == 200


@pytest.mark.parametrize("kind", catalog.KINDS)
def test_every_setting_is_tried_here_or_is_known_to_be_plain(kind: str) -> None:
    """A new setting is an administrator's until it is declared as plain."""
    module = catalog.kind_of(kind)
    fields = {each.name for each in structs.fields(module.Settings)}
    assert fields >= module.PLAIN
    assert fields - module.PLAIN == set(NAMED[kind])
