"""Fetch the libraries of the dashboard and put them into the repository: `python tools/vendor.py`.

Each package is pinned by version and by the SHA-256 of its archive; npm finds the registry. The files are stored as
published, except that imports by name become relative ones, because browsers know no names without a build step.
With `--check` nothing is written: the files in the repository must be exactly what the archives give.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
STATIC = ROOT / "src/corral/server/api/ui/static/vendor"
TESTS = ROOT / "tests/browser/vendor"


class Package(NamedTuple):
    name: str
    version: str
    sha256: str  # of the archive
    files: dict[str, Path]  # file of the archive -> where it goes
    append: str = ""  # to make a module of a plain script


PACKAGES = (
    Package(
        "preact",
        "11.2.0",
        "3c4456766bd32b6b534d52bf4e9c2a29b33e7eedf6e96ed479300ba1a7888ebf",
        {"dist/preact.mjs": STATIC / "preact.js", "hooks/dist/hooks.mjs": STATIC / "hooks.js"},
    ),
    Package(
        "@preact/signals-core",
        "1.14.5",
        "94c421ac996214c94f532fb4c43d8ede048a16df0cd9538ffb965174dbe8daba",
        {"dist/signals-core.mjs": STATIC / "signals-core.js"},
    ),
    Package(
        "@preact/signals",
        "2.11.4",
        "66ea8221dd8aaa0da2365d49c3f116b071d56cfb63b2e16c072c6b4e08a928b7",
        {"dist/signals.mjs": STATIC / "signals.js"},
    ),
    Package(
        "htm",
        "3.1.1",
        "2425b9bee11409177bcabc7f32e319926fc6690c1701c0b257c88bdff2d5ba90",
        {"dist/htm.mjs": STATIC / "htm.js"},
    ),
    Package(
        "uplot",
        "1.6.32",
        "4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d",
        {"dist/uPlot.iife.min.js": STATIC / "uplot.js", "dist/uPlot.min.css": STATIC / "uplot.css"},
        "\nexport default uPlot;\n",
    ),
    Package(
        "axe-core",
        "4.14.0",
        "2277b0a3ef47af9b52497faa3e71598e86e0a0e5e6eb295207a5657ede4709af",
        {"axe.min.js": TESTS / "axe.min.js"},
    ),
)
#: An import by name -> the file beside it.
IMPORTS = {
    "preact/hooks": "./hooks.js",
    "preact": "./preact.js",
    "@preact/signals-core": "./signals-core.js",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    asked = parser.parse_args()
    wrong = 0
    licences = []
    for package in PACKAGES:
        contents, licence = unpacked(package)
        if STATIC in {path.parent for path in package.files.values()}:
            licences.append(f"{package.name} {package.version}\n\n{licence.strip()}\n")
        for path, content in contents.items():
            wrong += stored(path, content, asked.check)
    wrong += stored(STATIC / "LICENSES.txt", ("\n" + "-" * 80 + "\n\n").join(licences), asked.check)
    return 1 if wrong else 0


def unpacked(package: Package) -> tuple[dict[Path, str], str]:
    """The files of a package as they are stored, and its licence."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
        name = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True).stdout.split()[-1]
        archive = Path(folder) / name
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != package.sha256:
            sys.exit(f"{package.name} {package.version}: the archive has SHA-256 {found}, not {package.sha256}")
        with tarfile.open(archive) as members:
            texts = {
                path: members.extractfile(f"package/{file}").read().decode() for file, path in package.files.items()
            }
            licence = members.extractfile("package/LICENSE").read().decode()
    return {path: as_module(path, text, package) for path, text in texts.items()}, licence


def read(members: tarfile.TarFile, file: str) -> str:
    found = members.extractfile(f"package/{file}")
    assert found is not None
    return found.read().decode()


def as_module(path: Path, text: str, package: Package) -> str:
    for name, file in IMPORTS.items():
        text = text.replace(f'from"{name}"', f'from"{file}"')
    lines = [line for line in text.splitlines() if not line.startswith("//# sourceMappingURL")]
    head = f"/* {package.name} {package.version}; licence: LICENSES.txt */\n"
    return head + "\n".join(lines).rstrip() + "\n" + (package.append if path.suffix == ".js" else "")


def stored(path: Path, content: str, is_check: bool) -> int:
    if is_check:
        same = path.exists() and path.read_text(encoding="utf-8") == content
        if not same:
            print(f"{path.relative_to(ROOT)} is not what the archive gives; run tools/vendor.py", file=sys.stderr)
        return 0 if same else 1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
