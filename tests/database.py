"""A PostgreSQL server of the tests' own: in a folder that is removed again, on a Unix socket, not as root.

Knows the programs of PostgreSQL and their options. Without them, the error says what is missing.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

READY_S = 60.0


class NoServer(Exception):
    """There is no PostgreSQL on this machine that could be started. Says why."""


def program(name: str) -> str:
    """Debian keeps them out of the way."""
    found = shutil.which(name)
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        found = found or shutil.which(name, path=str(folder))
    if not found:
        raise NoServer(f"PostgreSQL's {name} is not installed; as root, tools/services.sh postgresql installs it")
    return found


def account() -> int | None:
    """The account to run as; None: our own."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    raise NoServer("PostgreSQL does not run as root, and this machine has no account for it")


def ending_with_us() -> list[str]:
    """Words that end a program with the process that started it, if that is killed; none where that is impossible."""
    found = shutil.which("setpriv")
    return [found, "--pdeathsig", "INT"] if found else []


class Database:
    """One server. ``durable``: it forces commits to disk, as it should; tests that do not take the power away need not
    wait for that."""

    def __init__(self, *, durable: bool = False) -> None:
        self._user = account()
        self._postgres, initdb = program("postgres"), program("initdb")
        self.folder = Path(tempfile.mkdtemp(prefix="corral-pg-"))
        self.folder.chmod(0o755)
        data = self.folder / "data"
        data.mkdir(mode=0o700)
        if self._user is not None:
            os.chown(data, self._user, -1)
            os.chown(self.folder, self._user, -1)
        self._run([initdb, "-D", str(data), "-U", "corral", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"])
        settings = {
            "listen_addresses": "", "unix_socket_directories": str(self.folder), "shared_buffers": "32MB",
            "max_connections": "200", "fsync": "on" if durable else "off", "max_wal_size": "256MB",
            "synchronous_commit": "on", "autovacuum_naptime": "10min", "logging_collector": "off",
        }  # fmt: skip
        with (data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        self._names = count(1)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*ending_with_us(), self._postgres, "-D", str(self.folder / "data")],
                stdout=log, stderr=log, user=self._user, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + READY_S
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
            assert time.monotonic() < end, "PostgreSQL does not answer"
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL to the first process; the others notice and go."""
        self._end(signal.SIGKILL)
        end = time.monotonic() + READY_S
        while self._is_held() and time.monotonic() < end:
            time.sleep(0.02)

    def _is_held(self) -> bool:
        """Whether processes of the killed one still have its folder open."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.readlink(process / "cwd") == str(self.folder / "data"):
                    return True
        return False

    def stop(self) -> None:
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def new(self, where: Path | None = None) -> str:
        """The address of a new, empty database; its tables lie in a folder of their own, if one is named."""
        name = f"test_{next(self._names)}"
        if where is not None:
            if self._user is not None:
                os.chown(where, self._user, -1)
            self._ask(f"CREATE TABLESPACE space_{name} LOCATION '{where}'")
        self._ask(f"CREATE DATABASE {name}" + (f" TABLESPACE space_{name}" if where is not None else ""))
        return f"postgresql://corral@/{name}?host={self.folder}"

    def _end(self, number: signal.Signals) -> None:
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        self.process.wait(60)

    def _answers(self) -> bool:
        try:
            self._ask("SELECT 1")
        except AssertionError:
            return False
        return True

    def _ask(self, statement: str) -> None:
        import psycopg

        try:
            with psycopg.connect(f"postgresql://corral@/postgres?host={self.folder}", autocommit=True) as connection:
                connection.execute(statement.encode())
        except psycopg.OperationalError as wrong:
            raise AssertionError(str(wrong)) from None

    def _run(self, words: list[str]) -> None:
        done = subprocess.run(words, user=self._user, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
