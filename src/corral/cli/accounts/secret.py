"""``corral secret``: values that jobs use by name. They are read from standard input, not from the command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.errors import Complaint
from corral.cli.lazy import Noun
from corral.cli.render import Field, Listing, ago, print_line, print_note
from corral.cli.session import connected

if TYPE_CHECKING:
    from corral.wire.api.accounts import SecretView

SECRETS: Listing[SecretView] = Listing(
    {
        "name": Field(lambda secret: secret.name, title="SECRET"),
        "queue": Field(lambda secret: secret.queue or "(all)"),
        "set_ms": Field(lambda secret: f"{ago(secret.set_ms)} ago", title="SET"),
    },
    ("name", "queue", "set_ms"),
)

_queue = click.option(
    "--queue", "-q", metavar="QUEUE", default="", help="For jobs of this queue and its children; default: all jobs."
)


@click.group(cls=Noun)
def secret() -> None:
    """Secrets: values that jobs use by name. They are never shown."""


@secret.command("list")
@SECRETS.options
def list_secrets(fields: str | None, as_json: bool) -> None:
    """List the names of secrets. Values are never shown."""
    with connected() as client:
        found = client.secrets().secrets
    SECRETS.write(found, fields, as_json, empty="no secrets")


@secret.command("set")
@click.argument("name")
@_queue
def set_secret(name: str, queue: str) -> None:
    """Store a secret, read from standard input (or asked for on a terminal). One trailing newline is dropped."""
    value = click.prompt(f"value of {name}", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.read()
    value = value.removesuffix("\n")
    if not value:
        raise Complaint("the value is empty", f"write it to standard input: corral secret set {name} < file")
    with connected() as client:
        client.set_secret(name, value, queue)
    print_line(f"secret {name} is set for {queue or 'all queues'}")
    print_note(f"  in a job file: secrets: {{VARIABLE: {name}}}", dim=True)


@secret.command("new-key")
@click.argument("file")
def new_key(file: str) -> None:
    """Add a new encryption key for secrets in front of those in FILE, which is created if needed.

    At its next start the server encrypts all values with it. After that the older keys can be removed.
    """
    from pathlib import Path

    from corral.server.vault.sealing_keys import BadKey, add_key

    try:
        add_key(Path(file))
    except (OSError, BadKey) as error:
        raise Complaint(f"cannot add a key: {error}", "name a file that only you can read") from None
    print_line(f"{file} has a new key")
    print_note(f"  in the configuration of every server: secrets: {{key_file: {file}}}", dim=True)


@secret.command()
@click.argument("name")
@_queue
def remove(name: str, queue: str) -> None:
    """Remove a secret."""
    with connected() as client:
        client.remove_secret(name, queue)
    print_line(f"secret {name} is removed")
