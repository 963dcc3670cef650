"""Usage by the model of the GPUs, with its cost at the prices of the site, and lost work by its cause: from attempts,
as far as the user may see them."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta

from corral.server.api.handlers.jobs import known_owner, load_owners
from corral.server.api.http.problems import ApiError
from corral.server.api.http.request import ApiRequest, Reply
from corral.server.api.http.shared_views import in_steps
from corral.server.auth import Verb, is_among
from corral.store.lookup import AttemptRow
from corral.wire.api import UsageLoss, UsagePart, UsageParts

ATTEMPTS_MAX = 50_000
_HOUR_MS = 3_600_000
_DEFAULT_DAYS = 30


async def usage_parts(request: ApiRequest) -> Reply:
    wanted, now_ms = request.query, request.service.now_ms()
    today = datetime.fromtimestamp(now_ms / 1000, UTC).date()
    since_ms = _start_of(wanted.since) if wanted.since else _start_of(str(today - timedelta(days=_DEFAULT_DAYS)))
    until_ms = min(now_ms, _start_of(wanted.until) + 24 * _HOUR_MS) if wanted.until else now_ms
    rows = await request.shared.look(request.service.lookup.attempts_between, since_ms, until_ms, ATTEMPTS_MAX)
    await load_owners(request.shared, {row.job for row in rows})
    used = Counter[tuple[str, str, str]]()
    lost, times = Counter[str](), Counter[str]()
    async for row in in_steps(rows):
        owner = _wanted_owner(request, row)
        if owner is None:
            continue
        held_ms = min(now_ms if row.ended_ms is None else row.ended_ms, until_ms) - max(row.placed_ms, since_ms)
        used[(*owner, _model(request, row))] += row.gpu_milli * max(0, held_ms) // 1000
        if row.lost_gpu_ms and row.ended_ms is not None and since_ms <= row.ended_ms <= until_ms:
            cause = (row.failure if row.cause in (None, "failure") else row.cause) or "other"
            lost[cause] += row.lost_gpu_ms
            times[cause] += 1
    prices = request.shared.settings.prices
    parts = tuple(
        UsagePart(queue=queue, user=user, model=model, gpu_ms=gpu_ms, cost_milli=prices.of(model) * gpu_ms // _HOUR_MS)
        for (queue, user, model), gpu_ms in sorted(used.items())
        if gpu_ms
    )
    return UsageParts(
        parts=parts,
        losses=tuple(UsageLoss(cause=cause, lost_gpu_ms=ms, attempts=times[cause]) for cause, ms in lost.most_common()),
        currency=prices.currency,
        cost_milli=sum(part.cost_milli for part in parts),
        is_complete=len(rows) < ATTEMPTS_MAX,
    )


def _start_of(day: str) -> int:
    try:
        return (date.fromisoformat(day) - date(1970, 1, 1)).days * 24 * _HOUR_MS
    except ValueError:
        raise ApiError(400, "bad_parameter", f"there is no day {day!r}", "write it as YYYY-MM-DD") from None


def _wanted_owner(request: ApiRequest, row: AttemptRow) -> tuple[str, str] | None:
    """Queue and user of the attempt, if the user may see its usage and has asked for it."""
    owner, wanted = known_owner(request.shared, row.job), request.query
    if owner is None or not request.may(Verb.USAGE_READ, *owner):
        return None
    is_wanted = wanted.user in (None, owner[1]) and (wanted.queue is None or is_among(owner[0], (wanted.queue,)))
    return owner if is_wanted else None


def _model(request: ApiRequest, row: AttemptRow) -> str:
    node = request.service.state.nodes.get(row.seats[0].node) if row.seats else None
    return node.spec.gpus[0].model if node is not None and node.spec.gpus else ""
