"""docs/glossary.md explains each word that users and operators meet once; types are explained at their definition."""

import re

from tests.architecture.repository import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
ROW = re.compile(r"^\|\s*(?P<words>[^|\s-][^|]*?)\s*\|\s*(?P<meaning>[^|\s][^|]*)\|", re.MULTILINE)
TYPE = re.compile(r"`?[A-Z]\w*[a-z]\w*`?")


def test_no_word_is_explained_twice():
    words = explained()
    assert len(words) > 20
    assert sorted(words) == sorted(set(words))


def test_no_type_of_the_code_has_a_row():
    assert [word for word in explained() if TYPE.fullmatch(word)] == []


def explained() -> list[str]:
    rows = [row for row in ROW.finditer(GLOSSARY.read_text(encoding="utf-8")) if row["words"] != "word"]
    return [word.strip() for row in rows for word in row["words"].split(",")]
