"""The topology of nodes: racks and switches from the configuration, from Slurm's `topology.conf`, or from labels.

Gives the path of a node, level by level. Reads texts; opens no file. A node without a known position is in a domain
`unplaced`, so that it is not taken for a neighbour of another node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from corral.core.cluster.topology import NodeSpec
from corral.core.intake.refusal import Refusal
from corral.wire.document.errors import Path, Reading, Wrong, show
from corral.wire.document.key_table import Key, KeyTable, table_kind
from corral.wire.document.kinds import ValueKind, bounded, listing, pairs, text
from corral.wire.job.program import PATH_TEXT

UNPLACED = "unplaced"
HOSTS_MAX = 100_000
_DEPTH_MAX = 32

#: A name, or names with ranges: gpu[01-16,20], r[1-2]n[1-8].
_HOSTS = text("names of nodes such as gpu01 or gpu[01-16]", most="name_chars")
_DOMAIN = text("the name of a domain", most="name_chars", pattern=r"[^/\s]+")


class TopologySource(Struct, frozen=True, kw_only=True):
    """The configured positions of nodes."""

    slurm: str = ""  # the path of the file
    nodes: tuple[tuple[str, tuple[str, ...]], ...] = ()  # names with ranges -> domains, outermost first
    labels: tuple[tuple[str, str], ...] = ()  # labels of this machine: level -> domain


class NodePlaces:
    """The positions of all nodes. ``switches``: from Slurm's file, node -> switches, outermost first."""

    def __init__(
        self, source: TopologySource | None = None, switches: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self.source = source or TopologySource()
        self._known: dict[str, Sequence[str]] = dict(switches or {})
        for hosts, domains in reversed(self.source.nodes):
            self._known |= dict.fromkeys(hostlist(hosts), domains)

    def path_of(self, node: str, levels: Sequence[str], labels: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """One domain for each level, outermost first. The first source that knows the node applies: ``nodes`` of the
        configuration, Slurm, labels."""
        if node in self._known:
            return _fitted(self._known[node], levels)
        return tuple((labels or {}).get(level, UNPLACED) for level in levels)

    def placed(
        self, spec: NodeSpec, levels: Sequence[str], *, is_here: bool = False, is_lent: bool = False
    ) -> NodeSpec:
        """A node with its path. The position that a node reports is used if no other source knows it; a fleet node has
        the switches of its provider, of which the innermost are the levels here."""
        if spec.name not in self._known and spec.path:
            return structs.replace(spec, path=_fitted(spec.path, levels)) if is_lent else spec
        labels = dict(self.source.labels) if is_here else {}
        return structs.replace(spec, path=self.path_of(spec.name, levels, labels))


def _fitted(domains: Sequence[str], levels: Sequence[str]) -> tuple[str, ...]:
    """The innermost of them; missing outer levels are one common domain."""
    kept = tuple(domains[-len(levels) :]) if levels else ()
    return (UNPLACED,) * (len(levels) - len(kept)) + kept


# --- names with ranges -----------------------------------------------------------------------------------------------


def hostlist(said: str) -> list[str]:
    """``gpu[01-03,7],login`` is gpu01, gpu02, gpu03, gpu7, login. Raises ValueError."""
    found: list[str] = []
    for part in _split(said):
        found += _expanded(part, HOSTS_MAX - len(found))
    return found


def _split(said: str) -> Iterator[str]:
    """Split at commas outside of brackets."""
    depth, part = 0, ""
    for sign in said:
        depth += (sign == "[") - (sign == "]")
        if depth not in (0, 1):
            raise ValueError(f"the brackets of {said!r} do not match")
        if sign == "," and depth == 0:
            yield part
            part = ""
        else:
            part += sign
    if depth:
        raise ValueError(f"the brackets of {said!r} do not match")
    if part:
        yield part


def _expanded(part: str, most: int) -> list[str]:
    said = re.fullmatch(r"(?P<head>[^\[\]]*)\[(?P<ranges>[^\[\]]+)\](?P<tail>.*)", part)
    if said is None:
        if "[" in part:
            raise ValueError(f"the brackets of {part!r} are empty")
        return [part]
    tails = _expanded(said["tail"], most) if said["tail"] else [""]
    found: list[str] = []
    for each in said["ranges"].split(","):
        low, dash, high = each.partition("-")
        high = high if dash else low
        if not (low.isdecimal() and high.isdecimal() and int(low) <= int(high)):
            raise ValueError(f"{each!r} in {part!r} is not a range of numbers")
        if (int(high) - int(low) + 1) * len(tails) > most - len(found):
            raise ValueError(f"{part!r} stands for more than {HOSTS_MAX:,} names")
        numbers = (str(number).zfill(len(low)) for number in range(int(low), int(high) + 1))
        found += [f"{said['head']}{number}{tail}" for number in numbers for tail in tails]
    return found


# --- Slurm -----------------------------------------------------------------------------------------------------------


def read_slurm_topology(said: str) -> dict[str, tuple[str, ...]] | Refusal:
    """A `topology.conf` of the tree plugin: for each node its switches, outermost first.

    Keys in any case, `#` begins a comment, a backslash at the end joins lines; other keys (LinkSpeed) are
    ignored."""
    parents: dict[str, str] = {}
    leaves: dict[str, str] = {}
    known: set[str] = set()
    for number, line in _lines(said):
        words = {key.lower(): value for key, _, value in (word.partition("=") for word in line.split())}
        try:
            if "switchname" not in words or not words.keys() & {"switches", "nodes"}:
                raise ValueError("write a switch and its nodes or switches: SwitchName=s1 Nodes=n[1-8]")
            for switch in hostlist(words["switchname"]):
                known.add(switch)
                parents |= dict.fromkeys(hostlist(words.get("switches", "")), switch)
                leaves |= dict.fromkeys(hostlist(words.get("nodes", "")), switch)
        except ValueError as wrong:
            return Refusal("bad_topology", f"line {number}: {wrong}", "see topology.conf(5) of Slurm, topology/tree")
    unknown = sorted(parents.keys() - known)
    if unknown:
        return Refusal("bad_topology", f"there is no line for switch {unknown[0]}", "every switch needs its own line")
    found = {}
    for node, switch in leaves.items():
        path = [switch]
        while path[0] in parents:
            path.insert(0, parents[path[0]])
            if len(path) > _DEPTH_MAX:
                return Refusal("bad_topology", f"switch {switch} is below itself", "")
        found[node] = tuple(path)
    return found


def _lines(said: str) -> Iterator[tuple[int, str]]:
    held, began = "", 0
    for number, line in enumerate(said.splitlines(), start=1):
        line = line.partition("#")[0].strip()
        began = began or number
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        if held + line:
            yield began, held + line
        held, began = "", 0


# --- the keys --------------------------------------------------------------------------------------------------------


def _read_nodes(value: Any, path: Path, reading: Reading) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if type(value) is not dict:
        raise Wrong("wrong_type", f"this must be a mapping, not {show(value)}", "write gpu[01-16]: [spine1, rack1]")
    bounded(value, 10_000)
    found = []
    for hosts, domains in value.items():
        here = (*path, hosts if isinstance(hosts, str) else show(hosts))
        try:
            hostlist(_HOSTS.read(hosts, here, reading))
            found.append((hosts, _DOMAINS.read(domains, here, reading)))
        except ValueError as wrong:
            reading.wrong(here, Wrong("bad_hosts", str(wrong), "write it like gpu[01-16]"))
        except Wrong as wrong:
            reading.wrong(here, wrong)
    return tuple(found)


_DOMAINS = listing(_DOMAIN, "a list of domains, outermost first", "models", lone=True, least=1)
_NODES = ValueKind(
    _read_nodes,
    {"type": "object", "additionalProperties": _DOMAINS.schema},
    "a mapping of nodes to domains",
    lambda nodes: {hosts: list(domains) for hosts, domains in nodes},
)
TOPOLOGY_KEYS = KeyTable(
    "topology",
    [
        Key("slurm", PATH_TEXT, "Slurm's topology.conf (tree); the lowest switches become the last level.",
            "/etc/slurm/topology.conf", into="slurm"),
        Key("nodes", _NODES, "Domains by node name (ranges allowed), one per level, the largest first.",
            {"gpu[01-16]": ["spine1", "rack1"]}, into="nodes"),
        Key("labels", pairs(_DOMAIN, _DOMAIN, "a mapping of levels to domains", "labels"),
            "Labels of this machine: its domain on each level.", {"rack": "r1"}, into="labels"),
    ],
)  # fmt: skip


def _source(found: dict[str, Any]) -> TopologySource:
    return TopologySource(**found)


TOPOLOGY_TABLE = table_kind(TOPOLOGY_KEYS, "a mapping", _source)
