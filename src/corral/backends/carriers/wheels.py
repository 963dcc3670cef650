"""What an agent is made of, to be carried to machines that can fetch nothing: wheels of Corral and of what it needs.

By default they are made from what this very process runs, so that both sides are of one version; for machines with
another Python, from a folder of wheels. Knows distributions, wheels and their tags; knows no machine.
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

_OURSELVES = sys.modules[__name__.partition(".")[0]]  # the package, whose name no layer below it may say
_VERSION = str(_OURSELVES.__version__)

CORRAL = "corral-scheduler"
#: What a pilot imports of others; with them comes what they need themselves.
ROOTS = ("msgspec", "nvidia-ml-py", "rich-click")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same wheel at any time


class NoWheels(Exception):
    """There is no agent for such a machine. What is missing, and how to get it."""


class Wheel(Struct, frozen=True, gc=False):
    """``name``: of the file. ``mark``: changes with anything in it, and with nothing else."""

    name: str
    tags: frozenset[str]
    body: bytes
    mark: str


class Interpreter(Struct, frozen=True, gc=False):
    """As much of a machine's Python as decides which wheels fit. ``libc``: glibc or musl."""

    version: tuple[int, int]
    machine: str
    libc: str

    def __str__(self) -> str:
        return f"Python {self.version[0]}.{self.version[1]} on {self.machine} with {self.libc}"


class Agent(Struct, frozen=True, gc=False):
    """All wheels of an agent. ``mark`` names exactly this one."""

    wheels: tuple[Wheel, ...]
    mark: str


def agent_for(interpreter: Interpreter, folder: str = "") -> Agent:
    """The agent for such a machine; raises `NoWheels`."""
    wheels = _from_folder(folder, interpreter) if folder else own_wheels()
    unfit = [wheel.name for wheel in wheels if not any(_fits(tag, interpreter) for tag in wheel.tags)]
    if unfit:
        raise NoWheels(f"{', '.join(unfit)} cannot be used by {interpreter}; {_how(interpreter)}")
    digest = hashlib.sha256("".join(sorted(wheel.mark for wheel in wheels)).encode())
    return Agent(wheels, f"{_VERSION}-{digest.hexdigest()[:16]}")


def _how(interpreter: Interpreter) -> str:
    version = "{}.{}".format(*interpreter.version)
    return (
        "set python to one like that of the server, or wheels to a folder filled by: pip download --only-binary :all: "
        f"--python-version {version} -d FOLDER corral-scheduler=={_VERSION}"
    )


# --- of what runs here ------------------------------------------------------------------------------------------------


@cache
def own_wheels() -> tuple[Wheel, ...]:
    """One for each distribution that an agent needs, as it is installed here."""
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
                raise NoWheels(f"{name} is not installed beside Corral, so no agent can be made from it") from None
            continue  # for other Pythons or systems
        found.add(name)
        todo += [match[0] for each in requires if "extra ==" not in each and (match := _NAME.match(each))]
    return found


def _repacked(distribution: metadata.Distribution) -> Wheel:
    root = Path(str(distribution.locate_file("")))
    files = [str(file) for file in distribution.files or ()]
    kept = sorted(file for file in files if not file.startswith("..") and "__pycache__" not in file)
    tags = re.findall(r"^Tag: (\S+)$", distribution.read_text("WHEEL") or "", re.MULTILINE)
    content = ((file, root / file) for file in kept if not file.endswith(("/RECORD", "/INSTALLER", "/REQUESTED")))
    return _wheel(distribution.name, distribution.version, frozenset(tags or ["py3-none-any"]), content)


def _own_corral() -> Wheel:
    """From the sources that run, wherever they lie: in a checkout as well."""
    package = Path(str(_OURSELVES.__file__)).resolve().parent
    files = sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    content = ((path.relative_to(package.parent).as_posix(), path) for path in files)
    return _wheel(CORRAL, _VERSION, frozenset(["py3-none-any"]), content)


def _wheel(name: str, version: str, tags: frozenset[str], content: Iterator[tuple[str, Path]]) -> Wheel:
    body, mark = io.BytesIO(), hashlib.sha256()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path, source in content:
            if not source.is_file():
                continue
            data = source.read_bytes()
            mark.update(f"{path}\0{len(data)}\0".encode() + data)
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), data, zipfile.ZIP_DEFLATED)
    stem = re.sub(r"[-.]+", "_", name)
    return Wheel(f"{stem}-{version}-{sorted(tags)[0]}.whl", tags, body.getvalue(), mark.hexdigest())


# --- of a folder ------------------------------------------------------------------------------------------------------


def _from_folder(folder: str, interpreter: Interpreter) -> tuple[Wheel, ...]:
    """All that fit; one that is for others only is none of ours."""
    try:
        paths = sorted(Path(folder).glob("*.whl"))
    except OSError as wrong:
        raise NoWheels(f"{folder} cannot be read: {wrong.strerror}") from None
    found = []
    for path in paths:
        tags = _tags_of(path.name)
        if any(_fits(tag, interpreter) for tag in tags):
            body = path.read_bytes()
            found.append(Wheel(path.name, tags, body, hashlib.sha256(body).hexdigest()))
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
    """How old a glibc may be is not looked at: whatever has such a Python is young enough."""
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
