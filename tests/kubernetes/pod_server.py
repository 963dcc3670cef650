"""A real server under test whose tasks are pods of the control plane of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tests.e2e.live import Live
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.pods import settings_for


class PodServer(Live):
    """``more``: settings of the backend that differ from those of the tests."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path, **more: object) -> None:
        super().__init__(folder / "data")
        self.plane, self.namespace = plane, namespace
        self.settings = settings_for(plane, namespace, folder, **more)
        (folder / "pods.json").write_bytes(msgspec.json.encode(self.settings))
        self.more = ["--pods", str(folder / "pods.json")]

    def pods(self) -> list[Any]:
        found: list[Any] = self.plane.json("GET", f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return found

    def of_gangs(self, kind: str) -> list[str]:
        items = self.plane.json("GET", f"/api/v1/namespaces/{self.namespace}/{kind}")["items"]
        return [
            each["metadata"]["name"] for each in items if "corral.dev/attempt" in each["metadata"].get("labels", {})
        ]
