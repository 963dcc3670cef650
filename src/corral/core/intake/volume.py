"""How much one request may bring and how much may wait: counted in gangs, tasks and elements, never in documents.

A short document may describe an array of thousands: what counts is what the server will have to hold. An element is one
job of an array (a job that is no array is one element); its gangs start together. Knows the tree of queues and the
site's rules; changes nothing.
"""

from __future__ import annotations

from collections import Counter

from corral.core.intake.refusal import Refusal
from corral.core.intake.site import SiteRules
from corral.core.model import JobSpec, elements
from corral.core.queues.quota import ROOT, QueueTree


class Volume:
    """What one request has brought so far."""

    def __init__(self, rules: SiteRules) -> None:
        self._rules = rules
        self._gangs = self._tasks = 0

    def add(self, spec: JobSpec) -> Refusal | None:
        """One more job. Says why that is too much."""
        rules, times = self._rules, elements(spec)
        gangs, tasks = times * len(spec.gangs), times * sum(gang.demand.tasks for gang in spec.gangs)
        self._gangs, self._tasks = self._gangs + gangs, self._tasks + tasks
        if gangs > rules.gangs_per_job:
            asked = f"{times} elements of {len(spec.gangs)} gangs" if spec.array else f"{len(spec.gangs)} gangs"
            why = f"the job has {gangs} gangs ({asked}); one job may have {rules.gangs_per_job}"
            return Refusal("job_too_large", why, "split it into several jobs", "array")
        if self._gangs > rules.gangs_per_request:
            why = f"the jobs of this request have more than {rules.gangs_per_request} gangs together, arrays expanded"
            return Refusal("request_too_large", why, "send them in several requests", "jobs")
        if self._tasks > rules.tasks_per_request:
            why = f"the jobs of this request have more than {rules.tasks_per_request} tasks together, arrays expanded"
            return Refusal("request_too_large", why, "ask for fewer tasks, or send several requests", "jobs")
        return None


class Pending:
    """What waits or runs already, and what this request adds to it."""

    def __init__(self, tree: QueueTree, user: str, rules: SiteRules | None) -> None:
        self._tree, self._user, self._rules = tree, user, rules
        self._extra: Counter[str] = Counter()  # queue -> elements of this request, in it and below it

    def add(self, spec: JobSpec) -> Refusal | None:
        """One more job. Says which queue on its path, or which rule of the site, has no room for it."""
        more = elements(spec)
        for name in self._tree.path(spec.queue):
            refusal = self._full(name, more)
            if refusal is not None:
                return refusal
            self._extra[name] += more
        return None

    def _full(self, name: str, more: int) -> Refusal | None:
        queue, extra = self._tree.queues[name], self._extra[name]
        there, mine = queue.elements + extra, queue.user_elements.get(self._user, 0) + extra
        hint = "wait for some to end; each element of an array counts"
        most = queue.spec.max_jobs
        if most is None and name != ROOT and self._rules is not None:
            most = self._rules.pending_per_queue
        if most is not None and there + more > most:
            why = f"queue {name} has {there} of its {most} jobs, and this asks for {more}"
            return Refusal("queue_full", why, hint, "queue")
        most = queue.spec.max_jobs_per_user
        if most is not None and mine + more > most:
            why = f"{self._user} has {mine} of {most} jobs in {name}, and this asks for {more}"
            return Refusal("too_many_jobs", why, hint, "queue")
        if name == ROOT and self._rules is not None and mine + more > self._rules.pending_per_user:
            most = self._rules.pending_per_user
            why = f"{self._user} has {mine} unfinished jobs, and this asks for {more}; a user may have {most}"
            return Refusal("too_many_jobs", why, hint, "jobs")
        return None
