"""The Standard Workload Format of the Parallel Workloads Archive: 18 numbers per line, ``;`` before comments.

Knows what the numbers mean and that -1 is unknown. Processors count as GPUs: the logs are of CPU clusters.
"""

from __future__ import annotations

import re
from pathlib import Path

from corral.sim.traces.text_rows import Gathering, TraceError, TraceRow, read_lines
from corral.sim.traces.trace import Trace, TraceJob, TraceNodes

FIELDS = (
    "job_number", "submit_time", "wait_time", "run_time", "allocated_processors", "average_cpu_time",
    "used_memory", "requested_processors", "requested_time", "requested_memory", "status", "user", "group",
    "application", "queue", "partition", "preceding_job", "think_time",
)  # fmt: skip

# 2 to 4: lines about a part of a job whose summary is on another line.
_STATUS = {-1: "", 0: "failed", 1: "completed", 5: "cancelled"}
_PARTS = {2, 3, 4}

_HEADER = re.compile(r";\s*(?P<key>\w+):\s*(?P<value>.*?)\s*$")


def read_swf(path: Path, name: str = "swf") -> Trace:
    gathering = Gathering(name, path)
    header: dict[str, str] = {}
    for number, line in read_lines(path):
        if line.lstrip().startswith(";"):
            if found := _HEADER.match(line.strip()):
                header.setdefault(found["key"], found["value"])
            continue
        row = _row(str(path), number, line)
        if reason := _unusable(row):
            gathering.skip(reason)
        else:
            gathering.take(row, "job_number", _job(row))
    return gathering.trace(_nodes(str(path), header))


def _row(file: str, number: int, line: str) -> TraceRow:
    cells = line.split()
    if len(cells) < len(FIELDS):
        why = f"the line ends before this field: it has {len(cells)} of {len(FIELDS)} numbers."
        raise TraceError(file, number, FIELDS[len(cells)], why)
    if len(cells) > len(FIELDS):
        raise TraceError(file, number, "", f"the line has {len(cells)} numbers, but the format has {len(FIELDS)}.")
    return TraceRow(file, number, dict(zip(FIELDS, cells, strict=True)))


def _unusable(row: TraceRow) -> str | None:
    if row.whole("status", least=-1) in _PARTS:
        return "is a part of a job that has a line of its own"
    if not _is_known(row, "run_time"):
        return "run time unknown"
    if _processors(row) == 0:
        return "processors unknown"
    return None


def _job(row: TraceRow) -> TraceJob:
    status = row.whole("status", least=-1)
    if status not in _STATUS:
        raise row.wrong("status", f"is {status}, but must be between -1 and 5.")
    submit_ms = row.ms("submit_time")
    gpus = _processors(row)
    return TraceJob(
        id=row.text("job_number"),
        submit_ms=submit_ms,
        work_ms=row.ms("run_time"),
        gpus=gpus,
        memory_mib=row.whole("requested_memory") * gpus // 1024 if _is_known(row, "requested_memory") else 0,
        team=row.word("group") if _is_known(row, "group") else "",
        user=row.word("user") if _is_known(row, "user") else "",
        application=row.word("application") if _is_known(row, "application") else "",
        limit_ms=row.ms("requested_time") if _is_known(row, "requested_time") else None,
        status=_STATUS[status],
        started_ms=submit_ms + row.ms("wait_time") if _is_known(row, "wait_time") else None,
    )


def _is_known(row: TraceRow, field: str) -> bool:
    return row.number(field) != -1


def _processors(row: TraceRow) -> int:
    """The requested processors; if unknown, the allocated ones; 0 if neither is known."""
    asked = row.whole("requested_processors", least=-1)
    return asked if asked > 0 else max(row.whole("allocated_processors", least=-1), 0)


def _nodes(file: str, header: dict[str, str]) -> tuple[TraceNodes, ...]:
    """Equal nodes, if the header has numbers that fit; otherwise the cluster is unknown."""
    processors = _amount(file, header, "MaxProcs") or _amount(file, header, "MaxNodes")
    nodes = _amount(file, header, "MaxNodes") or processors
    if not nodes or processors % nodes:
        return ()
    return (TraceNodes(nodes, processors // nodes),)


def _amount(file: str, header: dict[str, str], key: str) -> int:
    """0 if the header does not say."""
    value = header.get(key, "").split(" ", maxsplit=1)[0]
    if value in ("", "-1"):
        return 0
    if not value.isdecimal():
        raise TraceError(file, 0, key, f"is {value!r} in the header, but must be a whole number.")
    return int(value)
