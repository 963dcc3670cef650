"""One command makes nodes of bare hosts: `corral fleet up --on ssh`, as typed, with a real server and a real sshd."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.fleet import FleetTrial
from tests.providers.ssh_hosts import Sshd, clean

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 30.0
HOSTS = """\
user: {user}
port: {port}
python: {python}
identity: {folder}/key
known_hosts: {folder}/known_hosts
hosts:
  - host: 127.0.0.1
    folder: {base}/h1
  - host: 127.0.0.1
    folder: {base}/h2
"""


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    made = Sshd(tmp_path / "sshd")
    yield made
    for name in ("h1", "h2"):
        clean(tmp_path / name)
    made.stop()


def nodes_of(trial: FleetTrial) -> set[str]:
    """Those that take work."""
    with trial.bed.client() as client:
        return {node.name for node in client.nodes().nodes if node.open and not node.lost}


def test_bare_hosts_become_nodes_run_a_gang_and_are_bare_again(sshd: Sshd, tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(
        HOSTS.format(user=getpass.getuser(), port=sshd.port, python=sys.executable, folder=sshd.folder, base=tmp_path)
    )
    with FleetTrial(tmp_path, 0, 8_000) as trial:

        def corral(*words: str) -> str:
            env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_CONFIG_HOME": str(trial.bed.folder / "config")}
            return subprocess.run(
                [sys.executable, "-m", "corral", *words], env=env, check=True, capture_output=True, text=True
            ).stdout

        began = time.monotonic()
        corral("fleet", "up", "lent", "--on", "ssh", "--hosts", str(file), "--nodes", "2", "--fake-gpus", "8xH100")
        trial.until("both are nodes", lambda: nodes_of(trial) == {"lent-1", "lent-2"})
        assert time.monotonic() - began <= LIMIT_S
        gang = trial.submit(tasks=2, gpus=8)
        trial.until("the gang runs", lambda: trial.is_whole(gang, 2))
        assert {run.node for run in trial.last_runs(gang)} == {"lent-1", "lent-2"}
        assert all(len(run.gpus) == 8 for run in trial.last_runs(gang))
        assert trial.overlaps() == []
        assert "127.0.0.1" in corral("fleet", "show", "lent")
        trial.end_file.touch()
        trial.until("it ends well", lambda: trial.job(gang).state == "succeeded")
        corral("fleet", "down", "lent")
        trial.until("nothing is left", lambda: not any((tmp_path / name).exists() for name in ("h1", "h2")))
        trial.until("the fleet is gone", lambda: json.loads(corral("fleet", "list", "--json")) == [])
