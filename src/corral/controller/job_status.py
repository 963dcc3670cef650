"""The status of a `CorralJob`, from what Corral says about its job. Pure: the time and the status so far are
arguments.

A condition keeps the time of its last change, and an expected start that moves by less than a minute stays as it was,
so that nothing is written while nothing happens.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from corral.wire.api.jobs import JobSummary
from corral.wire.api.words import ENDED, JobState

Status = dict[str, Any]

REFUSED, LOST = "Refused", "Lost"
_TEXT_MAX = 1_000
_SHIFT_S = 60


def status_of(job: JobSummary, submitted: str, generation: int, known: Status, now_ms: int) -> Status:
    """``known``: the status so far. ``submitted``: identifies what was submitted."""
    is_over = job.state in ENDED
    waits = job.state == JobState.WAITING
    reason = job.why if is_over else (job.reason or job.why if waits else "")
    gangs = job.counts.total if job.counts is not None and job.counts.total else 1
    found: Status = {
        "observedGeneration": generation,
        "job": job.id,
        "submitted": submitted,
        "queue": job.queue,
        "phase": str(job.state).capitalize(),
        "reason": _short(reason),
        "expectedStart": _expected(job.starts_ms if waits else None, known.get("expectedStart")),
        "startTime": _time(job.started_ms),
        "completionTime": _time(job.ended_ms if is_over else None),
        "gpus": job.gpus,
        "nodes": list(job.nodes),
        "nodesTotal": job.nodes_held,
        "restarts": max(0, job.attempts - gangs),
        "exitCode": job.exit_code,
        "failure": None if job.failure is None else str(job.failure),
    }
    stated = [
        ("Accepted", "True", "Submitted", f"job {job.id}"),
        _running(job, found["phase"], reason),
        *_end(job, found["phase"], reason),
    ]
    return found | {"conditions": _conditions(stated, known, generation, now_ms)}


def refused(why: str, code: str, generation: int, known: Status, now_ms: int, phase: str = REFUSED) -> Status:
    """Corral does not take it, or knows it no longer."""
    stated = [("Accepted", "False", camel(code), why)]
    conditions = _conditions(stated, known, generation, now_ms)
    return {"observedGeneration": generation, "phase": phase, "reason": _short(why), "conditions": conditions}


def patch_from(known: Status, wanted: Status) -> Status | None:
    """The merge patch from one to the other: what has no value is removed. None: they are the same."""
    changed = {name: value for name, value in wanted.items() if known.get(name) != value}
    changed |= {name: None for name in known if name not in wanted}
    return changed or None


def camel(code: str) -> str:
    """`no_such_queue` as a reason of Kubernetes: `NoSuchQueue`."""
    return "".join(part.capitalize() for part in code.split("_") if part.isalnum()) or "Refused"


def _running(job: JobSummary, phase: str, reason: str) -> tuple[str, str, str, str]:
    if job.state == JobState.RUNNING:
        return "Running", "True", phase, f"on {job.nodes_held} node{'' if job.nodes_held == 1 else 's'}"
    return "Running", "False", phase, reason


def _end(job: JobSummary, phase: str, reason: str) -> list[tuple[str, str, str, str]]:
    if job.state not in ENDED:
        return []
    if job.state == JobState.SUCCEEDED:
        return [("Complete", "True", phase, reason)]
    return [("Failed", "True", camel(str(job.failure or job.state)), reason)]


def _conditions(
    stated: list[tuple[str, str, str, str]], known: Status, generation: int, now_ms: int
) -> list[dict[str, Any]]:
    before = {each.get("type"): each for each in known.get("conditions") or () if isinstance(each, dict)}
    found = []
    for kind, status, reason, message in stated:
        earlier = before.get(kind, {})
        since = earlier.get("lastTransitionTime") if earlier.get("status") == status else None
        found.append(
            {
                "type": kind,
                "status": status,
                "lastTransitionTime": since or _time(now_ms),
                "reason": reason,
                "message": _short(message),
                "observedGeneration": generation,
            }
        )
    return found


def _expected(starts_ms: int | None, known: object) -> str | None:
    if starts_ms is None:
        return None
    if isinstance(known, str):
        try:
            before_s = datetime.fromisoformat(known).timestamp()
        except ValueError:
            before_s = 0.0
        if abs(before_s - starts_ms / 1000) < _SHIFT_S:
            return known
    return _time(starts_ms)


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"
