"""Configuration of limits on jobs that apply unless a queue sets others."""

from __future__ import annotations

from corral.core.intake.site import SiteRules
from corral.wire.document.key_table import Key, KeyTable, struct_kind
from corral.wire.document.kinds import FLAG, SPAN, number
from corral.wire.job.timing import PRIORITY_MOST

_VOLUME = {
    "gangs_per_job": "Maximum number of gangs of one job: array elements times gangs.",
    "gangs_per_request": "Maximum number of gangs of all jobs in one request. Every 1,000 take about 10 ms.",
    "tasks_per_request": "Maximum number of tasks of all jobs in one request, arrays expanded.",
    "pending_per_user": "Maximum number of unfinished jobs of one user in all queues; each array element counts.",
    "pending_per_queue": "Maximum number of unfinished jobs of a queue and its children, unless it sets `max_jobs`.",
}
RULE_KEYS = KeyTable(
    "jobs",
    [
        Key("priority_ceiling", number("a priority", -PRIORITY_MOST, PRIORITY_MOST),
            "Highest priority of a job; operators and administrators may exceed it.",
            100, default="0", into="priority_ceiling"),
        Key("grace_max", SPAN, "Longest grace period a job may request; operators and administrators may exceed it.",
            "10m", default="10m", into="grace_max_ms"),
        Key("preemptible", FLAG, "Default of `preemptible` for jobs that do not state it.",
            False, default="true", into="preemptible"),
        *(
            Key(name, number("a number", 1), about, getattr(SiteRules(), name), default=str(getattr(SiteRules(), name)),
                into=name)
            for name, about in _VOLUME.items()
        ),
    ],
)  # fmt: skip
RULES = struct_kind(RULE_KEYS, "a mapping", SiteRules)
