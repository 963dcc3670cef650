"""One word, one thing: every public type of what decides has its row in docs/glossary.md.

A row is `| `Name` | meaning |`. By the house's grammar a name in CamelCase is a type, be it a class, a
union of classes or a NewType.
"""

import importlib
import re

import pytest

from tests.architecture.repository import REQUIRED_PACKAGES, ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
ROW = re.compile(r"^\|\s*`(?P<name>[^`]+)`\s*\|\s*(?P<meaning>[^|\s][^|]*)\|", re.MULTILINE)
CAMEL_CASE = re.compile(r"[A-Z]\w*[a-z]\w*")


@pytest.mark.parametrize("package", REQUIRED_PACKAGES)
def test_every_public_type_has_a_row(package):
    explained = set(glossary_names())
    exported = importlib.import_module(f"corral.{package}").__all__
    missing = [name for name in exported if CAMEL_CASE.fullmatch(name) and name not in explained]
    assert not missing, f"docs/glossary.md has no row | `Name` | meaning | for: {', '.join(missing)}"


def test_no_word_is_explained_twice():
    names = glossary_names()
    assert sorted(names) == sorted(set(names))


def glossary_names() -> list[str]:
    return [row["name"] for row in ROW.finditer(GLOSSARY.read_text(encoding="utf-8"))]
