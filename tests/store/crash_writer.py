"""A process that writes, to be killed or cut off from power: appends submissions and says which of them are durable.

    python -m tests.store.crash_writer FOLDER COUNT [--careless]

For each append that became durable a line with the number of its last record goes to standard output, at once and in
one write. Batches of random size, now and then an image, now and then an archive, until it has written COUNT records
or is killed.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from random import Random

from corral.store.archive import ArchiveRefused
from corral.store.journal import JournalHead, StoredImage
from corral.store.sqlite import SqliteJournal, database
from tests.store.entries import entry, submission


def say(done: Future[JournalHead]) -> None:
    """Called by the writer's thread as soon as the records are durable."""
    if done.exception() is None:
        os.write(1, b"%d\n" % done.result().seq)


def write(folder: Path, count: int) -> None:
    database.CHECKPOINT_PAGES = 60  # so that there are some in a short run
    journal = SqliteJournal(folder)
    rng = Random(journal.head.seq)
    while journal.head.seq < count:
        size = rng.choice((1, 1, 1, 2, 5, 20))
        at = journal.head.seq
        jobs = [submission(at + n + 1, rng.choice(("ann", "bob"))) if n % 3 else entry(at + n + 1) for n in range(size)]
        done = journal.append(jobs)
        done.add_done_callback(say)
        if rng.random() < 0.2:
            done.result(30)
        if rng.random() < 0.02:
            seq = done.result(30).seq
            journal.save_image(StoredImage(seq, 1, rng.randbytes(rng.choice((100, 10_000)))))
            if rng.random() < 0.3:
                with suppress(ArchiveRefused):  # up to the oldest image all is archived: the process before was killed
                    journal.archive(min(journal._reader.images.seqs()))
                    journal.shrink()
    journal.close()


if __name__ == "__main__":
    if "--careless" in sys.argv:  # to see that carelessness is found out
        database.SYNCHRONOUS = "NORMAL"
    write(Path(sys.argv[1]), int(sys.argv[2]))
