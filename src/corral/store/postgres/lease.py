"""Who leads: a row that the leader renews by the database's clock, and the leader's own clock that stops it in time.

Three things make one writer of many servers. The *lease*: another may lead only when it has run out, by the clock of
the database. The leader's *own clock*: it counts the lease from the moment before it asked, and stops a while before
the end. The *epoch*: whoever begins takes the row of the writer and counts it up, and every transaction that writes
checks it; so even a leader that was frozen, or whose clock is wrong, changes nothing any more.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import psycopg
from msgspec import Struct

from corral.store.journal import Head, JournalBusy, JournalFailed, JournalUnusable
from corral.store.postgres.database import WRITER_NAME, Link, connect
from corral.store.sql.writer import fenced

LEASE_S = 5.0
_RENEWALS = 5  # in the time of a lease
_RESERVE = 5  # this part of a lease is left when the leader stops
_LOCK_WAIT_MS = 1_000
_GIVE_BACK_S = 2.0
_RENEW_SILENCE = 0.4  # of a lease: then there is time for another try on another connection
_PROBE_BYTES = 64 << 10


class Leadership(Struct, frozen=True):
    """Who leads, or led last: ``is_held`` says which. ``left_s``: of the lease, by the clock of the database."""

    holder: str
    url: str
    epoch: int
    is_held: bool
    left_s: float
    since: str


def leadership(link: Link) -> Leadership:
    row = link.execute(
        "SELECT holder, url, epoch, expires_at > clock_timestamp(),"
        " greatest(0, extract(epoch FROM expires_at - clock_timestamp()))::float8,"
        " to_char(since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')"
        " FROM leader"
    ).fetchone()
    assert row is not None
    holder, url, epoch, is_held, left_s, since = row
    return Leadership(holder, url, epoch, is_held, left_s, since)


class Begun(Struct, frozen=True):
    """A new epoch, and what it goes on from."""

    epoch: int
    head: Head
    deadline_s: float


def begin_epoch(link: Link, holder: str, url: str, lease_s: float) -> Begun:
    """Take the lease and count up the epoch, or say who leads. A leader whose lease has run out and who keeps the row
    of the writer locked (it was frozen in the middle of writing) loses its session. One that cannot be ended, or
    somebody else's lock, leaves nobody who could write: then nobody leads."""
    try:
        return _begin(link, holder, url, lease_s)
    except psycopg.errors.LockNotAvailable:
        link.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity JOIN leader ON pid = session"
            " WHERE application_name = ? AND pid <> pg_backend_pid()"
            " AND (expires_at < clock_timestamp() OR holder = ?)",
            (WRITER_NAME, holder),
        )
        return _begin(link, holder, url, lease_s)


def _begin(link: Link, holder: str, url: str, lease_s: float) -> Begun:
    with link.transaction():
        link.execute(f"SET LOCAL lock_timeout = {_LOCK_WAIT_MS}")
        link.execute("SELECT 1 FROM leader FOR UPDATE")
        now = leadership(link)
        if now.is_held and now.holder != holder:
            raise JournalBusy(
                f"the database is led by the server at {now.url or 'an unknown address'} since {now.since} UTC, for "
                f"{now.left_s:.0f} s more at least. Stop that one first, or wait until it gives up."
            )
        _see_that_it_can_be_written(link)
        row = link.execute("UPDATE writer SET epoch = epoch + 1 RETURNING epoch, seq, hash").fetchone()
        assert row is not None
        asked_s = now_s()
        link.execute(
            "UPDATE leader SET holder = ?, url = ?, epoch = ?, session = pg_backend_pid(), since = clock_timestamp(),"
            " renewed_at = clock_timestamp(), expires_at = clock_timestamp() + make_interval(secs => ?)",
            (holder, url, row[0], lease_s),
        )
    return Begun(row[0], Head(row[1], row[2]), asked_s + lease_s)


def _see_that_it_can_be_written(link: Link) -> None:
    """Whoever could not write must not lead: tables that somebody keeps locked, or a full disk, are found now."""
    link.execute("LOCK TABLE records IN ROW EXCLUSIVE MODE")
    link.execute("SAVEPOINT probe")
    link.execute(
        "INSERT INTO images (seq, part, parts, format, sha256, body) VALUES (-1, 0, 1, 0, '', ?)",
        (os.urandom(_PROBE_BYTES),),
    )
    link.execute("ROLLBACK TO SAVEPOINT probe")


def give_back(link: Link, holder: str, epoch: int | None = None) -> None:
    """Let another lead, if this one does: in that epoch, or in any. Without a holder it can no longer be renewed."""
    try:
        link.execute(
            "UPDATE leader SET holder = '', expires_at = clock_timestamp()"
            " WHERE holder = ? AND epoch = coalesce(?, epoch)",
            (holder, epoch),
        )
    except psycopg.Error:
        link.close()


def now_s() -> float:
    """A clock that nobody sets, and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """Renews until it is given back. ``lose`` is told once, from another thread, when the lease is about to end, or
    belongs to another: from then on nothing may be done in the name of this epoch. ``stuck_s``: for how long the writer
    has been waiting in vain; a leader that cannot write does not renew.

    ``on_renewed`` is told, in the thread that renews, until when this server leads: milliseconds of the clock that
    goes on while the machine sleeps, with the reserve already taken off.
    """

    def __init__(
        self,
        address: str,
        holder: str,
        begun: Begun,
        lease_s: float,
        lose: Callable[[Exception], None],
        stuck_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._address, self._holder, self._epoch, self._lease_s = address, holder, begun.epoch, lease_s
        self._lose, self._stuck_s = lose, stuck_s
        self._deadline_s = begun.deadline_s
        self.on_renewed: Callable[[int], None] | None = None
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"corral-lease-{work.__name__}", daemon=True)
            for work in (self._renew, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def until_s(self) -> float:
        """Until when this server leads, by ``now_s``; long ago, once it has given that up."""
        return 0.0 if self._ended.is_set() else self._deadline_s - self._lease_s / _RESERVE

    def give_up(self) -> None:
        """Let another lead at once, as far as the database can be told; without waiting for that."""
        self._ended.set()

    def end(self) -> None:
        """Let another lead at once. Without a connection it has to wait for the end of the lease."""
        self.give_up()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_GIVE_BACK_S)

    # ---- in threads of their own -------------------------------------------------------------------------------

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as wrong:
            self._end(wrong)

    def _renew(self) -> None:
        """A connection of its own, since the writer's may be busy for long. What fails is tried again until there is
        no time left."""
        silence_s = self._lease_s * _RENEW_SILENCE
        while not self._ended.is_set():
            with (
                suppress(psycopg.Error, JournalUnusable),
                closing(connect(self._address, silence_s=silence_s, connect_s=silence_s)) as link,
            ):
                try:
                    while not self._ended.is_set():
                        self._renew_once(link)
                        self._ended.wait(self._lease_s / _RENEWALS)
                finally:
                    if self._ended.is_set() or self._is_stuck:
                        give_back(link, self._holder, self._epoch)
            self._ended.wait(self._lease_s / _RENEWALS / 4)

    @property
    def _is_stuck(self) -> bool:
        return self._stuck_s() > self._lease_s * (1 - 1 / _RESERVE)

    def _renew_once(self, link: Link) -> None:
        if self._is_stuck:
            raise JournalFailed(
                f"nothing could be written for {self._stuck_s():.1f} s, so another server shall lead. See what keeps "
                "the database (pg_locks, pg_stat_activity); what was acknowledged is safe."
            )
        asked_s = now_s()
        renewed: Any = link.execute(
            "UPDATE leader SET renewed_at = clock_timestamp(),"
            " expires_at = clock_timestamp() + make_interval(secs => ?) WHERE holder = ? AND epoch = ?",
            (self._lease_s, self._holder, self._epoch),
        )
        if renewed.rowcount != 1:
            raise fenced(self._epoch)
        self._deadline_s = asked_s + self._lease_s
        if self.on_renewed is not None:
            self.on_renewed(int(self.until_s * 1000))

    def _watch(self) -> None:
        """Ends a while before the lease does, whatever the renewing thread waits for."""
        while not self._ended.is_set():
            left_s = self.until_s - now_s()
            if left_s <= 0:
                raise JournalFailed(
                    f"the lease could not be renewed in {self._lease_s:g} s, so another server may lead from now on. "
                    "See that the database can be reached; what was acknowledged is safe."
                )
            self._ended.wait(left_s)

    def _end(self, wrong: Exception) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._lose(wrong)
