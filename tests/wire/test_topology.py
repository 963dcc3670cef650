"""Positions of nodes: names with ranges, Slurm's file, labels, and which of them applies."""

import pytest

from corral.core.cluster.topology import NodeSpec
from corral.core.intake.refusal import Refusal
from corral.wire.config import Config, parse_config, write_config
from corral.wire.topology import UNPLACED, NodePlaces, TopologySource, hostlist, read_slurm_topology

NAMES = {
    "one": ("gpu1", ["gpu1"]),
    "two": ("a,b", ["a", "b"]),
    "a range": ("n[1-3]", ["n1", "n2", "n3"]),
    "zeros are kept": ("n[008-010]", ["n008", "n009", "n010"]),
    "ranges and numbers": ("n[1-2,7],m", ["n1", "n2", "n7", "m"]),
    "two brackets": ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    "something behind": ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
    "nothing": ("", []),
}


@pytest.mark.parametrize(("said", "expected"), NAMES.values(), ids=NAMES)
def test_names_with_ranges(said, expected):
    assert hostlist(said) == expected


@pytest.mark.parametrize("said", ["n[1-", "n]1[", "n[a-b]", "n[3-1]", "n[[1]]", "n[1-99999999]", "n[]"])
def test_what_is_no_name_with_ranges(said):
    with pytest.raises(ValueError, match=r"brackets|range|names"):
        hostlist(said)


SLURM = r"""
# spines and leaves
SwitchName=spine1 Switches=leaf[1-2]
SwitchName=spine2 switches=leaf3
SwitchName=leaf1 Nodes=gpu[01-02] LinkSpeed=100
SwitchName=leaf2 \
    Nodes=gpu03
switchname=leaf3 nodes=gpu[04-05]   # the last
"""


def test_a_file_of_slurm():
    found = read_slurm_topology(SLURM)
    assert found == {
        "gpu01": ("spine1", "leaf1"),
        "gpu02": ("spine1", "leaf1"),
        "gpu03": ("spine1", "leaf2"),
        "gpu04": ("spine2", "leaf3"),
        "gpu05": ("spine2", "leaf3"),
    }


BAD = {
    "no switch": ("Nodes=a", "line 1: write a switch"),
    "nothing below": ("\nSwitchName=s", "line 2: write a switch"),
    "bad brackets": ("SwitchName=s Nodes=a[1", "line 1: the brackets"),
    "a switch without a line": ("SwitchName=s Switches=t", "there is no line for switch t"),
    "a circle": ("SwitchName=s Switches=t\nSwitchName=t Switches=s Nodes=a", "is below itself"),
}


@pytest.mark.parametrize(("said", "why"), BAD.values(), ids=BAD)
def test_a_file_of_slurm_that_is_wrong(said, why):
    found = read_slurm_topology(said)
    assert isinstance(found, Refusal)
    assert why in found.why


SWITCHES = {"gpu01": ("core", "spine1", "leaf1")}
SOURCE = TopologySource(nodes=(("x[1-2]", ("s9", "r9")),), labels=(("rack", "here"),))
PATHS = {
    "by configuration": ("x2", ("spine", "rack"), {}, ("s9", "r9")),
    "by Slurm, the innermost switches": ("gpu01", ("spine", "rack"), {}, ("spine1", "leaf1")),
    "by Slurm, more levels than switches": (
        "gpu01", ("zone", "hall", "spine", "rack"), {}, (UNPLACED, "core", "spine1", "leaf1"),
    ),
    "by labels": ("other", ("spine", "rack"), {"spine": "s1", "rack": "r7"}, ("s1", "r7")),
    "by nothing": ("other", ("spine", "rack"), {}, (UNPLACED, UNPLACED)),
    "no levels": ("x1", (), {}, ()),
}  # fmt: skip


@pytest.mark.parametrize(("node", "levels", "labels", "path"), PATHS.values(), ids=PATHS)
def test_the_path_of_a_node(node, levels, labels, path):
    assert NodePlaces(SOURCE, SWITCHES).path_of(node, levels, labels) == path


NODES = {
    "known by configuration": (NodeSpec("x1"), False, ("s9", "r9")),
    "known by configuration, whatever it says itself": (NodeSpec("x1", path=("a", "b")), False, ("s9", "r9")),
    "says itself where it stands": (NodeSpec("other", path=("a", "b")), False, ("a", "b")),
    "the machine of the file": (NodeSpec("other"), True, (UNPLACED, "here")),
    "not in any file": (NodeSpec("other"), False, (UNPLACED, UNPLACED)),
}


@pytest.mark.parametrize(("spec", "is_here", "path"), NODES.values(), ids=NODES)
def test_a_node_with_its_path(spec, is_here, path):
    assert NodePlaces(SOURCE, SWITCHES).placed(spec, ("spine", "rack"), is_here=is_here).path == path


def test_the_first_of_two_that_name_a_node_has_the_word():
    source = TopologySource(nodes=(("n1", ("a",)), ("n[1-2]", ("b",))))
    assert [NodePlaces(source).path_of(node, ("rack",)) for node in ("n1", "n2")] == [("a",), ("b",)]


def test_the_configuration_of_topology_and_health():
    document = {
        "levels": ["spine", "rack"],
        "topology": {"slurm": "/etc/t.conf", "nodes": {"n[1-2]": ["s1", "r1"]}, "labels": {"rack": "r1"}},
        "health": {"interval": "2s", "temperature": 80, "site_check": "/etc/check", "probes": False},
    }
    config = parse_config(document)
    assert isinstance(config, Config), config
    assert config.topology.nodes == (("n[1-2]", ("s1", "r1")),)
    assert (config.health.interval_ms, config.health.temperature_c_max, config.health.probes) == (2_000, 80, False)
    assert parse_config(write_config(config)) == config
    assert parse_config(write_config(Config())) == Config()


def test_faults_of_topology_and_health():
    faults = parse_config({"topology": {"nodes": {"n[1": ["r1"]}}, "health": {"intervall": "2s", "quiet": 5}})
    assert isinstance(faults, list)
    assert [(fault.path, fault.code) for fault in faults] == [
        (("topology", "nodes", "n[1"), "bad_hosts"),
        (("health", "intervall"), "unknown_key"),
        (("health", "quiet"), "bad_span"),
    ]
