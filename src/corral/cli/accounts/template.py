"""``corral template``: job files to begin with, kept by the server for the site and for each user."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.errors import NOT_FOUND, Complaint
from corral.cli.lazy import Noun
from corral.cli.render import Field, Listing, ago, print_line, print_note
from corral.cli.session import connected

if TYPE_CHECKING:
    from corral.wire.api.accounts import TemplateView

TEMPLATES: Listing[TemplateView] = Listing(
    {
        "name": Field(lambda each: each.name, title="TEMPLATE"),
        "site": Field(lambda each: "all users" if each.site else "you", title="FOR"),
        "set_ms": Field(lambda each: f"{ago(each.set_ms)} ago", title="SET"),
    },
    ("name", "site", "set_ms"),
)

_site = click.option("--site", is_flag=True, help="The template is for all users; for administrators and operators.")


@click.group(cls=Noun)
def template() -> None:
    """Templates: job files to begin with, kept by the server."""


@template.command("list")
@TEMPLATES.options
def list_templates(fields: str | None, as_json: bool) -> None:
    """List templates of the site and your own."""
    with connected() as client:
        found = client.templates().templates
    TEMPLATES.write(found, fields, as_json, empty="no templates")


@template.command()
@click.argument("name")
def show(name: str) -> None:
    """Print a template, your own before one of the site. For example: corral template show NAME | corral submit -"""
    with connected() as client:
        found = sorted((each for each in client.templates().templates if each.name == name), key=lambda each: each.site)
    if not found:
        raise Complaint(f"there is no template {name!r}", "list them: corral template list", exit_code=NOT_FOUND)
    print_line(found[0].text.removesuffix("\n"))


@template.command("set")
@click.argument("name")
@click.argument("file")
@_site
def set_template(name: str, file: str, site: bool) -> None:
    """Store the job file FILE (- is standard input) under NAME, or replace it."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Complaint(f"cannot read {file}: {error}", "name a job file") from None
    with connected() as client:
        client.set_template(name, text, site=site)
    print_line(f"template {name} is stored for {'all users' if site else 'you'}")
    print_note(f"  submit it: corral template show {name} | corral submit -", dim=True)


@template.command()
@click.argument("name")
@_site
def remove(name: str, site: bool) -> None:
    """Remove a template."""
    with connected() as client:
        client.remove_template(name, site=site)
    print_line(f"template {name} is removed")
