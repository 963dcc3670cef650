"""One task as the backend sees it: what was ordered, what Kubernetes shows of its pod, what its supervisor reports.

`result_of` turns the end of a pod into a report: the supervisor's own record where there is one, else what Kubernetes
says. Pure: documents in, reports out.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from typing import Any

from corral.core.model import STEP_MAX, FailureClass
from corral.kubernetes.cluster_api import Document
from corral.kubernetes.held_pods import held_by_order, held_by_pod
from corral.kubernetes.pod_names import CONTAINER, GPUS
from corral.runtime.base import Phase, SavedReport, StopReport, TaskKey, TaskOrder, TaskReport

#: What a supervisor may say of its own task; the rest is for Kubernetes to say.
_OWN_WORDS = frozenset(("user_error", "out_of_memory", "start_failed", "killed", "stalled"))
_TEXT_MAX = 2_000
_MS_MAX = 1 << 52
_BY_OTHERS = ("Evicted", "Preempting", "Shutdown", "NodeShutdown", "NodeLost", "Terminated", "DeletionByTaintManager",
              "DeletionByPodGC", "EvictionByEvictionAPI", "PreemptionByScheduler", "TerminationByKubelet")  # fmt: skip
_IMAGE = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable")
_NEVER = ("InvalidImageName",)
_KILLED, _BY_SIGKILL = 9, 137


class PodTask:
    """``order``: None for a task of an earlier server."""

    def __init__(self, key: TaskKey, namespace: str, name: str, node: str, order: TaskOrder | None) -> None:
        self.key = key
        self.namespace = namespace
        self.name = name
        self.node = node
        self.order = order
        self.gpus: tuple[str, ...] = order.gpus if order is not None else ()
        self.holds = held_by_order(order) if order is not None else None  # for pods of others, if it is a placeholder
        self.uid = ""  # of its pod, once that is certain
        self.uids: set[str] = set()  # of all pods of this name
        self.pod: Document = {}  # as last seen
        self.is_gone = False  # the pod was there, and is not any more
        self.gone_at = 0.0
        self.known: dict[str, Any] = {}  # what its supervisor has reported
        self.up: TaskReport | None = None
        self.saved: SavedReport | None = None
        self.stop: StopReport | None = None
        self.down: TaskReport | None = None
        self.send: Callable[[dict[str, Any]], None] | None = None
        self.deadline_ms: int | None = None
        self.why = ""
        self.warned_at = 0.0
        self.killed_at = 0.0  # 0: it was not requested
        self.stop_at: int | None = None
        self.is_deleting = False  # this server has deleted its pod
        self.deleted_at = 0.0
        self.is_concluding = self.is_forgotten = False
        self.seen_running_at = self.waiting_since = 0.0

    def take(self, pod: Document) -> None:
        self.pod = pod
        spec, notes = pod.get("spec") or {}, (pod.get("metadata") or {}).get("annotations") or {}
        self.node = self.node or str(spec.get("nodeName") or "")
        if self.order is None and notes.get(GPUS):
            self.gpus = tuple(str(notes[GPUS]).split(","))
        if self.order is None:
            self.holds = held_by_pod(pod)

    # --- the pod as Kubernetes shows it -------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        return str((self.pod.get("status") or {}).get("phase") or "")

    def state(self) -> Mapping[str, Any]:
        """``waiting``, ``running`` or ``terminated`` of the container of the task."""
        for each in (self.pod.get("status") or {}).get("containerStatuses") or ():
            if each.get("name") == CONTAINER:
                state: Mapping[str, Any] = each.get("state") or {}
                return state
        return {}

    @property
    def is_terminal(self) -> bool:
        return self.phase in ("Failed", "Succeeded") or "terminated" in self.state()

    @property
    def was_running(self) -> bool:
        return self.up is not None or "up" in self.known or "running" in self.state()

    @property
    def is_evicted(self) -> bool:
        """The pod is ended by others."""
        is_marked = "deletionTimestamp" in (self.pod.get("metadata") or {})
        return (is_marked and not self.is_deleting) or bool(self._by_others())

    def _by_others(self) -> str:
        status = self.pod.get("status") or {}
        reason = str(status.get("reason") or "")
        if reason in _BY_OTHERS:
            return f"{reason}: {status.get('message') or ''}".rstrip(": ")
        for each in status.get("conditions") or ():
            if each.get("type") == "DisruptionTarget" and each.get("status") == "True":
                return f"{each.get('reason')}: {each.get('message') or ''}".rstrip(": ")
        return ""

    def image_fault(self) -> tuple[bool, str]:
        """Why its image cannot be used, and whether that is final. Empty: nothing is known against it."""
        status = self.pod.get("status") or {}
        for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
            waiting = (each.get("state") or {}).get("waiting") or {}
            reason = str(waiting.get("reason") or "")
            if reason in _IMAGE or reason in _NEVER or reason == "CreateContainerConfigError":
                said = f"{reason}: {waiting.get('message') or each.get('image') or ''}"
                return reason in _NEVER, said[:_TEXT_MAX]
        return False, ""

    # --- reports ------------------------------------------------------------------------------------------------------

    def up_report(self, now_ms: int) -> TaskReport:
        known = self.known.get("up")
        known = known if isinstance(known, dict) else {}
        running = self.state().get("running") or self.state().get("terminated") or {}
        at_ms = number(known.get("at_ms")) or wall_ms(running.get("startedAt")) or now_ms
        gpus = known.get("gpus")
        return TaskReport(
            key=self.key,
            phase=Phase.UP,
            at_ms=at_ms,
            node=self.node,
            gpus=tuple(map(str, gpus[:64])) if isinstance(gpus, list) else None,
            unenforced=tuple(str(each)[:500] for each in known.get("unenforced") or ())[:20],
        )

    def saved_report(self) -> SavedReport | None:
        found = self.known.get("step")
        step = found.get("step") if isinstance(found, dict) else None
        if not isinstance(found, dict) or type(step) is not int or not 0 <= step <= STEP_MAX:
            return None
        path = str(found.get("path") or "")[:1_000]
        return SavedReport(self.key, step, path, number(found.get("save_ms")), number(found.get("stall_ms")))

    def stop_report(self) -> StopReport | None:
        step = self.known.get("stop")
        return StopReport(self.key, step) if type(step) is int and 0 <= step <= STEP_MAX else None

    def message(self) -> dict[str, Any]:
        """What the supervisor has left as termination message."""
        try:
            found = json.loads(str((self.state().get("terminated") or {}).get("message") or ""))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def result(self, now_ms: int) -> TaskReport:
        """The report of its end, from all that is known."""
        record = self.known.get("exit")
        terminated = self.state().get("terminated") or {}
        if isinstance(record, dict):
            report = self._recorded(record, now_ms)
            code = report.exit_code
        else:
            code = number(terminated.get("exitCode"))
            report = self._observed(terminated, now_ms)
        requeue = self.order.requeue_exit if self.order is not None else 85
        if self.is_evicted and code not in (0, requeue) and not self.killed_at:
            why = f"the pod was ended by others: {self._by_others() or 'deleted'}"
            return _changed(report, FailureClass.NODE_LOST, why)
        return report

    def _recorded(self, record: Mapping[str, Any], now_ms: int) -> TaskReport:
        stated, rank = record.get("failure"), record.get("rank")
        code = number(record.get("exit_code")) & 0xFF
        return TaskReport(
            key=self.key,
            phase=Phase.DOWN,
            at_ms=number(record.get("at_ms")) or now_ms,
            node=self.node,
            exit_code=code,
            signal=number(record.get("signal")) & 0x7F,
            failure=FailureClass(stated) if stated in _OWN_WORDS else None,
            why=str(record.get("why") or "")[:_TEXT_MAX],
            gpus=self.up.gpus if self.up is not None else None,
            failed_ms=number(record.get("failed_ms")),
            rank=rank if type(rank) is int and 0 <= rank < 1 << 24 else None,
            said=str(record.get("said") or "")[:_TEXT_MAX],
        )

    def _observed(self, terminated: Mapping[str, Any], now_ms: int) -> TaskReport:
        """Without a record: the supervisor was killed, or never started."""
        status = self.pod.get("status") or {}
        at_ms = wall_ms(terminated.get("finishedAt")) or now_ms
        code = number(terminated.get("exitCode")) & 0xFF
        reason = str(terminated.get("reason") or status.get("reason") or "")
        failure: FailureClass | None = None
        why = str(terminated.get("message") or status.get("message") or "")[:_TEXT_MAX]
        if self.killed_at or (self.deadline_ms is not None and now_ms >= self.deadline_ms):
            code, why = _BY_SIGKILL, self.why or "killed on request"
        elif reason == "OOMKilled":
            failure, why = FailureClass.OUT_OF_MEMORY, "the pod exceeded its memory limit, so the kernel killed it"
        elif not terminated:
            failure, code = FailureClass.START_FAILED, code or 126
            why = f"Kubernetes did not start the pod: {reason}: {why or self._init_fault()}"
        elif code == _BY_SIGKILL:
            failure, why = FailureClass.KILLED, "killed by SIGKILL, not by Corral"
        return TaskReport(
            key=self.key, phase=Phase.DOWN, at_ms=at_ms, node=self.node, exit_code=code,
            signal=code - 128 if code > 128 else 0, failure=failure, why=why,
        )  # fmt: skip

    def _init_fault(self) -> str:
        for each in (self.pod.get("status") or {}).get("initContainerStatuses") or ():
            ended = (each.get("state") or {}).get("terminated") or {}
            if ended.get("exitCode"):
                return f"the init container ended with {ended['exitCode']}: {ended.get('message') or ''}"
        return ""

    def killed_report(self, now_ms: int, why: str) -> TaskReport:
        return TaskReport(
            key=self.key, phase=Phase.DOWN, at_ms=now_ms, node=self.node, exit_code=_BY_SIGKILL, signal=_KILLED, why=why
        )

    def failed_report(self, now_ms: int, failure: FailureClass, why: str, code: int = 126) -> TaskReport:
        return TaskReport(
            key=self.key, phase=Phase.DOWN, at_ms=now_ms, node=self.node, exit_code=code, failure=failure,
            why=why[:_TEXT_MAX],
        )  # fmt: skip


def _changed(report: TaskReport, failure: FailureClass, why: str) -> TaskReport:
    from msgspec import structs

    return structs.replace(report, failure=failure, why=why[:_TEXT_MAX])


def number(value: object) -> int:
    """A non-negative number that every database can hold; 0 for anything else."""
    return value if isinstance(value, int) and type(value) is int and 0 <= value <= _MS_MAX else 0


def wall_ms(text: object) -> int:
    """A time of Kubernetes in milliseconds; 0: none."""
    try:
        return int(datetime.datetime.fromisoformat(str(text)).timestamp() * 1000)
    except ValueError:
        return 0
