"""Leadership: a row that the leader renews by the clock of the database; the leader's own clock stops it in time.

Three things ensure that only one server writes. The *lease*: another server may lead only when it has expired, by the
clock of the database. The leader's *own clock*: it counts the lease from the moment before it asked, and stops before
the end. The *epoch*: a new leader locks the row of the writer and increments the epoch, and every transaction that
writes checks it; so even a leader that was frozen, or whose clock is wrong, can no longer write.
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

from corral.store.journal import JournalBusy, JournalFailed, JournalHead, JournalUnusable
from corral.store.postgres.database import WRITER_NAME, PostgresConnection, connect
from corral.store.sql.writer import fenced

LEASE_S = 5.0
_RENEWALS = 5  # per lease
_RESERVE = 5  # the leader stops when a fifth of the lease is left
_LOCK_WAIT_MS = 1_000
_GIVE_BACK_S = 2.0
_RENEW_SILENCE = 0.4  # of a lease: leaves time for another try on a new connection
_PROBE_BYTES = 64 << 10


class Leadership(Struct, frozen=True):
    """The leader (``is_held``) or the last one. ``left_s``: of the lease, by the clock of the database."""

    holder: str
    url: str
    epoch: int
    is_held: bool
    left_s: float
    since: str


def leadership(link: PostgresConnection) -> Leadership:
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
    """A new epoch, and the record it continues from."""

    epoch: int
    head: JournalHead
    deadline_s: float


def begin_epoch(link: PostgresConnection, holder: str, url: str, lease_s: float) -> Begun:
    """Take the lease and increment the epoch; raises if another server leads. A leader whose lease has expired but that
    still locks the row of the writer (it was frozen while writing) loses its session. If that session cannot be
    terminated, or another session holds the lock, no server can write, so none leads."""
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


def _begin(link: PostgresConnection, holder: str, url: str, lease_s: float) -> Begun:
    with link.transaction():
        link.execute(f"SET LOCAL lock_timeout = {_LOCK_WAIT_MS}")
        link.execute("SELECT 1 FROM leader FOR UPDATE")
        now = leadership(link)
        if now.is_held and now.holder != holder:
            raise JournalBusy(
                f"the server at {now.url or 'an unknown address'} is the leader (since {now.since} UTC) for at least "
                f"{now.left_s:.0f} s more. Stop that server first, or wait until its lease ends."
            )
        _check_writable(link)
        row = link.execute("UPDATE writer SET epoch = epoch + 1 RETURNING epoch, seq, hash").fetchone()
        assert row is not None
        asked_s = now_s()
        link.execute(
            "UPDATE leader SET holder = ?, url = ?, epoch = ?, session = pg_backend_pid(), since = clock_timestamp(),"
            " renewed_at = clock_timestamp(), expires_at = clock_timestamp() + make_interval(secs => ?)",
            (holder, url, row[0], lease_s),
        )
    return Begun(row[0], JournalHead(row[1], row[2]), asked_s + lease_s)


def _check_writable(link: PostgresConnection) -> None:
    """Raise if the database cannot be written, because of locked tables or a full disk: such a server must not lead."""
    link.execute("LOCK TABLE records IN ROW EXCLUSIVE MODE")
    link.execute("SAVEPOINT probe")
    link.execute(
        "INSERT INTO images (seq, part, parts, format, sha256, body) VALUES (-1, 0, 1, 0, '', ?)",
        (os.urandom(_PROBE_BYTES),),
    )
    link.execute("ROLLBACK TO SAVEPOINT probe")


def give_back(link: PostgresConnection, holder: str, epoch: int | None = None) -> None:
    """Release the lease, if this server holds it (in that epoch, or in any), so that another can lead."""
    try:
        link.execute(
            "UPDATE leader SET holder = '', expires_at = clock_timestamp()"
            " WHERE holder = ? AND epoch = coalesce(?, epoch)",
            (holder, epoch),
        )
    except psycopg.Error:
        link.close()


def now_s() -> float:
    """The boot clock: it is never set, and continues while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaderLease:
    """Renews the lease until it is released. ``lose`` is called once, from another thread, when the lease is about to
    end, or another server has it: from then on this epoch must not act. ``stuck_s``: how long the writer has waited for
    the database; a leader that cannot write does not renew.

    ``on_renewed`` is called in the renewing thread with the end of leadership, in milliseconds of the boot clock, with
    the reserve subtracted.
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
        self._address = address
        self._holder = holder
        self._epoch = begun.epoch
        self._lease_s = lease_s
        self._lose = lose
        self._stuck_s = stuck_s
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
        """Until when this server leads, by ``now_s``; 0 once it has given up."""
        return 0.0 if self._ended.is_set() else self._deadline_s - self._lease_s / _RESERVE

    def give_up(self) -> None:
        """Release the lease soon, if the database can be reached; does not wait for it."""
        self._ended.set()

    def end(self) -> None:
        """Release the lease now. If the database cannot be reached, it expires."""
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
        """Renew on a connection of its own, since the writer's may be busy for long. Retry until the lease ends."""
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

    def _renew_once(self, link: PostgresConnection) -> None:
        if self._is_stuck:
            raise JournalFailed(
                f"the journal could not be written for {self._stuck_s():.1f} s, so this server gives up leadership. "
                "See pg_locks and pg_stat_activity for what blocks the database. Acknowledged records are safe."
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
        """End leadership before the lease ends, even if the renewing thread is blocked."""
        while not self._ended.is_set():
            left_s = self.until_s - now_s()
            if left_s <= 0:
                raise JournalFailed(
                    f"the lease could not be renewed within {self._lease_s:g} s, so another server may lead now. "
                    "Check that the database can be reached. Acknowledged records are safe."
                )
            self._ended.wait(left_s)

    def _end(self, wrong: Exception) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._lose(wrong)
