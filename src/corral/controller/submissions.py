"""What the controller asks of Corral, for both kinds of objects: submissions that are never executed twice, and the
jobs that it has submitted, found again by their labels.

Knows Corral's API and how a job names the object that it came from. Knows nothing about Kubernetes' API.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from corral.client.blocking import Client
from corral.client.call import ApiCall, call, path
from corral.client.errors import NotFound
from corral.client.jobs import IDEMPOTENCY
from corral.wire.api.jobs import JobSummary, SubmitAnswer
from corral.wire.api.words import ENDED, JobState

#: Labels of the jobs.
CLUSTER = "kubernetes.cluster"
KIND_LABEL = "kubernetes.kind"
UID = "kubernetes.uid"
OBJECT = "kubernetes.object"
MARK = "kubernetes.mark"
_LIVE = tuple(str(state) for state in JobState if state not in ENDED)


class ObjectOrigin(msgspec.Struct, frozen=True):
    """The object that a job came from. ``mark``: distinguishes the jobs of one object: its generation."""

    kind: str
    namespace: str
    name: str
    uid: str
    mark: str

    @property
    def key(self) -> str:
        return f"{self.uid}-{self.mark}"


class SubmittingClient(Client):
    """A client that submits documents as they stand: nothing of this process is taken along."""

    @call
    def submit_document(self, document: Mapping[str, Any], key: str) -> ApiCall[SubmitAnswer]:
        """Submit a document; submissions with the same key create one job."""
        return ApiCall("POST", path("jobs"), SubmitAnswer, body=document, headers={IDEMPOTENCY: key})


class Submissions:
    """``cluster``: identifies the Kubernetes cluster, of which several may use one Corral. ``user``: whose jobs they
    are; labels of the jobs of others mean nothing."""

    def __init__(self, client: SubmittingClient, cluster: str, user: str) -> None:
        self.client = client
        self._cluster, self._user = cluster, user

    def submit(self, document: Mapping[str, Any], origin: ObjectOrigin) -> str:
        """The id of the job; of the one that exists, if a former call was interrupted. Raises `Problem`."""
        same = {CLUSTER: self._cluster, UID: origin.uid, MARK: origin.mark}
        earlier = next(iter(self.client.jobs(user=self._user, labels=same, limit=1)), None)
        if earlier is not None:
            return earlier.id
        stated = document.get("labels")
        own = same | {KIND_LABEL: origin.kind, OBJECT: f"{origin.namespace}/{origin.name}"}
        labels = (stated if isinstance(stated, dict) else {}) | own
        return self.client.submit_document({**document, "labels": labels}, origin.key).id

    def ended_before(self, uid: str) -> int:
        """How many jobs of this object have ended."""
        found = self.client.jobs(user=self._user, labels={CLUSTER: self._cluster, UID: uid})
        return sum(job.state in ENDED for job in found)

    def live_jobs(self) -> list[JobSummary]:
        """All jobs of this cluster that have not ended."""
        return list(self.client.jobs(user=self._user, labels={CLUSTER: self._cluster}, states=_LIVE))

    def job(self, id: str) -> JobSummary | None:
        try:
            return self.client.job(id)
        except NotFound:
            return None


def digest(document: object) -> str:
    """Identifies a document by its content."""
    return hashlib.sha256(msgspec.json.encode(document, order="deterministic")).hexdigest()[:16]
