"""Renews the credential of a node when half of its lifetime is over.

Runs in its own thread and asks seldom. The new credential is stored before it is used. The server accepts both until
the old one expires, so the node can always connect, whichever of the two it restarts with.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from msgspec import structs

from corral.agent.agent_dir import AgentCredential, AgentDir
from corral.agent.server_connection import NoAnswer, Refused
from corral.remote.messages import JoinAnswer

_log = logging.getLogger(__name__)

LOOK_S = 3600.0


class CredentialRenewal:
    """``exchange`` asks the server for a new credential; ``use`` makes the agent use a new token."""

    def __init__(
        self,
        place: AgentDir,
        credential: AgentCredential,
        exchange: Callable[[], JoinAnswer],
        use: Callable[[str], None],
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._place = place
        self.credential = credential
        self._exchange = exchange
        self._use = use
        self._wall_ms = wall_ms
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agent-credential", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.look()
            except Exception:
                _log.exception("renewing the credential of this node failed; retrying later")
            self._over.wait(LOOK_S)

    def look(self) -> bool:
        """Renew the credential if it is due. Returns whether there is a new one."""
        now_ms = self._wall_ms()
        if now_ms < self.credential.renew_ms:
            return False
        try:
            answer = self._exchange()
        except (NoAnswer, Refused) as wrong:
            _log.warning("credential of this node not renewed yet: %s", wrong)
            return False
        renewed = structs.replace(self.credential, token=answer.token, renew_ms=renew_at(now_ms, answer.expires_ms))
        self._place.keep_credential(renewed)
        self.credential = renewed
        self._use(renewed.token)
        _log.info("credential of this node renewed")
        return True


def renew_at(now_ms: int, expires_ms: int | None) -> int:
    """When half of the remaining lifetime is over. 0, which means now, if the server has not said when it expires."""
    return 0 if expires_ms is None else now_ms + max(expires_ms - now_ms, 0) // 2
