"""``corral slurm install``: the commands of Slurm as small programs in a folder, for use outside of jobs."""

from __future__ import annotations

import os

import rich_click as click

from corral.cli.errors import REFUSED, Complaint
from corral.cli.lazy import Noun
from corral.cli.render import print_line, print_note


@click.group(cls=Noun)
def slurm() -> None:
    """The commands of Slurm for scripts and tools that call them: sbatch, squeue, srun and others."""


@slurm.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--force", is_flag=True, help="Replace programs of the same names in the folder.")
def install(folder: str, force: bool) -> None:
    """Write the commands of Slurm into a folder, which you put first into PATH.

    Inside jobs from scripts with #SBATCH lines they come first by themselves.
    """
    from corral.runtime.slurm_shims import COMMANDS, write_shims

    try:
        os.makedirs(folder, exist_ok=True)
        if force:
            for name in COMMANDS:
                if os.path.lexists(f"{folder}/{name}"):
                    os.unlink(f"{folder}/{name}")
        write_shims(folder)
    except FileExistsError as there:
        hint = "name an empty folder, or replace them with --force"
        raise Complaint(f"{there.filename} exists", hint, exit_code=REFUSED) from None
    except OSError as fault:
        raise Complaint(f"{folder}: {fault.strerror}", "name a folder that you may write to") from None
    print_line(f"{len(COMMANDS)} commands in {os.path.abspath(folder)}: {', '.join(COMMANDS)}")
    print_note(f'  export PATH="{os.path.abspath(folder)}:$PATH"', dim=True)
