"""Runs as files for programs: the measures as JSON, the jobs as CSV.

Keys and columns are stable: new ones may be added, none changes its meaning. docs/measures.md defines each.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import TextIO

import msgspec

from corral.sim.history import History
from corral.sim.report.job_figures import figures
from corral.sim.report.measures import Measures
from corral.sim.report.result import Result

FORMAT = 1


class MeasuredRun(msgspec.Struct):
    """One entry of the JSON file."""

    policy: str
    workload: str
    measures: Measures
    cut_ms: int | None = None  # null: the run was not interrupted


class MeasuresFile(msgspec.Struct):
    """The JSON file. ``format`` is increased when a key changes its meaning."""

    format: int
    runs: list[MeasuredRun]


def measures_json(results: Sequence[Result]) -> bytes:
    """The measures of all runs, indented, with a newline at the end."""
    runs = [MeasuredRun(result.policy, result.workload, result.measures, result.cut_ms) for result in results]
    return msgspec.json.format(msgspec.json.encode(MeasuresFile(FORMAT, runs)), indent=2) + b"\n"


JOB_COLUMNS = (
    "id", "team", "user", "gpus", "outcome", "submit_ms", "placed_ms", "start_ms", "end_ms", "waited_ms", "in_line_ms",
    "held_ms", "kept_gpu_ms", "lost_gpu_ms", "runs", "preemptions", "evictions", "failures", "nodes",
)  # fmt: skip


def write_jobs(history: History, out: TextIO) -> None:
    """One line per job in order of submission. Unknown values are empty; nodes are separated by spaces."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(JOB_COLUMNS)
    for job in sorted(history.jobs.values(), key=lambda job: (job.submitted_ms, job.id)):
        found = figures(job, history.end_ms)
        placed = min((run.placed_ms for run in job.runs), default=None)
        started = min((run.started_ms for run in job.runs if run.started_ms is not None), default=None)
        nodes = " ".join(dict.fromkeys(node for run in job.runs for node in run.nodes))
        writer.writerow(
            (
                _plain(job.id),
                _plain(job.queue),
                _plain(job.user),
                f"{job.gpu_milli / 1000:g}",
                job.outcome,
                job.submitted_ms,
                placed,
                started,
                job.ended_ms,
                found.waited_ms,
                found.in_line_ms,
                found.held_ms,
                found.kept_gpu_ms,
                found.lost_gpu_ms,
                len(job.runs),
                found.preemptions,
                found.evictions,
                found.failures,
                _plain(nodes),
            )
        )


def _plain(text: str) -> str:
    """A name that no spreadsheet reads as a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
