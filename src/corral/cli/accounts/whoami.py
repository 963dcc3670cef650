"""``corral whoami``: the user that the server sees, with roles and rights."""

from __future__ import annotations

import rich_click as click

from corral.cli.accounts.user import role_text
from corral.cli.render import clock, print_line, style, write_json
from corral.cli.session import connected


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
def whoami(as_json: bool) -> None:
    """Show your user, roles and rights."""
    with connected() as client:
        found, url = client.whoami(), client.url
    if as_json:
        write_json(found)
        return
    lines = {
        "user": found.user,
        "server": url,
        "roles": ", ".join(map(role_text, found.roles)) or "none",
        "account": found.account,
        "token": found.token + (f", until {clock(found.expires_ms)}" if found.expires_ms else ""),
        "scope": ", ".join(found.scope) or "all rights of the user",
    }
    for title, text in lines.items():
        if text:
            print_line(f"{style(title, dim=True)}{' ' * (10 - len(title))}{text}")
