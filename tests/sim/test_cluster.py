"""Machines from short descriptions."""

from __future__ import annotations

import pytest

from corral.core.intake.refusal import Refusal
from corral.sim.cluster_spec import VRAM_MIB, build_cluster, parse_cluster
from corral.sim.traces.trace import TraceNodes
from tests.sim.runs import cluster


def test_equal_nodes() -> None:
    found = cluster("12x8")
    assert (len(found.nodes), found.gpus, found.gpus_a_node, found.levels) == (12, 96, 8, ())
    assert [found.nodes[0].name, found.nodes[11].name] == ["n00", "n11"]
    assert {gpu.vram_mib for node in found.nodes for gpu in node.gpus} == {VRAM_MIB}


def test_several_kinds_of_nodes() -> None:
    found = cluster("2x8:H100+1x4:A100")
    assert [(len(node.gpus), node.gpus[0].model) for node in found.nodes] == [(8, "H100"), (8, "H100"), (4, "A100")]


def test_one_place_that_only_counts() -> None:
    assert [len(node.gpus) for node in cluster("count:96").nodes] == [96]


def test_levels_are_given_innermost_first_and_kept_outermost_first() -> None:
    found = cluster("16x8", "rack=4,spine=2")
    assert found.levels == ("spine", "rack")
    assert [found.nodes[n].path for n in (0, 3, 4, 8)] == [
        ("spine0", "rack0"), ("spine0", "rack0"), ("spine0", "rack1"), ("spine1", "rack2")
    ]  # fmt: skip


def test_nodes_that_a_workload_names_keep_their_names_and_amounts() -> None:
    found = build_cluster([TraceNodes(2, 4, "T4", 15_000, 48_000, 190_000, ("x", "y"))])
    assert [node.name for node in found.nodes] == ["x", "y"]
    assert dict(found.nodes[0].amounts) == {"cpu_milli": 48_000, "memory_mib": 190_000}
    assert found.nodes[0].gpus[0].vram_mib == 15_000


@pytest.mark.parametrize(
    ("nodes", "topology", "code"),
    [
        ("", "", "bad_nodes"),
        ("8", "", "bad_nodes"),
        ("8x", "", "bad_nodes"),
        ("0x8", "", "bad_nodes"),
        ("8x0", "", "bad_nodes"),
        ("-1x8", "", "bad_nodes"),
        ("8x8+", "", "bad_nodes"),
        ("9999999x8", "", "bad_nodes"),
        ("8x8", "rack", "bad_topology"),
        ("8x8", "rack=0", "bad_topology"),
        ("8x8", "rack=two", "bad_topology"),
        ("8x8", "a b=2", "bad_topology"),
        ("8x8", "rack=2,rack=2", "bad_topology"),
        ("8x8", "cluster=2", "bad_topology"),
    ],
)
def test_what_describes_nothing_is_refused(nodes: str, topology: str, code: str) -> None:
    found = parse_cluster(nodes, topology)
    assert isinstance(found, Refusal)
    assert found.code == code
