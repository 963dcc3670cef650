"""Waits between attempts grow up to a limit, and differ."""

from __future__ import annotations

from corral.io.backoff import Backoff, no_chance


def test_waits_double_up_to_the_longest_and_start_again_after_a_success() -> None:
    backoff = Backoff(0.1, 5.0, no_chance)
    waits = [round(backoff.failed(), 3) for _ in range(8)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    backoff.succeeded()
    assert backoff.failed() == 0.1


def test_a_wait_is_from_half_to_all_of_the_step() -> None:
    assert [Backoff(chance=lambda part=part: part).failed() for part in (0.0, 1.0)] == [0.05, 0.1]  # type: ignore[misc]
    waits = {Backoff(1.0, 1.0).failed() for _ in range(200)}
    assert 0.5 <= min(waits) < 0.6
    assert 0.9 < max(waits) <= 1.0
