"""The tree: numbering along it, contiguous domains, kinds of nodes, NVLink islands."""

import random

import pytest

from corral.core.cluster.resources import TaskDemand
from corral.core.cluster.topology import CLUSTER, Topology, natural
from tests.world import node_spec


def tree(*places: tuple[str, str, str], **terms) -> Topology:
    """(zone, rack, node) each."""
    return Topology(("zone", "rack"), [node_spec(name, 4, (zone, rack), **terms) for zone, rack, name in places])


PLACES = [(f"z{z}", f"r{r}", f"z{z}r{r}n{n}") for z in (1, 2, 10) for r in (1, 11, 2) for n in (3, 1, 12)]


def test_nodes_are_numbered_along_the_tree_with_numbers_in_names_read_as_numbers():
    names = [node.name for node in tree(*PLACES).nodes]
    assert names[:9] == [f"z1r{r}n{n}" for r in (1, 2, 11) for n in (1, 3, 12)]
    assert names[-1] == "z10r11n12"


def test_numbering_does_not_depend_on_the_order_in_which_nodes_are_reported():
    shuffled = PLACES.copy()
    random.Random(1).shuffle(shuffled)
    assert tree(*shuffled).nodes == tree(*PLACES).nodes


def test_every_domain_is_a_contiguous_range_and_the_domains_of_a_level_cover_all_nodes_once():
    topology = tree(*PLACES)
    for level, domains in enumerate(topology.by_level):
        covered = [n for domain in domains for n in range(domain.lo, domain.hi)]
        assert covered == list(range(len(topology.nodes)))
        for domain in domains:
            paths = {topology.nodes[n].path[:level] for n in range(domain.lo, domain.hi)}
            assert len(paths) == 1
            assert domain.name == ("/".join(paths.pop()) or CLUSTER)


def test_domains_know_parent_children_and_the_domains_above_a_node():
    topology = tree(*PLACES)
    for domain in topology.domains:
        for child in topology.children[domain.number]:
            assert child.parent == domain.number
            assert domain.lo <= child.lo < child.hi <= domain.hi
    for n in range(len(topology.nodes)):
        chain = [topology.domains[number] for number in topology.above[n]]
        assert [domain.level for domain in chain] == [0, 1, 2]
        assert all(domain.lo <= n < domain.hi for domain in chain)
        assert topology.domain_of(n, 2) is chain[2]


def test_racks_of_the_same_name_in_two_zones_are_two_domains():
    topology = tree(("a", "r", "n1"), ("b", "r", "n2"))
    assert [domain.name for domain in topology.by_level[2]] == ["a/r", "b/r"]


def test_a_cluster_without_levels_is_one_domain():
    topology = Topology((), [node_spec("a"), node_spec("b")])
    assert [(domain.name, domain.lo, domain.hi) for domain in topology.domains] == [(CLUSTER, 0, 2)]


def test_an_empty_cluster_is_a_topology():
    topology = Topology(("rack",), ())
    assert topology.nodes == ()
    assert topology.gpus_max == 0
    assert topology.by_level[1] == ()


def test_nodes_with_the_same_devices_in_the_same_slots_are_of_one_kind():
    nodes = [node_spec("a"), node_spec("b"), node_spec("c", islands=2), node_spec("d", model="A100")]
    topology = Topology((), nodes)
    assert topology.kind == (0, 0, 1, 2)
    assert topology.accepted(TaskDemand(gpus=1, models=("A100",))) == (0, 0, 0xFF)


def test_islands_are_masks_of_the_gpus_that_reach_each_other():
    topology = Topology((), [node_spec("a", 8, islands=2), node_spec("b", 4)])
    assert topology.islands(0) == (0x0F, 0xF0)
    assert topology.islands(1) == (0x0F,)


def test_a_level_that_is_not_there_has_no_index():
    topology = tree(*PLACES)
    assert topology.level_index("rack") == 2
    assert topology.level_index("spine") is None
    assert topology.nvlink_level is None


NATURAL = {
    "numbers are compared as numbers": ["a2", "a10"],
    "numbers before letters": ["1a", "a1"],
    "several numbers": ["r1n9", "r1n10", "r2n1"],
    "a prefix comes first": ["node", "node1"],
}


@pytest.mark.parametrize("names", NATURAL.values(), ids=NATURAL.keys())
def test_natural_order(names):
    assert sorted(names, key=natural) == names


LOOKALIKES = {"leading zeros": ("a1", "a01"), "a digit that is no decimal": ("²", "2")}


@pytest.mark.parametrize("pair", LOOKALIKES.values(), ids=LOOKALIKES.keys())
def test_names_that_look_alike_are_still_different_nodes(pair):
    topology = Topology((), [node_spec(name) for name in pair])
    assert len({topology.number[name] for name in pair}) == 2


def test_racks_whose_names_differ_only_in_leading_zeros_are_two_contiguous_domains():
    nodes = [node_spec(f"n{i}", 4, (rack,)) for i, rack in enumerate(("r1", "r01", "r1", "r01"))]
    domains = Topology(("rack",), nodes).by_level[1]
    assert sorted(domain.name for domain in domains) == ["r01", "r1"]
