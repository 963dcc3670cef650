"""Job documents from options of a command line: ``corral run --gpus 2 --time 1h -- python train.py``.

Options are text; this knows which keys are numbers, flags or lists. It does not check values: ``parse_job`` does, and
``option_of`` names the option of a fault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from corral.duration_text import write_span
from corral.wire.document.errors import Path, Wrong
from corral.wire.job.keys import GANG_KEYS, GPU_KEYS, JOB_KEYS
from corral.wire.job.slurm_units import SLURM_AFTER, slurm_span


class Option(Struct, frozen=True):
    """An option that sets a key. ``many``: may be repeated; ``is_flag``: takes no value; ``names``: as typed."""

    names: tuple[str, ...]
    key: str
    help: str
    metavar: str = ""
    many: bool = False
    is_flag: bool = False

    @property
    def name(self) -> str:
        """The name of its parameter: ``time_limit`` for ``--time-limit``."""
        return self.names[0].lstrip("-").replace("-", "_")


#: Short names of some options.
_SHORT = {
    "name": ("-J",),
    "queue": ("-q",),
    "gpus": ("-g",),
    "nodes": ("-N",),
    "time_limit": ("--time", "-t"),
    "cpus": ("-c",),
    "memory": ("--mem",),
    "array": ("-a",),
    "env": ("-e",),
    "output": ("-o",),
    "directory": ("-D", "--chdir"),
    "after": ("--dependency", "-d"),
    "labels": ("-l",),
}
_SINGULAR = {"labels": "label", "secrets": "secret", "mounts": "mount", "resources": "resource"}
_METAVARS = {
    "gpus": "N|MODEL:N", "vram": "SIZE", "cpus": "N", "memory": "SIZE", "disk": "SIZE", "tasks": "N|A..B",
    "nodes": "N|A..B", "tp": "N", "spares": "N", "env": "K=V", "labels": "K=V", "secrets": "VAR=SECRET",
    "resources": "NAME=N", "mounts": "FROM:TO[:ro]", "output": "FILE", "error": "FILE", "compat": "slurm",
    "after": "[WHEN:]JOB", "array": "RANGE[%N]", "begin": "TIME", "deadline": "TIME", "time_limit": "TIME",
    "estimate": "TIME", "min_runtime": "TIME", "grace": "TIME", "start_timeout": "TIME", "restart_cost": "TIME",
    "stall_timeout": "TIME",
    "hold_on_fail": "TIME", "requeue_exit": "CODE", "signal": "SIG@TIME", "priority": "N|CLASS", "processes": "N|gpu",
    "umask": "MASK", "rerun_after_exit_0": "true|false", "export": "ALL|NONE|NAMES",
    "prefer": "LEVEL[@TIME]", "spread": "LEVEL[:N]", "within": "LEVEL", "retries": "N",
}  # fmt: skip
_PAIRS = ("env", "labels", "secrets", "resources")
_LISTS = ("after", "mounts")
_FLAGS = ("singleton", "checkpoints", "leave_slow_nodes", "hold")
_NOT_TYPED = ("command", "gpu", "preemptible")
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,14})", re.ASCII)
_SLURM_TIME = re.compile(r"(?:\d+-)?\d+(?::\d+)+|\d+-\d+", re.ASCII)
_DECIMAL = re.compile(r"\d{1,9}\.\d{1,6}", re.ASCII)
#: Keys whose texts may look like numbers.
_TEXTS = frozenset({"name", "queue", "array", "after", "output", "error", "directory", "image", "umask", "export"})


def job_options() -> tuple[Option, ...]:
    """Every option that describes a job, in the order of the reference."""
    found = [_option(key.name, key.help) for key in (*GANG_KEYS.keys, *JOB_KEYS.keys) if key.name not in _NOT_TYPED]
    model, vram = (GPU_KEYS.by_name[name].help.replace("`", "") for name in ("model", "vram"))
    found.append(Option(("--gpu-model",), "gpu.model", model, "MODEL", many=True))
    found.append(Option(("--gpu-vram",), "gpu.vram", vram, "RANGE"))
    found.append(Option(("--no-preempt",), "preemptible", "Do not preempt this job.", is_flag=True))
    return tuple(found)


def _option(key: str, says: str) -> Option:
    names = (f"--{_SINGULAR.get(key, key).replace('_', '-')}", *_SHORT.get(key, ()))
    return Option(names, key, says.replace("`", ""), _METAVARS.get(key, ""), key in (*_PAIRS, *_LISTS), key in _FLAGS)


def document_of(options: Mapping[str, Any], command: Sequence[str] = ()) -> dict[str, Any]:
    """The document for options (by ``Option.name``, texts or lists of them) and a command.

    Options that are None, False or empty were not given. A command of one word that contains spaces is a line for the
    shell; anything else is executed directly.
    """
    document: dict[str, Any] = {}
    for option in job_options():
        typed = options.get(option.name)
        if typed is None or typed is False or typed in ("", (), []):
            continue
        if option.key == "preemptible":
            document["preemptible"] = False
        elif option.key.startswith("gpu."):
            document.setdefault("gpu", {})[option.key[4:]] = list(typed) if option.many else typed
        else:
            document[option.key] = _value(option, typed)
    if len(command) == 1 and any(mark in command[0] for mark in " \t\n;|&<>$"):
        document["command"] = command[0]
    elif command:
        document["command"] = list(command)
    return document


def _value(option: Option, typed: Any) -> Any:
    if option.is_flag:
        return bool(typed)
    if option.key in _PAIRS:
        split = [(each.partition("=")[0], each.partition("=")[2]) for each in _several(typed)]
        return {name: _number(value) if option.key == "resources" else value for name, value in split}
    if option.key == "after":
        return [job for each in _several(typed) for part in each.split(",") for job in _dependencies(part)]
    if option.key in _LISTS:
        return _several(typed)
    if option.key == "time_limit" and _SLURM_TIME.fullmatch(typed):
        return _slurm_time(typed)
    if option.key == "prefer" and "@" in typed:
        level, _, wait = typed.partition("@")
        return {"level": level, "wait": wait}
    if option.key == "spread" and ":" in typed:
        level, _, most = typed.partition(":")
        return {"level": level, "max": _number(most)}
    return typed if option.key in _TEXTS else _number(typed)


def _dependencies(part: str) -> list[str]:
    """``any:12``, or as sbatch writes it: ``afterok:12:13``."""
    kind, *jobs = part.split(":")
    when = SLURM_AFTER.get(kind)
    return [f"{when}:{job}" for job in jobs] if when and jobs else [part]


def _slurm_time(typed: str) -> str:
    """``1:00:00`` and ``2-12``, as sbatch writes durations; what is not one is left for the error of ``parse_job``."""
    try:
        found = slurm_span(typed)
    except Wrong:
        return typed
    return typed if found is None else write_span(found)


def _several(typed: Any) -> list[str]:
    return [typed] if isinstance(typed, str) else list(typed)


def _number(typed: Any) -> Any:
    if isinstance(typed, str) and _INTEGER.fullmatch(typed):
        return int(typed)
    return float(typed) if isinstance(typed, str) and _DECIMAL.fullmatch(typed) else typed


def option_of(path: Path) -> str:
    """The option of a path of the document: ``--time-limit``; for the command, the command."""
    if not path or path[0] == "command":
        return "the command"
    whole = ".".join(str(step) for step in path[:2])
    for option in job_options():
        if option.key in (whole, path[0]):
            return option.names[0]
    return str(path[0])
