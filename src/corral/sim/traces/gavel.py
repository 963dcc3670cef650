"""Workloads of Gavel and Shockwave: tab-separated lines without a header, in seconds.

Knows where the length of a job is: Gavel gives steps, which a table of measured throughputs for a GPU type
turns into time; Shockwave gives the time. Changes of the batch size during a job are ignored.
"""

from __future__ import annotations

import json
from pathlib import Path

from corral.sim.traces.text_rows import Gathering, TraceError, TraceRow, UnknownTrace, nearest, opened, read_lines
from corral.sim.traces.trace import Trace, TraceJob

_GAVEL = (
    "job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps",
    "scale_factor", "priority_weight", "SLO", "arrival_time",
)  # fmt: skip
_SHOCKWAVE = (*_GAVEL[:7], "mode", "priority_weight", "SLO", "duration", "arrival_time")

GPU_TYPE = "v100"

Throughputs = dict[str, float]  # steps a second, by "('job type', scale factor)"


def read_gavel(path: Path, throughputs: Path, name: str = "gavel", gpu_type: str = GPU_TYPE) -> Trace:
    """Work is the number of steps divided by the throughput of the job's type and size, alone on GPUs of this type."""
    table = read_throughputs(throughputs, gpu_type)
    gathering = Gathering(name, path)
    for place, (number, line) in enumerate(read_lines(path)):
        row = _row(str(path), number, line, _GAVEL)
        steps_per_s = _steps_per_s(row, table, throughputs, gpu_type)
        work_ms = round(row.whole("total_steps") * 1000 / steps_per_s)
        gathering.take(row, "job_type", _job(row, place, work_ms))
    return gathering.trace(notes=[f"Work is the run time of a job on {gpu_type} according to {throughputs.name}."])


def read_shockwave(path: Path, name: str = "shockwave") -> Trace:
    """Work is the duration column: what the job takes if its batch size stays as it is at first."""
    gathering = Gathering(name, path)
    for place, (number, line) in enumerate(read_lines(path)):
        row = _row(str(path), number, line, _SHOCKWAVE)
        gathering.take(row, "job_type", _job(row, place, row.ms("duration")))
    return gathering.trace(notes=["Work is computed for the first batch size of a job; its mode may change it."])


def read_throughputs(path: Path, gpu_type: str) -> Throughputs:
    """Throughputs of jobs running alone: the table also has pairs that share GPUs."""
    try:
        with opened(path) as text:
            tables = json.load(text)
    except json.JSONDecodeError as error:
        raise TraceError(str(path), error.lineno, "", f"is not JSON ({error.msg}).") from None
    if gpu_type not in tables:
        raise UnknownTrace(gpu_type, f"{path} has no such GPU type.{nearest(gpu_type, tables)}")
    return {key: row["null"] for key, row in tables[gpu_type].items() if "null" in row}


def _steps_per_s(row: TraceRow, table: Throughputs, source: Path, gpu_type: str) -> float:
    key = f"({row.text('job_type')!r}, {row.whole('scale_factor', least=1)})"
    if key not in table:
        raise row.wrong("job_type", f"{source} has no throughput of {key} on {gpu_type}.{nearest(key, table)}")
    if table[key] <= 0:
        why = f"{key} does not run on {gpu_type} (its throughput is 0 in {source}). Choose another GPU type."
        raise row.wrong("job_type", why)
    return table[key]


def _row(file: str, number: int, line: str, fields: tuple[str, ...]) -> TraceRow:
    cells = line.split("\t")
    if len(cells) < len(fields):
        why = f"the line ends before this field: it has {len(cells)} of {len(fields)}, separated by tabs."
        raise TraceError(file, number, fields[len(cells)], why)
    if len(cells) > len(fields):
        raise TraceError(file, number, "", f"the line has {len(cells)} fields, but the format has {len(fields)}.")
    return TraceRow(file, number, dict(zip(fields, cells, strict=True)))


def _job(row: TraceRow, place: int, work_ms: int) -> TraceJob:
    return TraceJob(
        id=str(place),
        submit_ms=row.ms("arrival_time"),
        work_ms=work_ms,
        gpus=row.whole("scale_factor", least=1),
        application=row.text("job_type"),
        kind=row.word("mode"),
    )
