"""Failed authentication: who brings bad tokens again and again from one address waits longer and longer.

Two things are counted. Tokens that do not exist are counted by address; while that waits, tokens that exist are still
looked at, so that nobody's good token is kept out by a neighbour. Wrong secrets of a token that exists are counted by
address and token: while that waits, this token is not looked at from there. Knows addresses, numbers and times; the
table is bounded. Knows nothing of requests.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from functools import lru_cache

from msgspec import Struct

_KEPT = 20_000
_FORGET_S = 900.0  # without a failure
LOOPBACK = frozenset({"127.0.0.1", "::1"})


class Patience(Struct, frozen=True, gc=False):
    """How many failures are free, and how long the longest wait is."""

    free: int
    wait_s_max: float


ELSEWHERE, HERE = Patience(10, 60.0), Patience(50, 2.0)


class _Failed(Struct):
    count: int
    last_s: float
    until_s: float


class Failures:
    """Keys are what ``key_of`` makes of an address and a token."""

    def __init__(self) -> None:
        self._failed: OrderedDict[tuple[str, str], _Failed] = OrderedDict()

    def wait_s(self, key: tuple[str, str], now_s: float) -> float:
        """0: it may try. Trying while it has to wait makes nothing worse."""
        known = self._failed.get(key)
        return 0.0 if known is None else max(known.until_s - now_s, 0.0)

    def failed(self, key: tuple[str, str], now_s: float) -> float:
        """It failed. How long it has to wait from now on; twice as long each time, once the free ones are used up."""
        patience = HERE if key[0] in LOOPBACK else ELSEWHERE
        known = self._failed.get(key)
        if known is None or now_s - known.last_s > _FORGET_S:
            known = self._failed[key] = _Failed(0, now_s, 0.0)
        known.count, known.last_s = known.count + 1, now_s
        over = known.count - patience.free
        wait_s = 0.0 if over <= 0 else min(2.0 ** min(over - 1, 20), patience.wait_s_max)
        known.until_s = now_s + wait_s
        self._failed.move_to_end(key)
        if len(self._failed) > _KEPT:
            self._failed.popitem(last=False)
        return wait_s

    def succeeded(self, key: tuple[str, str]) -> None:
        """Whoever has the secret of a token has not guessed it."""
        self._failed.pop(key, None)


@lru_cache(4096)
def network_of(host: str) -> str:
    """An address as far as one client can be told from another: of IPv6 its network, which has one owner."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host[:64]
    if isinstance(address, ipaddress.IPv4Address) or address.is_loopback:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), 64), strict=False).network_address)
