"""The bridge to Ray: a process of its own, so that Ray can never take the server down. Started, asked, started anew.

Ray ends a driver that has lost its head for long; a driver may hang as well. Either way whoever asks is told that
nobody knows, after a bounded time, and the next question goes over a new bridge. Knows the environment of that process.
"""

from __future__ import annotations

import importlib.util
import json
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
from typing import Any

from corral.backends.carriers.base import CarrierAway
from corral.backends.carriers.ray.settings import Settings

_OPEN_S, _END_S = 20.0, 5.0
_AGAIN_S = 1.0
_SILENT_S = 30.0  # a bridge that owed an answer for so long is given up
_KEPT = ("PATH", "HOME", "LANG", "USER", "LOGNAME", "TMPDIR")
_RECONNECT_S = 3600
HOW = (
    "make an environment for it: python3 -m venv /opt/corral-ray && "
    "/opt/corral-ray/bin/pip install 'corral-scheduler[ray]'"
)


def missing(settings: Settings | None = None) -> str:
    if settings is not None and settings.python:
        return "" if os.access(settings.python, os.X_OK) else f"{settings.python} cannot be run here; {HOW}"
    if importlib.util.find_spec("ray") is not None:
        return ""
    return f"Ray is not installed beside the server; {HOW}, and say --ray-python /opt/corral-ray/bin/python"


class Bridge:
    """``cluster`` keeps apart what several Corrals have on one Ray. Opened when it is first needed."""

    def __init__(self, settings: Settings, cluster: str, open_s: float = _OPEN_S) -> None:
        self._settings, self._namespace, self._open_s = settings, f"corral-{cluster}", open_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._numbers, self._since_s, self._tried_s = 0, 0.0, -1e9
        self._words: deque[str] = deque(maxlen=20)
        self._fault = ""

    def call(self, act: str, patience_s: float, body: bytes = b"", **request: Any) -> dict[str, Any]:
        """The answer; raises `CarrierAway` where there is none in time."""
        with self._lock:
            self._open()
            number, answer = self._send({"act": act, "size": len(body), **request}, body)
        try:
            found = answer.result(patience_s)
        except Late:
            self._give_up_if_silent(number)
            raise CarrierAway(f"Ray at {self._settings.address} does not answer within {patience_s:g} s") from None
        finally:
            self._waiting.pop(number, None)
        if "away" in found:
            raise CarrierAway(f"Ray at {self._settings.address}: {found['away']}")
        return found

    def close(self) -> None:
        with self._lock:
            self._end()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    # --- its life -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._end()
        if time.monotonic() - self._tried_s < _AGAIN_S:
            raise CarrierAway(f"the bridge to Ray has just ended: {self._why()}")
        self._tried_s = time.monotonic()
        driver = str(Path(__file__).with_name("driver.py"))
        try:
            self._process = subprocess.Popen(
                [self._settings.python or sys.executable, "-I", driver], env=self._env(), cwd="/",
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except OSError as wrong:
            what = self._settings.python or sys.executable
            raise CarrierAway(f"{what} cannot be run: {wrong.strerror}; {HOW}") from None
        self._words.clear()
        self._since_s, opened = time.monotonic(), Future[dict[str, Any]]()
        self._waiting = {0: opened}
        for listen in (self._hear, self._overhear):
            threading.Thread(target=listen, args=(self._process,), name="bridge-to-ray", daemon=True).start()
        self._write({"address": self._settings.address, "namespace": self._namespace}, b"")
        try:
            said = opened.result(self._open_s)
        except Late:
            said = {"away": f"it does not answer within {self._open_s:g} s"}
        if "version" not in said:
            self._fault = str(said.get("fault") or said.get("away"))
            self._end()
            self._tried_s = time.monotonic()  # whoever has waited behind this one is told the same
            raise CarrierAway(f"Ray at {self._settings.address} cannot be reached: {self._why()}")

    def _env(self) -> dict[str, str]:
        said = self._settings
        env = {name: os.environ[name] for name in _KEPT if name in os.environ}
        env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_gcs_rpc_server_reconnect_timeout_s": str(_RECONNECT_S)}
        env |= {"RAY_AUTH_MODE": "disabled"} if said.is_open else {"RAY_AUTH_MODE": "token"}
        return env if said.is_open else env | {"RAY_AUTH_TOKEN_PATH": said.token_file}

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait(_END_S)
        with suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()

    def _give_up_if_silent(self, number: int) -> None:
        """Nothing has been heard for long: the next call goes over another."""
        with self._lock:
            if time.monotonic() - self._since_s > _SILENT_S and number in self._waiting:
                self._fault = "it did not answer for long"
                self._end()

    def _why(self) -> str:
        return self._fault or " ".join(self._words)[-300:] or "it said nothing"

    # --- speaking -----------------------------------------------------------------------------------------------------

    def _send(self, request: dict[str, Any], body: bytes) -> tuple[int, Future[dict[str, Any]]]:
        self._numbers += 1
        answer = self._waiting[self._numbers] = Future[dict[str, Any]]()
        self._write({"number": self._numbers, **request}, body)
        return self._numbers, answer

    def _write(self, request: dict[str, Any], body: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n" + body)
            self._process.stdin.flush()
        except OSError:
            self._end()
            raise CarrierAway(f"the bridge to Ray has ended: {self._why()}") from None

    def _hear(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        waiting = self._waiting
        with process.stdout:
            for line in process.stdout:
                said = json.loads(line)
                self._since_s = time.monotonic()
                asked = waiting.get(said["number"])
                if asked is not None and not asked.done():
                    asked.set_result(said)
        for asked in list(waiting.values()):
            with suppress(Exception):  # it was answered in this moment
                asked.set_result({"away": f"the bridge to Ray has ended: {self._why()}"})

    def _overhear(self, process: subprocess.Popen[bytes]) -> None:
        """What Ray says for people: the last of it tells why the bridge ended."""
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                self._words.append(line.decode("utf-8", "replace").strip())
