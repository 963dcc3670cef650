"""What can be said about hosts: ``corral fleet up --on ssh --hosts hosts.yaml``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.cli.complaint import Complaint
from corral.cli.fleet.on.pilots import Option, pilot_settings

if TYPE_CHECKING:
    from corral.wire.document.yaml import Marked

_PANEL = "Over SSH"
_BYTES_MAX = 1 << 20
_WHERE = re.compile(r"\[(\d+)\]|\.?([A-Za-z_]+)")

OPTIONS: tuple[Option, ...] = (
    click.option(
        "--hosts", metavar="FILE", default=None, panel=_PANEL,
        help="The hosts, as YAML: a list, or a mapping with hosts, user, port, python, identity and the like.",
    ),
    click.option(
        "--accept-new", is_flag=True, default=None, panel=_PANEL, help="Trust the keys of hosts that were never met."
    ),
)  # fmt: skip

NAMES = frozenset({"hosts", "accept_new", "folder", "fake_gpus", "grace"})


def settings(given: dict[str, Any]) -> dict[str, Any]:
    if "hosts" not in given:
        raise Complaint("--on ssh needs to know which hosts", "say --hosts FILE; docs/operate/over-ssh.md shows one")
    said = read_hosts(given["hosts"])
    common = pilot_settings({name: given[name] for name in given if name != "hosts"})
    fake_gpus = common.pop("fake_gpus", "")
    if fake_gpus:
        said["hosts"] = [{"fake_gpus": fake_gpus, **host} for host in said["hosts"]]
    return said | common | ({"accept_new": True} if given.get("accept_new") else {})


def read_hosts(name: str) -> dict[str, Any]:
    """The settings that a file says. What is wrong is told with its place."""
    import msgspec

    from corral.backends.carriers.ssh.settings import Settings
    from corral.wire.document.yaml import read_yaml

    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        raise Complaint(f"{name} cannot be read: {getattr(wrong, 'strerror', None) or wrong}") from None
    documents = read_yaml(text, name, _BYTES_MAX)
    if not documents:
        raise Complaint(f"{name} is empty", "docs/operate/over-ssh.md shows such a file")
    marked = documents[0]
    if marked.faults:
        raise Complaint(str(marked.faults[0]))
    said = marked.value if isinstance(marked.value, dict) else {"hosts": marked.value}
    hosts = said.get("hosts")
    if isinstance(hosts, list):
        said["hosts"] = [{"host": host} if isinstance(host, str) else host for host in hosts]
    try:
        fault = msgspec.convert(said, Settings, strict=True).fault()
    except msgspec.ValidationError as wrong:
        raise Complaint(_placed(marked, str(wrong), isinstance(marked.value, dict))) from None
    if fault:
        raise Complaint(f"{name}: {fault}")
    if said.get("ca"):
        said["ca"] = _authority(path, said["ca"])
    return said


def _placed(marked: Marked, wrong: str, is_mapping: bool) -> str:
    what, _, where = wrong.partition(" - at `$")
    steps = [int(number) if number else name for number, name in _WHERE.findall(where.rstrip("`"))]
    return f"{marked.place(tuple(steps if is_mapping else steps[1:]))}: {what}"


def _authority(path: Path, named: str) -> str:
    """A certificate is carried to the hosts as text; in the file it is the name of one, beside it or elsewhere."""
    try:
        return (path.parent / named).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as wrong:
        raise Complaint(f"{path}: ca: {named} cannot be read: {getattr(wrong, 'strerror', None) or wrong}") from None
