"""The one thread that writes: takes all that was handed in, writes it in one transaction, then keeps the promises.

Knows batches of records; the transaction itself is given. Batches form by themselves: while one is forced to disk, the
next gathers. The first thing that cannot be written is the last thing tried: everything after it fails too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from corral.store.journal import Head, JournalAway, JournalFailed, JournalFenced, Record

#: So many records at most in one transaction (an append is never split): who came first must not wait for all the rest.
RECORDS_AT_ONCE = 4096

#: Writes records that follow that head, and what is folded from them, in one transaction; returns when it is durable.
Commit = Callable[[Head, Sequence[Record]], None]


class _Append(NamedTuple):
    future: Future[Head]
    records: list[Record]


class _Errand(NamedTuple):
    future: Future[Any]
    call: Callable[[], Any]


_END = None
_Item = _Append | _Errand | None


class Writer:
    """The connection for writing is this thread's alone, from its start to its end."""

    def __init__(
        self,
        head: Head,
        commit: Commit,
        remember: Callable[[Head], None],
        outage: tuple[type[Exception], ...],
        todo: str,
    ) -> None:
        """``remember``: told of every commit. ``outage``: what a database that is not in order leads to, for which
        somebody has ``todo`` something."""
        self.failure: Exception | None = None  # once set, nothing more is written
        self.lost: Future[None] = Future()  # the same, for whoever wants to be told
        self.committed_s = time.monotonic()  # when something was last written, or this began
        self.began_s: float | None = None  # when the transaction at hand was begun; None: there is none
        self._head = head
        self._commit, self._tell = commit, remember
        self._outage, self._todo = outage, todo
        self._inbox: SimpleQueue[_Item] = SimpleQueue()
        self._door = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="corral-journal", daemon=True)
        self._thread.start()

    def append(self, future: Future[Head], records: list[Record]) -> None:
        self._inbox.put(_Append(future, records))

    def run(self, call: Callable[[], Any]) -> Future[Any]:
        """Something else to be done with the connection, between two transactions."""
        future: Future[Any] = Future()
        with self._door:
            if self._ended:
                future.set_exception(JournalFailed("the journal is closed"))
            else:
                self._inbox.put(_Errand(future, call))
        return future

    def fail(self, failure: Exception) -> None:
        """From now on nothing is written. Called from the thread, or with a reason from elsewhere."""
        with self._door:
            if self.failure is not None:
                return
            self.failure = failure
        self.lost.set_exception(failure)

    def close(self, within_s: float | None = None) -> bool:
        """Write what was handed in, then end. False: it has not ended within that time, and may be called again."""
        with self._door:  # nothing comes in after the end
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
        """Wait for something, and take whatever else is there by then."""
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
            except Exception as wrong:  # whatever it is, nothing may be written after it
                self.fail(self._as_failure(wrong))
            self.began_s = None
        for append in batch:
            if self.failure is not None:
                append.future.set_exception(self.failure)
            else:
                last = append.records[-1] if append.records else None
                self._head = self._head if last is None else Head(last.seq, last.hash)
                append.future.set_result(self._head)
        if self.failure is None:
            self._remember()

    def _remember(self) -> None:
        try:
            self._tell(self._head)
        except OSError as wrong:
            self.fail(self._as_failure(wrong))

    def _do(self, errand: _Errand) -> None:
        if self.failure is not None:
            errand.future.set_exception(self.failure)
            return
        try:
            errand.future.set_result(errand.call())
        except Exception as wrong:
            errand.future.set_exception(wrong)

    def _as_failure(self, wrong: Exception) -> Exception:
        if isinstance(wrong, JournalFenced):
            return wrong
        is_outage = isinstance(wrong, (OSError, JournalAway, *self._outage))
        failure = JournalFailed(
            f"the journal could not be written: {str(wrong).rstrip('.')}. Nothing more is accepted; what was "
            f"acknowledged is safe. {self._todo if is_outage else 'This is a fault of Corral.'}"
        )
        failure.__cause__ = wrong
        return failure


def fenced(epoch: int) -> JournalFenced:
    return JournalFenced(f"another writer has taken over from epoch {epoch}. This server must stop.")
