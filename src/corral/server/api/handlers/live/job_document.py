"""Job documents for people who edit them: check a text as it is typed, and show the document of a job."""

from __future__ import annotations

from msgspec.structs import replace

from corral.core.model import JobSpec
from corral.server.api.handlers.jobs import seen_job
from corral.server.api.http.problems import ApiError
from corral.server.api.http.request import ApiRequest, Reply
from corral.server.auth import Verb
from corral.wire.api import DocumentCheck, DocumentOfJob, PlacedFaultView
from corral.wire.job import read_job_file, write_job

_FILE = "job.yaml"


async def check_document(request: ApiRequest) -> Reply:
    """Every error with its line and column, as ``corral submit`` finds them. Nothing is submitted."""
    return await request.shared.look(_checked, request, request.body.text)


def _checked(request: ApiRequest, text: str) -> DocumentCheck:
    settings = request.shared.settings
    jobs = read_job_file(
        text, _FILE, now_ms=request.service.now_ms(), queue=settings.default_queue, limits=settings.job_limits
    )
    faults = [
        PlacedFaultView(
            path=each.fault.path,
            code=each.fault.code,
            why=each.fault.why,
            hint=each.fault.hint,
            line=each.place.line,
            column=each.place.column,
        )
        for job in jobs
        for each in job.faults
    ]
    return DocumentCheck(documents=tuple(job.document for job in jobs), faults=tuple(faults))


async def show_document(request: ApiRequest) -> Reply:
    """The document that gives the same job. Its environment is shown to users who may change the job."""
    row = await seen_job(request, Verb.JOBS_READ)
    if row.spec is None:
        raise ApiError(404, "no_such_document", f"the document of job {row.id} is not stored any more")
    spec = row.spec if request.may(Verb.JOBS_CHANGE, row.queue, row.user) else _without_environment(row.spec)
    return DocumentOfJob(job=row.id, document=write_job(spec))


def _without_environment(spec: JobSpec) -> JobSpec:
    gangs = [
        gang if gang.work is None else replace(gang, work=replace(gang.work, env=(), secrets=())) for gang in spec.gangs
    ]
    return replace(spec, gangs=tuple(gangs))
