"""The index of records by job: filled as records are written, and for older records in the background.

Knows the two tables of the index. Submissions, which are most records of a busy server, need no entry: the table of
jobs names their records. The caller passes the connection and how rows are written, and opens a transaction around
every call that changes something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from corral.core.events import JobSubmitted
from corral.store.journal import Record
from corral.store.lookup import JobRecords
from corral.store.projection import job_told_of
from corral.store.sql.connection import SqlConnection
from corral.store.sql.record_reader import RECORD, records_in
from corral.wire.codec import kind_of

#: Older records that are entered at once; the writer never waits for more.
AT_ONCE = 1000
#: Puts rows into ``job_records``.
PutPairs = Callable[[Sequence[tuple[str, int]]], None]
_SUBMITTED = JobSubmitted.__name__


def pairs_of(records: Iterable[Record]) -> list[tuple[str, int]]:
    """The index rows of these records."""
    return [
        (job, record.seq)
        for record in records
        if kind_of(record.body) != _SUBMITTED and (job := job_told_of(record.format, record.body))
    ]


def records_of(connection: SqlConnection, job: str, after: int, limit: int) -> JobRecords:
    """Records of a job, read in one snapshot. Records that are not entered yet are scanned, a part at a time."""
    (head,) = connection.execute("SELECT seq FROM writer").fetchone()
    begin = _begin(connection)
    if after < begin:
        rows = connection.execute(
            f"SELECT {RECORD} FROM records WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?", (after, begin, AT_ONCE)
        ).fetchall()
        seen = [Record(*row) for row in rows]
        upto = seen[-1].seq if len(seen) == AT_ONCE else begin
        return JobRecords([each for each in seen if job_told_of(each.format, each.body) == job], upto, head)
    rows = connection.execute(
        f"SELECT {RECORD} FROM records"
        " WHERE seq IN (SELECT seq FROM"
        " (SELECT records.seq FROM jobs JOIN records ON records.seq = jobs.seq WHERE jobs.id = ? AND jobs.seq > ?"
        " UNION SELECT seq FROM job_records WHERE job = ? AND seq > ?) AS about ORDER BY seq LIMIT ?) ORDER BY seq",
        (job, after, job, after, limit),
    ).fetchall()
    return JobRecords([Record(*row) for row in rows], rows[-1][0] if len(rows) == limit else max(after, head), head)


def wrong_entries(connection: SqlConnection) -> Iterator[str]:
    """Differences between the index and the records."""
    missing, entered = list[int](), 0
    for record in records_in(connection, _begin(connection)):
        if job := job_told_of(record.format, record.body):
            row = (job, record.seq)
            if connection.execute("SELECT 1 FROM job_records WHERE job = ? AND seq = ?", row).fetchone() is not None:
                entered += 1
            elif kind_of(record.body) != _SUBMITTED:
                missing.append(record.seq)
    (there,) = connection.execute("SELECT count(*) FROM job_records").fetchone()
    if missing:
        yield f"job_records: {len(missing)} records have no entry, the first is {missing[0]}"
    if there != entered:
        yield f"job_records: {there - entered} rows should not exist"


def has_older(connection: SqlConnection) -> bool:
    """Whether some records are not entered yet."""
    return _begin(connection) > 0


def enter_some(connection: SqlConnection, put: PutPairs) -> None:
    """Enter the newest of the records that are not entered yet."""
    rows = connection.execute(
        f"SELECT {RECORD} FROM records WHERE seq <= ? ORDER BY seq DESC LIMIT ?", (_begin(connection), AT_ONCE)
    ).fetchall()
    put(pairs_of(Record(*row) for row in rows))
    begin = rows[-1][0] - 1 if len(rows) == AT_ONCE else 0
    connection.execute("UPDATE job_records_begin SET seq = ?", (begin,))


def enter_again(connection: SqlConnection) -> None:
    """Empty the index; all records are entered again in the background."""
    connection.execute("DELETE FROM job_records")
    connection.execute("UPDATE job_records_begin SET seq = (SELECT seq FROM writer)")


def leave_out(connection: SqlConnection, upto: int) -> None:
    """Remove the entries of the records up to that one, which are about to be removed."""
    rows = connection.execute("SELECT format, body FROM records WHERE seq <= ?", (upto,)).fetchall()
    for job in sorted({job_told_of(format, body) for format, body in rows} - {""}):
        connection.execute("DELETE FROM job_records WHERE job = ? AND seq <= ?", (job, upto))


def _begin(connection: SqlConnection) -> int:
    seq: int = connection.execute("SELECT seq FROM job_records_begin").fetchone()[0]
    return seq
