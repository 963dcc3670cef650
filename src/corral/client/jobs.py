"""What can be asked about jobs. Each method describes its request; see ``call``.

Knows paths and shapes. A submission carries a key of its own, so that it is never carried out twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from corral.client.call import Call, Item, Series, call, path, series
from corral.client.retry import Patient, answered
from corral.wire.api.jobs import (
    BatchAnswer,
    ChangeAnswer,
    DryRunAnswer,
    JobList,
    JobSummary,
    JobView,
    PriorityBody,
    SubmitAnswer,
    WhyView,
)

IDEMPOTENCY = "Idempotency-Key"
PAGE = 500

Document = Mapping[str, Any]


class JobCalls(Patient):
    """Jobs: submit, look, change."""

    @call
    def submit(self, document: Document, *, key: str = "") -> Call[SubmitAnswer]:
        """Submit one job document. ``key``: two submissions with the same one are one; made up where not given."""
        return _submission(path("jobs"), SubmitAnswer, document, key)

    @call
    def submit_many(self, documents: Sequence[Document], *, key: str = "") -> Call[BatchAnswer]:
        """Submit several, all or none. In ``after``, ``#0`` is the first of them."""
        return _submission(path("jobs", "batch"), BatchAnswer, {"jobs": list(documents)}, key)

    @call
    def dry_run(self, document: Document) -> Call[DryRunAnswer]:
        """What would become of a job that is submitted now. Nothing is written."""
        return Call("POST", path("jobs"), DryRunAnswer, {"dry_run": True}, document)

    @series
    def jobs(
        self,
        *,
        queue: str | None = None,
        user: str | None = None,
        states: Sequence[str] = (),
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        limit: int | None = None,
    ) -> Series[JobSummary]:
        """Jobs, newest first, page by page as they are needed; at most ``limit``."""
        pairs = tuple(f"{name}={value}" for name, value in (labels or {}).items())
        said: dict[str, Any] = {"queue": queue, "user": user, "states": tuple(states), "name": name, "labels": pairs}
        said |= {"since_ms": since_ms, "until_ms": until_ms}
        left, cursor = limit, None
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            asked = Call("GET", path("jobs"), JobList, {**said, "limit": size, "cursor": cursor})
            page: JobList = yield from answered(self, asked)
            for job in page.jobs:
                yield Item(job)
            left = None if left is None else left - len(page.jobs)
            cursor = page.cursor
            if cursor is None:
                return

    @call
    def job(self, job: str) -> Call[JobView]:
        """One job in full."""
        return job_call(job)

    @call
    def why(self, job: str) -> Call[WhyView]:
        """Why it waits: all reasons, who is in the way, what would help, when it will start."""
        return Call("GET", path("jobs", job, "why"), WhyView)

    @call
    def cancel(self, job: str, *, now: bool = False) -> Call[ChangeAnswer]:
        """End it for good. ``now``: without its grace."""
        return Call("POST", path("jobs", job, "cancel"), ChangeAnswer, {"now": True} if now else {})

    @call
    def hold(self, job: str) -> Call[ChangeAnswer]:
        """Let it wait until it is released."""
        return _change(job, "hold")

    @call
    def release(self, job: str) -> Call[ChangeAnswer]:
        """Let a held job go on."""
        return _change(job, "release")

    @call
    def requeue(self, job: str) -> Call[ChangeAnswer]:
        """Stop it and let it wait for another run."""
        return _change(job, "requeue")

    @call
    def set_priority(self, job: str, priority: int) -> Call[ChangeAnswer]:
        """Change its priority."""
        return Call("POST", path("jobs", job, "priority"), ChangeAnswer, body=PriorityBody(priority=priority))


def job_call(job: str) -> Call[JobView]:
    return Call("GET", path("jobs", job), JobView)


def _submission(where: str, answer: type[Any], body: Any, key: str) -> Call[Any]:
    return Call("POST", where, answer, body=body, headers={IDEMPOTENCY: key or os.urandom(16).hex()})


def _change(job: str, verb: str) -> Call[ChangeAnswer]:
    return Call("POST", path("jobs", job, verb), ChangeAnswer, repeatable=verb != "requeue")
