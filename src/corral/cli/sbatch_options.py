"""Options of ``sbatch`` and ``srun`` that ``submit`` and ``run`` accept beside their own, with Slurm's meaning.

An option that both have is Corral's, unless its value is one that only Slurm accepts (``--time 90``, ``--mem 4G``), or
it shares out resources together with an option that only Slurm has (``-N 2 -n 16 -c 4``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import rich_click as click

if TYPE_CHECKING:
    from corral.wire.job.directives import Directive

SBATCH = "corral.sbatch"  # key of ctx.meta with the options that are Slurm's, as --name=value

_SHARED_OUT = frozenset({"nodes", "gpus", "cpus-per-task", "mem"})  # depend on the layout of tasks in Slurm
_LAYOUT = frozenset({"ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres", "cpus-per-gpu"})
_ONLY_SLURM = {"time": re.compile(r"\d+"), "mem": re.compile(r"\d+[KMGTkmgt]?")}


def take_slurm(
    args: Sequence[str], params: Sequence[click.Parameter], *, starts_tasks: bool
) -> tuple[list[str], list[str]]:
    """What is left for the command's own parser, and the options that are Slurm's. ``starts_tasks``: as srun, which
    starts each of ``--ntasks``; sbatch only allocates for them."""
    own = {name: param for param in params if isinstance(param, click.Option) for name in param.opts}
    split = list(_options(args, own))
    shares = any(theirs is not None and theirs.name in _LAYOUT and ours is None for _, theirs, ours, _ in split)
    left: list[str] = []
    slurms: list[str] = []
    for words, theirs, ours, value in split:
        if theirs is None or not _is_slurms(theirs, ours, value, shares):
            left += words
        elif starts_tasks and theirs.name == "ntasks":
            left += ["--tasks", value or ""]
        else:
            slurms.append(f"--{theirs.name}" + ("" if value is None else f"={value}"))
    return left, slurms


def _is_slurms(theirs: Directive, ours: click.Option | None, value: str | None, shares: bool) -> bool:
    if ours is None:
        return True
    only = _ONLY_SLURM.get(theirs.name)
    return (shares and theirs.name in _SHARED_OUT) or (only is not None and only.fullmatch(value or "") is not None)


def _options(
    args: Sequence[str], own: Mapping[str, click.Option]
) -> Iterator[tuple[list[str], Directive | None, click.Option | None, str | None]]:
    """Each option with its value: the words, what it is in Slurm and here, and the value. Other words alone."""
    from corral.wire.job.directives import BY_NAME, BY_SHORT, Takes

    at = 0
    while at < len(args):
        word = args[at]
        at += 1
        if word.startswith("--"):
            name, equals, text = word.partition("=")
            theirs, value = BY_NAME.get(name[2:]), text if equals else None
        elif word.startswith("-") and len(word) > 1:
            name, value = word[:2], word[2:].removeprefix("=") or None
            theirs = BY_SHORT.get(word[1])
        else:
            yield [word], None, None, None
            continue
        ours, words = own.get(name), [word]
        is_flag = ours.is_flag if ours is not None else theirs is None or theirs.takes is not Takes.VALUE
        if not is_flag and value is None and at < len(args):
            value = args[at]
            words.append(value)
            at += 1
        yield words, theirs, ours, value
