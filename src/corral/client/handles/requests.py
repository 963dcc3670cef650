"""Requests about one job, described once: for the methods of clients, which take its id, and of jobs as objects."""

from __future__ import annotations

from corral.client.call import ApiCall, JobId, job_id, path
from corral.wire.api.jobs import ChangeAnswer, JobView, WhyView


def job_call(job: JobId) -> ApiCall[JobView]:
    return ApiCall("GET", path("jobs", job_id(job)), JobView)


def why_call(job: JobId) -> ApiCall[WhyView]:
    return ApiCall("GET", path("jobs", job_id(job), "why"), WhyView)


def cancel_call(job: JobId, now: bool) -> ApiCall[ChangeAnswer]:
    return ApiCall("POST", path("jobs", job_id(job), "cancel"), ChangeAnswer, {"now": now})


def change_call(job: JobId, verb: str) -> ApiCall[ChangeAnswer]:
    """``verb``: hold, release or requeue."""
    return ApiCall("POST", path("jobs", job_id(job), verb), ChangeAnswer, repeatable=verb != "requeue")
