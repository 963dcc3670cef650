"""The smallest site that still breaks a promise: jobs, queues and terms are left out for as long as it does.

What is left is printed as Python that can be pasted into a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from msgspec import structs

from corral.core.cluster.resources import GPU_MILLI, amount_of
from corral.core.model import JobSpec, QueueSpec
from corral.sim.run import Arrival
from corral.sim.world import FREE
from tests.judges.runs.site import DAY, HOUR, MINUTE, SECOND, START_MS, Site

_TERMS = ("guarantee", "limit", "lend", "user_limit", "budget", "changes", "time_share")


def shrink(site: Site, is_broken: Callable[[Site], bool], rounds: int = 400) -> Site:
    """Takes the first smaller site that is still broken, again and again."""
    while rounds > 0:
        for smaller in _smaller(site):
            rounds -= 1
            if _is_still(is_broken, smaller):
                site = smaller
                break
        else:
            return site
    return site


def _is_still(is_broken: Callable[[Site], bool], site: Site) -> bool:
    try:
        return is_broken(site)
    except (AssertionError, ValueError, KeyError):  # no such site can be
        return False


def _smaller(site: Site) -> Iterator[Site]:
    half = len(site.jobs) // 2
    if half > 1:
        yield replace(site, jobs=site.jobs[:half])
        yield replace(site, jobs=site.jobs[half:])
    for at in range(len(site.jobs)):
        yield replace(site, jobs=site.jobs[:at] + site.jobs[at + 1 :])
    for at in range(len(site.mishaps)):
        yield replace(site, mishaps=site.mishaps[:at] + site.mishaps[at + 1 :])
    used = {each.spec.queue for each in site.jobs}
    for spec in site.queues:
        if not any(name == spec.name or name.startswith(f"{spec.name}/") for name in used):
            left = tuple(q for q in site.queues if q.name != spec.name and not q.name.startswith(f"{spec.name}/"))
            yield replace(site, queues=left)
    plain = structs.asdict(QueueSpec(name="plain"))
    for at, spec in enumerate(site.queues):
        for term in (*_TERMS, "weight"):
            if getattr(spec, term) != plain[term]:
                simpler = structs.replace(spec, **{term: plain[term]})
                yield replace(site, queues=(*site.queues[:at], simpler, *site.queues[at + 1 :]))
    for term, value in (("costs", FREE), ("depth", 1), ("patience_ms", DAY)):
        if getattr(site, term) != value:
            yield replace(site, **{term: value})  # type: ignore[arg-type]
    for at, each in enumerate(site.jobs):
        for plainer in _plainer(each):
            yield replace(site, jobs=(*site.jobs[:at], plainer, *site.jobs[at + 1 :]))


def _plainer(each: Arrival) -> Iterator[Arrival]:
    default = structs.asdict(JobSpec(queue="q", gangs=()))
    for term in ("priority", "grace_ms", "checkpoints", "preemptible", "time_limit_ms", "min_runtime_ms"):
        if getattr(each.spec, term) != default[term]:
            yield structs.replace(each, spec=structs.replace(each.spec, **{term: default[term]}))
    if each.user != "ann":
        yield structs.replace(each, user="ann")


def told(site: Site) -> str:
    """The site as Python."""
    queues = ",\n        ".join(_queue(spec) for spec in site.queues)
    jobs = ",\n        ".join(_job(each) for each in site.jobs)
    more = "".join(
        f", {name}={value}"
        for name, value, plain in (
            ("until_ms", _time(site.until_ms), _time(DAY)), ("depth", site.depth, 1), ("costs", site.costs, FREE),
            ("patience_ms", _time(site.patience_ms), _time(DAY)), ("mishaps", site.mishaps, ()),
            ("settings", site.settings, {}), ("policy", repr(site.policy), repr("standard")),
        )
        if value != plain
    )  # fmt: skip
    return f'Site(\n    "{site.nodes}",\n    (\n        {queues},\n    ),\n    (\n        {jobs},\n    ){more},\n)'


def _queue(spec: QueueSpec) -> str:
    plain, terms = structs.asdict(QueueSpec(name="plain")), ""
    for term in (*_TERMS, "weight"):
        value = getattr(spec, term)
        if value != plain[term]:
            gpus = amount_of(value, GPU_MILLI) if term in _TERMS[:4] else None
            terms += f", {term}={value if gpus is None else gpus // 1000}"
    return f'queue("{spec.name}"{terms})'


def _job(each: Arrival) -> str:
    spec, plain, terms = each.spec, structs.asdict(JobSpec(queue="q", gangs=(), restart_cost_ms=0)), ""
    demand = spec.gangs[0].demand
    for term in demand.__struct_fields__:
        if term not in ("task", "tasks") and getattr(demand, term) != getattr(type(demand)(task=demand.task), term):
            terms += f", {term}={getattr(demand, term)!r}"
    if demand.task.models:
        terms += f", models={demand.task.models!r}"
    for term in spec.__struct_fields__:
        value = getattr(spec, term)
        if term not in ("queue", "gangs") and value != plain[term] and (term, value) != ("estimate_ms", each.work_ms):
            terms += f", {term}={_time(value) if term.endswith('_ms') else repr(value)}"
    user = "" if each.user == "ann" else f', user="{each.user}"'
    at, length = _time(each.at_ms - START_MS), _time(each.work_ms)
    return f'job("{each.id}", {at}, {length}, "{spec.queue}", {demand.task.gpus}, {demand.tasks}{user}{terms})'


def _time(value: int | None) -> str:
    for name, unit in (("DAY", DAY), ("HOUR", HOUR), ("MINUTE", MINUTE), ("SECOND", SECOND)):
        if value and value % unit == 0:
            return f"{value // unit} * {name}"
    return str(value)
