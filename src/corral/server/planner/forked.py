"""Runs a function on a throw-away copy of this process, made by ``fork``: what it changes is lost with the copy.

For trials that change the state. A copy that fails, crashes or hangs leaves this process as it was. Not for every plan:
a copy of a large state costs tens of milliseconds, and what a policy remembers in it is lost.
"""

from __future__ import annotations

import gc
import math
import os
import select
import signal
import time
import traceback
from collections.abc import Callable

_RESULT, _ERROR = b"+", b"-"


class TrialFailed(Exception):
    """The function raised an error, did not return in time, or its process has ended. The text says what happened."""


def forked(function: Callable[[], bytes], timeout_s: float) -> bytes:
    """The result of a function that is called in a child process. The child ends by itself shortly after its time, even
    if this process has died."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(math.ceil(timeout_s) + 1)
            gc.disable()  # a collection would copy all pages
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(_called(function))
        finally:
            os._exit(0)
    os.close(writing)
    try:
        answer = _read(reading, time.monotonic() + timeout_s)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if answer is None:
        raise TrialFailed(f"no plan within {timeout_s:g} s")
    if not answer:
        raise TrialFailed(f"planning ended with status {status}")
    if answer[:1] == _ERROR:
        raise TrialFailed(answer[1:].decode())
    return answer[1:]


def _called(function: Callable[[], bytes]) -> bytes:
    try:
        return _RESULT + function()
    except Exception:
        return _ERROR + traceback.format_exc().encode(errors="replace")


def _read(pipe: int, until_s: float) -> bytes | None:
    """Everything that is written to a pipe until it is closed. None: it was not closed in time."""
    found = b""
    while select.select([pipe], [], [], max(0.0, until_s - time.monotonic()))[0]:
        part = os.read(pipe, 1 << 16)
        if not part:
            return found
        found += part
    return None
