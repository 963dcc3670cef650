"""Pages agree with the code: requests that they show exist, and the defaults that they state are those that apply."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from corral.core.model import JobSpec
from corral.remote.settings import LEASE_MS, SHARED_LEASE_MS, RemoteSettings
from corral.server.api.app import all_routes
from corral.server.main import DEFAULT_PORT
from tests.architecture.repository import ROOT, markdown_pages

PAGES = [page for page in markdown_pages() if page.name != "CHANGELOG.md"]
REQUEST = re.compile(r"(?:\b(GET|POST|PUT|DELETE) )?(?<![\w.])(?:\$URL)?(/v1/[\w{}/:.?=&,%-]*)")


def patterns() -> list[tuple[str, re.Pattern[str], set[str]]]:
    """Method, path and query parameters of every route."""
    routes = [(route, re.sub(r"\\{\w+:path\\}", ".+", re.escape(route.path))) for route in all_routes()]
    return [
        (
            route.method,
            re.compile(re.sub(r"\\{\w+\\}", "[^/]+", path)),
            set(route.query.__struct_fields__) if route.query is not None else set(),
        )
        for route, path in routes
    ]


def fault_of(method: str, request: str) -> str:
    parts = urlsplit(request.rstrip(".,:"))
    found = [each for each in patterns() if method in ("", each[0]) and each[1].fullmatch(parts.path)]
    if not found:
        return f"there is no route {method} {parts.path}"
    unknown = {name for name, _ in parse_qsl(parts.query)} - set().union(*(names for _, _, names in found))
    return f"{parts.path} has no parameter {', '.join(sorted(unknown))}" if unknown else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_requests_that_a_page_shows_exist(page: Path) -> None:
    requests = REQUEST.findall(page.read_text(encoding="utf-8"))
    assert [fault for method, request in requests if (fault := fault_of(method, request))] == []


@pytest.mark.parametrize(
    ("method", "request_path", "fault"),
    [
        ("GET", "/v1/jobs?states=waiting&limit=50", ""),
        ("", "/v1/queues/lab/vision", ""),
        ("POST", "/v1/jobs/17/explode", "there is no route"),
        ("GET", "/v1/jobs?colour=red", "has no parameter colour"),
    ],
)
def test_requests_that_do_not_exist_are_found(method: str, request_path: str, fault: str) -> None:
    assert fault in fault_of(method, request_path)
    assert bool(fault) == bool(fault_of(method, request_path))


def seconds(ms: int) -> str:
    return f"{ms // 1000} s"


USUAL = JobSpec(queue="", gangs=())
STATED = {
    "the grace of a job": ("docs/preemption.md", f"`grace` (default: {seconds(USUAL.grace_ms)})"),
    "the grace, for users of Slurm": ("docs/coming-from-slurm.md", f"`grace` ({seconds(USUAL.grace_ms)} by"),
    "the exit code for a requeue": ("docs/preemption.md", f"`requeue_exit` ({USUAL.requeue_exit})"),
    "the lease": ("docs/operate/many-machines.md", f"default lease of {seconds(LEASE_MS)}"),
    "the margin": ("docs/operate/many-machines.md", f"the margin {seconds(RemoteSettings().margin_ms)})"),
    "the lease on a shared database": ("docs/operate/many-machines.md", f"the default is {seconds(SHARED_LEASE_MS)}"),
    "the same, for the database": ("docs/operate/database.md", f"the default is {seconds(SHARED_LEASE_MS)}"),
    "the port": ("docs/api.md", f"http://127.0.0.1:{DEFAULT_PORT}"),
}  # fmt: skip


@pytest.mark.parametrize(("page", "text"), STATED.values(), ids=STATED.keys())
def test_defaults_that_a_page_states_are_those_that_apply(page: str, text: str) -> None:
    assert text in (ROOT / page).read_text(encoding="utf-8")
