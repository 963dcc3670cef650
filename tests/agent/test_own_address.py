"""Where other machines reach this one: said by its agent, checked where it enters."""

import pytest

from corral.agent.own_address import own_address
from corral.core.cluster.topology import NodeSpec
from corral.remote.border import spec_fault


def test_it_is_the_address_with_which_the_server_is_reached():
    assert own_address(["http://127.0.0.1:9"]) == "127.0.0.1"


@pytest.mark.parametrize("urls", [[], ["http://no-such-host.invalid:1"], ["nonsense"], ["http://[::1"]])
def test_where_no_way_leads_nothing_is_said(urls):
    assert own_address(urls) == ""


@pytest.mark.parametrize("address", ["", "10.0.0.1", "fe80::1", "node-1.cluster.local", "a" * 63])
def test_a_node_may_say_an_ip_address_or_the_name_of_a_host(address):
    assert spec_fault(NodeSpec("n1", address=address), "n1") == ""


@pytest.mark.parametrize("address", ["a b", "$(reboot)", "x\n", "-rf", "a" * 64, ".".join(["a"] * 200), "http://x"])
def test_a_node_cannot_say_anything_else(address):
    assert "neither an IP address nor" in spec_fault(NodeSpec("n1", address=address), "n1")
