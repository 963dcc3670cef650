"""``--json`` of squeue, sacct, sinfo and scontrol: the names that Slurm's data_parser v0.0.41 gives to the same values.

Numbers that may be absent are objects with ``set``, ``infinite`` and ``number``, as there.
"""

from __future__ import annotations

import json

from corral.cli.slurm.shim_parts.slurm_jobs import OVER, ShownJob
from corral.runtime.hostlist import compress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_META = {
    "plugin": {"type": "openapi/slurmctld", "name": "Corral", "data_parser": "data_parser/v0.0.41"},
    "slurm": {"version": {"major": "24", "micro": "0", "minor": "11"}, "release": "24.11.0", "cluster": "corral"},
}


def number(value: float | None, *, infinite: bool = False) -> dict[str, Any]:
    return {"set": value is not None, "infinite": infinite, "number": value or 0}


def print_answer(**content: Any) -> None:
    print(json.dumps({**content, "meta": _META, "errors": [], "warnings": []}, indent=2))


def print_jobs(rows: list[ShownJob]) -> None:
    print_answer(jobs=[job_object(row) for row in rows])


def job_object(row: ShownJob) -> dict[str, Any]:
    view = row.view
    code, signal = (int(part) for part in row.exit_code.split(":"))
    limit_ms = view.time_limit_ms
    is_one = row.element.isdecimal()
    return {
        "account": row.account,
        "array_job_id": number(int(view.id) if row.element else 0),
        "array_task_id": number(int(row.element) if is_one else None),
        "array_task_string": "" if is_one else row.element.strip("[]"),
        "cluster": "corral",
        "command": row.field("Command"),
        "comment": view.labels.get("comment", ""),
        "cpus": number(row.cpus),
        "current_working_directory": view.directory,
        "dependency": ",".join(view.after),
        "end_time": number((row.ended_ms or 0) // 1000),
        "exit_code": {
            "status": ["SUCCESS" if not code and not signal else "SIGNALED" if signal else "ERROR"],
            "return_code": number(code),
            "signal": {"id": number(signal or None), "name": ""},
        },
        "job_id": int(view.id),
        "job_state": [row.state],
        "name": view.name,
        "node_count": number(row.node_count),
        "nodes": compress(row.nodes),
        "partition": row.partition,
        "priority": number(view.priority),
        "qos": row.field("QOS"),
        "restart_cnt": int(row.field("RestartCnt")),
        "standard_output": row.output,
        "standard_error": row.output,
        "start_time": number((row.started_ms or view.starts_ms or 0) // 1000),
        "state_reason": row.reason,
        "submit_time": number(view.submitted_ms // 1000),
        "tasks": number(row.tasks),
        "time_limit": number(None if limit_ms is None else limit_ms // 60_000, infinite=limit_ms is None),
        "tres_req_str": row.tres,
        "tres_alloc_str": row.tres if row.nodes else "",
        "user_name": view.user,
    }


def account_object(row: ShownJob) -> dict[str, Any]:
    """As sacct writes a job: times in one object, the state with its reason."""
    view = row.view
    base = job_object(row)
    limit_ms = view.time_limit_ms
    kept = ("account", "cluster", "exit_code", "job_id", "name", "nodes", "partition", "qos")
    return {name: base[name] for name in kept} | {
        "array": {"job_id": base["array_job_id"]["number"], "task_id": base["array_task_id"]},
        "state": {"current": [row.state], "reason": row.reason},
        "time": {
            "elapsed": int(row.ran_s),
            "start": (row.started_ms or 0) // 1000,
            "end": (row.ended_ms or 0) // 1000,
            "submission": view.submitted_ms // 1000,
            "eligible": (view.begin_ms or view.submitted_ms) // 1000,
            "limit": number(None if limit_ms is None else limit_ms // 60_000, infinite=limit_ms is None),
        },
        "user": view.user,
        "working_directory": view.directory,
        "allocation_nodes": len(row.nodes),
        "required": {"CPUs": row.cpus},
        "steps": [] if row.state not in OVER else [{"step": {"id": f"{row.id}.batch", "name": "batch"}}],
    }
