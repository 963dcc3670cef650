"""Which records are about which job: entered as records are written, and for older ones when there is time.

Knows the two tables of that. Is given the connection and how rows are put; a transaction is open around every call that
changes something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from corral.store.journal import Record
from corral.store.lookup import JobRecords
from corral.store.projection import job_told_of
from corral.store.sql.connection import Connection
from corral.store.sql.records import RECORD, records_in

#: So many of the older records are entered at once: whoever writes waits for no more.
AT_ONCE = 1000
#: Puts rows into ``job_records``.
PutPairs = Callable[[Sequence[tuple[str, int]]], None]


def pairs_of(records: Iterable[Record]) -> list[tuple[str, int]]:
    """The rows for these records; most are about a job."""
    return [(job, record.seq) for record in records if (job := job_told_of(record.format, record.body))]


def records_of(connection: Connection, job: str, after: int, limit: int) -> JobRecords:
    """In a transaction that sees one moment. What is not entered yet is looked through, a part at a time."""
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
        " WHERE seq IN (SELECT seq FROM job_records WHERE job = ? AND seq > ? ORDER BY seq LIMIT ?) ORDER BY seq",
        (job, after, limit),
    ).fetchall()
    return JobRecords([Record(*row) for row in rows], rows[-1][0] if len(rows) == limit else max(after, head), head)


def wrong_entries(connection: Connection) -> Iterator[str]:
    """How the table differs from what the records say."""
    missing, wanted = list[int](), 0
    for record in records_in(connection, _begin(connection)):
        if job := job_told_of(record.format, record.body):
            wanted += 1
            row = (job, record.seq)
            if connection.execute("SELECT 1 FROM job_records WHERE job = ? AND seq = ?", row).fetchone() is None:
                missing.append(record.seq)
    (there,) = connection.execute("SELECT count(*) FROM job_records").fetchone()
    if missing:
        yield f"job_records: {len(missing)} records are not entered, the first is {missing[0]}"
    if there != wanted - len(missing):
        yield f"job_records: {there - wanted + len(missing)} rows should not be there"


def has_older(connection: Connection) -> bool:
    """Whether there are records that are not entered yet."""
    return _begin(connection) > 0


def enter_some(connection: Connection, put: PutPairs) -> None:
    """Enter the newest of those records that are not."""
    rows = connection.execute(
        "SELECT seq, format, body FROM records WHERE seq <= ? ORDER BY seq DESC LIMIT ?", (_begin(connection), AT_ONCE)
    ).fetchall()
    put([(job, seq) for seq, format, body in rows if (job := job_told_of(format, body))])
    begin = rows[-1][0] - 1 if len(rows) == AT_ONCE else 0
    connection.execute("UPDATE job_records_begin SET seq = ?", (begin,))


def enter_again(connection: Connection) -> None:
    """Forget what was entered; all of it is older now."""
    connection.execute("DELETE FROM job_records")
    connection.execute("UPDATE job_records_begin SET seq = (SELECT seq FROM writer)")


def leave_out(connection: Connection, upto: int) -> None:
    """Forget the records up to that one, which are about to go."""
    rows = connection.execute("SELECT format, body FROM records WHERE seq <= ?", (upto,)).fetchall()
    for job in sorted({job_told_of(format, body) for format, body in rows} - {""}):
        connection.execute("DELETE FROM job_records WHERE job = ? AND seq <= ?", (job, upto))


def _begin(connection: Connection) -> int:
    seq: int = connection.execute("SELECT seq FROM job_records_begin").fetchone()[0]
    return seq
