"""``corral completion``: what a shell needs to complete commands and options."""

from __future__ import annotations

import rich_click as click

from corral.cli.complaint import Complaint
from corral.cli.words import Word

PLACES = {
    "bash": '~/.bashrc: eval "$(corral completion bash)"',
    "zsh": '~/.zshrc: eval "$(corral completion zsh)"',
    "fish": "~/.config/fish/config.fish: corral completion fish | source",
}


@click.command(epilog="Put into " + "; or into ".join(PLACES.values()))
@click.argument("shell", type=Word(*PLACES))
def completion(shell: str) -> None:
    """Print the completion script of a shell: bash, zsh or fish."""
    from click.shell_completion import get_completion_class

    from corral.cli.main import corral

    kind = get_completion_class(shell)
    if kind is None:
        raise Complaint(f"there is no completion for {shell}", "there are: bash, zsh, fish")
    click.echo(kind(corral, {}, "corral", "_CORRAL_COMPLETE").source())
