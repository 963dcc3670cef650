"""Journals of whole random runs, as the seeded driver of tests/simulation makes them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random

from corral.core import events as e
from corral.core.accounts import accounts as a
from corral.core.cluster.resources import Gpu
from corral.core.fleets import fleets as fl
from corral.store.journal import Entry
from corral.store.lookup import request_mark
from corral.wire.codec import AnyEvent, encode
from tests.simulation.driver import Driver


def events_of_run(seed: int, steps: int) -> list[e.Event]:
    driver = Driver(seed, check_every=1 << 60)
    driver.run(steps)
    return driver.journal


def entries_of(events: list[e.Event]) -> list[Entry]:
    """Some submissions have idempotency keys, one of them twice."""
    return [_entry(event, number) for number, event in enumerate(events)]


def _entry(event: AnyEvent, number: int) -> Entry:
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
    a.Read(1_013, "ann", "the log of job 7 of bob", 2),
    a.UserLinked(1_014, "ann", "company", "s-1"),
    a.SignedIn(1_015, "ann", "company", "s-1", "d1ge57", 9_000_000),
    a.SignInRefused(1_016, "company", "s-2", "bob", "no rule of this site gives a role to bob"),
    a.TokensExpired(1_014, ("t3", "t4")),
    a.TemplateSet(1_017, "finetune", "ann", "command: python train.py\n"),
    a.TemplateSet(1_018, "site-wide", "", "command: python eval.py\n"),
    a.TemplateRemoved(1_019, "site-wide", ""),
)

_SHAPE = fl.NodeShape((Gpu("SIM-0", "H100", 81_920),), (("cpu_milli", 8_000),))
_SPEC = fl.FleetSpec(
    name="gpu", kind="slurm", settings={"partition": "gpu", "cpus": 8}, nodes_min=0, nodes_max=4, lasts_ms=86_400_000,
    price_milli=2_500, cost_max_milli=1_000_000,
)  # fmt: skip
#: One of each, and a fleet that is still there at the end.
FLEET_EVENTS: tuple[fl.FleetEvent, ...] = (
    fl.FleetSet(1_100, _SPEC, "ann", "c0ffee"),
    fl.PilotOrdered(1_101, "gpu", "gpu-1"),
    fl.PilotOrdered(1_102, "gpu", "gpu-2"),
    fl.FleetTroubled(1_103, "gpu", "slurmctld does not answer"),
    fl.FleetTroubled(1_104, "gpu"),
    fl.PilotSeen(1_105, "gpu", "gpu-1", fl.PilotPhase.WAITING, "job 17", why="Resources"),
    fl.PilotSeen(1_106, "gpu", "gpu-1", fl.PilotPhase.STARTED, "job 17 on n3", 90_000_000),
    fl.PilotJoined(1_107, "gpu", "gpu-1", _SHAPE),
    fl.PilotEnded(1_108, "gpu", "gpu-2", "job 18 was cancelled"),
    fl.FleetSet(1_109, fl.FleetSpec(name="old", kind="ssh"), "bob"),
    fl.PilotOrdered(1_110, "old", "old-1"),
    fl.FleetRecalled(1_111, "old"),
    fl.PilotRecalled(1_112, "old", "old-1", "nothing to do"),
    fl.PilotEnded(1_113, "old", "old-1"),
    fl.FleetRemoved(1_114, "old"),
    fl.FarewellGiven(1_115, 60_000),
)
