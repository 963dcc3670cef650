"""``corral config``: the configuration file of a server: an example, a check, and the effective values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.errors import UNHEALTHY, Complaint
from corral.cli.lazy import Noun
from corral.cli.render import print_line, print_note, write_json

if TYPE_CHECKING:
    from corral.wire.config import Config

_file = click.argument("file", required=False, envvar="CORRAL_CONFIG")


@click.group(cls=Noun)
def config() -> None:
    """The configuration of a server: write an example, check a file, show effective values."""


@config.command()
@_file
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
def show(file: str | None, as_json: bool) -> None:
    """Print the effective configuration; without FILE, the defaults."""
    from corral.wire.config import Config, write_config

    found = write_config(Config() if file is None else read_file(file))
    if as_json:
        write_json(found)
    else:
        print_line(_yaml(found).rstrip())


@config.command()
@click.argument("file", envvar="CORRAL_CONFIG")
def check(file: str) -> None:
    """Check a configuration file and report all errors."""
    read_file(file, UNHEALTHY)
    print_line(f"{file} is valid")


@config.command()
@click.argument("file", default="corral.yaml")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def init(file: str, force: bool) -> None:
    """Write an example with all keys and their defaults."""
    from corral.wire.config import Config, write_config

    if Path(file).exists() and not force:
        raise Complaint(f"{file} exists already", "name another file, or give --force")
    head = "# The configuration of a Corral server. Every key may be left out; these are the defaults.\n"
    try:
        Path(file).write_text(head + _yaml(write_config(Config())), encoding="utf-8")
    except OSError as error:
        raise Complaint(f"{file} cannot be written: {error.strerror}", "name another file") from None
    print_line(f"wrote {file}")
    print_note(f"  corral config check {file}\n  corral up --config {file}", dim=True)


def read_file(path: str, exit_code: int = 2) -> Config:
    """The configuration in a file. Raises one ``Complaint`` with all errors in it."""
    from corral.cli.jobs.documents import BadFile
    from corral.wire.config import Config, read_config

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise Complaint(f"{path} cannot be read: {why}", "corral config init writes an example") from None
    found = read_config(text, path)
    if isinstance(found, Config):
        return found
    bad = BadFile([(str(each.place), each.fault.why, each.fault.hint) for each in found])
    bad.code = exit_code
    raise bad


def _yaml(document: object) -> str:
    from io import StringIO

    from ruamel.yaml import YAML

    out = StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(document, out)
    return out.getvalue()
