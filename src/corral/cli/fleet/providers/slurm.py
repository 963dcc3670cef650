"""Options of Slurm: ``corral fleet up --on slurm``."""

from __future__ import annotations

from typing import Any

import rich_click as click

from corral.cli.fleet.providers.pilots import Option, pilot_settings

_WORDS = ("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude", "gres")
_PANEL = "On Slurm"

OPTIONS: tuple[Option, ...] = (
    click.option("--partition", metavar="NAME", help="As in sbatch.", panel=_PANEL),
    click.option("--account", metavar="NAME", help="As in sbatch.", panel=_PANEL),
    click.option("--qos", metavar="NAME", help="As in sbatch.", panel=_PANEL),
    click.option("--constraint", metavar="LIST", help="As in sbatch.", panel=_PANEL),
    click.option("--reservation", metavar="NAME", help="As in sbatch.", panel=_PANEL),
    click.option("--nodelist", metavar="NODES", help="As in sbatch.", panel=_PANEL),
    click.option("--exclude", metavar="NODES", help="As in sbatch.", panel=_PANEL),
    click.option("--gres", metavar="LIST", help="As in sbatch; for example gpu:h100:8.", panel=_PANEL),
    click.option("--gpus", type=click.IntRange(min=0), metavar="N", help="GPUs per node.", panel=_PANEL),
    click.option("--cpus", type=click.IntRange(min=1), metavar="N", help="CPUs per node.", panel=_PANEL),
    click.option(
        "--memory-mib",
        type=click.IntRange(min=1),
        metavar="N",
        help="Memory per node, in MiB.",
        panel=_PANEL,
    ),
    click.option(
        "--exclusive/--shared",
        default=None,
        panel=_PANEL,
        help="Request whole nodes; the default unless --gpus, --gres, --cpus or --memory-mib is given.",
    ),
    click.option(
        "--as-user",
        metavar="USER",
        panel=_PANEL,
        help="Submit as this user; the server must run as root.",
    ),
    click.option("--slurm-conf", metavar="FILE", help="Path of slurm.conf.", panel=_PANEL),
    click.option(
        "--sbatch", "sbatch_words", metavar="WORD", multiple=True, panel=_PANEL, help="Additional option for sbatch."
    ),
)

NAMES = frozenset(
    {*_WORDS, "gpus", "cpus", "memory_mib", "exclusive", "as_user", "slurm_conf", "sbatch_words", "corral", "folder",
     "fake_gpus", "grace"}
)  # fmt: skip


def settings(given: dict[str, Any]) -> dict[str, Any]:
    plain = (*_WORDS, "gpus", "cpus", "memory_mib", "exclusive", "slurm_conf")
    found = {name: given[name] for name in plain if name in given}
    found |= {"user": given["as_user"]} if "as_user" in given else {}
    found |= {"extra": list(given["sbatch_words"])} if "sbatch_words" in given else {}
    return found | pilot_settings(given)
