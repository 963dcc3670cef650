"""Journals of whole random runs, as the seeded driver of tests/simulation makes them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random

from corral.core import events as e
from corral.core.people import accounts as a
from corral.store.journal import Entry
from corral.store.lookup import request_mark
from corral.wire.codec import Written, encode
from tests.simulation.driver import Driver


def events_of_run(seed: int, steps: int) -> list[e.Event]:
    driver = Driver(seed, check_every=1 << 60)
    driver.run(steps)
    return driver.journal


def entries_of(events: list[e.Event]) -> list[Entry]:
    """Some submissions have idempotency keys, one of them twice."""
    return [_entry(event, number) for number, event in enumerate(events)]


def _entry(event: Written, number: int) -> Entry:
    if not isinstance(event, e.JobSubmitted):
        return Entry(event.at_ms, "server", encode(event))
    mark = request_mark(f"key {number // 40}", "abc") if number % 3 else ""
    return Entry(event.at_ms, event.user, encode(event), mark)


def batches(entries: list[Entry], seed: int) -> Iterator[list[Entry]]:
    """In parts of random size."""
    rng, source = Random(seed), iter(entries)
    while part := list(islice(source, rng.choice((1, 1, 2, 3, 10, 50)))):
        yield part


#: One of each.
ACCOUNT_EVENTS: tuple[a.AccountEvent, ...] = (
    a.UserSet(1_000, "ann", "ann"),
    a.UserSet(1_001, "bob", disabled=True),
    a.RoleGranted(1_002, "ann", a.Role.LEAD, "lab"),
    a.RoleGranted(1_003, "bob", a.Role.VIEWER),
    a.TokenIssued(1_004, "t1", "ann", "00" * 32, "laptop", ("read",), 2_000_000_000_000),
    a.TokenIssued(1_005, "t2", "bob", "11" * 32),
    a.TokenRevoked(1_006, "t1"),
    a.SecretSet(1_007, "wandb", "lab/red"),
    a.SecretSet(1_008, "hub", "ops"),
    a.SecretRemoved(1_009, "hub", "ops"),
    a.RoleRevoked(1_010, "bob", a.Role.VIEWER),
    a.UserRemoved(1_011, "bob"),
    a.AccessRefused(1_012, "node:n1", "node:n1 tried to speak for node 'n2'"),
)
