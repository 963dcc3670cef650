"""A Kubernetes, a Corral with simulated GPUs beside it, and the controller as a process that a test may kill.

The node of Corral is called ``here``; all nodes of Kubernetes have that name in a label, so that pods of admitted Jobs
run on any of them.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from corral.controller.definition import definition_text
from tests.e2e.live import ROOT, Live, environment
from tests.kubernetes.control_plane import ControlPlane

NODE_LABEL = "corral.dev/node"
QUEUES = "corral.dev/queues"


class ControllerSite:
    """``plane``: the Kubernetes. Everything that it starts ends with `stop`."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        self.live = Live(folder / "data")
        self.process: subprocess.Popen[bytes] | None = None
        self._log = folder / "controller.log"

    def start(self) -> ControllerSite:
        self.live.start()
        for queue in ("lab", "lab/vision", "other"):
            self.live.ask("PUT", f"/v1/queues/{queue}", {})
        self.plane.kubectl("label", "nodes", "--all", f"{NODE_LABEL}=here", "--overwrite")
        self.plane.kubectl("apply", "-f", "-", text=definition_text())
        self.plane.kubectl("wait", "--for=condition=Established", "crd/corraljobs.corral.dev", "--timeout=30s")
        self.start_controller()
        return self

    def start_controller(self, *words: str) -> None:
        variables = {"CORRAL_URL": self.live.url, "CORRAL_TOKEN": self.live.token}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "corral", "kubernetes", "controller", "--kubeconfig",
                 str(self.plane.kubeconfig), "--node-label", NODE_LABEL, *words],
                cwd=ROOT, env=environment() | variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def end_controller(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        code = self.process.wait(60)
        self.process = None
        return code

    def log(self) -> str:
        return self._log.read_text()[-3000:]

    def stop(self) -> None:
        if self.process is not None:
            self.end_controller()
        if self.live.process is not None:
            with suppress(Exception):
                for job in self.live.jobs():
                    if job["state"] not in ("succeeded", "failed", "cancelled"):
                        self.live.ask("POST", f"/v1/jobs/{job['id']}/cancel?now=true")
            self.live.kill()
        self.live.end_tasks()

    # ---- objects -----------------------------------------------------------------------------------------------

    def namespace(self, name: str, queues: str = "lab") -> None:
        notes = {"annotations": {QUEUES: queues}} if queues else {}
        self.plane.json("POST", "/api/v1/namespaces", {"metadata": {"name": name} | notes})

    def apply(self, *objects: Any) -> str:
        text = "\n---\n".join(each if isinstance(each, str) else json.dumps(each) for each in objects)
        return self.plane.kubectl("apply", "-f", "-", text=text)

    def get(self, kind: str, namespace: str, name: str) -> Any:
        return json.loads(self.plane.kubectl("get", kind, "-n", namespace, name, "-o", "json"))

    def until(
        self, what: str, look: Callable[[], Any], within_s: float = 60.0, state: Callable[[], Any] | None = None
    ) -> Any:
        """What ``look`` returns once that is true."""
        end = time.monotonic() + within_s
        while not (found := look()):
            shown = state() if state is not None else ""
            assert time.monotonic() < end, f"{what}: not after {within_s:g} s\n{shown}\n{self.log()}"
            time.sleep(0.1)
        return found

    def phase(self, namespace: str, name: str, *phases: str, within_s: float = 60.0) -> Any:
        """The object once its phase is one of these."""

        def look() -> Any:
            found = self.get("corraljob", namespace, name)
            return found if (found.get("status") or {}).get("phase") in phases else None

        return self.until(
            f"{name} is {' or '.join(phases)}", look, within_s,
            lambda: self.get("corraljob", namespace, name).get("status"),
        )  # fmt: skip


def corral_job(namespace: str, name: str, **spec: Any) -> Any:
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "corral.dev/v1", "kind": "CorralJob", "metadata": meta, "spec": {"directory": "/tmp"} | spec}


def suspended_job(namespace: str, name: str, script: str, queue: str = "lab", **more: Any) -> Any:
    """A batch/v1 Job as a user of Kueue writes it; keys of its specification, ``gpus`` and ``notes`` may be given."""
    gpus, notes, grace_s = more.pop("gpus", 1), more.pop("notes", {}), more.pop("grace_s", 1)
    container = {
        "name": "main", "image": "any", "command": ["/bin/sh", "-c", script],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"cpu": "100m", "memory": "64Mi"}},
    }  # fmt: skip
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": grace_s, "containers": [container]}
    meta = {"name": name, "namespace": namespace, "labels": {"corral.dev/queue": queue}, "annotations": notes}
    spec = {"suspend": True, "backoffLimit": 0, "template": {"spec": pod}} | more
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}
