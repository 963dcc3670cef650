"""How fast the journal is: single submissions a second, and what one costs.

    python -m tests.store.throughput [--records 60000] [--folder FOLDER]

Appends one submission at a time, as fast as the thread can, with look-ups kept; waits for the last to be durable. Ends
with one line of JSON: records a second, microseconds of CPU a record, and of those in the thread that appends.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from corral.store.sqlite import SqliteJournal
from tests.store.entries import submission


def main() -> None:
    parser = argparse.ArgumentParser(description="How many single submissions the journal makes durable in a second.")
    parser.add_argument("--records", type=int, default=60_000)
    parser.add_argument("--folder", help="where, so that it is on the disk that matters")
    given = parser.parse_args()
    entries = [submission(number) for number in range(1, given.records + 1)]
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        journal = SqliteJournal(Path(folder) / "data")
        began_s, cpu_s, appending_s = time.perf_counter(), time.process_time(), time.thread_time()
        futures = [journal.append([entry]) for entry in entries]
        appending_s = time.thread_time() - appending_s
        futures[-1].result()
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        journal.close()
    told = {
        "records": given.records,
        "records_per_s": round(given.records / took_s),
        "cpu_us": round(cpu_s / given.records * 1e6, 1),
        "append_us": round(appending_s / given.records * 1e6, 1),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
