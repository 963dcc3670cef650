"""docs/api.md and docs/security.md say what the tables say."""

from __future__ import annotations

from corral.core.accounts.accounts import Role
from corral.server.api.app import all_routes
from corral.server.api.http.settings import ApiSettings
from corral.server.auth import TABLE, Verb
from tests.architecture.repository import ROOT

ROLES = (Role.VIEWER, Role.MEMBER, Role.LEAD, Role.OPERATOR, Role.ADMINISTRATOR)


def lines(page: str) -> set[str]:
    return set((ROOT / "docs" / page).read_text(encoding="utf-8").splitlines())


def test_the_rights_are_on_their_page():
    rows = set()
    for verb in Verb:
        cells = [TABLE[verb][role].value if role in TABLE[verb] else "–" for role in ROLES]
        rows.add(f"| `{verb}` | {' | '.join(cells)} |")
    assert rows <= lines("security.md"), rows - lines("security.md")


def test_the_routes_are_on_their_page():
    documented = {line.split(" | ")[0] + " |" for line in lines("api.md") if line.startswith("| `")}
    routes = {f"| `{route.method} {route.path.replace(':path', '')}` |" for route in all_routes()}
    assert routes <= documented, routes - documented


def test_the_bounds_on_the_page_are_those_of_the_settings():
    page, bounds = "\n".join(lines("api.md")), ApiSettings()
    assert f"| a body | {bounds.body_bytes_max >> 20} MiB" in page
    assert f"{bounds.bodies_bytes_max >> 20} MiB of bodies at one time" in page
    assert f"up to {bounds.batch_jobs_max:,} documents" in page
    assert f"{bounds.requests_per_s:,.0f} requests a second" in page
    assert f"bursts of {bounds.requests_burst:,}" in page
    assert f"{bounds.head_bytes_max >> 10} KiB as it is sent, {bounds.headers_max} headers" in page
    assert f"{bounds.streams_per_token} for each token, {bounds.streams_per_user} for each user" in page
    assert f"{bounds.streams_per_address:,} for each address, {bounds.streams_max:,} in total" in page
    assert f"the last {bounds.streams_reserve} are for users" in page
    assert f"{bounds.send_timeout_s:.0f} s in which the client reads nothing" in page
    assert f"after {bounds.failures_max} from one address" in page
