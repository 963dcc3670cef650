"""The commands about many machines, as typed: what they say when something is missing, and how a machine joins."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.cli.fleet.testbed_parts import Testbed
from tests.cli.typed import typed


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """A server for a fleet, without machines."""
    bed = Testbed(tmp_path_factory.mktemp("bed"), 0)
    bed.start()
    yield bed
    bed.stop()


@pytest.fixture
def administrator(bed: Testbed, monkeypatch: pytest.MonkeyPatch) -> Testbed:
    monkeypatch.setenv("CORRAL_URL", bed.url)
    monkeypatch.setenv("CORRAL_TOKEN", bed.credentials().token)
    return bed


def test_an_agent_that_has_not_joined_says_how_to(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    done = typed(capsys, "agent", "--data", str(tmp_path))
    assert done.code == 1
    assert "this machine has not joined" in done.err
    assert "corral node join --server URL --token TOKEN" in done.err


def test_no_token_to_join_goes_unencrypted_to_another_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    done = typed(capsys, "node", "join", "--server", "http://192.0.2.1:7411", "--token", "t", "--data", str(tmp_path))
    assert done.code
    assert "tokens would be sent unencrypted" in done.err
    assert "--allow-plain-http" in done.err


def test_a_machine_joins_once_with_a_token_and_again_only_when_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, administrator: Testbed
) -> None:
    token = typed(capsys, "node", "token").out.strip()
    words = ("node", "join", "--server", administrator.url, "--name", "gpu-1", "--data", str(tmp_path / "a"))
    done = typed(capsys, *words, "--token", token)
    assert (done.code, "this machine is node gpu-1" in done.out) == (0, True)
    kept = tmp_path / "a" / "agent.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert json.loads(kept.read_bytes())["node"] == "gpu-1"
    again = typed(capsys, *words, "--token", token)
    assert "has joined before, as gpu-1" in again.err
    used = typed(capsys, *words, "--token", token, "--replace")
    assert (used.code, "unknown or was revoked" in used.err) == (2, True)
    fresh = typed(capsys, "node", "token").out.strip()
    taken = typed(capsys, *words, "--token", fresh, "--replace")
    assert "there is already a node gpu-1" in taken.err
    assert "corral node token gpu-1" in taken.err
    bound = typed(capsys, "node", "token", "gpu-1").out.strip()
    other = typed(capsys, "node", "join", "--server", administrator.url, "--name", "gpu-2", "--token", bound,
                  "--data", str(tmp_path / "b"))  # fmt: skip
    assert "the token is for node gpu-1, not for gpu-2" in other.err
    assert typed(capsys, *words, "--token", bound, "--replace").code == 0


def test_a_node_that_is_not_there_cannot_be_removed(capsys: pytest.CaptureFixture[str], administrator: Testbed) -> None:
    done = typed(capsys, "node", "remove", "gpu-9")
    assert "there is no node 'gpu-9'" in done.err


def test_a_test_fleet_that_does_not_run_cannot_be_cut(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    done = typed(capsys, "testbed", "--folder", str(tmp_path), "partition", "n1")
    assert done.code == 1
    assert "there is no test cluster" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cluster", "--lease", "100ms"), "three heartbeats"),
        (("--cluster", "--fake-gpus", "8xH100"), "exclude each other"),
        (("--fleet", "--fake-gpus", "8xH100"), "--cluster and --fake-gpus exclude each other"),  # its old name
    ],
)
def test_a_cluster_that_cannot_work_is_not_started(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = typed(capsys, "up", "--data", str(tmp_path), *words)
    assert done.code == 2
    assert said in done.err
