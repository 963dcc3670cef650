"""Where the servers are: those that were named, and the one among them that leads.

Knows addresses. Whoever does not lead names the leader, which is then asked first; where nobody answers, the next that
was named is tried. A token goes to servers that were named, or that one of them names; beyond this machine only with
TLS, unless plain HTTP was allowed, and from TLS never to without.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from corral.client.errors import BadCredentials, Unreachable
from corral.wire.address import PLAIN_HINT, why_not_plain

#: So many times in a row one server may name another.
HOPS = 3


class Places:
    """``url``: one address, or several with commas between them. ``allow_plain``: also without TLS, anywhere."""

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
        """Where else one could ask."""
        return [each for each in self._named if each != self.current]

    @property
    def current(self) -> str:
        return self._leader or self._named[self._at]

    def follow(self, location: str, hops: int) -> bool:
        """Ask there from now on. Where that would not end, or may not be, nobody is there to answer for now."""
        there = _origin(location)
        if not there or not hops or not self._is_safe(there) or there == self.current:
            what = f"{self.current} does not lead, and names {there or 'nobody'} as the leader"
            raise Unreachable(what, "another server may be about to take over: try again")
        self._leader = there
        return True

    def move(self, url: str) -> bool:
        """Ask there from now on, if one may."""
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
        """Nobody answers there: try another, if there is one."""
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
