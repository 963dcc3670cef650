"""A job with an image on a whole server, as `corral up` makes it with a configuration: through a real Podman."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.live import ROOT, Live, Refused, environment
from tests.runtime.podman import IMAGE, Podman
from tests.runtime.reports import until


class Up(Live):
    """A server started by the command line."""

    def __init__(self, data: Path, socket: str) -> None:
        super().__init__(data)
        self._settings = data / "settings"
        self._config = data / "corral.yaml"
        data.mkdir(parents=True, mode=0o700)
        self._config.write_text(json.dumps({"containers": {"socket": socket, "pull": "never"}}))

    def begin(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "corral", "up", "--data", str(self.data), "--config", str(self._config)]
        words += ["--listen", f"127.0.0.1:{self.port}", "--fake-gpus", "2xH100"]
        with (self.data / "server.log").open("ab") as errors:
            self.process = subprocess.Popen(
                words, cwd=ROOT, env=environment() | {"XDG_CONFIG_HOME": str(self._settings)}, stdout=errors,
                stderr=errors, start_new_session=True,
            )  # fmt: skip
        return self.process

    @property
    def token(self) -> str:
        found = json.loads((self._settings / "corral" / "credentials.json").read_bytes())
        return str(found["token"])

    def log(self, id: str) -> str:
        with self.connection() as connection:
            connection.request("GET", f"/v1/jobs/{id}/logs", headers={"Authorization": f"Bearer {self.token}"})
            return connection.getresponse().read().decode()


@pytest.fixture
def server(tmp_path: Path, podman: Podman) -> Iterator[Up]:
    server = Up(tmp_path / "data", podman.socket)
    server.start()
    yield server
    if server.process is not None:
        server.stop()


def job(script: str, **more: Any) -> dict[str, Any]:
    return {"command": ["sh", "-c", script], "image": IMAGE, **more}


def test_a_job_runs_in_its_image_on_its_gpus(server: Up):
    id = server.submit(job("ls / ; echo on $CUDA_VISIBLE_DEVICES", gpus=2))
    over = server.until_over([id])[id]
    assert over["state"] == "succeeded", over
    assert "corral" in server.log(id)
    assert "on SIM-H100-0,SIM-H100-1" in server.log(id)


def test_a_job_that_runs_survives_the_death_of_the_server(server: Up):
    id = server.submit(job("echo begun; trap 'exit 0' TERM; while :; do sleep 0.1; done"))
    until(lambda: "begun" in server.log(id))
    server.kill()
    server.start()
    assert server.job(id)["state"] == "running"
    server.ask("POST", f"/v1/jobs/{id}/cancel")
    assert server.until_over([id])[id]["state"] == "cancelled"


def test_an_image_that_is_none_is_refused_when_it_is_submitted(server: Up):
    with pytest.raises(Refused) as refused:
        server.submit(job("true") | {"image": "docker-archive:/etc/passwd"})
    assert refused.value.problem["code"] == "cannot_run_here"
    assert "is not the name of an image" in refused.value.problem["detail"]


def test_without_an_engine_a_job_with_an_image_is_refused(tmp_path: Path):
    server = Up(tmp_path / "data", str(tmp_path / "no-engine.sock"))
    server.start()
    try:
        until(lambda: "no container runtime answers" in _refusal(server))  # once it was looked for
    finally:
        server.stop()


def _refusal(server: Up) -> str:
    try:
        server.submit(job("true"))
    except Refused as refused:
        return str(refused.problem["detail"])
    return ""
