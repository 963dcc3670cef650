"""The direction of imports and the purity of what decides, as contracted in pyproject.toml.

The contracts are first held against the real source, then against small trees with one planted breach
each, because a contract that nothing can break protects nothing.
"""

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.repository import PURE_PACKAGES, ROOT, SOURCE, modules

#: Policies of publications, which are as pure as the others.
PURE_MODULES = {"corral.sim.research.repack", "corral.sim.research.scorers"}
ALLOWED_IN_PURE_PACKAGES = {"corral", "msgspec"}


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the checkout at `root`, which wins over the installed corral."""
    program = "import sys, importlinter.cli as c; sys.exit(c.lint_imports(no_cache=True, no_logo=True))"
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root / "src"), "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def contracts() -> dict[str, Any]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {contract["id"]: contract for contract in config["tool"]["importlinter"]["contracts"]}


def test_contracts_are_kept():
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_pure_package_is_under_the_purity_contract():
    present = {f"corral.{package}" for package in PURE_PACKAGES if (SOURCE / package).is_dir()}
    assert set(contracts()["purity"]["source_modules"]) == present | PURE_MODULES


@pytest.mark.parametrize("package", PURE_PACKAGES)
def test_msgspec_is_the_only_package_of_others_that_what_decides_imports(package):
    strangers = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules(package)
        for name in imported_packages(ast.parse(path.read_text(encoding="utf-8")))
        if name not in ALLOWED_IN_PURE_PACKAGES and name not in sys.stdlib_module_names
    }
    assert not strangers


def imported_packages(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


# --- the contracts catch planted breaches ------------------------------------------------------------------

SOUND = {
    "__init__.py": "",
    "core/__init__.py": "import msgspec\n",
    "core/model.py": "import dataclasses\n",
    "policy/__init__.py": "from corral.core import model\n",
    "batching/__init__.py": "",
    "wire/__init__.py": "import datetime\nfrom corral import policy\n",
    "store/__init__.py": "import sqlite3\nfrom corral import wire\n",
    "sim/__init__.py": "",
    "sim/research/__init__.py": "",
    "sim/research/repack/__init__.py": "",
    "sim/research/scorers.py": "",
    "server/__init__.py": "from corral import store\n",
    "agent/__init__.py": "",
    "cli/__init__.py": "from corral import server, sim\n",
    "cli/serve/__init__.py": "from corral import server\n",
    "cli/fleet/__init__.py": "",
    "cli/fleet/testbed.py": "from corral.cli import serve\n",
    "cli/fleet/testbed_parts.py": "",
}

PLANTED = {
    "a clock in the core": ("purity", {"core/model.py": "import time\n"}),
    "a clock in the core, imported late": ("purity", {"core/model.py": "def f():\n    import time\n"}),
    "chance in the policy": ("purity", {"policy/order.py": "from random import shuffle\n"}),
    "a log in the policy": ("purity", {"policy/order.py": "import logging\n"}),
    "a submodule of something forbidden": ("purity", {"core/model.py": "import os.path\n"}),
    "a package of others in the core": ("purity", {"core/model.py": "import numpy\n"}),
    "a clock behind another module": ("purity", {"core/model.py": "import corral.wire\n"}),
    "the core looking up to the policy": ("layers", {"core/model.py": "import corral.policy\n"}),
    "the policy looking up to the wire": ("layers", {"policy/order.py": "from corral import wire\n"}),
    "siblings that know each other": ("layers", {"runtime/__init__.py": "from corral import store\n"}),
    "a clock in a policy of a publication": ("purity", {"sim/research/scorers.py": "import time\n"}),
    "the server with the simulator": ("no_sim", {"server/loop.py": "from corral.sim import research\n"}),
    "a server that starts with the test cluster": (
        "no_testbed",
        {"cli/serve/up.py": "import corral.cli.fleet.testbed\n"},
    ),
    "a package on no line of the layout": ("layers", {"plugins/__init__.py": ""}),
}


def test_contracts_allow_a_sound_tree(tmp_path):
    result = lint_imports(planted_tree(tmp_path, {}))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(("contract", "breach"), PLANTED.values(), ids=PLANTED.keys())
def test_contract_catches(tmp_path, contract, breach):
    result = lint_imports(planted_tree(tmp_path, breach))
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{contracts()[contract]['name']} BROKEN" in result.stdout, result.stdout + result.stderr


def planted_tree(root: Path, breach: dict[str, str]) -> Path:
    """A miniature corral under today's contracts, with the files of `breach` put over the sound ones."""
    (root / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    for name, text in (SOUND | breach).items():
        path = root / "src" / "corral" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root
