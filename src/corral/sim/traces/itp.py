"""Microsoft ITP 2021: ``job_id,submission_time,duration,num_gpu``, all in seconds.

Also reads the 195-job sample in the same layout with a ``model_name`` column. The source names no cluster sizes.
"""

from __future__ import annotations

from pathlib import Path

from corral.sim.traces.text_rows import Gathering, read_rows
from corral.sim.traces.trace import Trace, TraceJob

_COLUMNS = ("job_id", "submission_time", "duration", "num_gpu")


def read_itp(path: Path, name: str = "itp") -> Trace:
    gathering = Gathering(name, path)
    for row in read_rows(path, _COLUMNS):
        job = TraceJob(
            id=row.text("job_id"),
            submit_ms=row.ms("submission_time"),
            work_ms=row.ms("duration"),
            gpus=row.whole("num_gpu", least=1),
            application=row.word("model_name"),
        )
        gathering.take(row, "job_id", job)
    return gathering.trace()
