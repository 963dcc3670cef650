"""The table of variables that jobs have is that of the code: every name that is set is in it, and no other."""

from __future__ import annotations

import ast
import re

import pytest

from corral.runtime.local.task.start import Account
from corral.wire.environment.export import SYSTEM_PATH
from corral.wire.environment.variables import GROUPS, NAMES
from tests.architecture.repository import ROOT

#: The modules that set variables of tasks.
SETTING = (
    "server/dispatch.py",
    "server/slurm_env.py",
    "runtime/gpu_visibility.py",
    "runtime/local/orders.py",
    "runtime/local/task/start.py",
    "runtime/local/task/processes.py",
    "runtime/local/task/scratch.py",
    "runtime/steps/task_files.py",
    "runtime/container/task/container.py",
    "runtime/steps/step_environment.py",
    "runtime/steps/seat_host.py",
    "runtime/steps/step_ranks.py",
    "wire/job/sbatch_translate.py",
)
VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")


def names_set(text: str) -> set[str]:
    """Keys of dictionaries and of assignments to an item, that are written as variables are. Values are texts: a table
    of GPU models has tuples."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Dict):
            found += [
                key
                for key, value in zip(node.keys, node.values, strict=True)
                if key and not isinstance(value, ast.Tuple)
            ]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            found.append(node.slice)
    texts = {node.value for node in found if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {name for name in texts if VARIABLE.fullmatch(name)}


def test_the_table_has_every_variable_that_is_set_and_no_other() -> None:
    found = set().union(*(names_set((ROOT / "src/corral" / path).read_text(encoding="utf-8")) for path in SETTING))
    assert found - NAMES == set(), "add it to wire/environment/variables.py"
    assert NAMES - found == set(), "no module sets it any more"


def test_each_is_in_the_table_once() -> None:
    listed = [variable.name for group in GROUPS for variable in group.variables]
    assert len(listed) == len(set(listed))


def test_other_modules_of_the_runtime_set_none() -> None:
    """A module that begins to set variables joins ``SETTING``."""
    folders = [ROOT / "src/corral" / name for name in ("runtime", "agent")]
    modules = [path for folder in folders for path in folder.rglob("*.py")]
    known = {ROOT / "src/corral" / path for path in SETTING}
    other = {
        path.name: found for path in modules if path not in known and (found := names_set(path.read_text()) & NAMES)
    }
    assert other == {}


def test_the_path_of_an_account_is_that_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/of/the/server")
    assert Account("").env()["PATH"].split(":") == list(SYSTEM_PATH)
