"""Pages name only what exists, and no file names the machine it was written on."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT, markdown_pages, texts

FENCE = re.compile(r"^(?P<mark>```+|~~~+)[^\n]*\n(?P<code>.*?)^(?P=mark)[ \t]*$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?P<mark>`+)(?P<code>[^`\n]+)(?P=mark)")
LINK = re.compile(r"\]\(\s*<?(?P<inline>[^)\s>]+)|^\s*\[[^\]]+\]:\s+<?(?P<reference>[^\s>]+)", re.MULTILINE)
HTML_LINK = re.compile(r"""<(?:a|img)\s[^>]*?(?:href|src)=["'](?P<html>[^"']+)""")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//|#", re.IGNORECASE)

MAKE = re.compile(r"\bmake(?:\s+[A-Z]+=\S+)*\s+(?P<target>[a-z][a-z-]*)(?![\w…-])")
TARGET = re.compile(r"^(?P<target>[a-z][a-z-]*):", re.MULTILINE)

PAGES = markdown_pages()
PAGE_NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]


# --- links ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_relative_links_lead_somewhere(page):
    broken = [target for target in relative_links(page.read_text(encoding="utf-8")) if not leads(page, target)]
    assert not broken, f"{page.relative_to(ROOT)} links to what is not there: {', '.join(broken)}"


def relative_links(markdown: str) -> Iterator[str]:
    prose = SPAN.sub("", FENCE.sub("", markdown))
    for pattern in (LINK, HTML_LINK):
        for found in pattern.finditer(prose):
            target = next(group for group in found.groups() if group)
            if not ELSEWHERE.match(target):
                yield target.partition("#")[0]


def leads(page: Path, target: str) -> bool:
    """To a file of the repository, that is: a path from the root of the disk leads astray elsewhere."""
    if target.startswith("/"):
        return False
    path = (page.parent / target).resolve()
    return path.is_relative_to(ROOT) and path.exists()


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_links_to_a_part_of_a_page_lead_to_a_heading(page):
    prose = SPAN.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
    broken = []
    for found in LINK.finditer(prose):
        target, _, part = next(group for group in found.groups() if group).partition("#")
        path = (page.parent / target).resolve() if target else page
        if part and not re.match(r"[a-z]+:", target) and path.suffix == ".md" and path.exists():
            broken += [f"{target}#{part}"] if part not in headings(path.read_text(encoding="utf-8")) else []
    assert not broken, f"{page.relative_to(ROOT)} links to parts that are not there: {', '.join(broken)}"


def headings(markdown: str) -> set[str]:
    """As forges name them: small letters, without punctuation, hyphens for spaces."""
    titles = re.findall(r"^#+\s+(.*?)\s*$", FENCE.sub("", markdown), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


SOURCE_MENTION = re.compile(r"(?<![\w/.-])(?:src/corral|tests|tools|packaging)/[\w/.-]*\w")


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_files_and_folders_that_pages_name_exist(page):
    named = SOURCE_MENTION.findall(page.read_text(encoding="utf-8"))
    missing = sorted({name for name in named if not any(ROOT.glob(name)) and not any(ROOT.glob(f"{name}.py"))})
    assert not missing, f"{page.relative_to(ROOT)} names what is not there: {', '.join(missing)}"


MENTION = re.compile(r"(?<![\w/.-])docs/[\w/.-]+\.md\b")


def test_pages_that_programs_units_and_comments_name_are_there():
    here = Path(__file__)
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in texts()
        for name in MENTION.findall(text)
        if path != here and not (ROOT / name).exists()
    }
    assert not missing


def test_links_are_found_in_every_spelling():
    markdown = (
        "[a](docs/a.md) ![b](<b.png>) [c](c.md#part) <img src='d.svg'> [e][1]\n"
        "[f](https://example.org/f) [g](#g)\n"
        "`[h](h.md)`\n\n```\n[i](i.md)\n```\n\n[1]: e.md\n"
    )
    assert sorted(relative_links(markdown)) == ["b.png", "c.md", "d.svg", "docs/a.md", "e.md"]


README_LINES_MAX = 110  # someone who has two minutes reads it to the end


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES_MAX


# --- commands ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_pages_mention_only_targets_that_exist(page):
    targets = {found["target"] for found in TARGET.finditer((ROOT / "Makefile").read_text(encoding="utf-8"))}
    mentioned = set(make_targets(page.read_text(encoding="utf-8")))
    assert mentioned <= targets, f"no such target: {', '.join(sorted(mentioned - targets))}"


def make_targets(markdown: str) -> Iterator[str]:
    """Targets in code, not in prose, where one may well make room for a friend."""
    blocks = [found["code"] for found in FENCE.finditer(markdown)]
    spans = [found["code"] for found in SPAN.finditer(FENCE.sub("", markdown))]
    for line in "\n".join(blocks + spans).splitlines():
        for found in MAKE.finditer(line.partition("#")[0]):
            yield found["target"]


def test_targets_are_found_in_code_only():
    markdown = (
        "Corral can make room. Say `make demo` or `make QUICK=1 bench-engine`.\n\n"
        "```\n$ make test  # make sure\nsmall makes room\n```\n"
    )
    assert sorted(make_targets(markdown)) == ["bench-engine", "demo", "test"]


# --- nothing tells on a machine --------------------------------------------------------------------------

PACKAGE_INDEX = re.compile(r"https?://[\w.@:-]*(?:pypi|pythonhosted|devpi|artifactory|nexus)", re.IGNORECASE)
INDEX_OPTION = r"^\s*(?:--(?:extra-)?index-url|--find-links|--trusted-host|-i|-f)\b"
WHERE_FROM = re.compile(rf"://| @ |{INDEX_OPTION}", re.MULTILINE)

# Folders in which a checkout may lie and which say nothing about the machine.
ORDINARY_FOLDERS = {"/", "/home", "/mnt", "/opt", "/root", "/srv", "/tmp", "/usr/src", "/var", "/var/tmp"}


def test_no_file_names_the_place_of_the_checkout():
    places = {str(ROOT), str(ROOT.parent)} - ORDINARY_FOLDERS
    pattern = re.compile(r"(?<![\w./-])(?:" + "|".join(map(re.escape, sorted(places))) + r")(?![\w-])")
    assert not files_with(pattern)


def test_no_file_names_a_package_index():
    assert not files_with(PACKAGE_INDEX)


def files_with(pattern: re.Pattern[str]) -> list[str]:
    return [f"{path.relative_to(ROOT)}: {found[0]}" for path, text in texts() if (found := pattern.search(text))]


@pytest.mark.parametrize("lock", sorted((ROOT / "requirements").iterdir()), ids=lambda path: path.name)
def test_requirement_files_do_not_say_where_packages_come_from(lock):
    assert not WHERE_FROM.findall(lock.read_text(encoding="utf-8"))


def test_package_indexes_are_recognised():
    assert PACKAGE_INDEX.search("see https:" + "//py" + "pi.org/simple")
    assert not PACKAGE_INDEX.search("see https://example.org/nexus")
    assert WHERE_FROM.search("--extra-index-url x")
    assert WHERE_FROM.search("corral @ file")
