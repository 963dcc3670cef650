"""``corral open``: the dashboard in a browser, signed in."""

from __future__ import annotations

import rich_click as click

from corral.cli.render import print_line, print_note
from corral.cli.session import connected


@click.command("open")
@click.option("--print", "only_print", is_flag=True, help="Only print the link.")
def open_dashboard(only_print: bool) -> None:
    """Open the dashboard in a browser, signed in as you.

    The link works once, within a minute. The first browser that opens it is signed in as you, so do not pass it on.
    """
    import webbrowser

    with connected() as client:
        made = client.make_session_code()
        url = f"{client.url.rstrip('/')}/#/sign-in?code={made.code}"
    print_line(url)
    if not only_print and not webbrowser.open(url):
        print_note("no browser was found; open the link within a minute", dim=True)
