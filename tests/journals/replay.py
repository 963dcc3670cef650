"""A recorded journal, replayed: the state, the accounts and the look-ups that it gives, written in plain words.

What is written here must mean the same for ever: it is what old journals are held to. It shows the state, not how a
state is laid out, so that a state may change its shape. Recorded by

    python -m tests.journals.replay format-1

which makes a journal of the present format: one for each format, and one more whenever there is a new event. What was
recorded by a release is never recorded again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import msgspec

from corral.core import events as e
from corral.core.accounts.accounts import AccountEvent, Accounts, UserSet
from corral.core.accounts.identity import AccountRules, review
from corral.core.apply import apply
from corral.core.fleets.fleets import FleetEvent, Fleets
from corral.core.intake import gang_changes
from corral.core.intake.refusal import Refusal
from corral.core.model import GangState, Settings
from corral.core.state import State
from corral.store.archive import write_archive
from corral.store.chain import BEGINNING, chain
from corral.store.journal import Entry, Record
from corral.store.lookup import JobQuery, UsageQuery
from corral.store.memory import MemoryJournal
from corral.wire import codec
from tests.simulation.changing_cluster import ChangingDriver
from tests.store.runs import ACCOUNT_EVENTS, FLEET_EVENTS, batches, entries_of

FOLDER = Path(__file__).parent
#: Seed and policy of a run in which every event happens within a few hundred steps.
RUN, STEPS = (11, "conservative"), 400


def replay(records: Iterable[Record]) -> dict[str, object]:
    """How things stand after all of it."""
    state, accounts, journal = State(Settings()), Accounts(), MemoryJournal()
    fleets = Fleets()
    for record in records:
        event = codec.decode(record.format, record.body)
        if isinstance(event, AccountEvent):
            accounts.apply(event)
        elif isinstance(event, FleetEvent):
            fleets.apply(event)
        else:
            apply(state, event)
        journal.lookup.feed([record])
    told = {**_cluster(state), **_people(accounts), **_history(journal), **_signed_in(accounts)}
    if accounts.templates:
        told["templates"] = sorted((*key, template.text) for key, template in accounts.templates.items())
    return told | _carried(state, fleets)


def digest(told: dict[str, object]) -> str:
    return sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _carried(state: State, fleets: Fleets) -> dict[str, object]:
    """Journals from before there were fleets tell nothing of them, and give what they gave."""
    told: dict[str, object] = {}
    if fleets.numbers:
        told["fleets"] = msgspec.to_builtins([list(fleets.fleets.values()), fleets.numbers, fleets.cluster])
    if fleets.farewell != (0, 0):
        told["farewell"] = list(fleets.farewell)
    if state.ending:
        told["ending"] = dict(state.ending)
    return told


def _cluster(state: State) -> dict[str, object]:
    return {
        "nodes": [(n.spec.name, str(n.health), n.lost, n.drained, len(n.spec.gpus)) for n in state.nodes.values()],
        "queues": [(name, dict(queue.used), queue.jobs) for name, queue in sorted(state.queues.queues.items())],
        "jobs": [(j.id, j.user, j.priority, j.held, j.cancelled, j.unfinished, j.failed) for j in state.jobs.values()],
        "gangs": [
            (g.id, str(g.state), g.attempt, g.priority, g.done_ms, g.served_gpu_ms, g.blockers)
            for g in state.gangs.values()
        ],
        "seats": [(g.id, s.node, s.gpus, s.slice_mib) for g in state.gangs.values() for s in g.all_seats],
        "claims": [(g.id, [(seat.node, seat.gpus) for seat in g.claim]) for g in state.gangs.values() if g.claim],
    }


def _people(accounts: Accounts) -> dict[str, object]:
    return {
        "users": [(u.name, u.account, u.disabled, sorted(map(str, u.roles))) for u in accounts.users.values()],
        "tokens": [(t.id, t.user, t.digest, t.name, t.scope, t.expires_ms) for t in accounts.tokens.values()],
        "secrets": sorted(map(list, accounts.secrets)),
    }


def _signed_in(accounts: Accounts) -> dict[str, object]:
    """Journals from before there were identity providers tell nothing of them."""
    linked = [(u.name, u.provider, u.subject) for u in accounts.users.values() if u.provider]
    return {"linked": linked, "proofs": accounts.proofs} if linked or accounts.proofs else {}


def _history(journal: MemoryJournal) -> dict[str, object]:
    jobs = journal.lookup.jobs(JobQuery(limit=10_000)).jobs
    return {
        "history": [(j.id, j.state, j.attempts, j.started_ms, j.ended_ms, j.exit_code, j.failure, j.why) for j in jobs],
        "runs": [
            (r.gang, r.attempt, r.placed_ms, r.started_ms, r.ended_ms, r.gpu_milli, r.exit_code, r.failure, r.cause)
            for job in jobs
            for r in journal.lookup.attempts(job.id)
        ],
        "usage": [(u.queue, u.user, u.day, u.gpu_ms, u.lost_gpu_ms) for u in journal.lookup.usage(UsageQuery())],
    }


# ---- recording -----------------------------------------------------------------------------------------------------


def record(name: str) -> None:
    """A journal of the present format with every event in it, and what it gives."""
    path = FOLDER / f"{name}.jsonl"
    records: list[Record] = []
    head = BEGINNING
    for epoch, part in enumerate(batches(_entries(), 1), start=1):
        records += chain(head, 1 + epoch // 40, codec.FORMAT, part)
        head = type(head)(records[-1].seq, records[-1].hash)
    path.unlink(missing_ok=True)
    write_archive(path, BEGINNING, records)
    path.chmod(0o644)
    path.with_suffix(".digest").write_text(digest(replay(records)) + "\n")


def _entries() -> list[Entry]:
    """A founded cluster, some people, and a random run in which everything happens."""
    driver = ChangingDriver(*RUN, check_every=1 << 60)
    driver.run(STEPS)
    _slow(driver)
    _change_gangs(driver)
    _change_users(driver)
    people = [Entry(event.at_ms, "root", codec.encode(event)) for event in (*ACCOUNT_EVENTS, *FLEET_EVENTS)]
    return entries_of([e.Founded(900, driver.state.settings)]) + people + entries_of(driver.journal)


def _slow(driver: ChangingDriver) -> None:
    """The ranks of a gang wait for a slow one, and no longer."""
    gang = next(gang for gang in driver.state.holders.values() if gang.state is GangState.RUNNING)
    for percent in (140, 100):
        driver.take([e.GangSlowed(driver.now, gang.id, gang.attempt, gang.seats[0].node, percent)])


def _change_gangs(driver: ChangingDriver) -> None:
    """A gang that holds seats is changed by itself in every way."""
    gang = next(gang for gang in driver.state.holders.values() if not gang.cancelled)
    for change in (gang_changes.hold, gang_changes.release, gang_changes.cancel):
        if not isinstance(events := change(driver.state, [gang.id], driver.now), Refusal):
            driver.take(events)
    driver.take([e.GangPriorityChanged(driver.now, gang.id, gang.attempt, 4)])


def _change_users(driver: ChangingDriver) -> None:
    """All users are gone for a short time."""
    everybody = Accounts()
    for job in driver.state.jobs.values():
        everybody.apply(UserSet(1, job.user, job.account or ""))
    for accounts in (Accounts(), everybody):
        driver.take(review(driver.state, accounts, None, AccountRules(), lambda _: "", driver.now))


if __name__ == "__main__":
    record(sys.argv[1])
