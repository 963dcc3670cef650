"""A backend of pods on the control plane of the tests: its settings, and a namespace that is emptied afterwards."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import structs

from corral.runtime.base import TaskOrder
from corral.wire.pods.pod_settings import PodSettings
from tests.kubernetes.control_plane import ControlPlane

NODE = "node-0"


def settings_for(plane: ControlPlane, namespace: str, folder: Path, **more: object) -> PodSettings:
    """Test nodes run pods as processes that see the files of this machine: links to this interpreter are enough."""
    plain = PodSettings(
        kubeconfig=str(plane.kubeconfig),
        namespace=namespace,
        name=f"t{time.time_ns() % 10**9}",
        image="any",
        supervisor_image="corral",
        deliver=(sys.executable, "-m", "corral.kubernetes.pod.deliver", "--link"),
        files=str(folder / "mounts"),
        address="",
    )
    return structs.replace(plain, **more)


@contextmanager
def pods_namespace(plane: ControlPlane) -> Iterator[str]:
    """With the labels by which Pod Security refuses what "restricted" forbids."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    with plane.namespace(f"pods-{time.time_ns()}", labels) as namespace:
        yield namespace


def on_node(order: TaskOrder, node: str = NODE) -> TaskOrder:
    return structs.replace(order, node=node)
