"""An administrator's own commands as a provider: for clouds, and for whatever else can provide a machine.

The server runs three commands that obey a small contract (docs/operate/following-demand.md). They get their arguments
in the environment:
``acquire``  request one machine that runs the pilot. Repeated for the same pilot it must not create a second one. It is
             run for several pilots at the same time, once for each.
``release``  release that machine; if it is gone already, that is no error.
``look``     reads names from its standard input, one per line, and prints their status: name, phase (waiting, started
             or ended), where, seconds until it is taken away, why; separated by tabs.

Exit code 0: done; 75: unknown at present (it is called again); others: refused, and the last line on standard error
says why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from msgspec import Struct

from corral.providers.base import PilotOrder, PilotPhase, PilotStatus, ProviderRefused, ProviderUnavailable, raise_any
from corral.providers.parallel_map import parallel_map

TEMPORARY = 75  # sysexits.h: EX_TEMPFAIL


class CommandSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each command with its arguments. ``env``: for all of them; secrets do not belong here."""

    acquire: tuple[str, ...]
    release: tuple[str, ...]
    look: tuple[str, ...]
    env: dict[str, str] = {}
    timeout_ms: int = 120_000

    def fault(self) -> str:
        for name in ("acquire", "release", "look"):
            if not getattr(self, name) or not all(getattr(self, name)):
                return f"{name} needs a command"
        return "" if 1_000 <= self.timeout_ms <= 3_600_000 else "timeout_ms must be from 1000 (1 s) to 3600000 (1 h)"


PLAIN: frozenset[str] = frozenset()


def missing(settings: CommandSettings | None = None) -> str:
    """The commands that do not exist."""
    commands = () if settings is None else (settings.acquire, settings.release, settings.look)
    absent = [words[0] for words in commands if shutil.which(words[0]) is None]
    return f"cannot run {', '.join(dict.fromkeys(absent))}: check that it exists and is executable" if absent else ""


def opened(settings: CommandSettings, cluster: str) -> CommandProvider:
    return CommandProvider(settings, cluster)


Settings = CommandSettings  # the name that every provider has


class CommandProvider:
    def __init__(self, settings: CommandSettings, cluster: str) -> None:
        self._settings, self._cluster = settings, cluster

    def acquire(self, orders: Sequence[PilotOrder]) -> None:
        each = {order.pilot: order for order in orders}
        raise_any([fault for fault in parallel_map(self._acquire, each.values()) if fault is not None])

    def _acquire(self, order: PilotOrder) -> ProviderUnavailable | ProviderRefused | None:
        """The fault, if any."""
        about = {
            "CORRAL_SERVER": " ".join(order.urls),
            "CORRAL_JOIN_TOKEN": order.token,
            "CORRAL_CA_FILE": order.cafile,
            "CORRAL_LASTS_S": "" if order.lasts_ms is None else str(order.lasts_ms // 1000),
        }
        try:
            self._run(self._settings.acquire, self._about(order.pilot) | about)
        except (ProviderUnavailable, ProviderRefused) as fault:
            return fault
        return None

    def look(self, pilots: Sequence[str]) -> Sequence[PilotStatus]:
        if not pilots:
            return []
        output = self._run(
            self._settings.look, {"CORRAL_CLUSTER": self._cluster}, "".join(f"{each}\n" for each in pilots)
        )
        found = {each.pilot: each for line in output.splitlines() if (each := read_line(line)) is not None}
        return [found[pilot] for pilot in pilots if pilot in found]

    def release(self, pilot: str) -> None:
        self._run(self._settings.release, self._about(pilot))

    def close(self) -> None:
        """There is nothing to close."""

    def _about(self, pilot: str) -> dict[str, str]:
        return {"CORRAL_PILOT": pilot, "CORRAL_CLUSTER": self._cluster, "CORRAL_PILOT_ID": f"{self._cluster}-{pilot}"}

    def _run(self, words: Sequence[str], about: dict[str, str], stdin: str = "") -> str:
        seconds = self._settings.timeout_ms / 1000
        try:
            done = subprocess.run(
                list(words),
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
                env={**os.environ, **self._settings.env, **about},
            )
        except subprocess.TimeoutExpired:
            raise ProviderUnavailable(f"{words[0]} did not end within {seconds:g} s") from None
        except OSError as wrong:
            raise ProviderUnavailable(f"cannot run {words[0]}: {wrong.strerror}") from None
        if done.returncode == 0:
            return done.stdout
        lines = done.stderr.strip().splitlines()
        why = f"{words[0]}: {lines[-1][:400] if lines else f'exit code {done.returncode}'}"
        raise ProviderUnavailable(why) if done.returncode in (TEMPORARY, *_KILLED) else ProviderRefused(why)


_KILLED = tuple(range(-64, 0))


def read_line(line: str) -> PilotStatus | None:
    """One line of the output of ``look``. Raises `ProviderUnavailable` if it is invalid."""
    if not line.strip():
        return None
    name, phase, where, left, why = [*line.split("\t"), "", "", "", ""][:5]
    if phase.strip() not in list(PilotPhase) or (left.strip() and not left.strip().isdecimal()):
        raise ProviderUnavailable(
            f"look printed {line[:120]!r}: print name, phase, where, seconds left, why, separated by tabs"
        )
    left_ms = int(left) * 1000 if left.strip() else None
    return PilotStatus(
        pilot=name.strip(), phase=PilotPhase(phase.strip()), where=where.strip(), left_ms=left_ms, why=why.strip()
    )
