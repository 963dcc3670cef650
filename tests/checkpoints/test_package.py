"""The package runs in the environment of a user: Python 3.9, the standard library, torch and obstore when used."""

import ast
import sys

import pytest

from tests.architecture.repository import SOURCE

FILES = sorted((SOURCE / "checkpoints").glob("*.py"))
OPTIONAL = {"torch", "obstore"}


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_module_needs_nothing_else(path):
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    names = {alias.name.partition(".")[0] for node in imported for alias in node.names}
    absolute = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    names |= {(node.module or "").partition(".")[0] for node in absolute}
    assert names <= sys.stdlib_module_names | OPTIONAL
