"""Workloads by name: ``family:name``, or ``family:path`` for a file elsewhere.

Knows the layout of the folder of public traces and the reader of each family; knows no columns. The folder is an
argument or the environment variable CORRAL_TRACES; workloads that Corral generates need no folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from corral.sim.traces.acme import read_acme
from corral.sim.traces.corral_csv import read_table
from corral.sim.traces.gavel import GPU_TYPE, read_gavel, read_shockwave
from corral.sim.traces.generate import generate
from corral.sim.traces.helios import read_helios
from corral.sim.traces.itp import read_itp
from corral.sim.traces.muri import read_muri, read_tiresias
from corral.sim.traces.openb import read_openb
from corral.sim.traces.philly import read_philly, virtual_clusters
from corral.sim.traces.pollux import read_pollux
from corral.sim.traces.swf import read_swf
from corral.sim.traces.text_rows import TraceError, UnknownTrace, nearest
from corral.sim.traces.trace import Trace

FOLDER_VARIABLE = "CORRAL_TRACES"

_WITH_CPU_JOBS = "all"  # the option after @ that includes jobs without GPUs


class Family(Struct, frozen=True):
    """How the traces of one source are found and read."""

    read: Callable[[Path, str, str], Trace]  # path, full name, the option after @ or ""
    # Globs below the folder of the family, and the names of the files found; none: files are given by path only.
    patterns: tuple[tuple[str, Callable[[Path], str]], ...] = ()


def open_trace(name: str, folder: Path | str | None = None) -> Trace:
    """The workload of that name, for example ``muri:trace3``, ``gavel:debug@p100`` or ``swf:jobs/mine.swf``."""
    family_name, colon, rest = name.partition(":")
    if not colon or not rest:
        why = f"a workload is named family:name, for example muri:trace3.{nearest(family_name, FAMILIES)}"
        raise UnknownTrace(name, why)
    if family_name not in FAMILIES:
        raise UnknownTrace(name, f"there is no family {family_name!r} of traces.{nearest(family_name, FAMILIES)}")
    family = FAMILIES[family_name]
    before, at, after = rest.rpartition("@")
    bare, option = (before, after) if at and not Path(rest).is_file() else (rest, "")
    if _is_path(family, bare):
        return family.read(Path(bare).expanduser(), name, option)
    if family_name == "synthetic":
        return family.read(_pick(name, bare, _synthetic()), name, option)
    known = _files(family_name, _folder(name, folder))
    if family_name == "philly" and bare not in known and "all" in known and not option:
        return read_philly(known["all"], name, cluster=bare)
    return family.read(_pick(name, bare, known), name, option)


def list_traces(folder: Path | str | None = None) -> list[str]:
    """Every name that ``open_trace`` knows: those in the folder, if there is one, and those that come with Corral."""
    names = [f"synthetic:{name}" for name in _synthetic()]
    if folder is not None or os.environ.get(FOLDER_VARIABLE):
        root = _folder("list_traces", folder)
        for family in FAMILIES:
            known = _files(family, root)
            names += [f"{family}:{name}" for name in known]
            if family == "philly" and "all" in known:
                names += [f"philly:{cluster}" for cluster in virtual_clusters(known["all"])]
    return sorted(names)


def _folder(name: str, folder: Path | str | None) -> Path:
    given = folder if folder is not None else os.environ.get(FOLDER_VARIABLE)
    if not given:
        why = f"needs the folder of public traces. Set {FOLDER_VARIABLE} to it, or pass it as folder."
        raise UnknownTrace(name, why)
    path = Path(given).expanduser()
    if not path.is_dir():
        raise UnknownTrace(name, f"there is no folder {path}. Set {FOLDER_VARIABLE} to the folder of public traces.")
    return path


def _is_path(family: Family, rest: str) -> bool:
    return not family.patterns or os.sep in rest or rest.startswith(("~", ".")) or Path(rest).is_file()


def _files(family: str, root: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for pattern, named in FAMILIES[family].patterns:
        for path in sorted((root / family).glob(pattern)):
            found.setdefault(named(path), path)
    return _shortened(found) if family == "shockwave" else found


def _pick(name: str, wanted: str, known: dict[str, Path]) -> Path:
    """The file of that name, or the only one whose name continues with ``_``."""
    if wanted in known:
        return known[wanted]
    starting = [entry for entry in known if entry.startswith(wanted + "_")]
    if len(starting) == 1:
        return known[starting[0]]
    if starting:
        raise UnknownTrace(name, f"could be any of {', '.join(starting)}. Name one of them.")
    raise UnknownTrace(name, f"there is no such trace.{nearest(wanted, known) or ' The folder contains none.'}")


def _shortened(files: dict[str, Path]) -> dict[str, Path]:
    """Short names: the fewest parts of each name that are unique."""
    short: dict[str, Path] = {}
    for name, path in files.items():
        parts = name.split("_")
        for count in range(1, len(parts) + 1):
            prefix = "_".join(parts[:count])
            if sum(other == prefix or other.startswith(prefix + "_") for other in files) == 1:
                short[prefix] = path
                break
    return short


def _synthetic() -> dict[str, Path]:
    folder = Path(__file__).parent / "workloads"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def _bare(path: Path) -> str:
    """The name of the file without its extensions."""
    name = path.name.removesuffix(".gz")
    return name.rpartition(".")[0] or name


# --- readers of the families -------------------------------------------------------------------------------


def _read(reader: Callable[[Path, str], Trace]) -> Callable[[Path, str, str], Trace]:
    def read(path: Path, name: str, option: str) -> Trace:
        _no_option(name, option)
        return reader(path, name)

    return read


def _no_option(name: str, option: str) -> None:
    if option:
        raise UnknownTrace(name, f"this family has no options after @. Leave @{option} out.")


def _read_philly(path: Path, name: str, option: str) -> Trace:
    return read_philly(path, name, cluster=option or None)


def _read_openb(path: Path, name: str, option: str) -> Trace:
    _no_option(name, option)
    beside = [folder / "openb_node_list_gpu_node.csv" for folder in (path.parent, path.parent.parent)]
    return read_openb(path, next((found for found in beside if found.is_file()), None), name)


def _read_pollux(path: Path, name: str, option: str) -> Trace:
    _no_option(name, option)
    return read_pollux(path, name=name)


def _read_gavel(path: Path, name: str, option: str) -> Trace:
    for folder in (path.parent, path.parent.parent):
        for found in sorted(folder.glob("*_throughputs.json*")):
            return read_gavel(path, found, name, option or GPU_TYPE)
    why = "needs a file *_throughputs.json or *_throughputs.json.gz beside it or one folder above."
    raise TraceError(str(path), 0, "", why)


def _read_slurm(reader: Callable[[Path, str, bool], Trace]) -> Callable[[Path, str, str], Trace]:
    def read(path: Path, name: str, option: str) -> Trace:
        if option not in ("", _WITH_CPU_JOBS):
            raise UnknownTrace(name, f"after @ write {_WITH_CPU_JOBS} (to include jobs without GPUs), not {option!r}.")
        return reader(path, name, option == _WITH_CPU_JOBS)

    return read


def _read_synthetic(path: Path, name: str, option: str) -> Trace:
    if option and not option.isdecimal():
        raise UnknownTrace(name, f"after @ write a seed (a whole number), not {option!r}.")
    return generate(path, name, int(option) if option else None)


def _without(start: str = "", end: str = "") -> Callable[[Path], str]:
    return lambda path: _bare(path).removeprefix(start).removesuffix(end)


def _up_to(mark: str) -> Callable[[Path], str]:
    return lambda path: _bare(path).partition(mark)[0]


FAMILIES: dict[str, Family] = {
    "acme": Family(_read_slurm(read_acme), (("trace_*.csv*", _without("trace_")),)),
    "csv": Family(_read(read_table)),
    "gavel": Family(_read_gavel, (("physical_cluster/*.trace*", _bare),)),
    "helios": Family(_read_slurm(read_helios), (("*/cluster_log.csv*", lambda path: path.parent.name),)),
    "itp": Family(_read(read_itp), (("raw/*.csv*", _bare), ("*job.csv*", _bare))),
    "muri": Family(_read(read_muri), (("trace*.csv*", _bare), ("testbed*.csv*", _up_to("_")))),
    "openb": Family(_read_openb, (("pods/*.csv*", _without("openb_pod_list_")),)),
    "philly": Family(_read_philly, (("philly.csv*", lambda _: "all"), ("slices/*.csv*", _up_to("-")))),
    "pollux": Family(_read_pollux, (("workloads/*.csv*", _without("workload-")),)),
    "shockwave": Family(_read(read_shockwave), (("*.trace*", _bare),)),
    "swf": Family(_read(read_swf), (("*.swf*", _bare),)),
    "synthetic": Family(_read_synthetic, (("*.yaml", _bare),)),
    "tiresias": Family(_read(read_tiresias), (("*_job.csv*", _without(end="_job")),)),
    "yaml": Family(_read_synthetic),
}
