"""The part of the configuration that says what jobs may ask for where no queue says otherwise."""

from __future__ import annotations

from typing import Any

from corral.core.intake.site import SiteRules
from corral.wire.document.kinds import FLAG, SPAN, number
from corral.wire.document.table import Key, Table, table_kind
from corral.wire.job.terms import PRIORITY_MOST

_VOLUME = {
    "gangs_per_job": "The most gangs of one job: array elements times gangs.",
    "gangs_per_request": "The most gangs of all jobs in one request. Others wait about 10 ms for every 1,000.",
    "tasks_per_request": "The most tasks of all jobs in one request, arrays expanded.",
    "pending_per_user": "The most unfinished jobs of one user in all queues; each element of an array counts.",
    "pending_per_queue": "The most unfinished jobs of a queue and those below it, where it states no max_jobs.",
}
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
        *(
            Key(name, number("a number", 1), about, getattr(SiteRules(), name), default=str(getattr(SiteRules(), name)),
                into=name)
            for name, about in _VOLUME.items()
        ),
    ],
)  # fmt: skip


def _rules(found: dict[str, Any]) -> SiteRules:
    return SiteRules(**{key.into: found[key.name] for key in RULE_KEYS.keys if key.name in found})


RULES = table_kind(RULE_KEYS, "a mapping", _rules)
