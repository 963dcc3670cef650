"""``corral sim compare``: simulate one workload under several policies and compare them."""

from __future__ import annotations

from typing import Any

import rich_click as click

from corral.cli.errors import Complaint, nearest
from corral.cli.sim.options import Asked, asked_option, simulation_options


@click.command()
@asked_option(
    "--policy",
    metavar="A,B,…",
    multiple=True,
    default=("fifo,fair,standard",),
    show_default=True,
    help="Policies, separated by commas.",
)
@asked_option(
    "--baseline", metavar="POLICY", default=None, help="Policy that the others are compared with; default: the first."
)
@asked_option("--jobs", "-j", type=click.IntRange(min=1), metavar="N", default=1, help="Number of parallel processes.")
@simulation_options
def compare(**given: Any) -> int:
    """Simulate a workload under several policies and compare them.

    For example: corral sim compare --trace synthetic:lab --policy fifo,fair,standard
    """
    from corral.cli.sim.execute import answer

    given["policy"] = ",".join(given["policy"])
    names = tuple(name.strip() for name in given["policy"].split(",") if name.strip())
    if not names:
        raise Complaint("--policy names no policy", "write it like fifo,fair,standard")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Complaint(f"--policy names {twice!r} twice", "name each policy once")
    baseline = given.pop("baseline")
    if baseline is not None and baseline not in names:
        raise Complaint(f"--baseline {baseline!r} is not among the policies", nearest(baseline, names))
    first = names if baseline is None else (baseline, *(name for name in names if name != baseline))
    return answer(Asked(**given), first)
