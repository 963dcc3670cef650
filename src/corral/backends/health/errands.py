"""Programs that are sent off to find something out: started, given so long, asked whether they are back.

Knows processes. Whoever sends them off comes by again; nothing here waits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from corral.backends.gpus import visibility
from corral.backends.health.readings import ProbeReading, SiteReading
from corral.backends.health.trial import CANNOT_TRY

_TOLD_MAX = 4_000


class Errand:
    """One program under way. Its output is kept up to a few thousand characters."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], limit_ms: int) -> None:
        self._limit_ms, self._until = limit_ms, time.monotonic() + limit_ms / 1000
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._process: subprocess.Popen[bytes] | None = None
        self._fault = ""
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT,
                env={**os.environ, **env}, start_new_session=True,
            )  # fmt: skip
        except OSError as fault:
            self._fault = f"{words[0]}: {fault.strerror or fault}"
            self._output.close()

    def ended(self) -> tuple[int | None, str] | None:
        """Exit code and output; None: it is still under way. Without an exit code: why there is none."""
        if self._process is None:
            return None, self._fault
        code = self._process.poll()
        if code is None:
            if time.monotonic() < self._until:
                return None
            self.end()
            return None, f"it did not end within {self._limit_ms / 1000:g} s"
        told = self._told()
        self.end()
        return code, told

    def _told(self) -> str:
        self._output.seek(0)
        return self._output.read(_TOLD_MAX).decode("utf-8", "replace")

    def kill(self) -> None:
        """All that it has started; its end is not waited for."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        self.kill()
        if self._process is not None:
            self._process.wait()
        self._output.close()


def probe_errand(uuid: str, limit_ms: int) -> Errand:
    """Tries one GPU. In a process of its own: what it meets there hurts nobody else."""
    return Errand([sys.executable, "-m", "corral.backends.health.trial"], visibility([uuid]), limit_ms)


def probe_reading(ended: tuple[int | None, str]) -> ProbeReading:
    code, told = ended
    last = told.strip().splitlines()[-1] if told.strip() else ""
    if code == CANNOT_TRY:
        return ProbeReading(None, last)
    if code == 0:
        with suppress(msgspec.DecodeError, msgspec.ValidationError):
            return msgspec.json.decode(last, type=ProbeReading)
    return ProbeReading(False, last if code is None or last else f"it ended with exit code {code}")


def site_errand(program: str, node: str, limit_ms: int) -> Errand:
    return Errand([program], {"CORRAL_NODE": node}, limit_ms)


def site_reading(ended: tuple[int | None, str]) -> SiteReading:
    code, told = ended
    lines = told.strip().splitlines()
    return SiteReading(code, lines[0] if lines else "")
