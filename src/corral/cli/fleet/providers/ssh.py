"""Options of hosts reached over SSH: ``corral fleet up --on ssh --hosts hosts.yaml``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.cli.errors import Complaint
from corral.cli.fleet.providers.pilots import Option, pilot_settings

if TYPE_CHECKING:
    from corral.wire.document.yaml import Marked

_PANEL = "Over SSH"
_BYTES_MAX = 1 << 20
_WHERE = re.compile(r"\[(\d+)\]|\.?([A-Za-z_]+)")

OPTIONS: tuple[Option, ...] = (
    click.option(
        "--hosts",
        metavar="FILE",
        panel=_PANEL,
        help="YAML file of hosts: a list, or a mapping with hosts, user, port, python, identity and so on.",
    ),
    click.option("--accept-new", is_flag=True, default=None, panel=_PANEL, help="Accept host keys of new hosts."),
)

NAMES = frozenset({"hosts", "accept_new", "folder", "fake_gpus", "grace"})


def settings(given: dict[str, Any]) -> dict[str, Any]:
    if "hosts" not in given:
        raise Complaint("--on ssh needs a list of hosts", "give --hosts FILE; example: docs/operate/over-ssh.md")
    content = read_hosts(given["hosts"])
    common = pilot_settings({name: given[name] for name in given if name != "hosts"})
    fake_gpus = common.pop("fake_gpus", "")
    if fake_gpus:
        content["hosts"] = [{"fake_gpus": fake_gpus, **host} for host in content["hosts"]]
    return content | common | ({"accept_new": True} if given.get("accept_new") else {})


def read_hosts(name: str) -> dict[str, Any]:
    """The settings in a file. Errors name the place in the file."""
    import msgspec

    from corral.providers.ssh.settings import SshSettings
    from corral.wire.document.yaml import read_yaml

    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        raise Complaint(f"{name} cannot be read: {getattr(wrong, 'strerror', None) or wrong}") from None
    documents = read_yaml(text, name, _BYTES_MAX)
    if not documents:
        raise Complaint(f"{name} is empty", "example: docs/operate/over-ssh.md")
    marked = documents[0]
    if marked.faults:
        raise Complaint(str(marked.faults[0]))
    content = marked.value if isinstance(marked.value, dict) else {"hosts": marked.value}
    hosts = content.get("hosts")
    if isinstance(hosts, list):
        content["hosts"] = [{"host": host} if isinstance(host, str) else host for host in hosts]
    try:
        fault = msgspec.convert(content, SshSettings, strict=True).fault()
    except msgspec.ValidationError as wrong:
        raise Complaint(_placed(marked, str(wrong), isinstance(marked.value, dict))) from None
    if fault:
        raise Complaint(f"{name}: {fault}")
    if content.get("ca"):
        content["ca"] = _authority(path, content["ca"])
    return content


def _placed(marked: Marked, wrong: str, is_mapping: bool) -> str:
    what, _, where = wrong.partition(" - at `$")
    steps = [int(number) if number else name for number, name in _WHERE.findall(where.rstrip("`"))]
    return f"{marked.place(tuple(steps if is_mapping else steps[1:]))}: {what}"


def _authority(path: Path, named: str) -> str:
    """A certificate is sent to the hosts as text; in the file it is a path, relative to the file."""
    try:
        return (path.parent / named).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as wrong:
        raise Complaint(f"{path}: ca: {named} cannot be read: {getattr(wrong, 'strerror', None) or wrong}") from None
