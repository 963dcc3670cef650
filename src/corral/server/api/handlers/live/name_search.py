"""Search by a part of a name: jobs, nodes, queues and users that the user may see."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from corral.server.api.handlers.accounts import seen_users
from corral.server.api.handlers.jobs import holdings
from corral.server.api.handlers.views import summary
from corral.server.api.http.request import ApiRequest, Reply
from corral.server.auth import Verb, seen_queues
from corral.store.lookup import JobQuery
from corral.wire.api import SearchView


async def search(request: ApiRequest) -> Reply:
    text, limit = request.query.text.lower(), request.query.limit
    state = request.service.state
    if not text:
        return SearchView()
    seen = seen_queues(request.service.accounts, request.principal, Verb.JOBS_READ)
    query = JobQuery(queues=seen, users_own=request.user, search=text, limit=limit)
    page = await request.shared.look(request.service.lookup.jobs, query)
    held = await holdings(request, page.jobs)
    nodes = state.nodes if request.may_somewhere(Verb.NODES_READ) else {}
    queues = (name for name in state.queues.queues if name and request.may(Verb.QUEUES_READ, name))
    return SearchView(
        jobs=tuple(summary(row, held.get(row.id)) for row in page.jobs),
        nodes=_matching(nodes, text, limit),
        queues=_matching(queues, text, limit),
        users=_matching((user.name for user in seen_users(request)), text, limit),
    )


def _matching(names: Iterable[str], text: str, limit: int) -> tuple[str, ...]:
    return tuple(islice((name for name in names if text in name.lower()), limit))
