"""``corral whoami``: as whom the server sees you."""

from __future__ import annotations

import rich_click as click

from corral.cli.people.user import role_text
from corral.cli.render import clock, style, tell, write_json
from corral.cli.session import connected


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.", panel="Output")
def whoami(as_json: bool) -> None:
    """Say as whom the server sees you, and what you may do."""
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
        "good for": ", ".join(found.scope) or "all you may do",
    }
    for title, text in lines.items():
        if text:
            tell(f"{style(title, dim=True)}{' ' * (10 - len(title))}{text}")
