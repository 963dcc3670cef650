"""Options of jobs on the command line: every key of a job document is an option of ``submit`` and ``run``.

The options come from the table of keys (``wire.job.shorthand``), which is loaded when one of these commands runs.
Everything after ``--`` is the command of the job and is not read as an option.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import rich_click as click

from corral.cli.errors import Complaint
from corral.cli.sbatch_options import SBATCH, take_slurm
from corral.wire.environment.export import ACTIVE

COMMAND = "corral.command"  # key of ctx.meta with the words after --
_SIZE = ("gpus", "gpu", "vram", "cpus", "memory", "disk", "resources", "tasks", "nodes", "processes", "spares")
_PLACE = ("tp", "within", "prefer", "spread")
_RUN = (
    "env",
    "export",
    "secrets",
    "directory",
    "image",
    "mounts",
    "output",
    "error",
    "umask",
    "signal",
    "compat",
    "checkpoints",
)


class JobCommand(click.RichCommand):
    """A command that describes a job: takes the keys of a job document as options, and its command after ``--``."""

    keys: tuple[click.Parameter, ...] = ()  # the options made from keys, created when first needed

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self.keys:
            self.keys = tuple(_key_options())
            self.params = [*self.params[:1], *self.keys, *self.params[1:]]
        return super().get_params(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[COMMAND] = tuple(args[at + 1 :])
            args = args[:at]
        args, ctx.meta[SBATCH] = take_slurm(_with_venv(args), self.get_params(ctx), starts_tasks=self.name == "run")
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def _with_venv(args: list[str]) -> list[str]:
    """``--venv`` alone means the active environment: the word after it is its value only if it is a directory."""
    if "--venv" not in args:
        return args
    at = args.index("--venv")
    after = (*args, "")[at + 1]
    folder = after if os.path.isdir(after) else ""
    if after and not folder and at + 2 == len(args) and not after.startswith("-") and not os.path.exists(after):
        raise Complaint(f"--venv: there is no directory {after}", "name the directory of an environment, or none")
    return [*args[:at], f"--venv={folder or ACTIVE}", *args[at + (2 if folder else 1) :]]


def _key_options() -> list[click.Parameter]:
    from corral.wire.job.shorthand import job_options

    def nothing() -> None:
        """Holds the options until the command is created."""

    for option in reversed(job_options()):
        _click_option(option.names, option.name, option.key, option)(nothing)
    any_key = "Set any key of the job file; values as in JSON."
    venv = "Use this Python environment (virtual environment or conda); without DIR, the active one."
    click.option("--venv", metavar="[DIR]", default="", panel="What runs", help=venv)(nothing)
    click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, panel="Job", help=any_key)(nothing)
    parameters: list[click.Parameter] = list(reversed(nothing.__click_params__))  # type: ignore[attr-defined]
    return parameters


def _click_option(names: tuple[str, ...], name: str, key: str, option: Any) -> Callable[[Any], Any]:
    top = key.partition(".")[0]
    panel = "Size" if top in _SIZE else "Place" if top in _PLACE else "What runs" if top in _RUN else "Job"
    text = option.help if len(option.help) < 90 else option.help.split(";")[0].split(":")[0].rstrip(".") + "."
    if option.is_flag:
        return click.option(*names, name, is_flag=True, help=text, panel=panel)
    metavar = option.metavar or name.upper()
    default = () if option.many else None
    return click.option(*names, name, metavar=metavar, default=default, multiple=option.many, help=text, panel=panel)


def stated(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a job document that were given as options, as JSON values."""
    from corral.wire.job.shorthand import document_of

    for name in ("label", "secret", "resource"):
        for pair in given[name]:
            if "=" not in pair:
                raise Complaint(f"--{name} cannot be {pair!r}", "write it like NAME=value")
    found = document_of({**given, "env": tuple(map(_variable, given["env"]))})
    for pair in given["settings"]:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise Complaint(f"--set cannot be {pair!r}", "write it like --set grace=2m")
        found[key] = _json(text)
    return found


def _variable(pair: str) -> str:
    """``NAME=value``; ``NAME`` alone takes the value from this shell."""
    if "=" in pair:
        return pair
    if pair not in os.environ:
        raise Complaint(f"--env {pair}: it is not set in your environment", "write it like NAME=value")
    return f"{pair}={os.environ[pair]}"


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
