"""What a package offers is what its `__all__` says: no more, no less.

The order of the names is ruff's to check (RUF022), and `make format` puts it right.
"""

import importlib
import types
from pathlib import Path

import pytest

from tests.architecture.repository import REQUIRED_PACKAGES, SOURCE, modules

PACKAGES = [
    ".".join(("corral", *path.relative_to(SOURCE).parent.parts)) for path in modules() if path.name == "__init__.py"
]


@pytest.mark.parametrize("package", PACKAGES)
def test_exported_names_exist_once(package):
    module = importlib.import_module(package)
    exported = list(getattr(module, "__all__", []))
    assert len(exported) == len(set(exported)), "a name is exported twice"
    assert [name for name in exported if not hasattr(module, name)] == []


@pytest.mark.parametrize("package", REQUIRED_PACKAGES)
def test_public_surface_equals_all(package):
    module = importlib.import_module(f"corral.{package}")
    assert public_names(module) == set(module.__all__)


@pytest.mark.parametrize("package", REQUIRED_PACKAGES)
def test_the_checkout_is_what_is_imported(package):
    """Otherwise everything above would speak about another copy of corral."""
    location = importlib.import_module(f"corral.{package}").__file__
    assert location is not None
    assert Path(location).resolve() == SOURCE / package / "__init__.py"


def public_names(module: types.ModuleType) -> set[str]:
    """Names that a reader would take to be offered; submodules do not count, they are merely there. A package may load
    what it offers when it is asked for it."""
    later = module._offered() if hasattr(module, "_offered") else {}
    return set(later) | {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
