"""Submitting: documents become specs, rights and references are checked, and the same key never submits twice.

The hot path of the server: one document costs one decoding, one parse, one command. Knows nothing of how a job is then
planned or run.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from corral.core.cluster.resources import GPU_MILLI
from corral.core.events import JobSubmitted
from corral.core.intake.refusal import Refusal
from corral.core.intake.site import Bounds, is_preemptible
from corral.core.intake.volume import Volume
from corral.core.model import JobSpec
from corral.server.api.entry.asking import Ask, Instead, Reply, accepted
from corral.server.api.entry.problems import Unable, bad_json, fault_view, forbidden, refused
from corral.server.api.entry.reading import read_json
from corral.server.api.entry.seam import Done, Prospect
from corral.server.api.handlers.jobs import binding_rules, place_of
from corral.server.api.handlers.views import change_views, reason_views, seat_views
from corral.server.auth import Verb, Verdict, authorize
from corral.store.lookup import request_mark
from corral.wire.api import BatchAnswer, DryRunAnswer, DryRunGang, FaultView, QuotaLine, SubmitAnswer
from corral.wire.job import parse_job

A = TypeVar("A", bound=Struct)

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_PARSED_AT_ONCE = 100  # of a batch, before others get their turn
_SIBLING = re.compile(r"#\d{1,6}")


async def submit(ask: Ask) -> Reply:
    """One job document."""
    try:
        if ask.query.dry_run:
            return Instead(200, await _dry_run(ask, await _read_one(ask)))

        async def take(mark: str) -> SubmitAnswer:
            done = accepted(await ask.service.submit(ask.user, await _read_one(ask), mark))
            return _answers(done)[0]

        return await _once(ask, b"job", take, _told_again)
    except Unable as unable:
        _count(ask, unable, 1)
        raise


async def submit_many(ask: Ask) -> Reply:
    """Many documents, all or none."""
    try:
        if ask.query.dry_run:
            return Instead(200, await _dry_run(ask, await _read_many(ask)))

        async def take(mark: str) -> BatchAnswer:
            done = accepted(await ask.service.submit(ask.user, await _read_many(ask), mark))
            return BatchAnswer(jobs=tuple(_answers(done)))

        return await _once(ask, b"batch", take, _batch_told_again)
    except Unable as unable:
        _count(ask, unable, 1)
        raise


async def _read_one(ask: Ask) -> list[JobSpec]:
    specs = [_spec(ask, read_json(ask.body), ())]
    if (too_much := Volume(ask.service.rules).add(specs[0])) is not None:
        raise refused(too_much)
    await _check(ask, specs)
    return specs


async def _read_many(ask: Ask) -> list[JobSpec]:
    specs: list[JobSpec] = []
    volume = Volume(ask.service.rules)
    for n, document in enumerate(_documents(ask.body, ask.shared.settings.batch_jobs_max)):
        spec = _spec(ask, read_json(bytes(document)), ("jobs", n))
        if (too_much := volume.add(spec)) is not None:
            raise refused(too_much)
        specs.append(spec)
        if n % _PARSED_AT_ONCE == _PARSED_AT_ONCE - 1:
            await asyncio.sleep(0)
    await _check(ask, specs)
    return specs


def _answers(done: Done) -> list[SubmitAnswer]:
    """The records of one change follow one another: the number of each is known from that of the last."""
    first = done.seq - len(done.events) + 1
    return [
        SubmitAnswer(
            id=event.job, name=event.spec.name, queue=event.spec.queue, user=event.user, seq=first + n,
            array_size=len(event.spec.array),
        )
        for n, event in enumerate(done.events)
        if isinstance(event, JobSubmitted)
    ]  # fmt: skip


def _count(ask: Ask, unable: Unable, jobs: int) -> None:
    if unable.status != 409 or unable.code != "key_reused":
        ask.shared.metrics.refused(unable.code, jobs)


# ---- documents -------------------------------------------------------------------------------------------


class _Batch(Struct, forbid_unknown_fields=True):
    jobs: list[msgspec.Raw]


def _documents(body: bytes, most: int) -> list[msgspec.Raw]:
    """Split a batch without reading its documents: they are read a few at a time."""
    try:
        batch = msgspec.json.decode(body, type=_Batch)
    except RecursionError:
        raise bad_json("the document is nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise bad_json(str(error)[:200]) from None
    if not batch.jobs:
        raise Unable(422, "no_jobs", "there is no job in it", "put job documents into `jobs`", "jobs")
    if len(batch.jobs) > most:
        raise Unable(422, "batch_too_long", f"{len(batch.jobs)} jobs at once, at most {most}", "send less", "jobs")
    return batch.jobs


def _spec(ask: Ask, document: Any, path: tuple[str | int, ...]) -> JobSpec:
    settings = ask.shared.settings
    spec = parse_job(document, now_ms=ask.service.now_ms(), queue=settings.default_queue, limits=settings.job_limits)
    if isinstance(spec, JobSpec):
        return _settled(ask, spec, document)
    faults = [fault_view(each) for each in spec]
    if path:
        faults = [FaultView(path=(*path, *each.path), code=each.code, why=each.why, hint=each.hint) for each in faults]
    why = "there is a fault in the job" if len(faults) == 1 else f"there are {len(faults)} faults in the job"
    first = faults[0]
    field = ".".join(map(str, first.path))
    raise Unable(422, "bad_job", f"{why}: {first.why}", first.hint, field, faults=faults)


def _settled(ask: Ask, spec: JobSpec, document: Any) -> JobSpec:
    """With what the queue or the site decides for a job that does not say so; it holds whatever is changed later."""
    if isinstance(document, dict) and "preemptible" in document:
        return spec
    is_so = is_preemptible(ask.service.state.queues, spec.queue, ask.service.rules)
    return spec if spec.preemptible == is_so else replace(spec, preemptible=is_so)


# ---- rights and references -------------------------------------------------------------------------------


async def _check(ask: Ask, specs: Sequence[JobSpec]) -> None:
    for queue in dict.fromkeys(spec.queue for spec in specs):
        _check_queue(ask, queue)
    rules, queues = binding_rules(ask), ask.service.state.queues
    bounds = Bounds(queues, rules)
    for spec in specs:
        if (bound := bounds.over(spec)) is not None:
            raise refused(bound)
        for gang in spec.gangs:
            for _, secret in gang.work.secrets if gang.work is not None else ():
                _check_secret(ask, secret, spec.queue)
        for dependency in spec.after:
            if not (len(specs) > 1 and _SIBLING.fullmatch(dependency.job)):
                await _check_dependency(ask, dependency.job)


def _check_queue(ask: Ask, queue: str) -> None:
    """A queue that may not be seen is answered exactly as one that is not there."""
    verdict = authorize(ask.service.accounts, ask.principal, Verb.JOBS_SUBMIT, queue)
    if queue == "" or queue not in ask.service.state.queues.queues or verdict is Verdict.HIDDEN:
        mine = [name for name in ask.service.state.queues.queues if name and ask.may(Verb.JOBS_SUBMIT, name)]
        hint = f"queues you may use: {', '.join(sorted(mine)[:10])}" if mine else "ask to be given a queue"
        raise refused(Refusal("no_such_queue", f"there is no queue {queue!r}", hint, "queue"))
    if verdict is Verdict.FORBIDDEN:
        raise forbidden(Verb.JOBS_SUBMIT, queue)


def _check_secret(ask: Ask, secret: str, queue: str) -> None:
    known, place = ask.service.accounts.secrets, queue
    while (place, secret) not in known:
        if not place:
            why = f"there is no secret {secret!r} for jobs of {queue}"
            raise refused(Refusal("no_such_secret", why, "set it with PUT /v1/secrets", "secrets"))
        place = place.rpartition("/")[0]


async def _check_dependency(ask: Ask, job: str) -> None:
    """A job that may not be seen cannot be waited for; this is answered exactly as for one that is not there."""
    place = await place_of(ask.shared, job)
    if place is None or not ask.may(Verb.JOBS_READ, *place):
        raise refused(Refusal("no_such_job", f"there is no job {job[:100]!r} to wait for", field="after"))


# ---- the same key, the same answer -----------------------------------------------------------------------


async def _once(
    ask: Ask, kind: bytes, take: Callable[[str], Awaitable[A]], told_again: Callable[[Ask, Sequence[str]], Awaitable[A]]
) -> A:
    """Carry out a submission unless its key was used before: then its answer is given again.

    Two with the same key at the same time: the second waits for the first. What was refused leaves no trace.
    """
    key = ask.header(b"idempotency-key")
    if not key:
        return await take("")
    if not _KEY.fullmatch(key):
        raise Unable(400, "bad_key", "an Idempotency-Key has 1 to 255 visible characters", field="Idempotency-Key")
    print_ = sha256(kind + b"\0" + ask.body).hexdigest()[:32]
    under_way, place = ask.shared.under_way, (ask.user, key)
    if place in under_way:
        other, answer = under_way[place]
        _check_print(other, print_)
        return cast(A, await asyncio.shield(answer))
    coming: asyncio.Future[Struct] = asyncio.get_running_loop().create_future()
    under_way[place] = (print_, coming)
    try:
        row = await ask.shared.remembered.find(ask.user, key)
        if row is not None:
            _check_print(row.fingerprint, print_)
        given = await (take(request_mark(key, print_)) if row is None else told_again(ask, row.jobs))
        coming.set_result(given)
        return given
    except BaseException as error:
        if isinstance(error, Exception):
            coming.set_exception(error)
            coming.exception()  # that nobody waited for it is no fault
        else:
            coming.cancel()
        raise
    finally:
        del under_way[place]


def _check_print(known: str, given: str) -> None:
    if known != given:
        why = "this Idempotency-Key was used for something else"
        raise Unable(409, "key_reused", why, "use a new key for a new submission", "Idempotency-Key")


async def _told_again(ask: Ask, jobs: Sequence[str]) -> SubmitAnswer:
    row = await ask.shared.look(ask.service.lookup.job, jobs[0])
    assert row is not None, "a submission on record has its job on record"
    return SubmitAnswer(
        id=row.id, name=row.name, queue=row.queue, user=row.user, seq=row.seq, array_size=row.array_size
    )


async def _batch_told_again(ask: Ask, jobs: Sequence[str]) -> BatchAnswer:
    return BatchAnswer(jobs=tuple([await _told_again(ask, [job]) for job in jobs]))


# ---- what would happen -----------------------------------------------------------------------------------


async def _dry_run(ask: Ask, specs: Sequence[JobSpec]) -> DryRunAnswer:
    now_ms = ask.service.now_ms()
    prospects = accepted(await ask.service.dry_run(specs, ask.user))
    return DryRunAnswer(
        at_ms=now_ms,
        gangs=tuple(_foreseen(ask, each, now_ms) for each in prospects),
        quota=tuple(_quota(ask, specs[0], now_ms)),
    )


def _foreseen(ask: Ask, prospect: Prospect, now_ms: int) -> DryRunGang:
    def sees(gang: str) -> bool:
        known = ask.service.state.gangs.get(gang)
        return known is None or ask.may(Verb.JOBS_READ, known.queue, known.user)  # unknown: of the jobs that are tried

    seen = tuple(gang for gang in prospect.victims if sees(gang))
    starts = prospect.hold is None
    return DryRunGang(
        gang=prospect.gang,
        outcome=("makes_room" if prospect.victims else "starts") if starts else "waits",
        seats=tuple(seat_views(prospect.seats)),
        victims=seen,
        victims_hidden=len(prospect.victims) - len(seen),
        starts_ms=prospect.starts_ms,
        reasons=() if prospect.hold is None else tuple(reason_views(prospect.hold, now_ms, sees)),
        changes=tuple(change_views(getattr(prospect, "changes", ()))),
    )


def _quota(ask: Ask, spec: JobSpec, now_ms: int) -> list[QuotaLine]:
    """What the job would add in GPUs, in each queue on its path that may be seen."""
    tree, asked = ask.service.state.queues, 0
    for gang in spec.gangs:
        asked += gang.demand.charge(gang.demand.smallest).get(GPU_MILLI, 0) * max(1, len(spec.array))
    lines = []
    for name in tree.path(spec.queue):
        if name and ask.may(Verb.QUEUES_READ, name):
            used, guarantee = tree.queues[name].used.get(GPU_MILLI, 0), tree.guarantee(name, GPU_MILLI, now_ms)
            lines.append(
                QuotaLine(
                    queue=name, name=GPU_MILLI, used=used, asked=asked, guarantee=guarantee,
                    limit=tree.limit(name, GPU_MILLI, now_ms),
                    borrowed=0 if guarantee is None else max(0, used + asked - guarantee),
                )
            )  # fmt: skip
    return lines
