"""What packages offer under names of their own exists; packages that decide offer only their modules.

Ruff checks the order of the names (RUF022), and `make format` corrects it.
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
def test_packages_that_decide_offer_their_modules_and_no_second_name_for_what_is_in_them(package):
    assert public_names(importlib.import_module(f"corral.{package}")) == set()


@pytest.mark.parametrize("package", REQUIRED_PACKAGES)
def test_the_checkout_is_what_is_imported(package):
    """Otherwise everything above would speak about another copy of corral."""
    location = importlib.import_module(f"corral.{package}").__file__
    assert location is not None
    assert Path(location).resolve() == SOURCE / package / "__init__.py"


def public_names(module: types.ModuleType) -> set[str]:
    """Submodules do not count: they are there once they are imported."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
