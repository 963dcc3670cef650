"""An intake that the server runs as a process of its own: started when this server leads, started again when it ends.

Knows how it is started, and gives it a token for just that. It ends with the server, because its standard input does.
Knows no broker.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from functools import partial

import structlog

from corral.core.accounts import commands
from corral.core.accounts.accounts import Accounts, Role
from corral.core.intake.refusal import Refusal
from corral.io.backoff import Backoff
from corral.server.auth import Verb, new_token
from corral.server.service import ServerService
from corral.wire.brokers.broker_names import broker_kind
from corral.wire.brokers.intake_rules import IntakeRules

log = structlog.get_logger(__name__)

NAME = "intake of the server"
LIFE_MS = 30 * 86_400_000
_RENEW_S = 14 * 86_400.0
_LOOK_S = 1.0
_END_S = 5.0
_ACTOR = "system"
_SCOPE = (Verb.INTAKE, Verb.EVENTS_READ, Verb.JOBS_READ)


class IntakeChild:
    """``url``, ``ca``: how the process reaches this server."""

    def __init__(self, rules: IntakeRules, service: ServerService, url: str, ca: str) -> None:
        self._rules = rules
        self._service = service
        self._url = url
        self._ca = ca
        self.process: subprocess.Popen[bytes] | None = None

    async def run(self) -> None:
        backoff = Backoff(1.0, 30.0)
        try:
            while True:
                if await self._start():
                    lasted_s = await self._wait()
                    if lasted_s > 60:
                        backoff.succeeded()
                await asyncio.sleep(backoff.failed())
        finally:
            self._end()

    async def _start(self) -> bool:
        token = await self._token()
        if not token:
            return False
        rules = self._rules
        words = [sys.executable, "-m", "corral", "intake", broker_kind(rules.broker), "--attached"]
        words += ["--url", rules.broker, "--prefetch", str(rules.prefetch)]
        words += ["--password-file", rules.password_file] if rules.password_file else []
        words += [] if rules.events else ["--no-events"]
        env = os.environ | {"CORRAL_URL": self._url, "CORRAL_TOKEN": token}
        env |= {"CORRAL_CA": self._ca} if self._ca else {}
        self.process = await asyncio.to_thread(
            subprocess.Popen, words, env=env, stdin=subprocess.PIPE, start_new_session=True
        )
        log.info("intake_process_started", pid=self.process.pid)
        return True

    async def _token(self) -> str:
        """A new token of an administrator with the scope of an intake; the former ones are revoked."""
        accounts = self._service.accounts
        admins = [user for user in accounts.users.values() if ("", Role.ADMINISTRATOR) in user.roles]
        owner = next((user.name for user in admins if not user.disabled), "")
        if not owner:
            log.error("intake_not_started", why="there is no administrator whose token it could use")
            return ""
        for old in [each.id for each in accounts.tokens.values() if each.name == NAME]:
            await self._service.change_accounts(_ACTOR, partial(_revoked, old))
        drawn = new_token()
        scope = tuple(map(str, _SCOPE))
        made = await self._service.change_accounts(
            _ACTOR,
            lambda known, now_ms: commands.issue_token(
                known, drawn.id, owner, drawn.digest, NAME, scope, now_ms + LIFE_MS, now_ms
            ),
        )
        if isinstance(made, Refusal):
            log.error("intake_not_started", why=made.why)
            return ""
        return drawn.text

    async def _wait(self) -> float:
        """Until the process has ended, or its token should be renewed. Returns how many seconds it ran."""
        assert self.process is not None
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while self.process.poll() is None and loop.time() - began_s < _RENEW_S:
            await asyncio.sleep(_LOOK_S)
        if self.process.poll() is not None:
            log.warning("intake_process_ended", status=self.process.returncode)
        await asyncio.to_thread(self._end)
        return loop.time() - began_s

    def _end(self) -> None:
        """It ends by itself when its input does. Everything that it holds is still in the broker."""
        process, self.process = self.process, None
        if process is None:
            return
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _revoked(token: str, accounts: Accounts, now_ms: int) -> commands.Answer:
    return commands.revoke_token(accounts, token, now_ms)
