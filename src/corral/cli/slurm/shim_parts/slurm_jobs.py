"""Jobs of Corral as rows of Slurm: ids, states, reasons and the fields that squeue, sacct and scontrol print.

Knows the answers of the API and Slurm's words. What one answer does not have (the document of a job) is asked for when
a field needs it.
"""

from __future__ import annotations

import os
import time

from corral.cli.slurm.shim_parts.slurm_formats import clock, long_clock, moment
from corral.runtime.hostlist import compress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from corral.client.blocking import Client
    from corral.wire.api.jobs import AttemptView, GangView, JobView

#: State of a gang, and what Slurm calls it.
STATES = {
    "waiting": "PENDING", "starting": "CONFIGURING", "running": "RUNNING", "broken": "RUNNING",
    "stopping": "COMPLETING", "succeeded": "COMPLETED", "failed": "FAILED", "cancelled": "CANCELLED",
}  # fmt: skip
FAILED = {"time_limit": "TIMEOUT", "out_of_memory": "OUT_OF_MEMORY", "node_lost": "NODE_FAIL"}
SHORT = {
    "PENDING": "PD", "CONFIGURING": "CF", "RUNNING": "R", "COMPLETING": "CG", "COMPLETED": "CD", "FAILED": "F",
    "CANCELLED": "CA", "TIMEOUT": "TO", "OUT_OF_MEMORY": "OOM", "NODE_FAIL": "NF", "PREEMPTED": "PR",
    "SUSPENDED": "S", "BOOT_FAIL": "BF", "DEADLINE": "DL", "REQUEUED": "RQ", "STOPPED": "ST", "SIGNALING": "SI",
    "RESIZING": "RS", "REQUEUE_HOLD": "RH", "REQUEUE_FED": "RF", "RESV_DEL_HOLD": "RD", "REVOKED": "RV",
    "SPECIAL_EXIT": "SE", "STAGE_OUT": "SO",
}  # fmt: skip
OVER = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL"})
ALIVE = ("waiting", "starting", "running", "stopping")
#: Codes of reasons, and Slurm's words for them; any other: Resources.
_REASONS = (
    ("held", "JobHeldUser"), ("begin", "BeginTime"), ("after", "Dependency"), ("depend", "Dependency"),
    ("array", "JobArrayTaskLimit"), ("budget", "AssocGrpGRESMinutes"), ("limit", "QOSGrpGRES"),
    ("quota", "QOSGrpGRES"), ("behind", "Priority"), ("order", "Priority"), ("reserved", "Priority"),
)  # fmt: skip


class ShownJob:
    """A job, or one element of an array, or all elements that wait. ``gang``: its first gang, while it is in memory."""

    def __init__(self, client: Client, view: JobView, gang: GangView | None, element: str = "") -> None:
        self._client, self.view = client, view
        self.gang, self.element = gang, element
        self._document: dict[str, Any] | None = None

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return f"{self.view.id}_{self.element}" if self.element else self.view.id

    @property
    def last(self) -> AttemptView | None:
        """Its newest attempt."""
        own = [each for each in self.view.history if not self.element or str(each.index) == self.element]
        return max(own, key=lambda each: each.attempt, default=None)

    @property
    def state(self) -> str:
        if self.gang is None:
            failure, word = self.view.failure, str(self.view.state)
            if self.element and (last := self.last) is not None:
                failure = last.failure
                word = "cancelled" if failure == "cancelled" else "failed" if last.exit_code else "succeeded"
        else:
            failure, word = self._failure, self.gang.state
        return FAILED.get(failure or "", "FAILED") if word == "failed" else STATES.get(word, "PENDING")

    @property
    def _failure(self) -> str | None:
        last = self.last
        return self.view.failure if last is None or not self.element else last.failure

    @property
    def exit_code(self) -> str:
        """``code:signal``."""
        own = self.last if self.element else None
        code = (own.exit_code if own is not None else self.view.exit_code) or 0
        if self.state in ("TIMEOUT", "CANCELLED"):
            return "0:15" if self.state == "CANCELLED" else "0:0"
        return f"0:{code - 128}" if code > 128 else f"{code}:0"

    @property
    def nodes(self) -> list[str]:
        if self.gang is not None and self.gang.seats:
            return list(dict.fromkeys(seat.node for seat in self.gang.seats))
        if self.state in OVER and (last := self.last) is not None:
            return list(dict.fromkeys(last.nodes))
        return []

    @property
    def started_ms(self) -> int | None:
        if self.gang is not None and self.state != "PENDING":
            return self.gang.started_ms or self.gang.placed_ms
        if self.gang is not None:
            return None
        return last.started_ms if self.element and (last := self.last) is not None else self.view.started_ms

    @property
    def ended_ms(self) -> int | None:
        if self.state not in OVER:
            return None
        return last.ended_ms if self.element and (last := self.last) is not None else self.view.ended_ms

    @property
    def ran_s(self) -> float:
        begun = self.started_ms
        return 0.0 if begun is None else ((self.ended_ms or time.time() * 1000) - begun) / 1000

    @property
    def reason(self) -> str:
        if self.state == "PENDING":
            return "JobHeldUser" if self.view.held else _reason(self.view.reason)
        return "NonZeroExitCode" if self.state == "FAILED" else "TimeLimit" if self.state == "TIMEOUT" else "None"

    @property
    def partition(self) -> str:
        return self.view.labels.get("slurm.partition", self.view.queue)

    @property
    def account(self) -> str:
        return self.view.labels.get("slurm.account", self.view.queue)

    @property
    def limit(self) -> str:
        return "UNLIMITED" if self.view.time_limit_ms is None else long_clock(self.view.time_limit_ms / 1000)

    # --- from its document --------------------------------------------------------------------------------------------

    @property
    def document(self) -> dict[str, Any]:
        if self._document is None:
            from corral.client.errors import Problem

            try:
                self._document = self._client.job_document(self.view.id).document
            except Problem:
                self._document = {}
        return self._document

    @property
    def node_count(self) -> int:
        return len(self.nodes) or (1 if self.gang is None else self.gang.tasks)

    @property
    def cpus(self) -> int:
        seats = 1 if self.gang is None else self.gang.tasks
        asked = self.document.get("cpus", 1)
        return max(1, int(asked if isinstance(asked, int | float) else 1)) * max(seats, len(self.nodes))

    @property
    def tasks(self) -> int:
        """Processes, as ``--ntasks`` counts them."""
        stated = str(dict(self.document.get("env") or {}).get("SLURM_NTASKS", ""))
        return int(stated) if stated.isdecimal() else max(1, self.node_count)

    @property
    def tres(self) -> str:
        memory = self.document.get("memory", "")
        parts = [f"cpu={self.cpus}", *([f"mem={memory}"] if memory else []), f"node={self.node_count}"]
        parts.append(f"billing={self.cpus}")
        return ",".join(parts + ([f"gres/gpu={self.view.gpus}"] if self.view.gpus else []))

    @property
    def output(self) -> str:
        name = str(self.document.get("output", "") or "")
        return os.path.join(self.view.directory, _filled(name, self)) if name else "/dev/null"

    # --- fields by name -----------------------------------------------------------------------------------------------

    def field(self, name: str) -> str:
        return _FIELDS[name](self) if name in _FIELDS else "N/A"


def _filled(name: str, job: ShownJob) -> str:
    values = {"%j": job.view.id, "%A": job.view.id, "%a": job.element, "%x": job.view.name, "%u": job.view.user}
    for mark, value in values.items():
        name = name.replace(mark, value)
    return name


def _reason(text: str) -> str:
    plain = text.lower()
    return next((word for code, word in _REASONS if code in plain), "Resources" if text else "Priority")


def _where(job: ShownJob) -> str:
    """``NODELIST(REASON)``."""
    return compress(job.nodes) if job.nodes else f"({job.reason})"


def _seconds_left(job: ShownJob) -> str:
    if job.view.time_limit_ms is None:
        return "UNLIMITED"
    return clock(job.view.time_limit_ms / 1000 - job.ran_s)


_NONE = "(null)"
#: By Slurm's long name in squeue -O; letters and sacct's names refer to these.
_FIELDS: dict[str, Any] = {
    "Account": lambda job: job.account,
    "ArrayJobID": lambda job: job.view.id,
    "ArrayTaskID": lambda job: job.element or "N/A",
    "BatchHost": lambda job: job.nodes[0] if job.nodes else "n/a",
    "Comment": lambda job: job.view.labels.get("comment", _NONE),
    "Command": lambda job: job.view.command[0] if job.view.command else _NONE,
    "Dependency": lambda job: ",".join(job.view.after) or _NONE,
    "EndTime": lambda job: moment(job.ended_ms or _expected_end(job), "N/A"),
    "ExitCode": lambda job: job.exit_code,
    "Feature": lambda _: _NONE,
    "GroupName": lambda job: job.view.user,
    "JobArrayID": lambda job: job.id,
    "JobID": lambda job: job.view.id,
    "Licenses": lambda _: _NONE,
    "MaxNodes": lambda job: str(job.node_count),
    "MinMemory": lambda job: str(job.document.get("memory", "0")),
    "Name": lambda job: job.view.name or job.view.id,
    "Nice": lambda _: "0",
    "NodeList": lambda job: compress(job.nodes),
    "NumCPUs": lambda job: str(job.cpus),
    "NumNodes": lambda job: str(job.node_count),
    "NumTasks": lambda job: str(job.tasks),
    "Partition": lambda job: job.partition,
    "Priority": lambda job: f"{job.view.priority / 1_000_000:.14f}",
    "PriorityLong": lambda job: str(job.view.priority),
    "QOS": lambda job: job.view.labels.get("slurm.qos", "normal"),
    "Reason": lambda job: job.reason,
    "ReasonList": _where,
    "RequiredNodes": lambda _: "",
    "Reservation": lambda _: _NONE,
    "StartTime": lambda job: moment(job.started_ms or job.view.starts_ms, "N/A"),
    "State": lambda job: job.state,
    "StateCompact": lambda job: SHORT[job.state],
    "STDERR": lambda job: job.output,
    "STDOUT": lambda job: job.output,
    "SubmitTime": lambda job: moment(job.view.submitted_ms),
    "TimeLeft": _seconds_left,
    "TimeLimit": lambda job: "UNLIMITED" if job.view.time_limit_ms is None else clock(job.view.time_limit_ms / 1000),
    "TimeUsed": lambda job: clock(job.ran_s),
    "tres": lambda job: job.tres,
    "tres-alloc": lambda job: job.tres,
    "tres-per-node": lambda job: f"gres:gpu:{job.view.gpus // job.node_count}" if job.view.gpus else "N/A",
    "Gres": lambda job: f"gres:gpu:{job.view.gpus // job.node_count}" if job.view.gpus else "N/A",
    "UserName": lambda job: job.view.user,
    "UserID": lambda _: str(os.getuid()),
    "WorkDir": lambda job: job.view.directory,
    "RestartCnt": lambda job: str(max(0, (1 if job.gang is None else job.gang.attempt) - 1)),
    "Requeue": lambda _: "1",
    "HetJobID": lambda _: "N/A",
}
FIELDS = tuple(_FIELDS)


def _expected_end(job: ShownJob) -> int | None:
    begun = job.started_ms
    return None if begun is None or job.view.time_limit_ms is None else begun + job.view.time_limit_ms


def rows_of(client: Client, view: JobView, elements: str = "", *, joins_pending: bool = True) -> list[ShownJob]:
    """The rows of one job. Of an array: one for each element; those that wait together, as squeue shows them, with
    ``joins_pending``. ``elements``: only these."""
    wanted = expand_elements(elements)
    if not view.array_size:
        return [ShownJob(client, view, view.gangs[0] if view.gangs else None)]
    gangs: dict[int, GangView] = {}
    for gang in view.gangs:
        if gang.index is not None:
            gangs.setdefault(gang.index, gang)
    over = {each.index for each in view.history if each.index is not None} - gangs.keys()
    chosen = [index for index in sorted({*gangs, *over}) if wanted is None or index in wanted]
    rows = [ShownJob(client, view, gangs.get(index), str(index)) for index in chosen]
    waiting = [row for row in rows if row.state == "PENDING"]
    if joins_pending and len(waiting) > 1:
        joined = ShownJob(client, view, waiting[0].gang, f"[{_ranges([int(row.element) for row in waiting])}]")
        return [joined, *(row for row in rows if row.state != "PENDING")]
    return rows


def expand_elements(text: str) -> set[int] | None:
    """``7``, ``[1-3,9]``; None: all."""
    found: set[int] = set()
    for part in text.strip("[]").partition("%")[0].split(","):
        low, _, high = part.partition("-")
        high, _, step = high.partition(":")
        if low.isdecimal():
            found |= set(range(int(low), min(int(high or low), int(low) + 1_000_000) + 1, int(step or 1)))
    return found or None


def _ranges(numbers: list[int]) -> str:
    found: list[str] = []
    begin = last = numbers[0]
    for number in [*numbers[1:], -1]:
        if number != last + 1:
            found.append(str(begin) if begin == last else f"{begin}-{last}")
            begin = number
        last = number
    return ",".join(found)


def all_rows(client: Client, joins_pending: bool, **filters: Any) -> Iterator[ShownJob]:
    """Rows of all jobs that match, oldest first. Only arrays and what runs need a request each."""
    for summary in sorted(client.jobs(**filters), key=lambda each: each.submitted_ms):
        yield from rows_of(client, client.job(summary.id), joins_pending=joins_pending)
