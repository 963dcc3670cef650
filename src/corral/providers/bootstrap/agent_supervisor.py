"""Keeps the agent on a machine from a provider running: starts and restarts it, stops it, removes its files.

Started by systemd, by itself, or by a provider, from the directory that ``bootstrap`` made. ``place.json`` says what to
run. SIGTERM: ask the agent to leave. SIGHUP: the agent has a new version, restart it; tasks are not affected. The agent
does not outlive this process. After it has left, ``ended.json`` says how; a released machine has no files left.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time

from corral.io.backoff import Backoff, no_chance
from corral.providers.bootstrap.bootstrap import (
    AGENTS,
    DATA,
    ENDED,
    HOLD,
    PLACE,
    PilotRecordDict,
    locked,
    read_place,
    remove,
    write,
)

#: Starts the agent: it ends with this process (PR_SET_PDEATHSIG), and imports only what was installed here.
BEGIN = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.getppid() == int(sys.argv[1]) or os._exit(0); "
    "sys.path.insert(0, sys.argv[2]); del sys.argv[1:3]; from corral.cli.main import main; sys.exit(main())"
)

_QUICK_S, _QUICK_MAX = 10.0, 5  # after this many ends by itself within this time it is not started again
_PAUSE_S, _PAUSE_MAX_S = 0.1, 5.0
_LEAVE_EXTRA_S = 20.0  # on top of the grace time of the agent
_TASKS_S = 15.0  # longer than tasks run without an agent
_LOG_MAX = 8 << 20
_LOG_KEPT = 1 << 20
_LOG_LOOK_S = 30.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main(base: str, is_detached: bool) -> int:
    if is_detached:
        if os.fork():
            return 0
        os.setsid()
    os.chdir("/")
    os.umask(0o077)
    hold = os.open(os.path.join(base, HOLD), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another process already supervises the agent
    keeper = AgentSupervisor(base)
    os.ftruncate(hold, 0)
    os.write(hold, b"%d\n" % os.getpid())
    return keeper.run()


class AgentSupervisor:
    def __init__(self, base: str) -> None:
        self.base = base
        self.is_leaving = False
        self.agent: subprocess.Popen[bytes] | None = None
        self._quick = 0
        self._backoff = Backoff(_PAUSE_S, _PAUSE_MAX_S, no_chance)
        signal.signal(signal.SIGTERM, self._leave)
        signal.signal(signal.SIGINT, self._leave)
        signal.signal(signal.SIGHUP, self._renew)

    def _leave(self, *_: object) -> None:
        self.is_leaving = True

    def _renew(self, *_: object) -> None:
        if self.agent is not None and not self.is_leaving:
            self.agent.kill()

    def run(self) -> int:
        place = self._place()
        why, code = "it was released before it started", 0
        while place is not None and not (place["is_released"] or self.is_leaving):
            began = time.monotonic()
            code = self._until_over(place)
            why = "the agent has left" if code == 0 else self._last_words()
            lived_s = time.monotonic() - began
            if code == 0 or (code > 0 and self._is_hopeless(lived_s)):
                break
            self._wait(lived_s)
            place = self._place()
        place = self._place()
        if place is None or place["is_released"]:
            self._remove()
            return 0
        write(os.path.join(self.base, ENDED), json.dumps({"code": code, "why": why, "at_ms": int(time.time() * 1000)}))
        return 0

    def _place(self) -> PilotRecordDict | None:
        return read_place(self.base)

    # --- the agent ----------------------------------------------------------------------------------------------------

    def _until_over(self, place: PilotRecordDict) -> int:
        """Its exit code; negative for a signal."""
        self._forget_other_agents(place["agent"])
        with open(self._log(), "ab") as log:
            self.agent = subprocess.Popen(
                self._command(place),
                env=self._env(place),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        asked_s = None
        look_s = time.monotonic()
        while self.agent.poll() is None:
            now = time.monotonic()
            if self.is_leaving and asked_s is None:
                asked_s = now
                self.agent.terminate()
            if asked_s is not None and now > asked_s + place["grace_ms"] / 1000 + _LEAVE_EXTRA_S:
                self.agent.kill()
            if now > look_s + _LOG_LOOK_S:
                look_s = now
                self._shorten_log()
            if place["token"]:
                place["token"] = self._token_still_needed(place["token"])
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.agent.wait(0.1)
        return self.agent.returncode

    def _command(self, place: PilotRecordDict) -> list[str]:
        code = os.path.join(self.base, AGENTS, place["agent"])
        begin = [sys.executable, "-I", "-S", "-c", BEGIN, str(os.getpid()), code]
        return [*begin, "pilot", "--data", self._data(), *place["words"]]

    def _env(self, place: PilotRecordDict) -> dict[str, str]:
        """Nothing of the caller's environment: an agent on a machine of its own."""
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "USER", "LOGNAME", "TZ") if name in os.environ}
        kept["PATH"] = _PATH
        kept["PYTHONPATH"] = os.path.join(self.base, AGENTS, place["agent"])  # for its probe processes
        kept["CORRAL_JOIN_TOKEN"] = place["token"]
        return kept

    def _token_still_needed(self, token: str) -> str:
        """Remove the token from disk once it has been used, although it cannot be used again."""
        if not os.path.exists(os.path.join(self._data(), "agent.json")):
            return token
        with locked(self.base):
            place = self._place()
            if place is not None:
                write(os.path.join(self.base, PLACE), json.dumps({**place, "token": ""}))
        return ""

    def _is_hopeless(self, lived_s: float) -> bool:
        """Whether it ends by itself again and again, such as an agent that the server refuses."""
        self._quick = self._quick + 1 if lived_s < _QUICK_S else 0
        return self._quick >= _QUICK_MAX

    def _wait(self, lived_s: float) -> None:
        if lived_s > _QUICK_S:
            self._backoff.succeeded()
        time.sleep(self._backoff.failed())

    def _forget_other_agents(self, kept: str) -> None:
        agents = os.path.join(self.base, AGENTS)
        for name in os.listdir(agents):
            if name != kept and not name.startswith("."):
                shutil.rmtree(os.path.join(agents, name), ignore_errors=True)

    # --- its directory ------------------------------------------------------------------------------------------------

    def _data(self) -> str:
        path = os.path.join(self.base, DATA)
        os.makedirs(path, mode=0o700, exist_ok=True)
        return path

    def _log(self) -> str:
        return os.path.join(self._data(), "pilot.log")

    def _last_words(self) -> str:
        with open(self._log(), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 2000))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][-300:] if lines else "no output"

    def _shorten_log(self) -> None:
        with open(self._log(), "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if size > _LOG_MAX:  # what is appended meanwhile is lost
                file.seek(size - _LOG_KEPT)
                tail = file.read()
                file.truncate(0)
                file.seek(0)
                file.write(tail)

    def _remove(self) -> None:
        """Remove everything, once no task is left."""
        end = time.monotonic() + _TASKS_S
        while self._has_tasks() and time.monotonic() < end:
            time.sleep(0.1)
        with locked(self.base):
            remove(self.base)

    def _has_tasks(self) -> bool:
        """Whether a supervisor has its FIFO open."""
        states = os.path.join(self.base, DATA, "tasks", "state")
        for name in os.listdir(states) if os.path.isdir(states) else []:
            with contextlib.suppress(OSError):
                os.close(os.open(os.path.join(states, name, "control"), os.O_WRONLY | os.O_NONBLOCK))
                return True
        return False
