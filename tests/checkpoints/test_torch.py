"""Real ranks with torch: another world size and layout, damage, a full disk, and two attempts at once."""

from __future__ import annotations

import json
import os
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.repository import ROOT

PYTHON = ROOT / ".venv-torch" / "bin" / "python"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no torch beside the checkout: make services")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    env = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    folder = tmp_path_factory.mktemp("ranks")
    command = [str(PYTHON), "-m", "tests.checkpoints.torch_ranks", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    (folder / "stderr").write_text(done.stderr)
    return {**json.loads(done.stdout.splitlines()[-1]), "stderr": done.stderr, "folder": folder}


def test_the_same_parameters_at_every_world_size_and_layout(found: dict[str, Any]):
    phases = found["resized"]
    assert [each["began"] for each in phases] == [0, 2, 4, 6, 8, 10]
    for before, after in pairwise(phases):
        assert after["restored"] == before["saved"]
        assert after["epoch"] == before["epoch"] + 2
    assert phases[1]["rate"] == pytest.approx(1e-3)  # the scheduler went on


@pytest.mark.parametrize("kind", ["flipped", "truncated", "deleted"])
def test_a_damaged_checkpoint_is_skipped_by_all_ranks(found: dict[str, Any], kind: str):
    assert found[kind] == {"began": [1, 1], "is_first": True}
    assert "corral: the checkpoint of step 2 is not used: " in found["stderr"]


def test_a_full_disk_costs_one_save(found: dict[str, Any]):
    both = ["rank 1: OSError: [Errno 28] No space left on device", 3]
    assert found["disk_full"]["answers"] == [both, both]
    assert found["disk_full"]["steps"] == [3, 1]
    assert "corral: step 2 was not saved: rank 1: OSError" in found["stderr"]


def test_a_copy_is_restored_when_the_local_disk_is_lost(found: dict[str, Any]):
    assert found["lost_disk"] == {"began": [2, 2], "is_same": True}


def test_an_attempt_that_was_replaced_cannot_save(found: dict[str, Any]):
    refusal = "attempt 2 of job 5 has taken over this run from attempt 1 of job 5"
    assert found["two_attempts"] == {"answers": [refusal, refusal], "steps": [1]}


def test_checkpoints_are_exported_for_other_programs(found: dict[str, Any], tmp_path: Path):
    store = str(found["folder"] / "resized")
    program = """
import sys, torch
from corral.checkpoints import RunStore, open_storage
from corral.checkpoints.copying import export_safetensors, export_torch
store = RunStore(open_storage(sys.argv[1]), "r")
newest = store.state().usable()[0]
left = export_torch(store, newest, sys.argv[2] + "/a.pt")
export_safetensors(store, newest, sys.argv[2] + "/a.safetensors", "model")
state = torch.load(sys.argv[2] + "/a.pt", weights_only=True)
import json, struct
raw = open(sys.argv[2] + "/a.safetensors", "rb").read()
size = struct.unpack("<Q", raw[:8])[0]
head = json.loads(raw[8:8 + size])
for name, tensor in state["model"].items():
    start, end = head[name]["data_offsets"]
    assert raw[8 + size + start:8 + size + end] == tensor.numpy().tobytes(), name
print(left, sorted(state), sorted(state["model"])[:2], state["others"]["epoch"], len(state["optimizer"]["state"]))
"""
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [str(PYTHON), "-c", program, store, str(tmp_path)], env=env, capture_output=True, text=True, timeout=100
    )
    assert done.stdout == "[] ['model', 'optimizer', 'others'] ['0.bias', '0.weight'] 12 6\n", done.stderr


def test_the_example_of_the_page(tmp_path: Path):
    """As printed, in an environment as in a job: begun, stopped by a warning, and continued."""
    from corral.runtime.job_modules import MODULES

    for name, content in MODULES.items():
        (tmp_path / name).write_bytes(content)
    page = (ROOT / "docs" / "checkpoints.md").read_text()
    script = tmp_path / "train.py"
    script.write_text(page.split("```python\n")[1].split("```")[0])
    warning = tmp_path / "warning.json"
    env = os.environ | {"PYTHONPATH": str(tmp_path), "STORE": str(tmp_path / "store"), "CORRAL_JOB_ID": "3"}
    warned = {"CORRAL_WARNING_FILE": str(warning), "CORRAL_ATTEMPT": "1"}
    warning.write_text("{}")
    said = []
    for more, code in ((warned, 85), ({"CORRAL_ATTEMPT": "2"}, 0)):
        command = [str(PYTHON), str(script)]
        done = subprocess.run(command, cwd=tmp_path, env=env | more, capture_output=True, text=True, timeout=100)
        assert done.returncode == code, done.stderr
        said.append(done.stdout)
    assert said == ["begins at step 0\n", "begins at step 1\n"]
