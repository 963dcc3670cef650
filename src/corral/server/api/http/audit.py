"""The audit trail of reads: written into the journal, if the administrator enables it, before the answer is sent.

Knows the user and the name of what is read. The same read within a minute is counted, not written again, and one user
causes at most five records per second; the next record says how many were left out. The table is bounded.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

from corral.core.accounts.accounts import Read
from corral.server.api.http.rate_limit import Buckets

if TYPE_CHECKING:
    from corral.server.api.http.request import ApiRequest

_AGAIN_MS = 60_000
_KEPT = 20_000
_PER_S, _BURST = 5.0, 500


class Audit:
    """Reads of one server so far; another server that becomes leader starts with an empty table."""

    def __init__(self) -> None:
        self._written: OrderedDict[tuple[str, str], int] = OrderedDict()  # (user, what) -> when
        self._left_out: Counter[str] = Counter()
        self._buckets = Buckets(_PER_S, _BURST)

    async def note(self, request: ApiRequest, what: str, *, always: bool = False) -> None:
        """Record a read. ``what``: in words, such as "the log of job 7". ``always``: also where reads are not recorded,
        because it gives the user more than a read."""
        if not (always or request.shared.settings.audit_reads) or not request.service.leads:
            return
        now_ms, user = request.service.now_ms(), request.user
        key = (user, what)
        is_again = now_ms - self._written.get(key, -_AGAIN_MS) < _AGAIN_MS
        if is_again or self._buckets.take(user, now_ms / 1000):
            self._left_out[user] += 1
            return
        self._written[key] = now_ms
        self._written.move_to_end(key)
        if len(self._written) > _KEPT:
            self._written.popitem(last=False)
        event = Read(now_ms, user, what, self._left_out.pop(user, 0))
        await request.service.change_accounts(user, lambda _accounts, _now_ms: [event])
