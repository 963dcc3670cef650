"""Failed authentication: clients that send bad tokens repeatedly from one address wait longer each time.

Two things are counted. Tokens that do not exist are counted by address; while the address waits, tokens that exist are
still checked, so that one client cannot lock out another behind the same address. Wrong secrets of an existing token
are counted by address and token; while that pair waits, the token is refused from there. Knows addresses, numbers and
times; the table is bounded. Knows nothing about requests.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from functools import lru_cache

from msgspec import Struct

_KEPT = 20_000
_FORGET_S = 900.0  # without a failure
LOOPBACK = frozenset({"127.0.0.1", "::1"})


WAIT_S_MAX, WAIT_S_MAX_HERE = 60.0, 2.0
HERE_FACTOR = 5  # clients on this machine have this many times more free failures


class _Failed(Struct):
    count: int
    last_s: float
    until_s: float


class FailedSignIns:
    """Keys are an address and the id of a token, which is empty for tokens that do not exist. ``free``: failures before
    a client has to wait."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._failed: OrderedDict[tuple[str, str], _Failed] = OrderedDict()

    @property
    def is_empty(self) -> bool:
        return not self._failed

    def wait_s(self, key: tuple[str, str], now_s: float) -> float:
        """Seconds until the next try; 0 if it may try now. Trying too early does not extend the time."""
        known = self._failed.get(key)
        return 0.0 if known is None else max(known.until_s - now_s, 0.0)

    def failed(self, key: tuple[str, str], now_s: float) -> float:
        """Count a failure. Returns the seconds to wait: doubled each time, once the free failures are used up."""
        is_here = key[0] in LOOPBACK
        known = self._failed.get(key)
        if known is None or now_s - known.last_s > _FORGET_S:
            known = self._failed[key] = _Failed(0, now_s, 0.0)
        known.count, known.last_s = known.count + 1, now_s
        over = known.count - self._free * (HERE_FACTOR if is_here else 1)
        wait_s = 0.0 if over <= 0 else min(2.0 ** min(over - 1, 20), WAIT_S_MAX_HERE if is_here else WAIT_S_MAX)
        known.until_s = now_s + wait_s
        self._failed.move_to_end(key)
        if len(self._failed) > _KEPT:
            self._failed.popitem(last=False)
        return wait_s

    def succeeded(self, key: tuple[str, str]) -> None:
        """Forget the failures: the client has the secret of the token."""
        self._failed.pop(key, None)


@lru_cache(4096)
def network_of(host: str) -> str:
    """The address that identifies a client; for IPv6 its /64 network, which has one owner."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host[:64]
    if isinstance(address, ipaddress.IPv4Address) or address.is_loopback:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), 64), strict=False).network_address)
