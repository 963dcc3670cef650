"""The limits that docs/api.md states are those of docs/configuration.md and of the code."""

from __future__ import annotations

from corral.core.intake.site import SiteRules
from tests.architecture.repository import ROOT

API = (ROOT / "docs" / "api.md").read_text()
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()


def test_both_pages_state_the_limits_of_the_code() -> None:
    rules = SiteRules()
    assert f"at most {rules.gangs_per_request:,} gangs" in API
    assert f"at most {rules.pending_per_user:,} unfinished jobs and a queue {rules.pending_per_queue:,}" in API
    for name in ("gangs_per_job", "gangs_per_request", "tasks_per_request", "pending_per_user", "pending_per_queue"):
        row = next(line for line in CONFIGURATION.splitlines() if line.startswith(f"| `{name}` |"))
        assert f"| {getattr(rules, name)} |" in row
