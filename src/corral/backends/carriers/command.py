"""Commands of an administrator's own as a carrier: for clouds, and for whatever else can be told to give a machine.

Three commands, run by the server, which must obey a small contract (docs/operate/following-demand.md) and are told in
their environment what it is about:
``acquire``  let there be one machine that runs the pilot. Asked again for the same it must not make a second one. Is
             run for several pilots at the same time, once for each.
``release``  let that machine go; one that is gone is no fault.
``look``     gets names on its standard input, a line each, and prints what there is of them: name, phase (waiting,
             started or ended), where, seconds until it is taken away, why; with tabs between.

Exit code 0: done; 75: nobody can say at present (ask again); others: no, and the last line of what was printed to
standard error says why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from msgspec import Struct

from corral.backends.carriers.abreast import abreast
from corral.backends.carriers.base import CarrierAway, CarrierRefused, PilotOrder, PilotPhase, Sighting, raise_any

TEMPORARY = 75  # sysexits.h: EX_TEMPFAIL


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each command with its words. ``env``: for all of them; what is secret has no business here."""

    acquire: tuple[str, ...]
    release: tuple[str, ...]
    look: tuple[str, ...]
    env: dict[str, str] = {}
    timeout_ms: int = 120_000

    def fault(self) -> str:
        for name in ("acquire", "release", "look"):
            if not getattr(self, name) or not all(getattr(self, name)):
                return f"{name} names no command"
        return "" if 1_000 <= self.timeout_ms <= 3_600_000 else "timeout_ms is from a second to an hour"


PLAIN: frozenset[str] = frozenset()


def missing(settings: Settings | None = None) -> str:
    """Commands that there are not."""
    commands = () if settings is None else (settings.acquire, settings.release, settings.look)
    absent = [words[0] for words in commands if shutil.which(words[0]) is None]
    return (
        f"{', '.join(dict.fromkeys(absent))} cannot be run here; is it there, and may it be executed?" if absent else ""
    )


def opened(settings: Settings, cluster: str) -> CommandCarrier:
    return CommandCarrier(settings, cluster)


class CommandCarrier:
    def __init__(self, settings: Settings, cluster: str) -> None:
        self._settings, self._cluster = settings, cluster

    def acquire(self, orders: Sequence[PilotOrder]) -> None:
        each = {order.pilot: order for order in orders}
        raise_any([fault for fault in abreast(self._acquire, each.values()) if fault is not None])

    def _acquire(self, order: PilotOrder) -> CarrierAway | CarrierRefused | None:
        """What is wrong."""
        about = {
            "CORRAL_SERVER": " ".join(order.urls),
            "CORRAL_JOIN_TOKEN": order.token,
            "CORRAL_CA_FILE": order.cafile,
            "CORRAL_LASTS_S": "" if order.lasts_ms is None else str(order.lasts_ms // 1000),
        }
        try:
            self._run(self._settings.acquire, self._about(order.pilot) | about)
        except (CarrierAway, CarrierRefused) as fault:
            return fault
        return None

    def look(self, pilots: Sequence[str]) -> Sequence[Sighting]:
        if not pilots:
            return []
        told = self._run(
            self._settings.look, {"CORRAL_CLUSTER": self._cluster}, "".join(f"{each}\n" for each in pilots)
        )
        found = {each.pilot: each for line in told.splitlines() if (each := read_line(line)) is not None}
        return [found[pilot] for pilot in pilots if pilot in found]

    def release(self, pilot: str) -> None:
        self._run(self._settings.release, self._about(pilot))

    def close(self) -> None:
        """There is nothing to close."""

    def _about(self, pilot: str) -> dict[str, str]:
        return {"CORRAL_PILOT": pilot, "CORRAL_CLUSTER": self._cluster, "CORRAL_PILOT_ID": f"{self._cluster}-{pilot}"}

    def _run(self, words: Sequence[str], about: dict[str, str], said: str = "") -> str:
        seconds = self._settings.timeout_ms / 1000
        try:
            done = subprocess.run(
                list(words), input=said, capture_output=True, text=True, errors="replace", timeout=seconds, check=False,
                env={**os.environ, **self._settings.env, **about},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise CarrierAway(f"{words[0]} did not end within {seconds:g} s") from None
        except OSError as wrong:
            raise CarrierAway(f"{words[0]} cannot be run: {wrong.strerror}") from None
        if done.returncode == 0:
            return done.stdout
        lines = done.stderr.strip().splitlines()
        why = f"{words[0]}: {lines[-1][:400] if lines else f'exit code {done.returncode}'}"
        raise CarrierAway(why) if done.returncode in (TEMPORARY, *_KILLED) else CarrierRefused(why)


_KILLED = tuple(range(-64, 0))


def read_line(line: str) -> Sighting | None:
    """One line of what ``look`` prints; raises `CarrierAway` for one that cannot be understood."""
    if not line.strip():
        return None
    name, phase, where, left, why = [*line.split("\t"), "", "", "", ""][:5]
    if phase.strip() not in list(PilotPhase) or (left.strip() and not left.strip().isdecimal()):
        raise CarrierAway(
            f"look printed {line[:120]!r}: write name, phase, where, seconds left, why, with tabs between"
        )
    left_ms = int(left) * 1000 if left.strip() else None
    return Sighting(
        pilot=name.strip(), phase=PilotPhase(phase.strip()), where=where.strip(), left_ms=left_ms, why=why.strip()
    )
