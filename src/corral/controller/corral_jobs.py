"""One `CorralJob` at a time: submitted, changed or replaced as its specification says, and its status written.

Everything is found again after a restart: the job by its labels and its idempotency key (uid and generation of the
object), the rest in the status. Objects have no finalizer, so that a namespace can always be deleted, also while
nothing runs here: what was deleted meanwhile is found as a job without an object (`object_controller`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.client.errors import Problem
from corral.controller.definition import KIND, KIND_PATH, NOT_HERE
from corral.controller.job_status import LOST, Status, patch_from, refused, status_of
from corral.controller.namespace_queues import AllowedQueues, QueueRefused
from corral.controller.submissions import ObjectOrigin, Submissions, digest
from corral.kubernetes.cluster_api import ClusterApi, object_path
from corral.wire.api.jobs import JobSummary
from corral.wire.api.words import ENDED
from corral.wire.job.timing import PRIORITIES

#: What is changed in a job that exists; a change of anything else replaces the job.
_IN_PLACE = ("priority", "hold")

Document = dict[str, Any]


class CorralJobs:
    """Reconciles objects with jobs. Every call may be repeated."""

    def __init__(self, api: ClusterApi, submissions: Submissions) -> None:
        self._api, self._submissions = api, submissions

    def reconcile(self, found: Document, queues: AllowedQueues, live: Mapping[str, JobSummary], now_ms: int) -> None:
        """``found``: the object. ``live``: jobs that have not ended, by their ids."""
        meta, known = found["metadata"], found.get("status") or {}
        is_current = known.get("observedGeneration") == meta.get("generation")
        if meta.get("deletionTimestamp") or (is_current and known.get("completionTime")):
            return
        wanted = self._wanted(found, known, queues, live, now_ms)
        patch = patch_from(known, wanted)
        if patch is not None:
            self._api.patch(object_path(KIND_PATH, meta["namespace"], meta["name"], "status"), {"status": patch})

    def _wanted(
        self, found: Document, known: Status, queues: AllowedQueues, live: Mapping[str, JobSummary], now_ms: int
    ) -> Status:
        meta = found["metadata"]
        generation = int(meta.get("generation") or 1)
        try:
            document = document_of(found, queues)
            submitted = digest({name: each for name, each in document.items() if name not in _IN_PLACE})
            job = self._job_of(known, live)
            if job is None and known.get("job") and known.get("observedGeneration") == generation:
                return self._gone(known, generation, now_ms)
            if job is not None and known.get("observedGeneration") != generation:
                if known.get("submitted") == submitted:
                    job = self._changed(job, document)
                elif job.state in ENDED:
                    job = None
                else:  # the job of the former specification ends first
                    return self._replaced(job, known, now_ms)
            if job is None:
                origin = ObjectOrigin(KIND.lower(), meta["namespace"], meta["name"], meta["uid"], str(generation))
                job = self._submissions.job(self._submissions.submit(document, origin))
        except QueueRefused as wrong:
            return self._refused(str(wrong), "queue_not_allowed", generation, known, live, now_ms)
        except Problem as problem:
            if problem.status in (401, 429) or problem.status >= 500:
                raise  # nothing that the owner of the object could change
            return self._refused(what_is_wrong(problem), problem.code, generation, known, live, now_ms)
        if job is None:
            return known
        return status_of(job, submitted, generation, known, now_ms)

    def _job_of(self, known: Status, live: Mapping[str, JobSummary]) -> JobSummary | None:
        id = str(known.get("job") or "")
        return (live.get(id) or self._submissions.job(id)) if id else None

    def _changed(self, job: JobSummary, document: Document) -> JobSummary | None:
        if job.state in ENDED:
            return job
        client = self._submissions.client
        priority = document.get("priority", 0)
        number = PRIORITIES.get(priority, 0) if isinstance(priority, str) else int(priority)
        if number != job.priority:
            client.set_priority(job.id, number)
        if bool(document.get("hold")) != job.held:
            (client.hold if document.get("hold") else client.release)(job.id)
        return self._submissions.job(job.id)

    def _replaced(self, job: JobSummary, known: Status, now_ms: int) -> Status:
        if job.state != "stopping":
            self._submissions.client.cancel(job.id)
        generation = int(known.get("observedGeneration") or 0)
        return status_of(job, str(known.get("submitted", "")), generation, known, now_ms)

    def _gone(self, known: Status, generation: int, now_ms: int) -> Status:
        """Corral no longer has the job: it has forgotten an old one, or its data is another's."""
        if known.get("completionTime"):
            return known
        why = f"Corral does not know job {known['job']}; to run it again, apply this object under another name"
        return {**known, **refused(why, "job_lost", generation, known, now_ms, LOST)}

    def _refused(
        self, why: str, code: str, generation: int, known: Status, live: Mapping[str, JobSummary], now_ms: int
    ) -> Status:
        """A refused change leaves no job of the former specification behind."""
        job = live.get(str(known.get("job") or ""))
        if job is not None and job.state != "stopping":
            self._submissions.client.cancel(job.id)
        return refused(why, code, generation, known, now_ms)


def document_of(found: Document, queues: AllowedQueues) -> Document:
    """The job file of an object."""
    spec, meta = found.get("spec") or {}, found["metadata"]
    document = {name: each for name, each in spec.items() if name not in NOT_HERE}
    document.setdefault("name", meta["name"])
    document["queue"] = queues.queue_for(document.get("queue"))
    return document


def what_is_wrong(problem: Problem) -> str:
    """All faults of a document, or what else was refused, with what to do."""
    faults = [
        f"{'.'.join(map(str, fault.path)) or 'spec'}: {fault.why}" + (f" ({fault.hint})" if fault.hint else "")
        for fault in problem.faults
    ]
    if faults:
        return "; ".join(faults)
    return f"{problem}. {problem.hint}" if problem.hint else str(problem)
