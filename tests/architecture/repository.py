"""Where things are in this repository, for the tests that read it as text.

Knows paths and file names only; what a file should look like is the business of each test.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "corral"

# Packages that decide and therefore do nothing else; see the purity contract in pyproject.toml.
PURE_PACKAGES = ("core", "policy", "batching")
# Those of them that must be there: a walk over a missing folder finds no fault in it.
REQUIRED_PACKAGES = ("core", "policy", "batching")

_NOT_OURS = {".git", "__pycache__", "build", "dist", "htmlcov", "node_modules"}


def modules(package: str = "") -> list[Path]:
    """Every module of corral, or of one package of it, in a stable order."""
    return sorted((SOURCE / package).rglob("*.py"))


def markdown_pages() -> list[Path]:
    """The pages people read: those at the top, which must exist, and all of docs/."""
    top = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return top + sorted((ROOT / "docs").rglob("*.md"))


def texts() -> Iterator[tuple[Path, str]]:
    """Every text file that is, or is about to be, under version control."""
    for path in _listed_by_git() or _found_by_walking():
        if path.is_file():
            try:
                yield path, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # not text


def _listed_by_git() -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []  # no git on this machine, or an unpacked archive
    return [ROOT / name for name in listing.split("\0") if name]


def _found_by_walking() -> list[Path]:
    def is_ours(part: str) -> bool:
        hidden = part.startswith(".") and part not in {".ci", ".gitignore", ".editorconfig"}
        return not hidden and part not in _NOT_OURS and not part.endswith(".egg-info")

    return [path for path in sorted(ROOT.rglob("*")) if all(map(is_ours, path.relative_to(ROOT).parts))]
