"""The bridge to Ray: a separate process, so that Ray can never take the server down. It is restarted when it ends.

Ray ends a driver that has lost its head node for long; a driver may also hang. In both cases the caller gets
`ProviderUnavailable` after a limited time, and the next call uses a new bridge. Knows the environment of that process.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from corral.providers.base import ProviderUnavailable
from corral.providers.ray.driver_messages import AskRequest, Envelope, NodesRequest, OpenRequest
from corral.providers.ray.settings import RaySettings

T = TypeVar("T")

_OPEN_S, _END_S = 20.0, 5.0
_AGAIN_S = 1.0
_SILENT_S = 30.0  # a bridge that has not answered for this time is replaced
_KEPT = ("PATH", "HOME", "LANG", "USER", "LOGNAME", "TMPDIR")
_RECONNECT_S = 3600
HOW = (
    "create an environment for it: python3 -m venv /opt/corral-ray && "
    "/opt/corral-ray/bin/pip install 'corral-scheduler[ray]'"
)


def missing(settings: RaySettings | None = None) -> str:
    if settings is not None and settings.python:
        return "" if os.access(settings.python, os.X_OK) else f"cannot run {settings.python}; {HOW}"
    if importlib.util.find_spec("ray") is not None:
        return ""
    return f"Ray is not installed beside the server; {HOW}, and add --ray-python /opt/corral-ray/bin/python"


class _Away(Exception):
    """A request has no answer."""


class Bridge:
    """``cluster`` separates several Corral servers on one Ray. Opened when it is first needed."""

    def __init__(self, settings: RaySettings, cluster: str, open_s: float = _OPEN_S) -> None:
        self._settings = settings
        self._namespace = f"corral-{cluster}"
        self._open_s = open_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: dict[int, Future[bytes]] = {}
        self._numbers = 0
        self._since_s = 0.0
        self._tried_s = -1e9
        self._words: deque[str] = deque(maxlen=20)
        self._fault = ""

    def call(self, request: NodesRequest | AskRequest, answer: type[T], patience_s: float, body: bytes = b"") -> T:
        """The answer. Raises `ProviderUnavailable` if there is none in time."""
        with self._lock:
            self._open()
            number, asked = self._send(request, body)
        try:
            return msgspec.json.decode(asked.result(patience_s), type=answer)
        except Late:
            self._end_if_silent(number)
            raise ProviderUnavailable(
                f"Ray at {self._settings.address} did not answer within {patience_s:g} s"
            ) from None
        except (_Away, msgspec.ValidationError) as wrong:
            raise ProviderUnavailable(f"Ray at {self._settings.address}: {wrong}") from None
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        with self._lock:
            self._end()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    # --- start and end ------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._end()
        if time.monotonic() - self._tried_s < _AGAIN_S:
            raise ProviderUnavailable(f"the bridge to Ray has just ended: {self._why()}")
        self._tried_s = time.monotonic()
        driver = str(Path(__file__).with_name("driver.py"))
        try:
            self._process = subprocess.Popen(
                [self._settings.python or sys.executable, "-I", driver],
                env=self._env(),
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as wrong:
            what = self._settings.python or sys.executable
            raise ProviderUnavailable(f"cannot run {what}: {wrong.strerror}; {HOW}") from None
        self._words.clear()
        self._since_s, opened = time.monotonic(), Future[bytes]()
        self._waiting = {0: opened}
        for read in (self._read_answers, self._read_log):
            threading.Thread(target=read, args=(self._process,), name="bridge-to-ray", daemon=True).start()
        self._write(msgspec.json.encode(OpenRequest(self._settings.address, self._namespace)) + b"\n")
        try:
            opened.result(self._open_s)
        except (_Away, Late) as wrong:
            self._fault = str(wrong) or f"no answer within {self._open_s:g} s"
            self._end()
            self._tried_s = time.monotonic()  # callers that waited behind this one get the same answer
            raise ProviderUnavailable(f"cannot reach Ray at {self._settings.address}: {self._why()}") from None

    def _env(self) -> dict[str, str]:
        settings = self._settings
        env = {name: os.environ[name] for name in _KEPT if name in os.environ}
        env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_gcs_rpc_server_reconnect_timeout_s": str(_RECONNECT_S)}
        env |= {"RAY_AUTH_MODE": "disabled"} if settings.is_open else {"RAY_AUTH_MODE": "token"}
        return env if settings.is_open else env | {"RAY_AUTH_TOKEN_PATH": settings.token_file}

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait(_END_S)
        with suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()

    def _end_if_silent(self, number: int) -> None:
        """After a long silence the next call uses a new bridge."""
        with self._lock:
            if time.monotonic() - self._since_s > _SILENT_S and number in self._waiting:
                self._fault = f"it did not answer for more than {_SILENT_S:g} s"
                self._end()

    def _why(self) -> str:
        return self._fault or " ".join(self._words)[-300:] or "no output"

    # --- messages -----------------------------------------------------------------------------------------------------

    def _send(self, request: NodesRequest | AskRequest, body: bytes) -> tuple[int, Future[bytes]]:
        self._numbers += 1
        answer = self._waiting[self._numbers] = Future[bytes]()
        line = {**msgspec.to_builtins(request), "number": self._numbers, "size": len(body)}
        self._write(msgspec.json.encode(line) + b"\n" + body)
        return self._numbers, answer

    def _write(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except OSError:
            self._end()
            raise ProviderUnavailable(f"the bridge to Ray has ended: {self._why()}") from None

    def _read_answers(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        waiting = self._waiting
        with process.stdout:
            for line in process.stdout:
                try:
                    answer = msgspec.json.decode(line, type=Envelope)
                except msgspec.MsgspecError:
                    continue
                self._since_s = time.monotonic()
                asked = waiting.get(answer.number)
                if asked is None or asked.done():
                    continue
                if answer.away:
                    asked.set_exception(_Away(answer.away))
                else:
                    asked.set_result(line)
        for asked in list(waiting.values()):
            with suppress(Exception):  # it was answered just now
                asked.set_exception(_Away(f"the bridge to Ray has ended: {self._why()}"))

    def _read_log(self, process: subprocess.Popen[bytes]) -> None:
        """Collect the log of Ray: its last lines say why the bridge ended."""
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                self._words.append(line.decode("utf-8", "replace").strip())
