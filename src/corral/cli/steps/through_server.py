"""Connections to the seats of a job from outside, through the server, with the credentials of the user.

If the server restarts, the client of the step makes the connection again. Without click: Slurm's commands use it too.
"""

from __future__ import annotations

import socket
import threading
from urllib.parse import quote, urlencode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.client.errors import Problem
    from corral.io.duplex import DuplexRefused

_CONNECT_S = 15.0


class ThroughServer:
    """Connections to the seats of a job, each copied by a thread of its own."""

    def __init__(self, credentials: Any, job: str, gang: str, what: str) -> None:
        self._credentials, self._job = credentials, job
        self._gang, self._what = gang, what

    def find(self, seat: int) -> socket.socket:
        import ssl

        from corral.io.duplex import Duplex, DuplexRefused
        from corral.io.http import BadAnswer
        from corral.runtime.steps.seat_link import NotReachable, StepRefused

        query = urlencode({"gang": self._gang, "task": seat, "what": self._what})
        known = self._credentials
        url = f"{known.url}/v1/jobs/{quote(self._job, safe='')}/stream?{query}"
        tls = ssl.create_default_context(cafile=known.ca or None) if url.startswith("https:") else None
        try:
            there = Duplex(url, {"Authorization": f"Bearer {known.token}"}, tls, _CONNECT_S)
        except DuplexRefused as refused:
            if refused.status >= 500:
                raise NotReachable(str(_problem(refused))) from None
            raise _problem(refused) from None
        except (OSError, BadAnswer) as lost:
            raise NotReachable(f"the server does not answer: {lost}") from None
        if seat < 0:
            raise StepRefused("there is no such task")
        own, theirs = socket.socketpair()
        threading.Thread(target=_copy, args=(there, theirs), daemon=True).start()
        return own


def _copy(there: Any, theirs: socket.socket) -> None:
    from corral.runtime.steps import step_frames

    try:
        there.splice(theirs, step_frames.frame(step_frames.QUIT))
    finally:
        there.close()
        theirs.close()


def _problem(refused: DuplexRefused) -> Problem:
    """What the server said, as the client raises it."""
    import json

    from corral.client.errors import NotFound, Problem

    try:
        said = dict(json.loads(refused.body))
    except (ValueError, TypeError):
        said = {}
    detail = str(said.get("detail", "")) or f"the server answered with status {refused.status}"
    kind = NotFound if refused.status == 404 else Problem
    return kind(refused.status, str(said.get("code", "")), detail, str(said.get("hint", "")))
