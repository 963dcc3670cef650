"""The server's clock: it never goes back, and a jump far ahead that nothing confirms is not believed."""

import time

from corral.server.clock import JUMP_MS_MAX, TRUST, Clock, is_synchronised

YEAR_MS = 365 * 86_400_000
SLACK_MS = 60_000


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def is_about(at_ms: int, expected_ms: int) -> bool:
    return 0 <= at_ms - expected_ms < SLACK_MS


def test_a_clock_a_year_ahead_is_not_believed_and_the_next_start_is_right(monkeypatch):
    last_ms, right = wall_ms(), time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: right() + YEAR_MS * 1_000_000)
    wrong = Clock(last_ms, lambda: False)
    assert is_about(wrong.now_ms(), last_ms)
    monkeypatch.setattr(time, "time_ns", right)
    assert is_about(Clock(wrong.now_ms(), lambda: False).now_ms(), wall_ms())


def test_a_server_that_was_off_for_long_goes_on_with_a_clock_that_is_kept_right():
    assert is_about(Clock(wall_ms() - YEAR_MS, lambda: True).now_ms(), wall_ms())


def test_no_one_need_confirm_a_first_start_or_a_short_absence():
    for last_ms in (0, wall_ms() - JUMP_MS_MAX + SLACK_MS):
        assert is_about(Clock(last_ms, lambda: False).now_ms(), wall_ms())


def test_time_never_goes_back_behind_the_journal():
    last_ms = wall_ms() + YEAR_MS
    assert is_about(Clock(last_ms, lambda: True).now_ms(), last_ms)


def test_an_administrator_may_vouch_for_the_clock(monkeypatch):
    monkeypatch.setenv(TRUST, "1")
    assert is_synchronised()
    monkeypatch.delenv(TRUST)
    assert is_synchronised() in (True, False)  # whatever this machine says, it can be asked


def test_a_moment_is_reported_in_the_time_of_the_machine():
    clock = Clock(wall_ms() + YEAR_MS)
    assert abs(clock.to_wall(clock.now_ms() + 5_000) - wall_ms() - 5_000) < SLACK_MS
