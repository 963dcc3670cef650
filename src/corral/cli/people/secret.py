"""``corral secret``: values that jobs get by name. They come from standard input, never from the command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.complaint import Complaint
from corral.cli.lazy import Noun
from corral.cli.render import Field, Listing, ago, say, tell
from corral.cli.session import connected

if TYPE_CHECKING:
    from corral.wire.api.people import SecretView

SECRETS: Listing[SecretView] = Listing(
    {
        "name": Field(lambda secret: secret.name, title="SECRET"),
        "queue": Field(lambda secret: secret.queue or "(all)"),
        "set_ms": Field(lambda secret: f"{ago(secret.set_ms)} ago", title="SET"),
    },
    ("name", "queue", "set_ms"),
)

_queue = click.option("--queue", "-q", metavar="QUEUE", default="", help="For jobs of this queue and below; else all.")


@click.group(cls=Noun, invoke_without_command=True)
@click.pass_context
def secret(ctx: click.Context) -> None:
    """Secrets: values that jobs get by name, and nobody is shown."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_secrets, fields=None, as_json=False)


@secret.command("list")
@SECRETS.options
def list_secrets(fields: str | None, as_json: bool) -> None:
    """Names of secrets; their values are never shown."""
    with connected() as client:
        found = client.secrets().secrets
    SECRETS.write(found, fields, as_json, empty="no secrets")


@secret.command("set")
@click.argument("name")
@_queue
def set_secret(name: str, queue: str) -> None:
    """Keep a value, read from standard input (asked for on a terminal). One newline at its end is dropped."""
    value = click.prompt(f"value of {name}", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.read()
    value = value.removesuffix("\n")
    if not value:
        raise Complaint("the value is empty", f"write it to standard input: corral secret set {name} < file")
    with connected() as client:
        client.set_secret(name, value, queue)
    tell(f"secret {name} is set for {queue or 'all queues'}")
    say(f"  in a job file: secrets: {{VARIABLE: {name}}}", dim=True)


@secret.command("new-key")
@click.argument("file")
def new_key(file: str) -> None:
    """Put a new key that seals secrets in front of those in FILE, which is made if there is none.

    The server uses it from its next start, and seals all values with it then. Later the older keys can be removed.
    """
    from pathlib import Path

    from corral.server.vault.keys import BadKey, add_key

    try:
        add_key(Path(file))
    except (OSError, BadKey) as error:
        raise Complaint(f"no key was made: {error}", "name a file that only you can read") from None
    tell(f"{file} has a new key")
    say(f"  in the configuration of every server: secrets: {{key_file: {file}}}", dim=True)


@secret.command()
@click.argument("name")
@_queue
def remove(name: str, queue: str) -> None:
    """Forget a value."""
    with connected() as client:
        client.remove_secret(name, queue)
    tell(f"secret {name} is removed")
