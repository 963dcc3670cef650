"""Which variables of a shell a job takes along: by default, and as `--export` of sbatch selects them."""

from __future__ import annotations

from typing import Any

import pytest

from corral.wire.environment.export import SYSTEM_PATH, with_environment
from corral.wire.job import parse_job

SHELL = {
    "PATH": "/venv/bin:relative:/usr/bin",
    "VIRTUAL_ENV": "/venv",
    "HOME": "/home/ada",
    "HF_HOME": "/data/hf",
    "HF_TOKEN": "hf_secret",
    "AWS_SECRET_ACCESS_KEY": "k",
    "WANDB_API_KEY": "w",
    "MODE": "fast",
    "SSH_AUTH_SOCK": "/tmp/agent",
    "SLURM_JOB_ID": "3",
    "CORRAL_TOKEN": "corral_x",
    "RANK": "7",
    "MASTER_ADDR": "elsewhere",
    "BASH_FUNC_module%%": "() { :; }",
    "BROKEN": "\udcff",
}
PATH = ":".join(dict.fromkeys(["/venv/bin", "/usr/bin", *SYSTEM_PATH]))

CASES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "by default: where programs are, and the active environment": ({}, {"PATH": PATH, "VIRTUAL_ENV": "/venv"}),
    "nothing": ({"export": "NONE"}, {}),
    "only what is named": ({"export": "MODE"}, {"MODE": "fast"}),
    "a name and a value": ({"export": "MODE,X=1"}, {"MODE": "fast", "X": "1"}),
    "a list, for values with commas": ({"export": ["MODE", "X=1,2"]}, {"MODE": "fast", "X": "1,2"}),
    "everything that has a meaning in a job and is no secret": (
        {"export": "ALL"},
        {"PATH": PATH, "VIRTUAL_ENV": "/venv", "HF_HOME": "/data/hf", "MODE": "fast"},
    ),
    "a secret that is named": ({"export": "HF_TOKEN"}, {"HF_TOKEN": "hf_secret"}),
    "its own variables win": (
        {"env": {"PATH": "/bin", "MODE": "slow"}, "export": "PATH,MODE"},
        {"PATH": "/bin", "MODE": "slow"},
    ),
    "an image has its own paths": ({"image": "i"}, {}),
    "also with everything": ({"image": "i", "export": "ALL"}, {"HF_HOME": "/data/hf", "MODE": "fast"}),
    "unless it is named": ({"image": "i", "export": "PATH"}, {"PATH": PATH}),
}


@pytest.mark.parametrize(("document", "wanted"), CASES.values(), ids=CASES.keys())
def test_the_environment_of_a_job(document: dict[str, Any], wanted: dict[str, str]) -> None:
    found, _ = with_environment(document | {"command": "x"}, SHELL)
    assert found.get("env", {}) == wanted
    assert "export" not in found


def test_all_and_one_secret() -> None:
    found, notes = with_environment({"export": "ALL,HF_TOKEN"}, SHELL)
    assert found["env"]["HF_TOKEN"] == "hf_secret"
    assert "WANDB_API_KEY" not in found["env"]
    (note,) = notes
    assert "AWS_SECRET_ACCESS_KEY, WANDB_API_KEY" in note
    assert "corral secret set" in note
    assert "HF_TOKEN" not in note


def test_what_is_not_set_is_told() -> None:
    assert with_environment({"export": "NOT_THERE"}, SHELL)[1] == ["NOT_THERE is not set in your environment"]


def test_a_python_environment_comes_first_in_the_path() -> None:
    found, _ = with_environment({"export": "NONE"}, SHELL, {"VIRTUAL_ENV": "/other"})
    assert found["env"]["VIRTUAL_ENV"] == "/other"
    assert found["env"]["PATH"].split(":")[:2] == ["/other/bin", "/usr/local/bin"]
    found, _ = with_environment({}, SHELL, {"CONDA_PREFIX": "/conda"})
    assert found["env"]["PATH"].split(":")[:2] == ["/conda/bin", "/venv/bin"]


@pytest.mark.parametrize("wrong", [3, [], ["A", 1], "A B", "1A=2", "", {"A": 1}])
def test_what_is_not_a_selection_is_left_to_the_parser(wrong: Any) -> None:
    document, _ = with_environment({"command": "x", "export": wrong}, SHELL)
    assert document["export"] == wrong
    (fault,) = parse_job(document)  # type: ignore[misc]
    assert fault.path == ("export",)


def test_the_api_does_not_know_the_shell_of_a_user() -> None:
    (fault,) = parse_job({"command": "x", "export": "HF_TOKEN"})  # type: ignore[misc]
    assert (fault.path, fault.code) == (("export",), "bad_export")
    assert "env" in fault.hint
