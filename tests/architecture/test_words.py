"""Text that users, operators and readers of the source meet is plain English: it has no word that `plain_words` bans.

Words of the field are in docs/glossary.md. What is not done yet is listed with the hits left; the list only shrinks.
"""

from pathlib import Path

import pytest

from tests.architecture.plain_words import BANNED, files_with_text, hits, hits_in, python_texts
from tests.architecture.repository import ROOT, SOURCE

PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs")
FOR_CONTRIBUTORS = ("Makefile", "examples")
TESTS = tuple(
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "tests").iterdir())
    if path.suffix in {"", ".py"} and path.name != "__pycache__"
)
PACKAGES = tuple(path.relative_to(ROOT).as_posix() for path in sorted(SOURCE.iterdir()) if path.suffix in {"", ".py"})
PLACES = (*PAGES, *FOR_CONTRIBUTORS, *TESTS, *(place for place in PACKAGES if "__pycache__" not in place))

#: Places that still contain banned words: at most this many. Lower the number as you go; remove the line at zero.
LEFT: dict[str, int] = {
    "tests/compatibility": 2,  # an account named nobody, and a field of an old image
    "tests/judges": 200,
    "tests/policy": 90,
    "tests/server": 1,  # a user named nobody
}
#: The list of banned words, and examples of them.
WORDS = {"plain_words.py", "test_words.py"}


@pytest.mark.parametrize("place", PLACES)
def test_text_is_plain(place: str) -> None:
    files = [path for path in files_with_text(ROOT / place) if path.name not in WORDS]
    found = [f"{path.relative_to(ROOT)}: {hit}" for path in files for hit in hits(path)]
    assert len(found) <= LEFT.get(place, 0), "\n" + "\n".join(found)
    assert found or place not in LEFT, f"{place} is done: remove it from LEFT"


def test_every_place_exists() -> None:
    assert all((ROOT / place).exists() for place in PLACES)
    assert not LEFT.keys() - set(PLACES)


def test_every_banned_word_has_a_reason_and_something_to_say_instead() -> None:
    assert all(banned.why and banned.instead for banned in BANNED)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Whoever asks\nis told.", 2),
        ("It begins anew\nfor the\nsake of job 3.", 2),
        ("as long as it runs, so long as it lasts, recommended", 0),
        ("`anew` in code counts too", 1),
        ("carries the order out; tends to be slow; users who ask", 0),
        ("the first who waits", 2),
    ],
)
def test_banned_words_are_found(text: str, found: int) -> None:
    assert len(hits_in(text)) == found


def test_python_is_read_where_people_read_it(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Whoever reads\nthis."""\n\n'
        "anew = 'anew'  # a name and a key are no text\n"
        "# it waits so\n# long\n"
        "raise OSError(f'job {anew} was ' 'told')\n",
        encoding="utf-8",
    )
    assert [hit.split(": ")[:2] for hit in hits(module)] == [
        ["line 1", "'Whoever'"],
        ["line 5", "'so\\nlong'"],
        ["line 7", "'told'"],
    ]
    assert python_texts("x = 1\n") == []
