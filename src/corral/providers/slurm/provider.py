"""Pilots as batch jobs of Slurm. A job's name and comment contain our id, and Slurm never runs two with one name.

A lost answer does no harm: before submitting, the provider asks Slurm for a job with that comment. If two exist anyway
(a command that was assumed dead was only slow), Slurm holds one back (singleton), and it is cancelled when it is seen.
The provider keeps no state of its own. `squeue` says what exists; for jobs that it has forgotten, the accounting may
still say how they ended, and nothing more.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Sequence

from corral.providers.base import PilotOrder, PilotPhase, PilotStatus
from corral.providers.slurm.accounting import SlurmAccounting
from corral.providers.slurm.job_states import describe_end, describe_record
from corral.providers.slurm.settings import SlurmSettings
from corral.providers.slurm.slurm_commands import SlurmCommands, SlurmJob

_log = logging.getLogger(__name__)

_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED"})
_STARTED = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT", "COMPLETING"})
_OPTIONS = ("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude", "gres")
_MARGIN_MS = 3_000  # how much less than Slurm's own KillWait
_INSIST_S = 30.0  # after the grace time a pilot that has not left is cancelled


class SlurmProvider:
    """``cluster`` distinguishes our jobs from those of another Corral server of the same user."""

    def __init__(self, settings: SlurmSettings, cluster: str, commands: SlurmCommands) -> None:
        self._settings = settings
        self._cluster = cluster
        self._commands = commands
        self._accounts = SlurmAccounting(commands)
        self._grace: int | None = settings.grace_ms
        self._asked_s: dict[str, float] = {}  # pilot -> when its script got SIGTERM

    # --- the interface ------------------------------------------------------------------------------------------------

    def acquire(self, orders: Sequence[PilotOrder]) -> None:
        """Submits one after another, and stops at the first that Slurm refuses or does not answer: the next would fail
        for the same reason, and each may cost the time limit of a command."""
        each = {order.pilot: order for order in orders}
        found = self._found(list(each))
        for order in [order for order in each.values() if order.pilot not in found]:
            number = self._commands.submit(self._words(order), self._script(order))
            _log.info("pilot %s is Slurm job %d", order.pilot, number)

    def look(self, pilots: Sequence[str]) -> Sequence[PilotStatus]:
        found = self._found(pilots)
        seen = [self._status_of(pilot, jobs) for pilot, jobs in found.items()]
        return seen + self._ended([pilot for pilot in pilots if pilot not in found])

    def release(self, pilot: str) -> None:
        for job in self._found([pilot]).get(pilot, ()):
            phase = _phase(job)
            if phase is PilotPhase.STARTED and not self._is_overdue(pilot):
                self._commands.signal(job.id)
            elif phase is not PilotPhase.ENDED:
                self._commands.cancel(job.id)

    def close(self) -> None:
        """There is nothing to close."""

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def _mark(self, pilot: str) -> str:
        return f"corral:{self._cluster}:{pilot}"

    def _name(self, pilot: str) -> str:
        return f"corral-{self._cluster}-{pilot}"

    def _found(self, pilots: Sequence[str]) -> dict[str, list[SlurmJob]]:
        """The jobs of these pilots; of several for one pilot, the valid one first."""
        if not pilots:
            return {}
        by_mark = {self._mark(pilot): pilot for pilot in pilots}
        found: dict[str, list[SlurmJob]] = {}
        for job in self._commands.jobs([self._name(pilot) for pilot in pilots]):
            if job.comment in by_mark:
                found.setdefault(by_mark[job.comment], []).append(job)
        for jobs in found.values():
            jobs.sort(key=lambda job: (_ORDER[_phase(job)], job.id))
        return found

    def _status_of(self, pilot: str, jobs: Sequence[SlurmJob]) -> PilotStatus:
        first = jobs[0]
        for job in jobs[1:]:
            if _phase(job) is not PilotPhase.ENDED:
                _log.warning("pilot %s has two Slurm jobs, %d and %d: cancelling the second", pilot, first.id, job.id)
                self._commands.cancel(job.id)
        phase = _phase(first)
        where = f"job {first.id}" + (f" on {first.nodes}" if phase is PilotPhase.STARTED else "")
        left = first.left_ms if phase is PilotPhase.STARTED else None
        return PilotStatus(pilot=pilot, phase=phase, where=where, left_ms=left, why=_why(first, phase))

    def _ended(self, pilots: Sequence[str]) -> list[PilotStatus]:
        """Of these pilots, which the controller has forgotten, those that are recorded as ended."""
        by_name = {self._name(pilot): pilot for pilot in pilots}
        return [
            PilotStatus(pilot=by_name[name], phase=PilotPhase.ENDED, where=f"job {end.id}", why=describe_record(end))
            for name, end in self._accounts.ends(list(by_name)).items()
        ]

    def _is_overdue(self, pilot: str) -> bool:
        since = self._asked_s.setdefault(pilot, time.monotonic())
        return time.monotonic() - since > self._grace_ms() / 1000 + _INSIST_S

    def _grace_ms(self) -> int:
        if self._grace is None:
            self._grace = max(self._commands.config().kill_wait_ms - _MARGIN_MS, 2_000)
        return self._grace

    # --- submitting ---------------------------------------------------------------------------------------------------

    def _words(self, order: PilotOrder) -> list[str]:
        settings = self._settings
        lead_s = self._grace_ms() // 1000 + 10
        words = [
            f"--job-name={self._name(order.pilot)}",
            f"--comment={self._mark(order.pilot)}",
            "--dependency=singleton",
            "--nodes=1",
            "--ntasks=1",
            "--no-requeue",
            f"--signal=B:TERM@{lead_s}",
            "--output=/dev/null",
            "--export=ALL",
            "--chdir=/",
        ]
        options = {option: getattr(settings, option) for option in _OPTIONS}
        words += [f"--{option}={value}" for option, value in options.items() if value]
        if order.lasts_ms is not None:
            words.append(f"--time={max(1, order.lasts_ms // 60_000)}")
        words += [f"--gres=gpu:{settings.gpus}"] if settings.gpus else []
        words += [f"--cpus-per-task={settings.cpus}"] if settings.cpus else []
        words += [f"--mem={settings.memory_mib}M"] if settings.memory_mib else []
        if settings.is_exclusive:
            words += ["--exclusive", *([] if settings.memory_mib else ["--mem=0"])]
        return [*words, *settings.extra]

    def _script(self, order: PilotOrder) -> str:
        """The batch script. It contains the token; Slurm shows the script only to its owner and to administrators."""
        settings = self._settings
        servers = [word for url in order.urls for word in ("--server", url)]
        fake = ["--fake-gpus", settings.fake_gpus] if settings.fake_gpus else []
        ca = ["--ca", order.cafile] if order.cafile else []
        words = [*settings.corral, "pilot", *servers, "--name", order.pilot, "--granted-by", "slurm"]
        words += ["--grace", f"{self._grace_ms()}ms", *fake, *ca]
        python = f"export PYTHONPATH={shlex.quote(settings.pythonpath)}\n" if settings.pythonpath else ""
        # In a shared directory a predictable name may already belong to another user, or be a link.
        folder = shlex.quote(f"{settings.folder}/corral-{self._cluster}-{order.pilot}.XXXXXXXXXX")
        return (
            "#!/bin/sh\n"
            "umask 077\n"
            f"data=$(mktemp -d {folder}) || exit 1\n"
            'exec >>"$data/pilot.log" 2>&1\n'
            f"{python}"
            f"export CORRAL_JOIN_TOKEN={shlex.quote(order.token)}\n"
            f'exec {shlex.join(words)} --data "$data"\n'
        )


_ORDER = {PilotPhase.STARTED: 0, PilotPhase.WAITING: 1, PilotPhase.ENDED: 2}


def _phase(job: SlurmJob) -> PilotPhase:
    if job.state in _WAITING:
        return PilotPhase.WAITING
    return PilotPhase.STARTED if job.state in _STARTED else PilotPhase.ENDED


def _why(job: SlurmJob, phase: PilotPhase) -> str:
    if phase is PilotPhase.WAITING:
        return f"Slurm says: {job.reason}" if job.reason not in ("None", "") else ""
    if phase is PilotPhase.STARTED:
        return ""
    return describe_end(job.id, job.state)
