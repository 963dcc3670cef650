"""Settings of tasks on this machine. Knows defaults, not how they are used."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct, field

_PIDS_MAX = 65_536


def _a_quarter_of_all_pids() -> int:
    try:
        return min(int(Path("/proc/sys/kernel/pid_max").read_text()) // 4, _PIDS_MAX)
    except OSError:
        return _PIDS_MAX


class LocalSettings(Struct, frozen=True, kw_only=True):
    """``pids_max``: processes and threads of one task. ``has_cpu_quota``: a task never gets more CPU than it requested,
    even if others are idle; otherwise it gets at least its share. ``peer_grace_ms``: between SIGTERM and SIGKILL for
    the other processes of a task when one has failed. ``scratch``: where the private directories of tasks are created.
    ``account``: for tasks without one, if this process is root; empty: they are refused. ``hidden``: further files and
    directories to hide from tasks that run as this process' own account. ``has_lease``: tasks end by themselves when
    the lease in ``run/lease`` expires; the agent must renew it. ``failure_rules``: of the site, each a text, an exit
    code, a failure class, and why; empty or None: any."""

    pids_max: int = field(default_factory=_a_quarter_of_all_pids)
    has_cpu_quota: bool = False
    peer_grace_ms: int = 10_000
    scratch: str = ""  # empty: in the machine's temporary directory
    log_keep_ms: int = 30 * 86_400_000
    log_total_mib: int = 100 * 1024  # of all tasks; beyond it, the oldest logs of the users with most are deleted
    log_user_mib: int = 0  # of all tasks of one user; 0: a fair share
    log_task_mib: int = 512  # of one stream of one task; the oldest part is deleted first
    scratch_mib_max: int = 0  # in private directories of all tasks of one account; 0: no limit
    has_lease: bool = False
    account: str = ""
    hidden: tuple[str, ...] = ()
    pace_ms: int = 10_000  # between two reads of step times
    activity_ms: int = 10_000  # between two reports of what tasks do; 0: none
    failure_rules: tuple[tuple[str, int | None, str, str], ...] = ()
    scan_ms: int = 1_000  # between two checks of all tasks, without notices of supervisors
