"""``sbcast``: copy a file to all nodes of the job that this runs in, by a job step."""

from __future__ import annotations

import os
import sys

from corral.cli.slurm.shim_parts.arguments import OptionTable
from corral.cli.slurm.shim_parts.shim_session import VERSION, usage
from corral.runtime.steps.seat_link import own_finder
from corral.runtime.steps.step_client import StepPlan, StepRun
from corral.runtime.steps.step_environment import base_environment

TABLE = OptionTable(
    "jobid/j size/s timeout/t fanout/F exclude",
    "compress/C force/f preserve/p verbose/v version/V help usage send-libs",
)
#: Written beside its place and renamed, so that no process ever sees a part of the file.
_WRITE = (
    'umask 077; part="$2.part.$$"; trap \'rm -f -- "$part"\' EXIT; '
    '[ "$1" = 1 ] || [ ! -e "$2" ] || { echo "sbcast: error: $2: File exists" >&2; exit 1; }; '
    'cat >"$part" && chmod "$3" "$part" && { [ -z "$4" ] || touch -d "@$4" "$part"; } && mv -f -- "$part" "$2"'
)


def main(words: list[str]) -> int:
    from corral.cli.slurm.shim_parts.arguments import UsageError

    try:
        options, rest = TABLE.read(words, mixed=True)
    except UsageError as wrong:
        return usage("sbcast", str(wrong), 1)
    given = dict(options)
    if "version" in given:
        print(VERSION)
        return 0
    if len(rest) != 2:
        print(f"sbcast: error: Need two file names, have {len(rest)} names", file=sys.stderr)
        return 1
    finder = own_finder()
    if finder is None:
        print("sbcast: error: Command only valid from within a job: use corral cp from outside", file=sys.stderr)
        return 1
    source, target = rest
    target = f"{target}{os.path.basename(source)}" if target.endswith("/") else target
    try:
        fd = os.open(source, os.O_RDONLY)
    except OSError as fault:
        print(f"sbcast: error: Can't open `{source}`: {fault.strerror}", file=sys.stderr)
        return 1
    state = os.fstat(fd)
    os.dup2(fd, 0)
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1") or 1)
    kept = str(int(state.st_mtime)) if "preserve" in given else ""
    mode = f"{state.st_mode & 0o7777:o}" if "preserve" in given else "700" if state.st_mode & 0o100 else "600"
    force = "1" if "force" in given else "0"
    plan = StepPlan(
        {"tasks": nodes, "nodes": nodes, "per_node": 1, "cpus": 0, "gpus": 0, "overlaps": True, "is_whole": False},
        ["/bin/sh", "-c", _WRITE, "sbcast", force, target, mode, kept],
    )
    plan.env, plan.directory = base_environment(dict(os.environ)), os.getcwd()
    plan.input, plan.name = -1, "sbcast"
    plan.kills_on_failure = True

    def tell(text: str) -> None:
        print(f"sbcast: {text}", file=sys.stderr)

    return StepRun(finder, plan, tell).run()
