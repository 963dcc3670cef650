"""``corral completion``: scripts with which a shell completes commands, options, and names that the server knows."""

from __future__ import annotations

import os

import rich_click as click

from corral.cli.option_types import Word

VARIABLE = "_CORRAL_COMPLETE"  # as in completion_values, which is loaded only when a shell completes
PLACES = {
    "bash": '~/.bashrc: eval "$(corral completion bash)"',
    "zsh": '~/.zshrc: eval "$(corral completion zsh)"',
    "fish": "~/.config/fish/config.fish: corral completion fish | source",
}


@click.command(epilog="Put into " + "; or into ".join(PLACES.values()))
@click.argument("shell", type=Word(*PLACES))
def completion(shell: str) -> None:
    """Print the completion script of a shell: bash, zsh or fish."""
    from corral.cli.main import corral

    os.environ[VARIABLE] = f"{shell}_source"  # the name of the variable that click reads
    try:
        corral.main(args=[], prog_name="corral", complete_var=VARIABLE)
    finally:
        del os.environ[VARIABLE]
