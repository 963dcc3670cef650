"""Who read what: written into the record where the administrator wants that, before the answer leaves.

Knows who asks and what it is called. The same read within a minute is counted, not written again, and nobody causes
more than five records in a second: what was left out is told by the next one that is written. The table is bounded.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

from corral.core.people.accounts import Read
from corral.server.api.entry.rate import Buckets

if TYPE_CHECKING:
    from corral.server.api.entry.asking import Ask

_AGAIN_MS = 60_000
_KEPT = 20_000
_PER_S, _BURST = 5.0, 500


class Audit:
    """Reads so far. Those of one server; another that leads later begins again."""

    def __init__(self) -> None:
        self._written: OrderedDict[tuple[str, str], int] = OrderedDict()  # (user, what) -> when
        self._left_out: Counter[str] = Counter()
        self._buckets = Buckets(_PER_S, _BURST)

    async def note(self, ask: Ask, what: str) -> None:
        """``what``: as people would call it, such as the log of job 7."""
        if not ask.shared.settings.audit_reads or not ask.service.leads:
            return
        now_ms, user, key = ask.service.now_ms(), ask.user, (ask.user, what)
        is_again = now_ms - self._written.get(key, -_AGAIN_MS) < _AGAIN_MS
        if is_again or self._buckets.take(user, now_ms / 1000):
            self._left_out[user] += 1
            return
        self._written[key] = now_ms
        self._written.move_to_end(key)
        if len(self._written) > _KEPT:
            self._written.popitem(last=False)
        event = Read(now_ms, user, what, self._left_out.pop(user, 0))
        await ask.service.change_accounts(user, lambda _accounts, _now_ms: [event])
