"""The init container of a pod: puts an interpreter and the supervisor into a volume, for an image that has neither.

The interpreter runs through the loader and the libraries that are copied with it, so the image needs no shell, no
Python and no particular C library. Runs in Corral's own image. ``--link``: where both containers see the same files
(the test nodes), links are enough.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

#: Below the folder of the volume.
RUNTIME = "runtime"
_LEFT_OUT = ("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages",
             "dist-packages", "__pycache__", "pydoc_data", "config-*", "*.pyc")  # fmt: skip
_PACKAGE = Path(__file__).parents[2]
#: Parts of the package that run in tasks.
_PARTS = ("runtime", "kubernetes", "io", "checkpoints", "client")


def main(arguments: list[str]) -> int:
    is_linked, folder = "--link" in arguments, Path(arguments[-1])
    into = folder / RUNTIME
    into.mkdir(parents=True, exist_ok=True)
    (_link if is_linked else _copy)(into)
    return 0


def _link(into: Path) -> None:
    (into / "bin").mkdir(exist_ok=True)
    (into / "lib").mkdir(exist_ok=True)
    _point(into / "bin/python3", Path(_interpreter()))
    _point(into / "loader", _loader())
    _point(into / "site", _PACKAGE.parent)


def _copy(into: Path) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (into / "bin").mkdir(exist_ok=True)
    shutil.copy2(_interpreter(), into / "bin/python3")
    (into / "lib").mkdir(exist_ok=True)
    loader = _loader()
    shutil.copy2(loader, into / "loader")
    ignored = shutil.ignore_patterns(*_LEFT_OUT)
    shutil.copytree(sysconfig.get_path("stdlib"), into / "lib" / version, ignore=ignored, dirs_exist_ok=True)
    for library in _libraries():
        if library != loader:
            shutil.copy2(library, into / "lib" / library.name)
    package, own = into / "site/corral", _PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    for part in _PARTS:
        shutil.copytree(own / part, package / part, ignore=ignored, dirs_exist_ok=True)
    for file in own.glob("*.py"):
        shutil.copy2(file, package / file.name)


def _libraries() -> list[Path]:
    """The shared libraries that the supervisor has mapped once all of it is imported; extension modules of the standard
    library are in its own folder."""
    from corral.kubernetes.pod import pod_start  # with all that it needs

    del pod_start

    found = {Path(os.path.realpath(path)) for path in _mapped() if ".so" in os.path.basename(path)}
    named = {Path(path) for path in _mapped() if ".so" in os.path.basename(path)}
    return sorted(
        path for path in found | named if "lib-dynload" not in path.parts and "site-packages" not in path.parts
    )


def _loader() -> Path:
    for path in _mapped():
        if os.path.basename(path).startswith(("ld-linux", "ld-musl", "ld64", "ld-2")):
            return Path(path)
    raise SystemExit("corral: this interpreter is not linked dynamically, so the supervisor cannot be delivered")


def _mapped() -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split(None, 5)[5] for line in lines if line.count(" /") and "/" in line.split(None, 5)[-1]})


def _interpreter() -> str:
    return os.path.realpath(sys.executable)


def _point(link: Path, target: Path) -> None:
    if not link.is_symlink():
        link.symlink_to(target)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
