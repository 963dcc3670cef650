"""``corral token``: tokens, with which users and programs authenticate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.lazy import Noun
from corral.cli.option_types import Span
from corral.cli.render import Field, Listing, ago, clock, print_line, print_note, write_json
from corral.cli.session import connected

if TYPE_CHECKING:
    from corral.wire.api.accounts import TokenView

TOKENS: Listing[TokenView] = Listing(
    {
        "id": Field(lambda token: token.id, title="TOKEN"),
        "user": Field(lambda token: token.user),
        "name": Field(lambda token: token.name or "-"),
        "scope": Field(lambda token: ", ".join(token.scope) or "all rights of the user", shrinks=True),
        "issued_ms": Field(lambda token: f"{ago(token.issued_ms)} ago", title="ISSUED"),
        "expires_ms": Field(lambda token: clock(token.expires_ms) if token.expires_ms else "never", title="EXPIRES"),
    },
    ("id", "user", "name", "scope", "issued_ms", "expires_ms"),
)


@click.group(cls=Noun)
def token() -> None:
    """Tokens, with which users and programs authenticate."""


@token.command("list")
@click.option("--user", metavar="NAME", default="", help="Tokens of another user.")
@TOKENS.options
def list_tokens(user: str, fields: str | None, as_json: bool) -> None:
    """List tokens. Their values were shown once and cannot be shown again."""
    with connected() as client:
        found = client.tokens(user).tokens
    TOKENS.write(found, fields, as_json, empty="no tokens")


@token.command()
@click.argument("name", default="")
@click.option("--user", metavar="NAME", default="", help="Create it for another user.")
@click.option("--scope", metavar="VERB,...", default="", help="Restrict the token to these verbs; default: all.")
@click.option("--expires", type=Span(), metavar="TIME", help="Lifetime; default: does not expire.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
def make(name: str, user: str, scope: str, expires: int | None, as_json: bool) -> None:
    """Create a token. Its value is printed once, alone on standard output."""
    verbs = tuple(part.strip() for part in scope.split(",") if part.strip())
    with connected() as client:
        made = client.make_token(name, user=user, scope=verbs, expires_in_ms=expires)
        url = client.url
    if as_json:
        write_json(made)
        return
    print_line(made.token)
    print_note(f"token {made.id} of {made.user}; it is not shown again. To use it:", dim=True)
    print_note(f"  export CORRAL_URL={url} CORRAL_TOKEN=...", dim=True)


@token.command()
@click.argument("token")
def revoke(token: str) -> None:
    """Revoke a token, given its id or its value; only the id is sent."""
    parts = token.split("_", 2)
    token = parts[1] if len(parts) == 3 and parts[0] == "corral" else token
    with connected() as client:
        client.revoke_token(token)
    print_line(f"token {token} is revoked")
