"""Requests about jobs. Each method describes its request; see ``call``.

Knows paths and shapes. A submission has an idempotency key, so that it is never executed twice.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from corral.client.call import ApiCall, Item, JobId, Series, call, job_id, path, series
from corral.client.errors import ClientError
from corral.client.handles.handle import (
    AsyncJobHandle,
    AsyncSubmittedJob,
    AsyncSubmittedJobs,
    JobHandle,
    SubmittedJob,
    SubmittedJobs,
    giving,
)
from corral.client.handles.requests import cancel_call, change_call, job_call, why_call
from corral.client.retry import Patient, answered
from corral.wire.api.activity import JobActivity
from corral.wire.api.jobs import (
    AttemptList,
    BatchAnswer,
    ChangeAnswer,
    ChangeJobsAnswer,
    DocumentCheck,
    DocumentOfJob,
    DocumentText,
    DryRunAnswer,
    JobList,
    JobSummary,
    JobView,
    PriorityBody,
    SubmitAnswer,
    WhyView,
)
from corral.wire.api.record import GoodputView
from corral.wire.environment.export import with_directory, with_environment
from corral.wire.environment.python import NoPython, python_environment

IDEMPOTENCY = "Idempotency-Key"
PAGE = 500

Document = Mapping[str, Any]


class JobCalls(Patient):
    """Jobs: submit, read, change."""

    @giving(SubmittedJob, AsyncSubmittedJob)
    def submit(
        self, document: Document, *, key: str = "", export: str | None = None, venv: str | None = None
    ) -> ApiCall[SubmitAnswer]:
        """Submit one job document: the keys of a job file (docs/job-file.md) as a mapping.

        The job runs in the current directory, unless the document has ``directory``. ``export``: variables of this
        process that it gets (``"ALL"``, ``"NONE"``, ``"HF_HOME,MODE=fast"``; default: PATH and the active Python
        environment). ``venv``: the directory of a Python environment to use, or ``"active"``. ``key``: submissions with
        the same key create one job; random if not given.

        >>> job = client.submit({"command": "echo hello", "cpus": 1, "name": "first"})
        >>> print(job.name, job.wait().state)
        first succeeded
        """
        return _submission(path("jobs"), SubmitAnswer, from_here(document, export, venv), key)

    @giving(SubmittedJobs, AsyncSubmittedJobs)
    def submit_many(
        self, documents: Sequence[Document], *, key: str = "", export: str | None = None, venv: str | None = None
    ) -> ApiCall[BatchAnswer]:
        """Submit several, all or none; parameters as for ``submit``. In ``after``, ``#0`` is the first of them.

        >>> batch = client.submit_many([{"command": "true"}, {"command": "true", "after": "#0"}])
        >>> print(*[job.wait().state for job in batch.jobs])
        succeeded succeeded
        """
        jobs = [from_here(each, export, venv) for each in documents]
        return _submission(path("jobs", "batch"), BatchAnswer, {"jobs": jobs}, key)

    @call
    def dry_run(
        self, document: Document, *, export: str | None = None, venv: str | None = None
    ) -> ApiCall[DryRunAnswer]:
        """Dry run: what would happen if the job were submitted now. Nothing is stored.

        >>> client.dry_run({"command": "true", "gpus": 1}).gangs[0].outcome
        'starts'
        """
        return ApiCall("POST", path("jobs"), DryRunAnswer, {"dry_run": True}, from_here(document, export, venv))

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
        """Jobs, newest first, fetched page by page as needed; at most ``limit``."""
        pairs = tuple(f"{name}={value}" for name, value in (labels or {}).items())
        parameters: dict[str, Any] = {
            "queue": queue,
            "user": user,
            "states": tuple(states),
            "name": name,
            "labels": pairs,
        }
        parameters |= {"since_ms": since_ms, "until_ms": until_ms}
        left, cursor = limit, None
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            asked = ApiCall("GET", path("jobs"), JobList, {**parameters, "limit": size, "cursor": cursor})
            page: JobList = yield from answered(self, asked)
            for job in page.jobs:
                yield Item(job)
            left = None if left is None else left - len(page.jobs)
            cursor = page.cursor
            if cursor is None:
                return

    @giving(JobHandle, AsyncJobHandle)
    def job(self, job: JobId) -> ApiCall[JobView]:
        """One job in full. Raises ``NotFound``.

        >>> client.job(1).id
        '1'
        """
        return job_call(job)

    @call
    def check_document(self, text: str) -> ApiCall[DocumentCheck]:
        """All errors in a job file, with line and column. Nothing is submitted."""
        return ApiCall("POST", path("jobs", "check"), DocumentCheck, body=DocumentText(text=text))

    @call
    def job_document(self, job: str) -> ApiCall[DocumentOfJob]:
        """The document of a job, to be submitted again."""
        return ApiCall("GET", path("jobs", job, "document"), DocumentOfJob)

    @call
    def attempts(
        self, *, since_ms: int | None = None, until_ms: int | None = None, limit: int = 2000
    ) -> ApiCall[AttemptList]:
        """Attempts of all jobs in a time (by default the last 24 hours), and reserved starts."""
        return ApiCall(
            "GET", path("attempts"), AttemptList, {"since_ms": since_ms, "until_ms": until_ms, "limit": limit}
        )

    @call
    def job_activity(self, job: JobId) -> ApiCall[JobActivity]:
        """What a job does now: its GPUs, CPU, memory and steps by rank, and what looks wrong."""
        return ApiCall("GET", path("jobs", job_id(job), "activity"), JobActivity)

    @call
    def why(self, job: JobId) -> ApiCall[WhyView]:
        """Why a job waits: all reasons, the jobs in the way, what would help, and the expected start."""
        return why_call(job)

    @call
    def goodput(self, job: JobId | None = None) -> ApiCall[GoodputView]:
        """Which part of its time a job has trained, what the rest was lost to, and how often it should save. Without a
        job: of the GPU time of all jobs since the server started."""
        return ApiCall("GET", path("goodput") if job is None else path("jobs", job_id(job), "goodput"), GoodputView)

    @call
    def cancel(self, job: JobId, *, now: bool = False) -> ApiCall[ChangeAnswer]:
        """Cancel a job. ``now``: without grace."""
        return cancel_call(job, now)

    @call
    def hold(self, job: JobId) -> ApiCall[ChangeAnswer]:
        """Hold a job: it does not start until it is released."""
        return change_call(job, "hold")

    @call
    def release(self, job: JobId) -> ApiCall[ChangeAnswer]:
        """Release a held job."""
        return change_call(job, "release")

    @call
    def requeue(self, job: JobId) -> ApiCall[ChangeAnswer]:
        """Stop a job and requeue it."""
        return change_call(job, "requeue")

    @call
    def change_jobs(
        self,
        change: str,
        jobs: Sequence[JobId] = (),
        *,
        filter: Mapping[str, Any] | None = None,
        priority: int | None = None,
        now: bool = False,
        dry_run: bool = False,
        expect: int | None = None,
    ) -> ApiCall[ChangeJobsAnswer]:
        """Change many jobs in one request: cancel, hold, release, requeue or priority. ``jobs``: their names, such as
        ``35`` or ``35[3-9]``; or ``filter``: name, states, user, queue, labels, before_ms, since_ms, all. ``dry_run``:
        only count them. ``expect``: change nothing unless exactly as many match."""
        body = {"change": change, "now": now, "dry_run": dry_run, "priority": priority, "expect": expect}
        body |= {"jobs": tuple(map(job_id, jobs))} if filter is None else {"filter": dict(filter)}
        return ApiCall("POST", path("jobs", "change"), ChangeJobsAnswer, body=body, repeatable=change != "requeue")

    @call
    def set_priority(self, job: JobId, priority: int) -> ApiCall[ChangeAnswer]:
        """Change its priority."""
        body = PriorityBody(priority=priority)
        return ApiCall("POST", path("jobs", job_id(job), "priority"), ChangeAnswer, body=body)


def from_here(document: Document, export: str | None, venv: str | None) -> dict[str, Any]:
    """The document with what it takes along from this process."""
    stated = {**document, "export": export} if export is not None else document
    try:
        python = python_environment(venv, os.environ) if venv else None
    except NoPython as error:
        raise ClientError(str(error), error.hint) from None
    carried, notes = with_environment(with_directory(stated, os.getcwd()), os.environ, python)
    for note in notes:
        warnings.warn(f"export: {note}", stacklevel=2)
    return carried


def _submission(where: str, answer: type[Any], body: Any, key: str) -> ApiCall[Any]:
    return ApiCall("POST", where, answer, body=body, headers={IDEMPOTENCY: key or os.urandom(16).hex()})
