"""A node's credential does not last for ever: it is exchanged for a new one when half of its life is over.

A thread of its own that asks seldom. The new credential is kept before it is used; the server takes both until the old
one expires, so that nothing is lost whichever of the two the machine comes back with.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from msgspec import structs

from corral.agent.line import NoAnswer, Refused
from corral.agent.place import AgentPlace, Credential
from corral.backends.fleet.messages import JoinAnswer

_log = logging.getLogger(__name__)

LOOK_S = 3600.0


class CredentialRenewal:
    """``exchange``: asks the server for a new credential. ``use``: from here on the agent proves itself with this."""

    def __init__(
        self,
        place: AgentPlace,
        credential: Credential,
        exchange: Callable[[], JoinAnswer],
        use: Callable[[str], None],
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._place, self.credential, self._exchange, self._use, self._wall_ms = (
            place, credential, exchange, use, wall_ms
        )  # fmt: skip
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
                _log.exception("renewing the credential of this node failed; trying again later")
            self._over.wait(LOOK_S)

    def look(self) -> bool:
        """Renew the credential if it is time. Says whether there is a new one."""
        now_ms = self._wall_ms()
        if now_ms < self.credential.renew_ms:
            return False
        try:
            answer = self._exchange()
        except (NoAnswer, Refused) as wrong:
            _log.warning("the credential of this node could not be renewed yet: %s", wrong)
            return False
        renewed = structs.replace(self.credential, token=answer.token, renew_ms=renew_at(now_ms, answer.expires_ms))
        self._place.keep_credential(renewed)
        self.credential = renewed
        self._use(renewed.token)
        _log.info("the credential of this node was renewed")
        return True


def renew_at(now_ms: int, expires_ms: int | None) -> int:
    """When half of what is left of its life is over; 0, which is at once, where the server has told no end."""
    return 0 if expires_ms is None else now_ms + max(expires_ms - now_ms, 0) // 2
