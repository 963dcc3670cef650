"""Many pilots and many hosts at the same time: a pilot has one host, a host one pilot, whatever happens to some."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from corral.providers import hosts
from corral.providers.base import PilotOrder, PilotPhase, ProviderRefused, ProviderUnavailable
from corral.providers.hosts import HostProvider
from tests.providers.in_memory_hosts import InMemoryHosts, Terms

AT_ONCE = 16
PATIENCE_S = 20.0


@contextmanager
def opened(shell: InMemoryHosts) -> Iterator[HostProvider]:
    provider = HostProvider(Terms(), "ours", shell, shell.agent_for)
    yield provider
    provider.close()


def orders(*names: str) -> list[PilotOrder]:
    return [PilotOrder(pilot=name, urls=("http://head:7411",), token=f"once-{name}") for name in names]


def many(count: int) -> list[PilotOrder]:
    return orders(*(f"gpu-{number}" for number in range(1, count + 1)))


def phases(provider: HostProvider, asked: Sequence[PilotOrder]) -> dict[str, PilotPhase]:
    return {each.pilot: each.phase for each in provider.look([order.pilot for order in asked])}


def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.02)


def test_bare_hosts_are_set_up_at_the_same_time_each_for_one_pilot() -> None:
    shell, all_in = InMemoryHosts(2 * AT_ONCE), threading.Barrier(AT_ONCE)
    shell.during = lambda act, _host, _pilot: act == "install" and all_in.wait(PATIENCE_S)  # else it breaks
    asked = many(2 * AT_ONCE)
    with opened(shell) as provider:
        provider.acquire(asked)
        assert set(phases(provider, asked).values()) == {PilotPhase.STARTED}
    assert sorted(host for host, _ in shell.began) == sorted(shell.names)
    assert sorted(pilot for _, pilot in shell.began) == sorted(order.pilot for order in asked)


def test_there_are_never_more_than_this_many_at_once() -> None:
    shell, lock, inside = InMemoryHosts(3 * AT_ONCE), threading.Lock(), [0, 0]

    def during(act: str, _host: str, _pilot: str) -> None:
        if act == "install":
            with lock:
                inside[0] += 1
                inside[1] = max(inside)
            time.sleep(0.1)
            with lock:
                inside[0] -= 1

    shell.during = during
    with opened(shell) as provider:
        provider.acquire(many(3 * AT_ONCE))
    assert inside[1] <= AT_ONCE
    assert len(shell.began) == 3 * AT_ONCE


def half_unfit() -> InMemoryHosts:
    """Of six hosts one has no room, one is taken by others in the last moment, one is lost before anything begins."""
    shell = InMemoryHosts(6)
    shell.full, shell.cut = {"h1"}, {"h3"}

    def during(act: str, host: str, _pilot: str) -> None:
        if (act, host) == ("install", "h2"):
            shell.take("h2", "other")

    shell.during = during
    return shell


def test_who_meets_a_host_that_will_not_do_has_the_next() -> None:
    shell, asked = half_unfit(), many(3)
    with opened(shell) as provider:
        provider.acquire(asked)
        assert sorted(host for host, _ in shell.began) == ["h4", "h5", "h6"]
        assert set(phases(provider, asked).values()) == {PilotPhase.STARTED}


def test_those_for_whom_no_host_is_left_wait_and_say_why() -> None:
    shell, asked = half_unfit(), many(6)
    with opened(shell) as provider:
        provider.acquire(asked)
        assert sorted(host for host, _ in shell.began) == ["h4", "h5", "h6"]
        begun = {pilot for _, pilot in shell.began}
        waiting = provider.look([order.pilot for order in asked if order.pilot not in begun])
        assert [each.phase for each in waiting] == [PilotPhase.WAITING] * 3
        assert {each.why for each in waiting} == {"no host is free; h1: the disk is full; h3: the line is cut"}
        assert {each.phase for each in provider.look(sorted(begun))} == {PilotPhase.STARTED}
    assert len(shell.began) == 3


def test_where_no_host_will_do_all_are_refused_with_each_reason_once() -> None:
    shell = InMemoryHosts(2)
    shell.full = {"h1", "h2"}
    with (
        opened(shell) as provider,
        pytest.raises(ProviderRefused, match=r"^no host can be used: h1: the disk is full; h2: the disk is full$"),
    ):
        provider.acquire(many(3))


def test_of_several_one_answer_is_lost_and_the_others_are_had() -> None:
    shell = InMemoryHosts(6)  # two more than are asked for: no pilot may begin there a second time
    shell.losing = {"h2"}
    asked = many(4)
    with opened(shell) as provider:
        with pytest.raises(ProviderUnavailable, match=r"^h2: the answer was lost$"):
            provider.acquire(asked)
        assert sorted(pilot for _, pilot in shell.began) == [order.pilot for order in asked]
        provider.acquire(asked)
        assert set(phases(provider, asked).values()) == {PilotPhase.STARTED}
    assert len(shell.began) == 4
    assert [len(shell.of(order.pilot)) for order in asked] == [1, 1, 1, 1]


def test_one_that_may_have_begun_begins_nowhere_else_while_its_host_is_silent() -> None:
    shell = InMemoryHosts(4)
    shell.losing = {"h1", "h2"}
    asked = many(2)
    with opened(shell) as provider:
        with pytest.raises(ProviderUnavailable, match="h1: the answer was lost; h2: the answer was lost"):
            provider.acquire(asked)
        shell.silent = {"h1", "h2"}
        with pytest.raises(ProviderUnavailable, match="is silent"):
            provider.acquire(many(3))
        assert len(shell.of("gpu-3")) == 1, "the others are not held up"
        shell.silent.clear()
        provider.acquire(many(3))
    assert sorted(pilot for _, pilot in shell.began) == ["gpu-1", "gpu-2", "gpu-3"]


def test_one_whose_perhaps_host_is_gone_for_good_begins_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_LOST_S", 0.05)
    shell = InMemoryHosts(2)
    shell.losing = {"h1"}
    with opened(shell) as provider:
        with pytest.raises(ProviderUnavailable):
            provider.acquire(many(1))
        shell.names.remove("h1")
        with pytest.raises(ProviderUnavailable):
            provider.acquire(many(1))
        time.sleep(0.1)
        provider.acquire(many(1))
    assert shell.began == [("h1", "gpu-1"), ("h2", "gpu-1")]


def test_the_host_of_one_that_is_over_is_for_no_other_while_it_is_asked_for() -> None:
    shell = InMemoryHosts(2)
    shell.take("h1", "gpu-1", "ours")
    shell.over["h1"] = "it was ended"
    with opened(shell) as provider:
        provider.acquire(orders("gpu-1", "gpu-2"))
        assert phases(provider, many(2)) == {"gpu-1": PilotPhase.ENDED, "gpu-2": PilotPhase.STARTED}
    assert shell.began == [("h2", "gpu-2")]


def test_asked_for_twice_in_one_breath_it_is_one() -> None:
    shell = InMemoryHosts(3)
    with opened(shell) as provider:
        provider.acquire(orders("gpu-1", "gpu-1", "gpu-2"))
    assert sorted(pilot for _, pilot in shell.began) == ["gpu-1", "gpu-2"]


def test_several_who_wait_have_their_hosts_in_the_same_round() -> None:
    shell, all_in = InMemoryHosts(4), threading.Barrier(4)
    for name in shell.names:
        shell.take(name, "other")
    shell.during = lambda act, _host, _pilot: act == "start" and all_in.wait(PATIENCE_S)  # else it breaks
    asked = many(5)
    with opened(shell) as provider:
        provider.acquire(asked)
        assert set(phases(provider, asked).values()) == {PilotPhase.WAITING}
        shell.before_hosts = shell.places.clear  # all of them, before the next look
        until(lambda: len(shell.began) > 0, "the first has its host")
        shell.before_hosts = lambda: None
        until(lambda: len(shell.began) == 4, "so have the others")
        until(lambda: list(phases(provider, asked).values()).count(PilotPhase.STARTED) == 4, "which is seen")
        assert phases(provider, asked)["gpu-5"] is PilotPhase.WAITING, "who came last waits"
    assert sorted(host for host, _ in shell.began) == shell.names
