"""Job submission: parse documents, check rights and references, and never submit twice for one idempotency key.

The hot path of the server: one document costs one decoding, one parse, one command. Knows nothing about how a job is
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
from corral.core.intake.site import is_preemptible, over_bounds
from corral.core.intake.volume import Volume
from corral.core.model import JobSpec
from corral.server.api.handlers.job_changes import binding_rules
from corral.server.api.handlers.jobs import owner_of
from corral.server.api.handlers.views import change_views, reason_views, seat_views, start_note
from corral.server.api.http.bodies import read_json
from corral.server.api.http.problems import ApiError, bad_json, fault_view, forbidden, refused
from corral.server.api.http.request import ApiRequest, Reply, WithStatus, accepted
from corral.server.auth import Access, Verb, authorize
from corral.server.durability import Batch
from corral.server.planner.questions import DryRunOutcome
from corral.store.lookup import request_mark
from corral.wire.api import BatchAnswer, DryRunAnswer, DryRunGang, FaultView, QuotaLine, SubmitAnswer
from corral.wire.job import parse_job

A = TypeVar("A", bound=Struct)

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_PARSED_AT_ONCE = 100  # documents of a batch that are parsed before other requests get a turn
_SIBLING = re.compile(r"#\d{1,6}")


async def submit(request: ApiRequest) -> Reply:
    """Submit one job document."""
    try:
        if request.query.dry_run:
            return WithStatus(200, await _dry_run(request, await _read_one(request)))

        async def take(mark: str) -> SubmitAnswer:
            done = accepted(await request.service.submit(request.user, await _read_one(request), mark))
            return _answers(done)[0]

        return await _once(request, b"job", take, _answer_again)
    except ApiError as unable:
        _count(request, unable, 1)
        raise


async def submit_many(request: ApiRequest) -> Reply:
    """Submit many documents: all of them or none."""
    try:
        if request.query.dry_run:
            return WithStatus(200, await _dry_run(request, await _read_many(request)))

        async def take(mark: str) -> BatchAnswer:
            done = accepted(await request.service.submit(request.user, await _read_many(request), mark))
            return BatchAnswer(jobs=tuple(_answers(done)))

        return await _once(request, b"batch", take, _batch_again)
    except ApiError as unable:
        _count(request, unable, 1)
        raise


async def _read_one(request: ApiRequest) -> list[JobSpec]:
    specs = [_spec(request, read_json(request.body), ())]
    if (too_much := Volume(request.service.rules).add(specs[0])) is not None:
        raise refused(too_much)
    await _check(request, specs)
    return specs


async def _read_many(request: ApiRequest) -> list[JobSpec]:
    specs: list[JobSpec] = []
    volume = Volume(request.service.rules)
    for n, document in enumerate(_documents(request.body, request.shared.settings.batch_jobs_max)):
        spec = _spec(request, read_json(bytes(document)), ("jobs", n))
        if (too_much := volume.add(spec)) is not None:
            raise refused(too_much)
        specs.append(spec)
        if n % _PARSED_AT_ONCE == _PARSED_AT_ONCE - 1:
            await asyncio.sleep(0)
    await _check(request, specs)
    return specs


def _answers(done: Batch) -> list[SubmitAnswer]:
    """Build the answers. The records of one change have consecutive numbers, so the last one gives all of them."""
    first = done.seq - len(done.events) + 1
    return [
        SubmitAnswer(
            id=event.job,
            name=event.spec.name,
            queue=event.spec.queue,
            user=event.user,
            seq=first + n,
            array_size=len(event.spec.array),
        )
        for n, event in enumerate(done.events)
        if isinstance(event, JobSubmitted)
    ]


def _count(request: ApiRequest, unable: ApiError, jobs: int) -> None:
    if unable.status != 409 or unable.code != "key_reused":
        request.shared.metrics.refused(unable.code, jobs)


# ---- documents -------------------------------------------------------------------------------------------


class _Batch(Struct, forbid_unknown_fields=True):
    jobs: list[msgspec.Raw]


def _documents(body: bytes, most: int) -> list[msgspec.Raw]:
    """Split a batch without parsing its documents; they are parsed a few at a time."""
    try:
        batch = msgspec.json.decode(body, type=_Batch)
    except RecursionError:
        raise bad_json("the document is nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise bad_json(str(error)[:200]) from None
    if not batch.jobs:
        raise ApiError(422, "no_jobs", "the batch contains no jobs", "put job documents into `jobs`", "jobs")
    if len(batch.jobs) > most:
        why = f"the batch has {len(batch.jobs)} jobs; the limit is {most}"
        raise ApiError(422, "batch_too_long", why, "send several smaller batches", "jobs")
    return batch.jobs


def _spec(request: ApiRequest, document: Any, path: tuple[str | int, ...]) -> JobSpec:
    settings = request.shared.settings
    is_queue_named = isinstance(document, dict) and document.get("queue") is not None
    queue = settings.default_queue if is_queue_named else _default_queue(request)
    spec = parse_job(document, now_ms=request.service.now_ms(), queue=queue, limits=settings.job_limits)
    if isinstance(spec, JobSpec):
        return _settled(request, spec, document)
    faults = [fault_view(each) for each in spec]
    if path:
        faults = [FaultView(path=(*path, *each.path), code=each.code, why=each.why, hint=each.hint) for each in faults]
    why = "the job has an error" if len(faults) == 1 else f"the job has {len(faults)} errors"
    first = faults[0]
    field = ".".join(map(str, first.path))
    raise ApiError(422, "bad_job", f"{why}: {first.why}", first.hint, field, faults=faults)


def _default_queue(request: ApiRequest) -> str:
    """The queue of a job that names none: the default of the site, or else the only queue that the user may use."""
    default = request.shared.settings.default_queue
    if default in request.service.state.queues.queues and request.may(Verb.JOBS_SUBMIT, default):
        return default
    mine = _usable_queues(request)
    own = [name for name in mine if not any(name.startswith(f"{other}/") for other in mine)]  # roles include children
    if len(own) > 1:
        hint = f"name one with --queue, or queue: in the job file: {', '.join(own[:10])}"
        raise refused(Refusal("no_queue_named", "the job names no queue, and you may use several", hint, "queue"))
    return own[0] if own else default


def _usable_queues(request: ApiRequest) -> list[str]:
    queues = request.service.state.queues.queues
    return sorted(name for name in queues if name and request.may(Verb.JOBS_SUBMIT, name))


def _settled(request: ApiRequest, spec: JobSpec, document: Any) -> JobSpec:
    """Fill in what the queue or the site decides where the job does not say. Later changes to them do not affect it."""
    if isinstance(document, dict) and "preemptible" in document:
        return spec
    default = is_preemptible(request.service.state.queues, spec.queue, request.service.rules)
    return spec if spec.preemptible == default else replace(spec, preemptible=default)


# ---- rights and references -------------------------------------------------------------------------------


async def _check(request: ApiRequest, specs: Sequence[JobSpec]) -> None:
    for queue in dict.fromkeys(spec.queue for spec in specs):
        _check_queue(request, queue)
    rules, queues = request.service.rules, request.service.state.queues
    for spec in specs:
        if (
            over_bounds(queues, spec, rules)
            and (bound := over_bounds(queues, spec, binding_rules(request))) is not None
        ):
            raise refused(bound)
        for gang in spec.gangs:
            for _, secret in gang.work.secrets if gang.work is not None else ():
                _check_secret(request, secret, spec.queue)
        for dependency in spec.after:
            if not (len(specs) > 1 and _SIBLING.fullmatch(dependency.job)):
                await _check_dependency(request, dependency.job)


def _check_queue(request: ApiRequest, queue: str) -> None:
    """Refuse a queue that the user may not use. A queue they may not see is answered as one that does not exist."""
    verdict = authorize(request.service.accounts, request.principal, Verb.JOBS_SUBMIT, queue)
    if queue == "" or queue not in request.service.state.queues.queues or verdict is Access.HIDDEN:
        mine = _usable_queues(request)
        hint = f"queues you may use: {', '.join(mine[:10])}" if mine else "ask an administrator for a role"
        raise refused(Refusal("no_such_queue", f"there is no queue {queue!r}", hint, "queue"))
    if verdict is Access.FORBIDDEN:
        raise forbidden(Verb.JOBS_SUBMIT, queue)


def _check_secret(request: ApiRequest, secret: str, queue: str) -> None:
    known, scope = request.service.accounts.secrets, queue
    while (scope, secret) not in known:
        if not scope:
            why = f"there is no secret {secret!r} for jobs of {queue}"
            raise refused(Refusal("no_such_secret", why, "set it with: corral secret set NAME", "secrets"))
        scope = scope.rpartition("/")[0]


async def _check_dependency(request: ApiRequest, job: str) -> None:
    """Refuse to depend on a job that the user may not see; the answer is the same as for a job that does not exist."""
    owner = await owner_of(request.shared, job)
    if owner is None or not request.may(Verb.JOBS_READ, *owner):
        raise refused(Refusal("no_such_job", f"there is no job {job[:100]!r} to depend on", field="after"))


# ---- the same key, the same answer -----------------------------------------------------------------------


async def _once(
    request: ApiRequest,
    kind: bytes,
    take: Callable[[str], Awaitable[A]],
    answer_again: Callable[[ApiRequest, Sequence[str]], Awaitable[A]],
) -> A:
    """Submit, unless the idempotency key was used before: then give the same answer again.

    Of two requests with the same key at the same time, the second waits for the first. A refused one is not remembered.
    """
    key = request.header(b"idempotency-key")
    if not key:
        return await take("")
    if not _KEY.fullmatch(key):
        why = "an Idempotency-Key must have 1 to 255 visible ASCII characters"
        raise ApiError(400, "bad_key", why, field="Idempotency-Key")
    fingerprint = _fingerprint(kind, request.body)
    under_way, slot = request.shared.under_way, (request.user, key)
    if slot in under_way:
        other, answer = under_way[slot]
        _check_fingerprint(other, fingerprint)
        return cast(A, await asyncio.shield(answer))
    coming: asyncio.Future[Struct] = asyncio.get_running_loop().create_future()
    under_way[slot] = (fingerprint, coming)
    try:
        row = await request.shared.remembered.find(request.user, key)
        if row is not None:
            _check_fingerprint(row.fingerprint, fingerprint)
        given = await (take(request_mark(key, fingerprint)) if row is None else answer_again(request, row.jobs))
        coming.set_result(given)
        return given
    except BaseException as error:
        if isinstance(error, Exception):
            coming.set_exception(error)
            coming.exception()  # mark it as retrieved: often no second request waits for it
        else:
            coming.cancel()
        raise
    finally:
        del under_way[slot]


async def known_submission(request: ApiRequest, is_many: bool) -> tuple[str, ...] | None:
    """The jobs of a submission with this idempotency key and body that is on record; None: there is none."""
    row = await request.shared.remembered.find(request.user, request.header(b"idempotency-key"))
    if row is None:
        return None
    _check_fingerprint(row.fingerprint, _fingerprint(b"batch" if is_many else b"job", request.body))
    return row.jobs


def _fingerprint(kind: bytes, body: bytes) -> str:
    return sha256(kind + b"\0" + body).hexdigest()[:32]


def _check_fingerprint(known: str, given: str) -> None:
    if known != given:
        why = "this Idempotency-Key was used for a different request"
        raise ApiError(409, "key_reused", why, "use a new key for a new submission", "Idempotency-Key")


async def _answer_again(request: ApiRequest, jobs: Sequence[str]) -> SubmitAnswer:
    row = await request.shared.look(request.service.lookup.job, jobs[0])
    assert row is not None, "a submission on record has its job on record"
    return SubmitAnswer(
        id=row.id, name=row.name, queue=row.queue, user=row.user, seq=row.seq, array_size=row.array_size
    )


async def _batch_again(request: ApiRequest, jobs: Sequence[str]) -> BatchAnswer:
    return BatchAnswer(jobs=tuple([await _answer_again(request, [job]) for job in jobs]))


# ---- dry run ---------------------------------------------------------------------------------------------


async def _dry_run(request: ApiRequest, specs: Sequence[JobSpec]) -> DryRunAnswer:
    now_ms = request.service.now_ms()
    prospects = accepted(await request.service.dry_run(specs, request.user))
    return DryRunAnswer(
        at_ms=now_ms,
        gangs=tuple(_foreseen(request, each, now_ms) for each in prospects),
        quota=tuple(_quota(request, specs[0], now_ms)),
    )


def _foreseen(request: ApiRequest, prospect: DryRunOutcome, now_ms: int) -> DryRunGang:
    def sees(gang: str) -> bool:
        known = request.service.state.gangs.get(gang)
        return known is None or request.may(Verb.JOBS_READ, known.queue, known.user)  # unknown: a gang of the dry run

    seen = tuple(gang for gang in prospect.victims if sees(gang))
    starts = prospect.hold is None
    return DryRunGang(
        gang=prospect.gang,
        outcome=("makes_room" if prospect.victims else "starts") if starts else "waits",
        seats=tuple(seat_views(prospect.seats)),
        victims=seen,
        victims_hidden=len(prospect.victims) - len(seen),
        starts_ms=prospect.starts_ms,
        starts_note=start_note(prospect.assumed_ms),
        reasons=() if prospect.hold is None else tuple(reason_views(prospect.hold, now_ms, sees)),
        changes=tuple(change_views(prospect.changes)),
    )


def _quota(request: ApiRequest, spec: JobSpec, now_ms: int) -> list[QuotaLine]:
    """GPUs that the job would add, for each queue on its path that the user may see."""
    tree, asked = request.service.state.queues, 0
    for gang in spec.gangs:
        charge = request.service.state.topology.least_charge(gang.demand, gang.demand.smallest)
        asked += charge.get(GPU_MILLI, 0) * max(1, len(spec.array))
    lines = []
    for name in tree.path(spec.queue):
        if name and request.may(Verb.QUEUES_READ, name):
            used, guarantee = tree.queues[name].used.get(GPU_MILLI, 0), tree.guarantee(name, GPU_MILLI, now_ms)
            lines.append(
                QuotaLine(
                    queue=name,
                    name=GPU_MILLI,
                    used=used,
                    asked=asked,
                    guarantee=guarantee,
                    limit=tree.limit(name, GPU_MILLI, now_ms),
                    borrowed=0 if guarantee is None else max(0, used + asked - guarantee),
                )
            )
    return lines
