"""The part of the configuration that says what jobs may ask for where no queue says otherwise."""

from __future__ import annotations

from typing import Any

from corral.core.intake.site import SiteRules
from corral.wire.document.kinds import FLAG, SPAN, number
from corral.wire.document.table import Key, Table, table_kind
from corral.wire.job.terms import PRIORITY_MOST

RULE_KEYS = Table(
    "jobs",
    [
        Key("priority_ceiling", number("a priority", -PRIORITY_MOST, PRIORITY_MOST),
            "The highest priority of a job; operators and administrators may exceed it.",
            100, default="0", into="priority_ceiling"),
        Key("grace_max", SPAN, "The longest time to save and leave that a job may ask for; as above.",
            "10m", default="10m", into="grace_max_ms"),
        Key("preemptible", FLAG, "Whether a job that does not say so may be preempted.",
            False, default="true", into="preemptible"),
    ],
)  # fmt: skip


def _rules(found: dict[str, Any]) -> SiteRules:
    return SiteRules(**{key.into: found[key.name] for key in RULE_KEYS.keys if key.name in found})


RULES = table_kind(RULE_KEYS, "a mapping", _rules)
