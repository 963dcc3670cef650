"""What is particular about Ray: the bridge may die, its environment is its own, raylets come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.providers.base import PilotOrder, PilotPhase, ProviderUnavailable
from corral.providers.catalog import BadSettings, kind_of, read_settings
from corral.providers.hosts import HostProvider
from corral.providers.ray import RaySettings, missing, opened
from corral.providers.ray.bridge import Bridge
from corral.providers.ray.driver import caveat
from corral.providers.ray.remote_exec import RayExec
from tests.providers.fake_server import FakeServer
from tests.providers.ray_cluster import RayBed, clean
from tests.providers.ssh_hosts import agents_in

ROOT = Path(__file__).resolve().parents[2]


def until(holds: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, f"not within {within_s:g} s: {what}"
        time.sleep(0.05)


@pytest.fixture
def bed() -> Iterator[RayBed]:
    made = RayBed()
    yield made
    made.let_go()


@pytest.fixture
def fake_server() -> Iterator[FakeServer]:
    made = FakeServer()
    yield made
    made.close()


BAD: dict[str, dict[str, Any]] = {
    "no token": {"address": "head:6379"},
    "both a token and none": {"address": "head:6379", "token_file": "/x", "is_open": True},
    "an address without a port": {"address": "head", "is_open": True},
    "an address that is a word of Ray's": {"address": "auto", "is_open": True},
    "a folder that is a command": {"address": "head:6379", "is_open": True, "folder": "/x; reboot"},
    "a word that there is not": {"address": "head:6379", "is_open": True, "namespace": "x"},
}


@pytest.mark.parametrize("said", BAD.values(), ids=BAD.keys())
def test_settings_that_cannot_be_are_refused(said: dict[str, Any]) -> None:
    with pytest.raises(BadSettings):
        read_settings(kind_of("ray"), said)


def test_nothing_of_ray_is_imported_and_what_is_missing_is_reported() -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from corral.providers.catalog import KINDS, kind_of, read_settings\n"
        "[kind_of(name).missing() for name in KINDS]\n"
        "settings = read_settings(kind_of('ray'), {'address': 'head:1', 'is_open': True})\n"
        "kind_of('ray').opened(settings, 'test').close()\n"
        "from corral.server import main\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'ray' and sys.modules[name]]\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    nowhere = RaySettings(address="head:6379", is_open=True, python="/nowhere/python")
    assert "pip install 'corral-scheduler[ray]'" in missing(nowhere)


def test_what_the_loss_of_the_head_would_do_is_reported() -> None:
    name = "RAY_gcs_rpc_server_reconnect_timeout_s"
    assert "60 s without its head" in caveat({})
    assert "90 s without its head" in caveat({name: "90"})
    assert caveat({name: "3600"}) == ""


def test_without_a_ray_no_one_waits_for_ever() -> None:
    provider = opened(RaySettings(address="127.0.0.2:1", is_open=True, python=sys.executable), "test")
    with pytest.raises(ProviderUnavailable, match="cannot reach Ray"):
        provider.look(["gpu-1"])
    provider.close()


PLAYED_RAY = """
def init(address, namespace, log_to_driver, logging_level):
    if address == "bad:1":
        raise ConnectionError("no such head")

def nodes():
    return [
        {"NodeID": "n1", "NodeManagerAddress": "10.0.0.1", "NodeManagerHostname": "h1", "Labels": {"rack": "a"},
         "Resources": {"node:__internal_head__": 1.0}, "Alive": True},
        {"NodeID": "n2", "NodeManagerAddress": "10.0.0.2", "NodeManagerHostname": LATE, "Alive": True, "Resources": {}},
        {"NodeID": "n3", "Alive": False},
    ]
"""


def played(tmp_path: Path, host: str = '"h2"') -> str:
    """A Python whose Ray lists two nodes, and nothing else."""
    (tmp_path / "ray.py").write_text(PLAYED_RAY.replace("LATE", host))
    program = (
        f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); runpy.run_path(sys.argv[2], run_name='__main__')"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}" "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_nodes_are_listed_through_the_bridge(tmp_path: Path) -> None:
    settings = RaySettings(address="head:1", is_open=True, python=played(tmp_path), has_head=True, path=("rack",))
    shell = RayExec(settings, Bridge(settings, "test"))
    try:
        assert [(node.number, node.name, node.path) for node in shell.hosts()] == [("n1", "h1", "a"), ("n2", "h2", "")]
    finally:
        shell.close()


def test_an_answer_of_another_shape_is_refused(tmp_path: Path) -> None:
    settings = RaySettings(address="head:1", is_open=True, python=played(tmp_path, "7"))
    shell = RayExec(settings, Bridge(settings, "test"))
    try:
        with pytest.raises(ProviderUnavailable, match="Ray at head:1: Expected `str`"):
            shell.hosts()
    finally:
        shell.close()


def test_why_ray_was_not_reached_is_reported(tmp_path: Path) -> None:
    settings = RaySettings(address="bad:1", is_open=True, python=played(tmp_path))
    with pytest.raises(ProviderUnavailable, match="cannot reach Ray at bad:1: ConnectionError: no such head"):
        RayExec(settings, Bridge(settings, "test")).hosts()


def test_a_bridge_that_is_killed_is_followed_by_another(bed: RayBed, tmp_path: Path, fake_server: FakeServer) -> None:
    settings = bed.settings(tmp_path, labels={"machine": "m3"}, fake_gpus="2xH100")
    bridge = Bridge(settings, "killed")
    provider = HostProvider(settings, "killed", RayExec(settings, bridge))
    provider.acquire([PilotOrder(pilot="gpu-1", urls=(fake_server.url,), token="x")])
    until(lambda: fake_server.is_here("gpu-1"), "the agent reports")
    (agent,) = agents_in(tmp_path / "m3")
    environment = Path(f"/proc/{agent}/environ").read_bytes()
    assert b"RAY" not in environment.upper().replace(str(tmp_path).upper().encode(), b"")
    first = bridge.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: _phase(provider) is PilotPhase.STARTED and bridge.pid != first, "it is seen again, over another")
    assert fake_server.is_here("gpu-1")
    provider.close()
    clean([tmp_path / "m3"])


def test_a_raylet_that_comes_back_finds_its_agent_again(bed: RayBed, tmp_path: Path, fake_server: FakeServer) -> None:
    provider = opened(bed.settings(tmp_path, labels={"machine": "m4"}, fake_gpus="2xH100"), "again")
    provider.acquire([PilotOrder(pilot="gpu-1", urls=(fake_server.url,), token="x")])
    until(lambda: fake_server.is_here("gpu-1"), "the agent reports")
    os.kill(bed.told["raylets"]["m4"], signal.SIGKILL)
    until(lambda: not agents_in(tmp_path / "m4"), "the agent ends with its raylet")
    bed.do("start", "m4")
    until(lambda: _phase(provider) is PilotPhase.STARTED and bool(agents_in(tmp_path / "m4")), "it is there again")
    until(lambda: fake_server.is_here("gpu-1"), "it reports")
    assert fake_server.joined == [("gpu-1", "x")]
    provider.close()
    clean([tmp_path / "m4"])


def test_who_has_no_token_gets_nowhere(bed: RayBed, tmp_path: Path) -> None:
    false = tmp_path / "token"
    false.write_text("0" * 64)
    settings = msgspec.structs.replace(bed.settings(tmp_path), token_file=str(false))
    provider = HostProvider(settings, "stranger", RayExec(settings, Bridge(settings, "stranger", open_s=6.0)))
    with pytest.raises(ProviderUnavailable):
        provider.look(["gpu-1"])
    provider.close()


def _phase(provider: HostProvider) -> PilotPhase | None:
    try:
        seen = provider.look(["gpu-1"])
    except ProviderUnavailable:
        return None
    return seen[0].phase if seen else None
