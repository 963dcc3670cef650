"""The same thing done to many at the same time."""

from __future__ import annotations

import threading

import pytest

from corral.providers.base import ProviderRefused, ProviderUnavailable, raise_any
from corral.providers.parallel_map import AT_ONCE, parallel_map


def test_the_results_are_in_order_who_is_done_first() -> None:
    last = threading.Event()

    def do(number: int) -> int:
        if number == 0:
            last.wait(20)
        if number == 3:
            last.set()
        return number * 10

    assert parallel_map(do, range(4)) == [0, 10, 20, 30]
    assert parallel_map(do, []) == []


def test_all_are_done_also_when_one_raises() -> None:
    done: list[int] = []

    def do(number: int) -> None:
        if number in (1, 2):
            raise ValueError(f"no {number}")
        done.append(number)

    with pytest.raises(ValueError, match="no 1"):
        parallel_map(do, range(2 * AT_ONCE))
    assert len(done) == 2 * AT_ONCE - 2


def test_what_never_returns_does_not_hold_up_the_end() -> None:
    kinds = parallel_map(lambda _: threading.current_thread().daemon, range(2))
    assert kinds == [True, True]


def test_of_several_faults_not_to_know_weighs_more_and_each_reason_is_reported_once() -> None:
    raise_any([])
    refused = [ProviderRefused("too expensive"), ProviderRefused("none left"), ProviderRefused("too expensive")]
    with pytest.raises(ProviderRefused, match=r"^too expensive; none left$"):
        raise_any(refused)
    with pytest.raises(ProviderUnavailable, match=r"^lost$"):
        raise_any([*refused, ProviderUnavailable("lost"), ProviderUnavailable("lost")])
