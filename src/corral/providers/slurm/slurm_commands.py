"""Runs Slurm's own commands with a time limit, parses their output, and classifies their errors.

There are two kinds of errors: the controller could not be reached (the outcome is unknown), and it refused. Knows the
texts of Slurm 20.11 and later; does not know pilots, nor what in the accounting can be trusted.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from collections.abc import Sequence

from msgspec import Struct

from corral.providers.base import ProviderRefused, ProviderUnavailable
from corral.providers.slurm.settings import SlurmSettings

PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol")
PATIENCE_S = 20.0
ACCOUNTS_PATIENCE_S = 5.0  # the caller can do without the accounting
ACCOUNTS_DAYS = 7  # how far back the accounting is queried
NAMES_AT_ONCE = 1_000  # in one query: an argument of a command has at most 128 KiB
_KEPT = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "SLURM_CONF")
_FIELDS = "%i|%T|%N|%L|%r|%k"  # job, state, nodes, time left, reason, comment
_RECORD_FIELDS = "JobIDRaw,JobName,State,ExitCode,End"
_AWAY = re.compile(
    r"unable to contact slurm controller|socket timed out|connection (refused|timed out|reset)|zero bytes|"
    r"transport endpoint|slurm_receive_msg|communication|munge|protocol authentication|slurm backup controller|"
    r"controller in standby|try again",
    re.IGNORECASE,
)


class SlurmJob(Struct, frozen=True):
    """``left_ms`` None: it has no time limit, or has not started."""

    id: int
    state: str
    nodes: str
    left_ms: int | None
    reason: str
    comment: str


class SlurmJobRecord(Struct, frozen=True):
    """A job in the accounting. ``by``: the id of the user who cancelled it, if known. ``ended_s`` None: no end was
    recorded."""

    id: int
    name: str
    state: str
    by: int | None
    exit_code: int
    signal: int
    ended_s: int | None


class SlurmConfig(Struct, frozen=True):
    """The part of a cluster's configuration that matters. ``kill_wait_ms``: from SIGTERM to SIGKILL."""

    kill_wait_ms: int
    has_accounts: bool


class SlurmCommands:
    def __init__(self, settings: SlurmSettings) -> None:
        self._settings = settings
        self._config: SlurmConfig | None = None
        self._account = pwd.getpwnam(settings.user) if settings.user else pwd.getpwuid(os.geteuid())

    @property
    def user(self) -> str:
        return self._account.pw_name

    def submit(self, words: Sequence[str], script: str) -> int:
        """Returns the number of the job."""
        answer = self._run(["sbatch", "--parsable", *words], script)
        number = answer.strip().partition(";")[0]
        if not number.isdecimal():
            raise ProviderUnavailable(f"sbatch printed {answer[:200]!r} instead of a job number")
        return int(number)

    def jobs(self, names: Sequence[str]) -> list[SlurmJob]:
        """Own jobs with these names, including recently ended ones. Slurm returns only those of this user."""
        words = ["squeue", "--noheader", f"--user={self.user}", "--states=all", f"--format={_FIELDS}"]
        parts = [names[start : start + NAMES_AT_ONCE] for start in range(0, len(names), NAMES_AT_ONCE)]
        lines = [line for part in parts for line in self._run([*words, f"--name={','.join(part)}"]).splitlines()]
        return [job for line in lines if (job := _read_job(line)) is not None]

    def signal(self, job: int) -> None:
        """Send SIGTERM to the script of a job, and to nothing else in it."""
        self._run(["scancel", "--batch", "--signal=TERM", str(job)])

    def cancel(self, job: int) -> None:
        self._run(["scancel", str(job)])

    def records(self, names: Sequence[str]) -> list[SlurmJobRecord]:
        """Own jobs with these names in the accounting. Several may have one number: Slurm without its state restarts
        the count."""
        words = ["sacct", "--noheader", "--parsable2", "--allocations", "--duplicates", f"--user={self.user}"]
        words += [f"--starttime=now-{ACCOUNTS_DAYS}days", f"--format={_RECORD_FIELDS}", f"--name={','.join(names)}"]
        answer = self._run(words, patience_s=ACCOUNTS_PATIENCE_S)
        return [record for line in answer.splitlines() if (record := _read_record(line)) is not None]

    def config(self) -> SlurmConfig:
        """Read only once."""
        if self._config is None:
            self._config = _read_config(self._run(["scontrol", "show", "config"]))
        return self._config

    def _run(self, words: Sequence[str], script: str | None = None, patience_s: float = PATIENCE_S) -> str:
        settings = self._settings
        env = {name: os.environ[name] for name in _KEPT if name in os.environ}  # jobs inherit the environment of sbatch
        env |= {"SLURM_TIME_FORMAT": "%s"} if words[0] == "sacct" else {}
        env |= {"SLURM_CONF": settings.slurm_conf} if settings.slurm_conf else {}
        other = {}
        if settings.user and os.geteuid() == 0 and self._account.pw_uid != 0:
            groups = os.getgrouplist(self._account.pw_name, self._account.pw_gid)
            other = {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": groups}
            env |= {"USER": self._account.pw_name, "HOME": self._account.pw_dir}
        try:
            done = subprocess.run(  # type: ignore[call-overload]
                list(words),
                input=script,
                capture_output=True,
                text=True,
                timeout=patience_s,
                env=env,
                cwd="/",
                errors="replace",
                check=False,
                **other,
            )
        except subprocess.TimeoutExpired:
            raise ProviderUnavailable(f"{words[0]} did not answer within {patience_s:g} s") from None
        except OSError as wrong:
            raise ProviderUnavailable(f"cannot run {words[0]}: {wrong.strerror}") from None
        if done.returncode == 0:
            return str(done.stdout)
        raise _complaint(words[0], f"{done.stderr}{done.stdout}", done.returncode)


def _complaint(program: str, output: str, code: int) -> ProviderUnavailable | ProviderRefused:
    lines = [line.removeprefix(f"{program}: ").removeprefix("error: ") for line in output.splitlines() if line.strip()]
    what = "; ".join(lines)[:400] or f"exit code {code}"
    if code < 0 or _AWAY.search(what):
        return ProviderUnavailable(f"Slurm does not answer: {what}")
    return ProviderRefused(f"Slurm refused: {what}")


def _read_job(line: str) -> SlurmJob | None:
    parts = line.split("|", 5)
    if len(parts) != 6 or not parts[0].isdecimal():
        return None
    number, state, nodes, left, reason, comment = parts
    return SlurmJob(int(number), state, nodes, read_left(left), reason, comment)


def _read_record(line: str) -> SlurmJobRecord | None:
    parts = line.split("|")
    if len(parts) != 5 or not parts[0].isdecimal():
        return None
    number, name, full_state, code, end = parts
    state, _, by = full_state.partition(" by ")
    exit_code, _, signal = code.partition(":")
    return SlurmJobRecord(
        int(number), name, state, _number(by), _number(exit_code) or 0, _number(signal) or 0, _number(end) or None
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _read_config(text: str) -> SlurmConfig:
    wait = re.search(r"^KillWait\s*=\s*(\d+) sec", text, re.MULTILINE)
    accounts = re.search(r"^AccountingStorageType\s*=\s*(accounting_storage/)?slurmdbd\s*$", text, re.MULTILINE)
    return SlurmConfig(int(wait[1]) * 1000 if wait else 30_000, accounts is not None)


def read_left(text: str) -> int | None:
    """``1-02:03:04``, ``2:03:04``, ``3:04``. Anything else means that there is no limit."""
    found = re.fullmatch(r"(?:(?P<d>\d+)-)?(?:(?P<h>\d+):)?(?P<m>\d+):(?P<s>\d+)", text.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (int(found[name] or 0) for name in "dhms")
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
