"""The backend for tasks as pods: Corral decides where and when, Kubernetes runs them.

Everything that is known of pods and nodes comes from one list and one watch of each kind; writes are made by a pool of
threads, and each may be repeated. A task is over when its pod has ended or is confirmed to be gone, never before: a pod
on a node that does not answer may still run. One lock guards the tasks; reports are sent with it held, in their order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass
from corral.core.work import Work
from corral.kubernetes import pod_spec
from corral.kubernetes.cluster_api import (
    ApiRefused,
    ApiUnreachable,
    ClusterApi,
    Document,
    MissingClient,
    NoCluster,
    Stopped,
    connect,
    object_path,
)
from corral.kubernetes.cluster_objects import (
    MAPS,
    drop_owner,
    fence_name,
    fenced_epoch,
    make_owner,
    make_secret,
    pass_fence,
    port_keys,
)
from corral.kubernetes.held_pods import HeldSeat, is_placeholder
from corral.kubernetes.list_watch import ListWatch
from corral.kubernetes.node_keeper import KeptObjects, NodeKeeper
from corral.kubernetes.pod_logs import PODS, PodLogs
from corral.kubernetes.pod_names import INSTANCE, key_of, pod_name
from corral.kubernetes.pod_task import PodTask
from corral.kubernetes.supervisor_port import SupervisorPort, own_address
from corral.runtime.base import BackendUnusable, LogPart, Report, StaleEpoch, TaskKey, TaskOrder, Tell
from corral.runtime.fence import refuse_stale
from corral.wire.pods.pod_settings import BINDING, PodSettings

_log = logging.getLogger(__name__)
_WRITERS = 24
_SYNC_S = 60.0
_TURN_S = 0.1
_LINK_S = 3.0  # how long an order may take over the connection before the pod is deleted instead
_UP_S = 5.0  # how long a container runs before it counts as started without the word of its supervisor
_FORCED_S = 30.0  # after a forced deletion: until the kubelet has ended what ran
_SWEEP_S = 600.0
_KEEP_MS, _LOGS_MAX = 30 * 86_400_000, 100 << 30


class PodBackend:
    """``data``: the server's data directory."""

    def __init__(self, data: Path, settings: PodSettings) -> None:
        self._data = data
        self._settings = settings
        self._logs = PodLogs(data)
        self._lock = threading.RLock()
        self._tasks: dict[TaskKey, PodTask] = {}
        self._by_pod: dict[tuple[str, str], PodTask] = {}
        self._surplus: set[str] = set()  # pods of forgotten tasks, and second ones: ignored until they are gone
        self._epoch = self._newer = 0
        self._tell: Tell = _drop
        self._api: ClusterApi | None = None
        self._nodes = NodeKeeper(settings)
        self.watches: list[ListWatch] = []
        self._stop = threading.Event()
        self.expected: dict[str, bool] = {}

    # --- the interface ------------------------------------------------------------------------------------------------

    def expect(
        self, node: NodeSpec, is_gone: bool, tasks: Sequence[TaskKey] = (), maybe: Sequence[TaskKey] = ()
    ) -> None:
        """Before `open`: a node that an earlier server knew. What ran there is known from the pods themselves."""
        del tasks, maybe
        self.expected[node.name] = is_gone

    def nodes(self) -> Sequence[NodeSpec]:
        return self._nodes.specs()

    def open(self, tell: Tell, epoch: int) -> None:
        try:
            self._open(tell, epoch)
        except (MissingClient, NoCluster) as wrong:
            raise BackendUnusable(str(wrong)) from None
        except (ApiRefused, ApiUnreachable) as wrong:
            raise BackendUnusable(f"the Kubernetes cluster cannot be used: {wrong}") from None

    def _open(self, tell: Tell, epoch: int) -> None:
        self._api = api = connect(self._settings.kubeconfig, self._settings.context)
        self._stop = threading.Event()
        self.namespace = self._settings.namespace or api.namespace
        try:
            self._keys = port_keys(api, self.namespace, self._settings.name)
            pass_fence(api, self.namespace, self._settings.name, epoch)
            self._tell, self._epoch = tell, epoch
            self._newer = 0
            self._writers = ThreadPoolExecutor(_WRITERS, "pods")
            self._logs.open(api)
            self._open_port()
        except BaseException:
            api.close()
            self._api = None
            raise
        self._open_watches(api)
        self._keeper = threading.Thread(target=self._keep, name="pods", daemon=True)
        self._keeper.start()

    def _open_port(self) -> None:
        self._port: SupervisorPort | None = None
        self._link = {"address": "", "certificate": self._keys.certificate}
        if self._settings.address == "none":
            return
        file = self._data / "kubernetes" / "port"
        known = int(file.read_text()) if file.exists() else 0
        self._port = SupervisorPort(self._keys, self)
        try:
            number = self._port.open(self._settings.port or known)
        except OSError:
            if self._settings.port or not known:
                raise
            self._port = SupervisorPort(self._keys, self)  # another program has it now
            number = self._port.open(0)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(str(number))
        self._link["address"] = self._settings.address or f"{own_address()}:{number}"

    def _open_watches(self, api: ClusterApi) -> None:
        settings = self._settings
        nodes = {"labelSelector": settings.nodes} if settings.nodes else {}
        fence = {"fieldSelector": f"metadata.name={fence_name(settings.name)}"}
        # Pods before nodes: what others use is known when the first node is reported.
        self.watches = [
            ListWatch(api, object_path(PODS), _Pods(self)),
            ListWatch(api, object_path("api/v1/nodes"), KeptObjects(self._nodes.nodes, self._nodes.changed), nodes),
            ListWatch(api, object_path(MAPS, self.namespace), _Fence(self), fence),
            ListWatch(
                api, object_path("api/v1/resourcequotas", self.namespace),
                KeptObjects(self._nodes.quotas, self._nodes.changed),
            ),
        ]  # fmt: skip
        if settings.resource_slices:
            view = KeptObjects(self._nodes.slices, self._nodes.changed)
            self.watches.append(ListWatch(api, object_path("apis/resource.k8s.io/v1/resourceslices"), view))
        for watch in self.watches:
            watch.start()
        until = time.monotonic() + _SYNC_S
        for watch in self.watches:
            if not watch.wait_synced(max(until - time.monotonic(), 0)):
                why = watch.last_error or "no answer"
                self.close()
                raise NoCluster(f"what runs on the Kubernetes cluster cannot be read, so nothing is started: {why}")

    def launch(self, orders: Sequence[TaskOrder]) -> None:
        refuse_stale(orders, self._epoch)
        if self._newer > self._epoch:
            raise StaleEpoch(self._epoch, self._newer)
        gangs: dict[tuple[str, str, int], list[TaskOrder]] = {}
        with self._lock:
            for order in orders:
                task = self._tasks.get(order.key)
                if task is not None:
                    self._repeat(task)
                    continue
                queue = dict(order.env).get("CORRAL_QUEUE", "")
                namespace = self._settings.namespace_of(queue, self.namespace)
                name = pod_name(self._settings.name, order.key)
                task = self._add(PodTask(order.key, namespace, name, order.node, order))
                if why := pod_spec.refusal_of(order, self._settings):
                    self._down(task, task.failed_report(_now_ms(), FailureClass.USER_ERROR, why))
                else:
                    gangs.setdefault((namespace, order.key.gang, order.key.attempt), []).append(order)
        for (namespace, *_), gang in gangs.items():
            self._write(partial(self._create_gang, namespace, gang))

    def warn(self, key: TaskKey, deadline_ms: int, why: str) -> None:
        with self._lock:
            task = self._live(key)
            if task is None:
                return
            if task.deadline_ms is None or deadline_ms < task.deadline_ms:
                task.deadline_ms = deadline_ms
            task.why = f"killed at its deadline ({why})"
            task.warned_at = time.monotonic()
            self._send_orders(task, why)

    def stop_at(self, key: TaskKey, step: int) -> None:
        with self._lock:
            task = self._live(key)
            if task is not None:
                task.stop_at = step
                if task.send is not None:
                    task.send({"stop_at": step})

    def kill(self, key: TaskKey) -> None:
        with self._lock:
            task = self._live(key)
            if task is not None and not task.killed_at:
                task.killed_at = time.monotonic()
                if task.send is not None:
                    task.send({"kill": "killed on request"})
                elif task.uid:
                    self._delete(task, 1)

    def known(self) -> Sequence[TaskKey]:
        with self._lock:
            return list(self._tasks)

    def created(self, gang: str) -> int:
        """How many pods of a gang the API server has confirmed."""
        with self._lock:
            return sum(1 for key, task in self._tasks.items() if key.gang == gang and task.uid)

    def forget(self, key: TaskKey) -> None:
        with self._lock:
            task = self._tasks.get(key)
            if task is not None and task.down is not None and not task.is_forgotten:
                task.is_forgotten = True
                self._write(partial(self._clear, task))

    def read_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None:
        with self._lock:
            task = self._tasks.get(key)
            is_over = task is None or task.down is not None
            is_there = task is not None and bool(task.uid) and not task.is_gone
        pod = (task.namespace, task.name) if task is not None and is_there else None
        return self._logs.read(key, stream, offset, limit, pod, is_over, task is not None)

    def close(self) -> None:
        """Tasks keep running; supervisors connect to the next server."""
        api, self._api = self._api, None
        if api is None:
            return
        self._stop.set()
        for watch in self.watches:
            watch.stop()
        self._logs.close()
        if self._port is not None:
            self._port.close()
        api.close()
        self._writers.shutdown(wait=True, cancel_futures=True)
        if hasattr(self, "_keeper") and self._keeper.is_alive():
            self._keeper.join(10)
        with self._lock:
            self._tasks, self._by_pod = {}, {}
            self._surplus = set()
            self._tell = _drop
        self._nodes.clear()

    # --- what it can run ----------------------------------------------------------------------------------------------

    def cannot_run(self, work: Work) -> str:
        is_held = is_placeholder(work.env)  # one on every seat, and the first alone runs the program
        if not (work.image or self._settings.image or is_held):
            return "this cluster runs pods: give the job an image, or the site a default (kubernetes: {image: ...})"
        if (work.launch == "first" and not is_held) or work.compat == "slurm":
            return "job steps and the commands of Slurm are not available in pods: use one command for all tasks"
        for mount in work.mounts:
            if self._settings.claim_of(mount.source) is None:
                known = ", ".join(source for source, _ in self._settings.volumes) or "none"
                return f"{mount.source!r} is no volume of this cluster; kubernetes.volumes has: {known}"
        return ""

    def cannot_run_as(self, account: str) -> str:
        del account  # pods run as the user of the configuration
        return ""

    def lacks(self, node: str) -> Mapping[str, str]:
        del node
        return {}

    def separation(self, node: str) -> Mapping[str, str]:
        del node
        return {"tasks": "each in a pod of its own (Kubernetes)"}

    def complain(self, node: str, why: str) -> None:
        if why:
            _log.warning("node %s of Kubernetes cannot be used: %s", node, why)

    def prune_logs(self) -> None:
        self._logs.prune(_KEEP_MS, _LOGS_MAX)

    # --- creating -----------------------------------------------------------------------------------------------------

    def _create_gang(self, namespace: str, orders: Sequence[TaskOrder]) -> None:
        """The object that owns all of it and what supervisors read, then all pods side by side."""
        api, first = self._api, orders[0]
        if api is None:
            return
        try:
            key = first.key
            owner = self._patiently(lambda: make_owner(api, namespace, self._settings.name, key.gang, key.attempt))
            secrets = pod_spec.secrets_of(orders, self._settings, namespace, owner, self._link, self._keys.token)
            for secret in secrets:
                self._patiently(partial(make_secret, api, namespace, secret))
        except ApiRefused as refused:
            with self._lock:
                for order in orders:
                    self._refused(self._tasks[order.key], refused)
            return
        for order in orders:
            self._write(partial(self._create_pod, api, order, owner))

    def _create_pod(self, api: ClusterApi, order: TaskOrder, owner: Document) -> None:
        with self._lock:
            task = self._tasks.get(order.key)
            if task is None or task.down is not None:
                return
            if task.killed_at:
                self._down(task, task.killed_report(_now_ms(), "killed on request"))
                return
        pod = pod_spec.pod_of(order, self._settings, task.namespace, owner)
        try:
            found, is_certain = self._created(api, task, pod)
            if found is not None and self._settings.bind == BINDING:
                self._patiently(partial(self._bind, api, task, order.node))
        except ApiRefused as refused:
            with self._lock:
                self._refused(task, refused)
            return
        with self._lock:
            if found is None:
                why = "its pod was deleted by others right after it was created"
                self._down(task, task.failed_report(_now_ms(), FailureClass.NODE_LOST, why))
                return
            uid = str(found["metadata"]["uid"])
            if not is_certain and task.uids - {uid}:
                self._end_second(task, uid)
                return
            task.uids.add(uid)
            task.uid = uid
            if not task.pod:
                task.take(found)
            if task.killed_at:
                self._delete(task, 1)

    def _created(self, api: ClusterApi, task: PodTask, pod: Document) -> tuple[Document | None, bool]:
        """The pod, and whether it is certainly the first of its name. None: one was made, and others have deleted it.

        An answer may be lost after the pod was created. The name then says that it exists; if it does not exist any
        more, it must not be created a second time: the watch remembers every pod of this name.
        """
        path = object_path(PODS, task.namespace)
        one = object_path(PODS, task.namespace, task.name)
        is_certain = True
        while True:
            try:
                return self._patiently_once(lambda: api.create(path, pod, patience_s=0.0)), is_certain
            except ApiUnreachable:
                is_certain = False
            except ApiRefused as refused:
                if refused.status == 409 and refused.reason == "AlreadyExists":
                    found = self._patiently(partial(_found, api, one))
                    if found is None:
                        return None, False
                    if key_of(found, self._settings.name) != task.key:
                        raise
                    return found, True
                if refused.status not in (429, 500, 502, 503, 504):
                    raise
                is_certain = is_certain and refused.status == 429
                self._pause(max(refused.retry_after_s, 0.2))
            if not is_certain:
                self._pause(0.3)
                with self._lock:
                    was_seen = bool(task.uids)
                if was_seen:  # it was created after all
                    return self._patiently(partial(_found, api, one)), True

    def _patiently_once(self, ask: Callable[[], Document]) -> Document:
        if self._stop.is_set():
            raise Stopped
        return ask()

    def _patiently(self, ask: Callable[[], Any]) -> Any:
        """Until there is an answer: an API server that is away for a while is no failure of a gang."""
        while True:
            try:
                return ask()
            except ApiUnreachable:
                self._pause(0.5)
            except ApiRefused as refused:
                if refused.status not in (429, 500, 502, 503, 504):
                    raise
                self._pause(max(refused.retry_after_s, 0.5))

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Stopped

    def _bind(self, api: ClusterApi, task: PodTask, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": task.name}, "target": target}
        try:
            api.create(object_path(PODS, task.namespace, task.name, "binding"), body)
        except ApiRefused as refused:
            if refused.status not in (404, 409):  # it is bound already, or gone, which the watch reports
                raise

    def _refused(self, task: PodTask, refused: ApiRefused) -> None:
        """Admission, a quota or validation did not let it in."""
        if task.down is None:
            failure = FailureClass.USER_ERROR if refused.status in (400, 422) else FailureClass.START_FAILED
            self._down(task, task.failed_report(_now_ms(), failure, f"Kubernetes refused the pod: {refused.message}"))

    # --- what Kubernetes shows ----------------------------------------------------------------------------------------

    def pods_listed(self, pods: Sequence[Document]) -> None:
        there = {str(pod["metadata"]["uid"]) for pod in pods}
        with self._lock:
            self._nodes.others.clear()
            self._nodes.changed()
            self._surplus &= there
            for pod in pods:
                self.pod_changed(pod)
            for task in list(self._tasks.values()):
                if task.uid and task.uid not in there and not task.is_gone:
                    self._gone(task)

    def pod_changed(self, pod: Document) -> None:
        key = key_of(pod, self._settings.name)
        meta = pod["metadata"]
        uid = str(meta["uid"])
        if key is None:
            self._nodes.note_other(pod)
            return
        with self._lock:
            if uid in self._surplus:
                return
            task = self._tasks.get(key)
            if task is None:
                node = str((pod.get("spec") or {}).get("nodeName") or "")
                task = self._add(PodTask(key, str(meta["namespace"]), str(meta["name"]), node, None))
            if task.uids and uid not in task.uids:
                self._end_second(task, uid)
                return
            task.uids.add(uid)
            if task.uid or task.order is None:
                task.uid = uid
            task.take(pod)
            self._look(task)

    def pod_removed(self, pod: Document) -> None:
        key = key_of(pod, self._settings.name)
        uid = str(pod["metadata"]["uid"])
        if key is None:
            self._nodes.forget_other(uid)
            return
        with self._lock:
            self._surplus.discard(uid)
            task = self._tasks.get(key)
            if task is None or (task.uids and uid not in task.uids):
                return
            task.uids.add(uid)
            task.uid = uid
            task.take(pod)
            self._gone(task)

    def _look(self, task: PodTask) -> None:
        if task.down is not None:
            return
        if task.is_terminal:
            self._conclude_soon(task)
            return
        if "running" in task.state() and not task.seen_running_at:
            task.seen_running_at = time.monotonic()
        self._report_known(task)
        is_final, fault = task.image_fault()
        if not fault:
            task.waiting_since = 0.0
            return
        task.waiting_since = task.waiting_since or time.monotonic()
        if is_final or time.monotonic() - task.waiting_since > self._settings.pull_patience_ms / 1000:
            self._down(task, task.failed_report(_now_ms(), FailureClass.USER_ERROR, fault, 125))
            self._delete(task, 1)

    def _report_known(self, task: PodTask) -> None:
        """What the supervisor has reported, in the order of a life."""
        if task.up is None and "up" in task.known:
            self._up(task)
        if task.up is None:
            return
        saved, stop = task.saved_report(), task.stop_report()
        if saved is not None and saved != task.saved:
            task.saved = saved
            self._tell(saved)
        if stop is not None and stop != task.stop:
            task.stop = stop
            self._tell(stop)

    def _conclude_soon(self, task: PodTask) -> None:
        if not task.is_concluding:
            task.is_concluding = True
            self._write(partial(self._conclude, task))

    def _conclude(self, task: PodTask) -> None:
        """The pod has ended: report how, by what the supervisor has left in one of three places."""
        found = task.known if "exit" in task.known else task.message()
        if "exit" not in found and task.state().get("terminated") and not task.is_gone:
            found = _json(self._logs.fetch(task.key, (task.namespace, task.name)))
        with self._lock:
            if task.down is not None:
                return
            task.known = {**task.known, **found}
            if "up" in task.known and task.up is None:
                self._up(task)
            self._report_known(task)
            self._down(task, task.result(_now_ms()))

    def _gone(self, task: PodTask) -> None:
        """The pod is not there any more. Whether what ran in it has ended is another question."""
        if task.is_gone:
            return
        task.is_gone, task.gone_at = True, time.monotonic()
        if task.down is not None:
            return
        if task.is_terminal or "exit" in task.known:
            self._conclude_soon(task)
        else:
            self._settle_gone(task)

    def _settle_gone(self, task: PodTask) -> None:
        """Report the loss of a task whose pod has vanished, as soon as nothing of it can run: it never started, its
        kubelet had time to end it, or the node is fenced or was removed from the cluster."""
        if task.was_running and not self._nodes.is_fenced(task.node):
            gone_s = time.monotonic() - task.gone_at
            is_removed = self._nodes.is_removed(task.node)
            if not is_removed and not self._nodes.is_ready(task.node):
                return
            if (gone_s if is_removed else min(gone_s, self._nodes.ready_for_s(task.node))) < _FORCED_S:
                return
        if task.killed_at or task.is_deleting:
            self._down(task, task.killed_report(_now_ms(), task.why or "killed on request"))
        else:
            why = f"its pod was deleted by others on node {task.node}"
            self._down(task, task.failed_report(_now_ms(), FailureClass.NODE_LOST, why, 137))

    def _end_second(self, task: PodTask, uid: str) -> None:
        """Another pod of the same name: an answer was lost, and others have deleted the first one meanwhile."""
        _log.warning("a second pod %s is deleted: another one of this name was there before", task.name)
        self._surplus.add(uid)
        path = object_path(PODS, task.namespace, task.name)
        self._write(partial(self._deleted, path, uid, 1))
        if task.down is None and not task.is_gone:
            self._gone(task)

    # --- reports ------------------------------------------------------------------------------------------------------

    def _add(self, task: PodTask) -> PodTask:
        self._tasks[task.key] = self._by_pod[task.namespace, task.name] = task
        self._nodes.changed()
        return task

    def _up(self, task: PodTask) -> None:
        task.up = task.up_report(_now_ms())
        self._tell(task.up)

    def _down(self, task: PodTask, report: Any) -> None:
        if task.down is None:
            task.down = report
            self._tell(report)
            self._nodes.changed()

    def _repeat(self, task: PodTask) -> None:
        for report in (task.up, task.saved, task.stop, task.down):
            if report is not None:
                self._tell(report)

    def _live(self, key: TaskKey) -> PodTask | None:
        task = self._tasks.get(key)
        return None if task is None or task.down is not None else task

    # --- ending -------------------------------------------------------------------------------------------------------

    def _send_orders(self, task: PodTask, why: str) -> None:
        if task.send is not None and task.deadline_ms is not None:
            task.send({"warn": task.deadline_ms, "why": why})

    def _delete(self, task: PodTask, grace_s: int) -> None:
        """End it by deleting the pod. Never at once: then it would be gone before it has ended."""
        if task.uid and not task.is_gone:
            task.is_deleting, task.deleted_at = True, time.monotonic()
            path = object_path(PODS, task.namespace, task.name)
            self._write(partial(self._deleted, path, task.uid, max(grace_s, 1)))

    def _deleted(self, path: str, uid: str, grace_s: int | None) -> None:
        api = self._api
        if api is not None:
            self._patiently(lambda: api.delete(path, uid=uid, grace_s=grace_s))

    def _clear(self, task: PodTask) -> None:
        """The task is no longer needed: keep its log, remove its pod, and with the last pod what owns them."""
        api = self._api
        if api is None:
            return
        if task.uid and not task.is_gone:
            if task.is_terminal:
                self._logs.fetch(task.key, (task.namespace, task.name))
            self._deleted(object_path(PODS, task.namespace, task.name), task.uid, None)
        self._logs.drop(task.key)
        with self._lock:
            if task.uid and not task.is_gone:
                self._surplus.add(task.uid)
            if self._tasks.get(task.key) is task:
                del self._tasks[task.key], self._by_pod[task.namespace, task.name]
            same = (task.key.gang, task.key.attempt)
            is_last = not any((key.gang, key.attempt) == same for key in self._tasks)
        if is_last:
            instance = self._settings.name
            self._patiently(lambda: drop_owner(api, task.namespace, instance, task.key.gang, task.key.attempt))

    # --- the connection to supervisors (called by its thread) ---------------------------------------------------------

    def connected(self, namespace: str, pod: str, send: Callable[[dict[str, Any]], None]) -> None:
        with self._lock:
            task = self._by_pod.get((namespace, pod))
            if task is None:
                return
            task.send = send
            if task.deadline_ms is not None:
                send({"warn": task.deadline_ms, "why": task.why.partition("(")[2].rstrip(")")})
            if task.stop_at is not None:
                send({"stop_at": task.stop_at})
            if task.killed_at:
                send({"kill": "killed on request"})

    def received(self, namespace: str, pod: str, known: dict[str, Any]) -> bool:
        with self._lock:
            task = self._by_pod.get((namespace, pod))
            if task is None:
                return False
            task.known = {key: known[key] for key in ("up", "step", "stop", "exit") if key in known}
            if task.down is None:
                self._report_known(task)
                if task.is_gone and "exit" in task.known:
                    self._conclude_soon(task)
            return "exit" in task.known

    def disconnected(self, namespace: str, pod: str) -> None:
        with self._lock:
            task = self._by_pod.get((namespace, pod))
            if task is not None:
                task.send = None

    # --- time ---------------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        sweep_at = time.monotonic() + _SWEEP_S / 10
        while not self._stop.wait(_TURN_S):
            try:
                with self._lock:
                    for task in list(self._tasks.values()):
                        if task.down is None:
                            self._tend(task)
                    self._nodes.seats = self._seats()
                    for report in self._nodes.review(self._held(), self.expected):
                        self._tell(report)
                if time.monotonic() > sweep_at:
                    sweep_at = time.monotonic() + _SWEEP_S
                    self._write(self._sweep)
            except Exception:
                _log.exception("the keeper of pods failed; retrying")

    def _tend(self, task: PodTask) -> None:
        now = time.monotonic()
        if task.is_gone:
            if not task.is_concluding:
                self._settle_gone(task)
            return
        if self._nodes.is_fenced(task.node) and task.uid:
            why = f"node {task.node} was fenced while the task ran there"
            self._down(task, task.failed_report(_now_ms(), FailureClass.NODE_LOST, why, 137))
            return
        if self._nodes.is_removed(task.node) and not task.is_deleting:
            self._delete(task, 1)
        if task.waiting_since:
            self._look(task)
        if task.up is None and task.seen_running_at and now - task.seen_running_at > _UP_S and task.send is None:
            self._up(task)
        if task.deadline_ms is not None and _now_ms() > task.deadline_ms + 1_000 and not task.killed_at:
            self.kill(task.key)
        if task.killed_at and now - task.killed_at > _LINK_S and (not task.is_deleting or now - task.deleted_at > 30):
            self._delete(task, 1)
        elif task.warned_at and not task.is_deleting and task.send is None and now - task.warned_at > _LINK_S:
            left_s = ((task.deadline_ms or 0) - _now_ms()) // 1000
            self._delete(task, left_s)

    def _held(self) -> dict[str, tuple[set[str], bool]]:
        """By node: the GPUs of tasks that have not ended."""
        found: dict[str, tuple[set[str], bool]] = {}
        for task in self._tasks.values():
            if task.down is None:
                found.setdefault(task.node, (set(), True))[0].update(task.gpus)
        return found

    def _seats(self) -> dict[TaskKey, HeldSeat]:
        """What live placeholders hold for pods of others."""
        ours = self._settings.all_namespaces(self.namespace)
        return {
            key: HeldSeat(task.node, task.holds)
            for key, task in self._tasks.items()
            if task.holds is not None and task.down is None and task.namespace in ours
        }

    def _sweep(self) -> None:
        """Remove objects of gangs without a task: a server was killed between two writes."""
        api = self._api
        if api is None:
            return
        params = {"labelSelector": f"{INSTANCE}={self._settings.name}"}
        for namespace in self._settings.all_namespaces(self.namespace):
            for found in api.get(object_path(MAPS, namespace), params).get("items") or ():
                meta = found["metadata"]
                notes = meta.get("annotations") or {}
                gang, attempt = notes.get("corral.dev/gang", ""), notes.get("corral.dev/attempt", "")
                with self._lock:
                    is_live = any(key.gang == gang and str(key.attempt) == attempt for key in self._tasks)
                if gang and not is_live:
                    api.delete(object_path(MAPS, namespace, meta["name"]), uid=meta["uid"], propagation="Background")

    # --- internal -----------------------------------------------------------------------------------------------------

    def fenced_by(self, epoch: int) -> None:
        self._newer = max(self._newer, epoch)

    def _write(self, what: Callable[[], None]) -> None:
        def safely() -> None:
            try:
                what()
            except Stopped:
                pass  # the next server does it
            except (ApiRefused, ApiUnreachable) as wrong:
                _log.warning("a request to Kubernetes failed: %s", wrong)
            except Exception:
                _log.exception("a request to Kubernetes failed")

        with suppress(RuntimeError):  # closing
            self._writers.submit(safely)


class _Pods:
    """All pods of the cluster: Corral's, and those of others."""

    def __init__(self, backend: PodBackend) -> None:
        self.listed = backend.pods_listed
        self.changed = backend.pod_changed
        self.removed = backend.pod_removed


class _Fence:
    """The epoch of the newest server."""

    def __init__(self, backend: PodBackend) -> None:
        self._backend = backend

    def listed(self, objects: Sequence[Document]) -> None:
        for found in objects:
            self.changed(found)

    def changed(self, found: Document) -> None:
        self._backend.fenced_by(fenced_epoch(found))

    def removed(self, last: Document) -> None:
        """Nothing follows from that."""


def _found(api: ClusterApi, path: str) -> Document | None:
    try:
        return api.get(path)
    except ApiRefused as refused:
        if refused.status == 404:
            return None
        raise


def _json(record: bytes) -> dict[str, Any]:
    import json

    try:
        found = json.loads(record) if record else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _drop(_: Report) -> None:
    """Reports before `open` are dropped."""
