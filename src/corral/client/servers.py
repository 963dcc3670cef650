"""Addresses of servers: those that are configured, and the leader among them.

Knows addresses. A standby names the leader, which then gets all requests; if a server does not answer, the next one is
tried. A token is sent to configured servers and to the leader that one of them names; to other machines only with TLS,
unless plain HTTP was allowed, and never from TLS to plain HTTP.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from corral.client.errors import BadCredentials, Unreachable
from corral.wire.address import PLAIN_HINT, why_not_plain

#: Most redirects in a row from one server to another.
HOPS = 3


class Servers:
    """``url``: one address, or several separated by commas. ``allow_plain``: without TLS to other machines too."""

    def __init__(self, url: str, *, allow_plain: bool = False) -> None:
        self._named = [each.strip().rstrip("/") for each in url.split(",") if each.strip()] or [""]
        self._allow_plain = allow_plain
        for each in self._named:
            if why := self._why_not(each):
                raise BadCredentials(why, PLAIN_HINT)
        self._at = 0
        self._leader = ""

    @property
    def all(self) -> list[str]:
        return list(self._named)

    @property
    def others(self) -> list[str]:
        """The other servers."""
        return [each for each in self._named if each != self.current]

    @property
    def current(self) -> str:
        return self._leader or self._named[self._at]

    def follow(self, location: str, hops: int) -> bool:
        """Send requests there from now on. Raises ``Unreachable`` if redirects do not end or are not allowed."""
        there = _origin(location)
        if not there or not hops or not self._is_safe(there) or there == self.current:
            what = f"{self.current} is not the leader, and names {there or 'nobody'} as the leader"
            raise Unreachable(what, "another server may be about to take over: try again")
        self._leader = there
        return True

    def move(self, url: str) -> bool:
        """Send requests there from now on, if it is allowed."""
        there = _origin(url)
        if not there or not self._is_safe(there):
            return False
        self._leader = there
        return True

    def _is_safe(self, there: str) -> bool:
        return there.startswith("https:") or not (self.current.startswith("https:") or self._why_not(there))

    def _why_not(self, url: str) -> str:
        return "" if self._allow_plain else why_not_plain(url)

    def lost(self) -> None:
        """The current server does not answer: try the next, if there is one."""
        if self._leader:
            self._leader = ""
        else:
            self._at = (self._at + 1) % len(self._named)


def _origin(location: str) -> str:
    try:
        parts = urlsplit(location)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc}" if parts.scheme in ("http", "https") and parts.netloc else ""
