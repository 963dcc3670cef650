"""Programs that check something: started, limited in time, and polled for their result.

Knows processes. Nothing here waits: the caller polls.
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

from corral.health.probes.gpu_probe import CANNOT_TRY
from corral.health.readings import ProbeReading, SiteReading
from corral.runtime.gpu_visibility import visibility

_OUTPUT_MAX = 4_000


class ProbeProcess:
    """One running program. Its output is kept up to a few thousand characters."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], limit_ms: int) -> None:
        self._limit_ms = limit_ms
        self._until = time.monotonic() + limit_ms / 1000
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._process: subprocess.Popen[bytes] | None = None
        self._fault = ""
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,
            )
        except OSError as fault:
            self._fault = f"{words[0]}: {fault.strerror or fault}"
            self._output.close()

    def ended(self) -> tuple[int | None, str] | None:
        """Exit code and output. None: it is still running. Without an exit code: why there is none."""
        if self._process is None:
            return None, self._fault
        code = self._process.poll()
        if code is None:
            if time.monotonic() < self._until:
                return None
            self.end()
            return None, f"it did not end within {self._limit_ms / 1000:g} s"
        output = self._read_output()
        self.end()
        return code, output

    def _read_output(self) -> str:
        self._output.seek(0)
        return self._output.read(_OUTPUT_MAX).decode("utf-8", "replace")

    def kill(self) -> None:
        """Kill it with all its children, without waiting for its end."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        self.kill()
        if self._process is not None:
            self._process.wait()
        self._output.close()


def start_gpu_probe(uuid: str, limit_ms: int) -> ProbeProcess:
    """Probe one GPU, in a separate process: a crash there affects nothing else."""
    return ProbeProcess([sys.executable, "-m", "corral.health.probes.gpu_probe"], visibility([uuid]), limit_ms)


def probe_reading(ended: tuple[int | None, str]) -> ProbeReading:
    code, output = ended
    last = output.strip().splitlines()[-1] if output.strip() else ""
    if code == CANNOT_TRY:
        return ProbeReading(None, last)
    if code == 0:
        with suppress(msgspec.DecodeError, msgspec.ValidationError):
            return msgspec.json.decode(last, type=ProbeReading)
    return ProbeReading(False, last if code is None or last else f"it ended with exit code {code}")


def start_site_check(program: str, node: str, limit_ms: int) -> ProbeProcess:
    return ProbeProcess([program], {"CORRAL_NODE": node}, limit_ms)


def site_reading(ended: tuple[int | None, str]) -> SiteReading:
    code, output = ended
    lines = output.strip().splitlines()
    return SiteReading(code, lines[0] if lines else "")
