"""The wheels of an agent, for machines that cannot download anything: Corral and its dependencies.

By default they are made from what this process runs, so that both sides have the same version; for machines with
another Python, from a directory of wheels. Knows distributions, wheels and their tags, not machines.
"""

from __future__ import annotations

import hashlib
import io
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

from msgspec import Struct

_OURSELVES = sys.modules[__name__.partition(".")[0]]  # the package, which no layer below it may import
_VERSION = str(_OURSELVES.__version__)

CORRAL = "corral-scheduler"
#: The distributions that a pilot imports; their own dependencies are added.
ROOTS = ("msgspec", "nvidia-ml-py", "rich-click")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # so that the same content always gives the same wheel


class NoWheels(Exception):
    """There is no agent for such a machine. Says what is missing, and how to get it."""


class WheelFile(Struct, frozen=True, gc=False):
    """``name``: of the file. ``mark``: a hash of its content."""

    name: str
    tags: frozenset[str]
    body: bytes
    mark: str


class Interpreter(Struct, frozen=True, gc=False):
    """What decides which wheels fit a machine's Python. ``libc``: glibc or musl."""

    version: tuple[int, int]
    machine: str
    libc: str

    def __str__(self) -> str:
        return f"Python {self.version[0]}.{self.version[1]} on {self.machine} with {self.libc}"


class AgentBundle(Struct, frozen=True, gc=False):
    """All wheels of an agent. ``mark`` identifies exactly this content."""

    wheels: tuple[WheelFile, ...]
    mark: str


def agent_for(interpreter: Interpreter, folder: str = "") -> AgentBundle:
    """The agent for such a machine. Raises `NoWheels`."""
    wheels = _from_folder(folder, interpreter) if folder else own_wheels()
    unfit = [wheel.name for wheel in wheels if not any(_fits(tag, interpreter) for tag in wheel.tags)]
    if unfit:
        raise NoWheels(f"{', '.join(unfit)} cannot be used by {interpreter}; {_how(interpreter)}")
    digest = hashlib.sha256("".join(sorted(wheel.mark for wheel in wheels)).encode())
    return AgentBundle(wheels, f"{_VERSION}-{digest.hexdigest()[:16]}")


def _how(interpreter: Interpreter) -> str:
    version = "{}.{}".format(*interpreter.version)
    return (
        "set python to one of the server's version, or wheels to a directory filled by: pip download --only-binary "
        f":all: --python-version {version} -d DIRECTORY corral-scheduler=={_VERSION}"
    )


# --- from what runs here ----------------------------------------------------------------------------------------------


@cache
def own_wheels() -> tuple[WheelFile, ...]:
    """One wheel for each distribution that an agent needs, as installed here."""
    names = sorted(_needed())
    return (_own_corral(), *(_repacked(metadata.distribution(name)) for name in names))


def _needed() -> set[str]:
    found: set[str] = set()
    todo = list(ROOTS)
    while todo:
        name = _normal(todo.pop())
        if name in found:
            continue
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            if name in map(_normal, ROOTS):
                raise NoWheels(f"{name} is not installed beside Corral, so no agent can be built") from None
            continue  # for other Pythons or systems
        found.add(name)
        todo += [match[0] for each in requires if "extra ==" not in each and (match := _NAME.match(each))]
    return found


def _repacked(distribution: metadata.Distribution) -> WheelFile:
    root = Path(str(distribution.locate_file("")))
    files = [str(file) for file in distribution.files or ()]
    kept = sorted(file for file in files if not file.startswith("..") and "__pycache__" not in file)
    tags = re.findall(r"^Tag: (\S+)$", distribution.read_text("WHEEL") or "", re.MULTILINE)
    content = ((file, root / file) for file in kept if not file.endswith(("/RECORD", "/INSTALLER", "/REQUESTED")))
    return _wheel(distribution.name, distribution.version, frozenset(tags or ["py3-none-any"]), content)


def _own_corral() -> WheelFile:
    """From the running sources, also in a checkout."""
    package = Path(str(_OURSELVES.__file__)).resolve().parent
    files = sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    content = ((path.relative_to(package.parent).as_posix(), path) for path in files)
    return _wheel(CORRAL, _VERSION, frozenset(["py3-none-any"]), content)


def _wheel(name: str, version: str, tags: frozenset[str], content: Iterator[tuple[str, Path]]) -> WheelFile:
    body, mark = io.BytesIO(), hashlib.sha256()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path, source in content:
            if not source.is_file():
                continue
            data = source.read_bytes()
            mark.update(f"{path}\0{len(data)}\0".encode() + data)
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), data, zipfile.ZIP_DEFLATED)
    stem = re.sub(r"[-.]+", "_", name)
    return WheelFile(f"{stem}-{version}-{sorted(tags)[0]}.whl", tags, body.getvalue(), mark.hexdigest())


# --- from a directory -------------------------------------------------------------------------------------------------


def _from_folder(folder: str, interpreter: Interpreter) -> tuple[WheelFile, ...]:
    """All that fit; wheels for other machines are ignored."""
    try:
        paths = sorted(Path(folder).glob("*.whl"))
    except OSError as wrong:
        raise NoWheels(f"cannot read {folder}: {wrong.strerror}") from None
    found = []
    for path in paths:
        tags = _tags_of(path.name)
        if any(_fits(tag, interpreter) for tag in tags):
            body = path.read_bytes()
            found.append(WheelFile(path.name, tags, body, hashlib.sha256(body).hexdigest()))
    here = {_normal(wheel.name.partition("-")[0]) for wheel in found}
    missing = [name for name in (CORRAL, *ROOTS) if _normal(name) not in here]
    if missing:
        raise NoWheels(f"{folder} has no {', '.join(missing)} for {interpreter}; {_how(interpreter)}")
    return tuple(found)


def _tags_of(name: str) -> frozenset[str]:
    pythons, abis, platforms = (part.split(".") for part in name.removesuffix(".whl").split("-")[-3:])
    return frozenset(f"{p}-{a}-{s}" for p in pythons for a in abis for s in platforms)


def _fits(tag: str, interpreter: Interpreter) -> bool:
    python, abi, platform = tag.split("-", 2)
    return _fits_python(python, abi, interpreter.version) and _fits_platform(platform, interpreter)


def _fits_python(python: str, abi: str, version: tuple[int, int]) -> bool:
    if abi == "none":
        return python in ("py3", f"py3{version[1]}", f"cp3{version[1]}")
    number = python.removeprefix("cp3")
    if abi == "abi3":
        return number.isdecimal() and int(number) <= version[1]
    return python == abi == f"cp3{version[1]}"


def _fits_platform(platform: str, interpreter: Interpreter) -> bool:
    """The version of glibc is not checked: a machine with such a Python is new enough."""
    if platform == "any":
        return True
    kinds: Sequence[str] = ("musllinux",) if interpreter.libc == "musl" else ("manylinux", "linux")
    return platform.startswith(tuple(kinds)) and platform.endswith(f"_{interpreter.machine}")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def this_interpreter() -> Interpreter:
    import platform

    libc = "glibc" if platform.libc_ver()[0] == "glibc" else "musl"
    return Interpreter((sys.version_info[0], sys.version_info[1]), platform.machine(), libc)
