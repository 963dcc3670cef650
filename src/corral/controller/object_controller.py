"""The controller: watches objects, lists the jobs that came from them, and reconciles a pair when one has changed.

One thread decides; watches only keep what there is. Everything that it knows can be read again, so that it may be
killed at any time, and two at once do no harm: submissions have idempotency keys, patches name the version that they
are for, and a job without an object is cancelled only when the API server confirms that the object is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct

from corral.client.errors import ClientError, NotFound, Problem, Unreachable
from corral.controller.corral_jobs import CorralJobs
from corral.controller.definition import KIND, KIND_PATH
from corral.controller.held_seats import LABEL
from corral.controller.namespace_queues import AllowedQueues, allowed_queues
from corral.controller.submissions import KIND_LABEL, OBJECT, UID, Submissions, SubmittingClient
from corral.controller.suspended_jobs import JOBS, PODS, SuspendedJobs
from corral.kubernetes.cluster_api import ApiRefused, ApiUnreachable, ClusterApi, Document, Stopped, object_path
from corral.kubernetes.held_pods import HELD_BY
from corral.kubernetes.list_watch import ListWatch
from corral.wire.api.jobs import JobSummary

NAMESPACES = "api/v1/namespaces"
_CLUSTER_NAMESPACE = "kube-system"  # its uid identifies a cluster
_SETTLE_S = 0.05  # changes that come together are looked at together
_AGAIN_S = 30.0  # what has not changed is looked at again
_SYNC_S = 30.0

log = structlog.get_logger(__name__)


class ControllerOptions(Struct, frozen=True):
    """``node_label``: of nodes, with the name that Corral has for them. ``placeholder_image``: see `SuspendedJobs`.
    ``heartbeat``: a file that is touched after every pass; empty: none."""

    node_label: str = "kubernetes.io/hostname"
    placeholder_image: str = ""
    poll_s: float = 1.0
    heartbeat: str = ""


class ObjectCache:
    """The objects of one kind, by namespace and name. ``wake`` is called whenever one has changed."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._objects: dict[tuple[str, str], Document] = {}
        self._lock = threading.Lock()

    def listed(self, objects: Sequence[Document]) -> None:
        with self._lock:
            self._objects = {_name(each): each for each in objects}
        self._wake()

    def changed(self, found: Document) -> None:
        with self._lock:
            self._objects[_name(found)] = found
        self._wake()

    def removed(self, last: Document) -> None:
        with self._lock:
            self._objects.pop(_name(last), None)
        self._wake()

    def all(self) -> list[Document]:
        with self._lock:
            return list(self._objects.values())

    def find(self, namespace: str, name: str) -> Document | None:
        with self._lock:
            return self._objects.get((namespace, name))


class Controller:
    """Runs in the thread that calls `run`, until `stop`."""

    def __init__(self, api: ClusterApi, client: SubmittingClient, options: ControllerOptions) -> None:
        self._api = api
        self._client = client
        self._options = options
        self._stop, self._wake = threading.Event(), threading.Event()
        self._caches = {path: ObjectCache(self._wake.set) for path in (KIND_PATH, JOBS, PODS, NAMESPACES)}
        selectors = {JOBS: {"labelSelector": LABEL}, PODS: {"labelSelector": HELD_BY}}
        self._watches = {
            path: ListWatch(api, object_path(path), cache, selectors.get(path)) for path, cache in self._caches.items()
        }
        self._seen: dict[str, tuple[object, float]] = {}
        self._said: dict[str, str] = {}

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def run(self) -> None:
        """Raises `ApiRefused` if the API server does not let it read, and `Problem` if Corral does not."""
        cluster = self._api.get(object_path(NAMESPACES, name=_CLUSTER_NAMESPACE))["metadata"]["uid"]
        submissions = Submissions(self._client, cluster, self._client.whoami().user)
        corral_jobs = CorralJobs(self._api, submissions)
        suspended = SuspendedJobs(self._api, submissions, self._options.node_label, self._options.placeholder_image)
        for watch in self._watches.values():
            watch.start()
        try:
            if not self._synced():
                return
            log.info("the controller is ready", cluster=cluster)
            while not self._stop.is_set():
                try:
                    self._pass(submissions, corral_jobs, suspended)
                except (ClientError, ApiRefused, ApiUnreachable) as wrong:
                    self._say("", str(wrong))
                self._beat()
                if self._wake.wait(self._options.poll_s):
                    self._stop.wait(_SETTLE_S)
                self._wake.clear()
        except Stopped:
            pass
        finally:
            for watch in self._watches.values():
                watch.stop()

    def _synced(self) -> bool:
        """Whether all objects are known. Says what it waits for."""
        for path, watch in self._watches.items():
            since_s = time.monotonic()
            while not watch.wait_synced(0.2):
                if self._stop.is_set():
                    return False
                self._beat()
                if time.monotonic() - since_s > _SYNC_S or watch.last_error:
                    hint = "; apply the definition: corral kubernetes crd | kubectl apply -f -"
                    missing = path == KIND_PATH and watch.last_error.startswith("404")
                    self._say(path, f"waiting for {path}: {watch.last_error}" + (hint if missing else ""))
        return True

    # ---- one pass --------------------------------------------------------------------------------------------------

    def _pass(self, submissions: Submissions, corral_jobs: CorralJobs, suspended: SuspendedJobs) -> None:
        live = {job.id: job for job in submissions.live_jobs()}
        by_uid: dict[str, list[JobSummary]] = {}
        for job in live.values():
            by_uid.setdefault(job.labels.get(UID, ""), []).append(job)
        now_ms = time.time_ns() // 1_000_000
        known = set[str]()
        for found in self._caches[KIND_PATH].all():
            uid, jobs = found["metadata"]["uid"], by_uid.get(found["metadata"]["uid"], [])
            known.add(uid)
            queues = self._queues(found)
            self._each(found, (jobs, queues), lambda: corral_jobs.reconcile(found, queues, live, now_ms))  # noqa: B023
        pods = self._pods_by_job()
        for found in self._caches[JOBS].all():
            uid = found["metadata"]["uid"]
            known.add(uid)
            mine, queues = pods.get(uid, []), self._queues(found)
            state = (by_uid.get(uid, []), [pod["metadata"]["resourceVersion"] for pod in mine], queues)
            self._each(found, state, lambda: suspended.reconcile(found, mine, queues, live))  # noqa: B023
        for job in live.values():
            if job.labels.get(UID, "") not in known and job.state != "stopping":
                self._each_orphan(job)
        self._seen = {uid: each for uid, each in self._seen.items() if uid in known}
        self._said = {uid: each for uid, each in self._said.items() if uid in known}

    def _queues(self, found: Document) -> AllowedQueues:
        namespace = found["metadata"]["namespace"]
        return allowed_queues(namespace, self._caches[NAMESPACES].find("", namespace))

    def _pods_by_job(self) -> dict[str, list[Document]]:
        found: dict[str, list[Document]] = {}
        for pod in self._caches[PODS].all():
            for owner in pod["metadata"].get("ownerReferences") or ():
                found.setdefault(owner.get("uid", ""), []).append(pod)
        return found

    def _each(self, found: Document, state: object, reconcile: Callable[[], None]) -> None:
        """Reconcile an object unless nothing has changed. What fails is tried again in the next pass, and does not keep
        the others."""
        meta = found["metadata"]
        uid, now_s = meta["uid"], time.monotonic()
        seen, since_s = self._seen.get(uid, (None, 0.0))
        state = (meta.get("resourceVersion"), state)
        if seen == state and now_s - since_s < _AGAIN_S:
            return
        try:
            reconcile()
        except (Unreachable, ApiUnreachable, Stopped):
            raise
        except (ClientError, ApiRefused) as wrong:
            if not (isinstance(wrong, ApiRefused) and wrong.status in (404, 409)):  # it has just changed, or gone
                self._say(uid, f"{meta['namespace']}/{meta['name']}: {wrong}")
        except Exception:
            log.exception("an object could not be reconciled", object=f"{meta['namespace']}/{meta['name']}")
            self._seen[uid] = (state, now_s)
        else:
            self._seen[uid] = (state, now_s)

    def _each_orphan(self, job: JobSummary) -> None:
        """Cancel a job whose object is gone; the API server has the last word."""
        namespace, _, name = job.labels.get(OBJECT, "").partition("/")
        path = KIND_PATH if job.labels.get(KIND_LABEL) == KIND.lower() else JOBS
        try:
            meta = self._api.get(object_path(path, namespace, name))["metadata"]
            if meta["uid"] == job.labels.get(UID) and (path == KIND_PATH or LABEL in (meta.get("labels") or {})):
                return
        except ApiRefused as refused:
            if refused.status != 404:
                raise
        try:
            self._client.cancel(job.id)
            log.info("cancelled a job whose object is gone", job=job.id, object=f"{namespace}/{name}")
        except NotFound:
            pass
        except Problem as problem:
            if problem.code != "job_over":
                raise

    # ---- what it says ----------------------------------------------------------------------------------------------

    def _say(self, about: str, text: str) -> None:
        if self._said.get(about) != text:
            self._said[about] = text
            log.warning(text)

    def _beat(self) -> None:
        if self._options.heartbeat:
            Path(self._options.heartbeat).touch()


def _name(found: Mapping[str, Any]) -> tuple[str, str]:
    return found["metadata"].get("namespace", ""), found["metadata"]["name"]
