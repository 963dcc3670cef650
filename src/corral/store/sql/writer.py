"""The writer thread: takes all appended records, writes them in one transaction, then completes their futures.

Knows batches of records; the transaction itself is passed in. While one batch is synced to disk, the next accumulates.
After the first failure nothing more is written: everything after it fails, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from corral.store.journal import JournalAway, JournalFailed, JournalFenced, JournalHead, Record

#: Records in one transaction (an append is never split), so that the first append does not wait for all later ones.
RECORDS_AT_ONCE = 4096

#: Writes records that follow that head, and their projections, in one transaction; returns when they are durable.
Commit = Callable[[JournalHead, Sequence[Record]], None]


class _Append(NamedTuple):
    future: Future[JournalHead]
    records: list[Record]


class _Call(NamedTuple):
    future: Future[Any]
    call: Callable[[], Any]


_END = None
_Item = _Append | _Call | None


class JournalWriter:
    """The writer thread; only it uses the connection for writing."""

    def __init__(
        self,
        head: JournalHead,
        commit: Commit,
        remember: Callable[[JournalHead], None],
        outage: tuple[type[Exception], ...],
        todo: str,
    ) -> None:
        """``remember``: called after every commit. ``outage``: exceptions of a database problem; ``todo``: what the
        operator should do then."""
        self.failure: Exception | None = None  # once set, nothing more is written
        self.lost: Future[None] = Future()  # fails with the same exception
        self.committed_s = time.monotonic()  # when records were last written, or the writer started
        self.began_s: float | None = None  # when the current transaction began; None: there is none
        self._head = head
        self._commit = commit
        self._on_commit = remember
        self._outage = outage
        self._todo = todo
        self._inbox: SimpleQueue[_Item] = SimpleQueue()
        self._door = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="corral-journal", daemon=True)
        self._thread.start()

    def append(self, future: Future[JournalHead], records: list[Record]) -> None:
        self._inbox.put(_Append(future, records))

    def run(self, call: Callable[[], Any]) -> Future[Any]:
        """Run another call in the writer thread, between two transactions."""
        future: Future[Any] = Future()
        with self._door:
            if self._ended:
                future.set_exception(JournalFailed("the journal is closed"))
            else:
                self._inbox.put(_Call(future, call))
        return future

    def fail(self, failure: Exception) -> None:
        """Write nothing more from now on. Called from this thread or from others."""
        with self._door:
            if self.failure is not None:
                return
            self.failure = failure
        self.lost.set_exception(failure)

    def close(self, within_s: float | None = None) -> bool:
        """Write what was appended, then end. False if it has not ended within that time; it may be called again."""
        with self._door:  # nothing is accepted after the end
            if not self._ended:
                self._ended = True
                self._inbox.put(_END)
        self._thread.join(within_s)
        return not self._thread.is_alive()

    # ---- in the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            batch: list[_Append] = []
            for item in self._take():
                if isinstance(item, _Append):
                    batch.append(item)
                    continue
                self._write(batch)
                batch = []
                if item is _END:
                    return
                self._do(item)
            self._write(batch)

    def _take(self) -> list[_Item]:
        """Wait for an item, and take all others that are waiting."""
        item = self._inbox.get()
        items, count = [item], 0
        while count < RECORDS_AT_ONCE:
            count += len(item.records) if isinstance(item, _Append) else 1
            try:
                item = self._inbox.get_nowait()
            except Empty:
                break
            items.append(item)
        return items

    def _write(self, batch: list[_Append]) -> None:
        if not batch:
            return
        records = [record for append in batch for record in append.records]
        if self.failure is None:
            self.began_s = time.monotonic()
            try:
                if records:
                    self._commit(self._head, records)
                self.committed_s = time.monotonic()
            except Exception as wrong:  # after any error nothing may be written
                self.fail(self._as_failure(wrong))
            self.began_s = None
        for append in batch:
            if self.failure is not None:
                append.future.set_exception(self.failure)
            else:
                last = append.records[-1] if append.records else None
                self._head = self._head if last is None else JournalHead(last.seq, last.hash)
                append.future.set_result(self._head)
        if self.failure is None:
            self._remember()

    def _remember(self) -> None:
        try:
            self._on_commit(self._head)
        except OSError as wrong:
            self.fail(self._as_failure(wrong))

    def _do(self, item: _Call) -> None:
        if self.failure is not None:
            item.future.set_exception(self.failure)
            return
        try:
            item.future.set_result(item.call())
        except Exception as wrong:
            item.future.set_exception(wrong)

    def _as_failure(self, wrong: Exception) -> Exception:
        if isinstance(wrong, JournalFenced):
            return wrong
        is_outage = isinstance(wrong, (OSError, JournalAway, *self._outage))
        failure = JournalFailed(
            f"journal write failed: {str(wrong).rstrip('.')}. Nothing more is accepted; acknowledged records are safe. "
            f"{self._todo if is_outage else 'This is a bug in Corral: report it with the log.'}"
        )
        failure.__cause__ = wrong
        return failure


def fenced(epoch: int) -> JournalFenced:
    return JournalFenced(f"another server has taken over from epoch {epoch}. This server must stop.")
