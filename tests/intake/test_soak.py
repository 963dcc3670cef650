"""A short form of the soak: one fault of each kind, and every message is one job or a dead letter."""

from __future__ import annotations

from pathlib import Path

from tests.intake.brokers import PrivateRabbit, PrivateRedis
from tests.intake.soak import FAULTS, soak


def test_nothing_is_lost_or_doubled_when_everything_is_killed_once(tmp_path: Path, rabbit: PrivateRabbit) -> None:
    found = soak(tmp_path, rabbit, 400, FAULTS, 0.5, 0)
    assert (found["lost"], found["twice"], found["dead_lettered"]) == (0, 0, 4), found


def test_the_same_through_redis(tmp_path: Path, redis_server: PrivateRedis) -> None:
    found = soak(tmp_path, redis_server, 400, FAULTS, 0.5, 0)
    assert (found["lost"], found["twice"], found["dead_lettered"]) == (0, 0, 4), found
