"""What is done on a host: one at a time, whole or not at all, with systemd where it is there."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from corral.providers.bootstrap import bootstrap
from tests.providers.ssh_hosts import clean

SOURCE = Path(bootstrap.__file__).resolve().parents[3]
ORDER: dict[str, Any] = {
    "pilot": "gpu-1", "cluster": "test", "agent": "a", "token": "t", "words": [], "ca": "", "grace_ms": 0,
    "is_released": False, "is_kept": False, "at_ms": 1,
}  # fmt: skip

#: In place of systemd, which runs only as the first process of a machine: writes down its arguments, and starts a
#: unit as systemd would, in a session of its own.
SYSTEMCTL = """#!/bin/sh
echo "$*" >>{log}
if [ "$1" = restart ]; then
    setsid $(sed -n 's/^ExecStart=//p' "{units}/$2") >/dev/null 2>&1 </dev/null &
fi
"""


def carried_out(base: Path, act: str, **request: Any) -> dict[str, Any]:
    said: Any = {"act": act, "folder": str(base), **request}
    return bootstrap.execute(said, io.BytesIO())


@pytest.fixture
def base(tmp_path: Path) -> Any:
    """A folder whose agent is what is tested."""
    folder = tmp_path / "base"
    (folder / "agents").mkdir(parents=True)
    (folder / "agents" / "a").symlink_to(SOURCE)
    yield folder
    clean(folder)


def test_what_did_not_arrive_whole_is_not_there(tmp_path: Path) -> None:
    said: Any = {"act": "install", "folder": str(tmp_path / "base"), "agent": "a", "wheels": [(10, "0" * 64)]}
    answer = bootstrap.execute(said, io.BytesIO(b"short"))
    assert answer == {"fault": "a wheel arrived incomplete or damaged"}
    assert carried_out(tmp_path / "base", "look")["agents"] == []


def test_a_host_has_one_pilot_at_a_time(base: Path) -> None:
    assert carried_out(base, "start", order=ORDER | {"is_kept": True}, is_kept=True)["place"]["pilot"] == "gpu-1"
    bootstrap.write(str(base / "place.json"), json.dumps(ORDER))
    assert carried_out(base, "start", order=ORDER | {"pilot": "gpu-2"}, is_kept=True)["is_taken"]
    assert carried_out(base, "start", order=ORDER | {"cluster": "other"}, is_kept=True)["is_taken"]
    assert "token" not in carried_out(base, "look")["place"]
    bootstrap.write(str(base / "ended.json"), "{}")
    assert carried_out(base, "start", order=ORDER | {"pilot": "gpu-2"}, is_kept=True)["place"]["pilot"] == "gpu-2"


def test_an_authority_is_laid_beside_the_agent_and_named_to_it(base: Path) -> None:
    carried_out(base, "start", order={**ORDER, "ca": "CERTIFICATE", "words": ["--name=x"]}, is_kept=True)
    assert (base / "ca.pem").read_text() == "CERTIFICATE"
    assert json.loads((base / "place.json").read_text())["words"] == ["--name=x", f"--ca={base}/ca.pem"]


def test_of_many_that_come_at_once_one_has_the_host(base: Path) -> None:
    answers: list[dict[str, Any]] = []

    def come(number: int) -> None:
        answers.append(carried_out(base, "start", order=ORDER | {"pilot": f"gpu-{number}"}, is_kept=True))

    threads = [threading.Thread(target=come, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(not answer.get("is_taken") for answer in answers) == 1


def test_systemd_runs_the_keeper_where_it_is_there(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units, log, program = tmp_path / "units", tmp_path / "log", tmp_path / "systemctl"
    program.write_text(SYSTEMCTL.format(log=log, units=units))
    program.chmod(0o755)
    monkeypatch.setattr(bootstrap, "systemctl", lambda: [str(program)])
    monkeypatch.setattr(bootstrap, "unit_folder", lambda: str(units))
    carried_out(base, "start", order=ORDER, is_kept=False)
    name = bootstrap.unit_name(str(base))
    assert log.read_text().splitlines() == ["daemon-reload", f"enable --quiet {name}", f"restart {name}"]
    end = time.monotonic() + 20
    while not carried_out(base, "look")["state"]["is_kept"]:
        assert time.monotonic() < end
        time.sleep(0.02)
    while not (number := (base / "keeper.lock").read_text()):  # written once the lock is held
        assert time.monotonic() < end
        time.sleep(0.02)
    os.kill(int(number), 9)
    while carried_out(base, "look")["state"]["is_kept"]:
        assert time.monotonic() < end
        time.sleep(0.02)
    carried_out(base, "stop", pilot="gpu-1", cluster="test")
    assert log.read_text().splitlines()[3:] == [f"disable --quiet {name}", "daemon-reload"]
    assert list(units.iterdir()) == []
    assert not base.exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "corral-pilot.service"
    unit.write_text(bootstrap.unit_text(str(tmp_path)).replace(sys.executable, "/bin/sh"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
