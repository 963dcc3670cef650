"""Limits on the size of a request and on unfinished jobs, counted in gangs, tasks and elements, not in documents.

A short document may describe an array of thousands of jobs; what counts is what the server must keep. An element is one
job of an array (another job is one element); its gangs start together. Knows the tree of queues and the limits of the
site; changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from corral.core.intake.refusal import Refusal
from corral.core.intake.site import SiteRules
from corral.core.model import JobSpec, elements
from corral.core.queues.quota import ROOT, QueueTree


class Volume:
    """The size of one request so far."""

    def __init__(self, rules: SiteRules) -> None:
        self._rules = rules
        self._gangs = self._tasks = 0

    def add(self, spec: JobSpec) -> Refusal | None:
        """Add a job. Returns a refusal if the request is too large."""
        rules, times = self._rules, elements(spec)
        gangs = times * len(spec.gangs)
        self._gangs += gangs
        for gang in spec.gangs:
            self._tasks += times * gang.demand.tasks
        if gangs > rules.gangs_per_job:
            asked = f"{times} elements of {len(spec.gangs)} gangs" if spec.array else f"{len(spec.gangs)} gangs"
            why = f"the job has {gangs} gangs ({asked}); one job may have {rules.gangs_per_job}"
            return Refusal("job_too_large", why, "split it into several jobs", "array")
        if self._gangs > rules.gangs_per_request:
            why = f"the jobs of this request have more than {rules.gangs_per_request} gangs together, arrays expanded"
            return Refusal("request_too_large", why, "send them in several requests", "jobs")
        if self._tasks > rules.tasks_per_request:
            why = f"the jobs of this request have more than {rules.tasks_per_request} tasks together, arrays expanded"
            return Refusal("request_too_large", why, "request fewer tasks, or send several requests", "jobs")
        return None


def why_full(tree: QueueTree, user: str, specs: Iterable[JobSpec], rules: SiteRules | None) -> Refusal | None:
    """Refuse the jobs of one request if they exceed the limit of a queue or of the site on unfinished jobs."""
    asked: dict[str, int] = {}  # queue -> elements
    for spec in specs:
        asked[spec.queue] = asked.get(spec.queue, 0) + elements(spec)
    more: dict[str, int] = {}  # the same, in it and below it
    for queue, count in asked.items():
        if not more:
            more = dict.fromkeys(tree.path(queue), count)
            continue
        for name in tree.path(queue):
            more[name] = more.get(name, 0) + count
    for name, count in more.items():
        refusal = _why_full(tree, user, name, count, rules)
        if refusal is not None:
            return refusal
    return None


def _why_full(tree: QueueTree, user: str, name: str, more: int, rules: SiteRules | None) -> Refusal | None:
    queue = tree.queues[name]
    hint = "wait for some to end; each element of an array counts"
    there, most = queue.elements, queue.spec.max_jobs
    if most is None and name != ROOT and rules is not None:
        most = rules.pending_per_queue
    if most is not None and there + more > most:
        why = f"queue {name} has {there} unfinished jobs; {more} more would exceed its limit of {most}"
        return Refusal("queue_full", why, hint, "queue")
    most = queue.spec.max_jobs_per_user
    if most is None and (name != ROOT or rules is None):
        return None
    mine = queue.user_elements.get(user, 0)
    if most is not None and mine + more > most:
        why = f"{user} has {mine} unfinished jobs in {name}; {more} more would exceed the limit of {most}"
        return Refusal("too_many_jobs", why, hint, "queue")
    if name == ROOT and rules is not None and mine + more > rules.pending_per_user:
        most = rules.pending_per_user
        why = f"{user} has {mine} unfinished jobs; {more} more would exceed the limit of {most}"
        return Refusal("too_many_jobs", why, hint, "jobs")
    return None
