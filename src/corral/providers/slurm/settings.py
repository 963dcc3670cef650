"""The settings of a fleet on Slurm, and their validation. Calls nothing of Slurm."""

from __future__ import annotations

import re
import sys

from msgspec import Struct

from corral.runtime.gpus import simulated

_WORD = re.compile(r"[A-Za-z0-9._:@,\[\]*&|()+=/-]{0,200}")
_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}|")
#: What operators may choose.
PLAIN = frozenset(
    {
        "partition",
        "account",
        "qos",
        "constraint",
        "reservation",
        "nodelist",
        "exclude",
        "gpus",
        "gres",
        "cpus",
        "memory_mib",
        "exclusive",
        "fake_gpus",
        "grace_ms",
    }
)
_OWN = ("--job-name", "-J", "--comment", "--nodes", "-N", "--array", "-a", "--wrap", "--requeue", "--dependency", "-d")


class SlurmSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``exclusive``: use whole nodes; the default if none of ``gpus``, ``gres``, ``cpus`` and ``memory_mib`` is set.
    ``user``: who submits the jobs, if the server is root. ``folder``: where pilots keep their data on the nodes.
    ``corral``: the command for this program on the nodes. ``grace_ms``: how long tasks have to stop when Slurm takes a
    node away; None: a little less than Slurm waits (KillWait)."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    nodelist: str = ""
    exclude: str = ""
    gpus: int | None = None
    gres: str = ""
    cpus: int | None = None
    memory_mib: int | None = None
    exclusive: bool | None = None
    user: str = ""
    slurm_conf: str = ""
    folder: str = "/tmp"
    corral: tuple[str, ...] = (sys.executable, "-m", "corral")
    pythonpath: str = ""
    fake_gpus: str = ""
    grace_ms: int | None = None
    extra: tuple[str, ...] = ()  # further options for sbatch

    def fault(self) -> str:
        for name in ("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude", "gres"):
            if not _WORD.fullmatch(getattr(self, name)):
                return f"invalid {name}: {getattr(self, name)[:60]!r}"
        if not _USER.fullmatch(self.user):
            return f"invalid user: {self.user[:60]!r}"
        for name in ("gpus", "cpus", "memory_mib"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 10_000_000:
                return f"invalid {name}: {value}"
        if self.gpus is not None and self.gres:
            return "gpus and gres mean the same: set only one of them"
        if not self.corral or not self.folder.startswith("/"):
            return "corral must be the command that starts Corral on a node, and folder an absolute path there"
        if self.grace_ms is not None and not 0 <= self.grace_ms <= 86_400_000:
            return "grace_ms must be from 0 to 86400000 (24 h)"
        own = next((word for word in self.extra if word.partition("=")[0] in _OWN), "")
        if own:
            return f"{own.partition('=')[0]} is set by Corral and cannot be in extra"
        try:
            simulated(self.fake_gpus or "1xH100")
        except ValueError as wrong:
            return f"fake_gpus: {wrong}"
        return ""

    @property
    def is_exclusive(self) -> bool:
        is_partial = self.gpus is not None or self.gres or self.cpus is not None or self.memory_mib is not None
        return not is_partial if self.exclusive is None else self.exclusive
