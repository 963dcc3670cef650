"""Options of commands that connect to a broker: its address, and its password from a file or the environment."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click

from corral.cli.errors import Complaint

F = TypeVar("F", bound=Callable[..., Any])

_PASSWORD_BYTES_MAX = 4096


def broker_options(command: F) -> F:
    url = click.option(
        "--url",
        metavar="URL",
        default="",
        help="Address of the broker without a password: amqp://user@host/vhost, redis://host. Default: CORRAL_BROKER.",
    )
    file = click.option(
        "--password-file",
        metavar="FILE",
        default="",
        help="File with the broker's password, readable by its owner only. Default: CORRAL_BROKER_PASSWORD.",
    )
    return url(file(command))


def broker_url(url: str, password_file: str, kind: str = "") -> str:
    """The address with its password. ``kind``: the broker that it must belong to."""
    from corral.integrations.broker_kinds import missing
    from corral.wire.brokers.broker_names import (
        BROKER_VARIABLE,
        PASSWORD_VARIABLE,
        broker_kind,
        has_password,
        shown_broker,
        with_password,
    )

    if has_password(url):
        hint = f"leave it out, and give --password-file or {PASSWORD_VARIABLE}"
        raise Complaint("--url has a password, which others can read in the list of processes", hint)
    address = url or os.environ.get(BROKER_VARIABLE, "")
    if not address:
        raise Complaint("no broker is named", f"give --url, or set {BROKER_VARIABLE}")
    found = broker_kind(address)
    if not found or (kind and found != kind):
        what = f"{shown_broker(address)} is not the address of {kind or 'a broker that Corral knows'}"
        raise Complaint(what, "write it like amqp://corral@mq.example/corral, amqps://... or redis://mq.example/0")
    if lack := missing(found):
        raise Complaint(f"the library for {found} is not installed", f"install it with: {lack}")
    password = _password(password_file) or os.environ.get(PASSWORD_VARIABLE, "")
    return with_password(address, password) if password else address


def _password(file: str) -> str:
    if not file:
        return ""
    path = Path(file)
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_bytes()[:_PASSWORD_BYTES_MAX].decode()
    except (OSError, UnicodeDecodeError) as error:
        raise Complaint(f"the password cannot be read: {error}", "name a file of yours") from None
    if mode & 0o077:
        raise Complaint(f"{file} can be read by others (mode {mode:04o})", f"chmod 600 {file}")
    return text.rstrip("\n")
