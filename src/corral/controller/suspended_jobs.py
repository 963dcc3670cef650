"""One suspended Job at a time: a job of Corral holds its seats, it runs while they are held, and is suspended again
when they are taken away.

Everything is in the annotations of the Job, in the labels of its pods, and in Corral: a restart continues anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corral.client.errors import Problem
from corral.controller.corral_jobs import what_is_wrong
from corral.controller.held_seats import (
    JOB,
    LABEL,
    PATH,
    REASON,
    STATE,
    SUBMITTED,
    BadJob,
    admit_patch,
    free_seats,
    has_ended,
    held_document,
    is_gated,
    seat_patch,
)
from corral.controller.namespace_queues import AllowedQueues, QueueRefused
from corral.controller.submissions import UID, ObjectOrigin, Submissions, digest
from corral.kubernetes.cluster_api import JSON_PATCH, ApiRefused, ClusterApi, object_path
from corral.kubernetes.held_pods import HELD_BY
from corral.kubernetes.pod_names import ATTEMPT
from corral.wire.api.jobs import GangView, JobSummary, JobView
from corral.wire.api.words import JobState

JOBS, PODS = "apis/batch/v1/jobs", "api/v1/pods"
KIND = "job"
_REASON_MAX = 500

Document = dict[str, Any]


# | Job | job of Corral | what happens |
# |---|---|---|
# | suspended, new | none | submitted |
# | suspended | waits, starts | the Job says so in its annotations |
# | suspended | runs | un-suspended; its pods get their seats |
# | runs | runs, the same attempt | pods that wait at the gate get their seats |
# | runs | stops, waits, runs elsewhere | suspended |
# | completed | not ended | ended as a success |
# | failed, deleted | not ended | cancelled |
# | not ended | ended (by a user, or refused) | suspended, and stays so |
# | runs, never admitted | none | suspended, then submitted |


class SuspendedJobs:
    """Reconciles Jobs with the jobs that hold their seats. ``node_label``: the label of a node that has its name in
    Corral. ``image``: of the program that holds seats, where tasks are containers."""

    def __init__(self, api: ClusterApi, submissions: Submissions, node_label: str, image: str = "") -> None:
        self._api, self._submissions = api, submissions
        self._node_label, self._image = node_label, image

    def reconcile(
        self, job: Document, pods: Sequence[Document], queues: AllowedQueues, live: Mapping[str, JobSummary]
    ) -> None:
        """``pods``: all of this Job. ``live``: jobs of Corral that have not ended, by their ids."""
        meta, notes = job["metadata"], job["metadata"].get("annotations") or {}
        held = live.get(notes.get(JOB, "")) or next(
            (each for each in live.values() if each.labels.get(UID) == meta["uid"]), None
        )
        if ended := how_it_ended(job):
            self._ended(job, ended, held)
            return
        if meta.get("deletionTimestamp"):
            return
        try:
            document = held_document(job, self._queue(job, queues), self._image)
            held = self._held(job, document, held, live)
        except (BadJob, QueueRefused) as wrong:
            self._refuse(job, str(wrong), held)
        except Problem as problem:
            if problem.status in (401, 429) or problem.status >= 500:
                raise
            self._refuse(job, what_is_wrong(problem), held)
        else:
            if held is not None:
                self._follow(job, pods, held)

    # ---- the job that holds the seats ------------------------------------------------------------------------------

    def _queue(self, job: Document, queues: AllowedQueues) -> str:
        meta = job["metadata"]
        stated = (meta.get("annotations") or {}).get(PATH) or (meta.get("labels") or {}).get(LABEL)
        return queues.queue_for(stated)

    def _held(
        self, job: Document, document: Document, held: JobSummary | None, live: Mapping[str, JobSummary]
    ) -> JobSummary | None:
        """The job of Corral that holds its seats now; submitted, if there was none or the Job is another one now."""
        meta, notes = job["metadata"], job["metadata"].get("annotations") or {}
        submitted, is_suspended = digest(document), bool(job["spec"].get("suspend"))
        if notes.get(JOB):
            is_same = notes.get(SUBMITTED) == submitted or not is_suspended
            if is_same:
                return held if held is not None else self._submissions.job(notes[JOB])
            if held is not None:  # the Job was changed while it was suspended
                self._cancel(held)
                self._note(job, {STATE: "replacing", REASON: "the Job was changed; the former job ends first"})
                return None
        if not is_suspended:
            self._suspend(job)  # it was not created suspended
            return None
        if held is not None:  # it was submitted just before an interruption
            id = held.id
        else:
            mark = f"{submitted}-{self._submissions.ended_before(meta['uid'])}"
            id = self._submissions.submit(
                document, ObjectOrigin(KIND, meta["namespace"], meta["name"], meta["uid"], mark)
            )
        self._note(job, {JOB: id, SUBMITTED: submitted})
        return live.get(id) or self._submissions.job(id)

    def _ended(self, job: Document, ended: str, held: JobSummary | None) -> None:
        if held is not None:
            self._finish(held) if ended == "Complete" else self._cancel(held)
        self._note(job, {STATE: "succeeded" if ended == "Complete" else "failed", REASON: None})

    def _finish(self, held: JobSummary) -> None:
        """Its program takes a request to requeue as its success."""
        if held.state == JobState.RUNNING:
            self._submissions.client.requeue(held.id)
        elif held.state != JobState.STOPPING:
            self._submissions.client.cancel(held.id)

    def _cancel(self, held: JobSummary) -> None:
        if held.state != JobState.STOPPING:
            self._submissions.client.cancel(held.id, now=True)

    # ---- the Job ---------------------------------------------------------------------------------------------------

    def _follow(self, job: Document, pods: Sequence[Document], held: JobSummary) -> None:
        is_suspended = bool(job["spec"].get("suspend"))
        note = {STATE: str(held.state), REASON: (held.reason or held.why)[:_REASON_MAX] or None}
        if held.state != JobState.RUNNING:
            if not is_suspended:
                self._suspend(job)
            self._note(job, note)
            return
        view = self._submissions.client.job(held.id)
        gang = view.gangs[0] if view.gangs else None
        if gang is None or gang.state != "running":
            return
        if is_suspended:
            if all(has_ended(pod) for pod in pods):  # those of the former seats are gone
                self._admit(job, view, gang)
        elif _template_labels(job).get(ATTEMPT) != str(gang.attempt):
            self._suspend(job)  # it has been moved
        else:
            self._seat(job, pods, gang)
        self._note(job, note)

    def _admit(self, job: Document, view: JobView, gang: GangView) -> None:
        meta = job["metadata"]
        path = object_path(JOBS, meta["namespace"], meta["name"])
        if (job.get("status") or {}).get("startTime"):  # or its template could not be changed
            job = self._api.patch(path + "/status", {"status": {"startTime": None}})
        self._api.patch(path, admit_patch(job, view.id, gang.attempt))

    def _suspend(self, job: Document) -> None:
        meta = job["metadata"]
        version = {"resourceVersion": meta.get("resourceVersion")}  # never what was decided about an older state
        path = object_path(JOBS, meta["namespace"], meta["name"])
        job.update(self._api.patch(path, {"metadata": version, "spec": {"suspend": True}}))

    def _seat(self, job: Document, pods: Sequence[Document], gang: GangView) -> None:
        mine = [pod for pod in pods if not has_ended(pod) and _labels(pod).get(ATTEMPT) == str(gang.attempt)]
        seats = free_seats(gang.seats, mine)
        for pod, seat in zip(filter(is_gated, mine), seats, strict=False):
            path = object_path(PODS, job["metadata"]["namespace"], pod["metadata"]["name"])
            try:
                self._api.patch(path, seat_patch(pod, seat, self._node_label), JSON_PATCH)
            except ApiRefused as refused:
                if refused.status not in (404, 409, 422):  # it has gone, or was let through already
                    raise

    def _refuse(self, job: Document, why: str, held: JobSummary | None) -> None:
        if held is not None:
            self._cancel(held)
        if not job["spec"].get("suspend") and not _template_labels(job).get(HELD_BY):
            self._suspend(job)
        self._note(job, {STATE: "refused", REASON: why[:_REASON_MAX]})

    def _note(self, job: Document, notes: dict[str, str | None]) -> None:
        meta = job["metadata"]
        known = meta.get("annotations") or {}
        changed = {name: value for name, value in notes.items() if known.get(name) != value}
        if changed:
            path = object_path(JOBS, meta["namespace"], meta["name"])
            job.update(self._api.patch(path, {"metadata": {"annotations": changed}}))


def how_it_ended(job: Document) -> str:
    """``Complete`` or ``Failed``; empty: it has not ended."""
    for each in (job.get("status") or {}).get("conditions") or ():
        if each.get("type") in ("Complete", "Failed") and each.get("status") == "True":
            return str(each["type"])
    return ""


def _labels(found: Document) -> dict[str, str]:
    return found["metadata"].get("labels") or {}


def _template_labels(job: Document) -> dict[str, str]:
    return ((job["spec"].get("template") or {}).get("metadata") or {}).get("labels") or {}
