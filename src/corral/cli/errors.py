"""Errors for users: what is wrong, why, and what to do. Never a traceback.

Knows how a complaint reads and which exit code it has; knows no command.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from rich_click import ClickException

FAULT = 1  # an error that the user did not cause
BAD_INPUT = 2
UNREACHABLE = 3
REFUSED = 4
NOT_FOUND = 5
WOULD_WAIT = 6  # a dry run: the job would be accepted and would wait
UNHEALTHY = 7  # a check found something
TIMED_OUT = 124  # as timeout(1)
INTERRUPTED = 130  # as a shell reports a program that was ended by SIGINT
CANCELLED = 143  # of a job: as a shell reports a program that was ended by SIGTERM

#: What each exit code means; the reference page shows it.
EXIT_CODES = {
    0: "success; with `run` and `wait`: the job succeeded",
    FAULT: "unexpected error; with `run` and `wait`: the job failed without an exit code",
    BAD_INPUT: "wrong usage, or an invalid job file",
    UNREACHABLE: "no server can be reached, or there are no credentials",
    REFUSED: "the server refused; the message says why",
    NOT_FOUND: "not found, or you may not see it",
    WOULD_WAIT: "`submit --dry-run`: the job would be accepted, and would wait",
    UNHEALTHY: "`doctor`, `db verify`, `config check`: problems were found",
    TIMED_OUT: "`wait --timeout`, `up --detach`: timed out",
    INTERRUPTED: "interrupted; with `run`: detached, the job continues",
    CANCELLED: "`run` and `wait`: the job was cancelled",
}


class Complaint(ClickException):
    """Ends the program. ``hint`` says what to do about it."""

    def __init__(self, what: str, hint: str = "", exit_code: int = BAD_INPUT) -> None:
        super().__init__(what)
        self.hint, self.code = hint, exit_code


#: Words of Slurm, Kubernetes and shells, and the command of Corral that does the same.
MEANT = {
    "stop": "cancel", "kill": "cancel", "delete": "cancel", "abort": "cancel", "scancel": "cancel", "qdel": "cancel",
    "rm": "cancel", "remove": "cancel", "list": "ps", "ls": "ps", "jobs": "ps", "squeue": "ps", "qstat": "ps",
    "sacct": "ps --over",
    "status": "show", "describe": "show", "get": "show", "scontrol": "show", "info": "show", "sbatch": "submit",
    "qsub": "submit", "launch": "submit", "create": "submit", "apply": "submit", "srun": "run", "exec": "run",
    "salloc": "run", "sinfo": "node", "nodes": "node", "machines": "node", "cordon": "node cordon",
    "uncordon": "node uncordon", "drain": "node drain", "undrain": "node undrain", "queues": "queue",
    "partitions": "queue", "sshare": "queue", "output": "logs", "log": "logs", "tail": "logs -f", "history": "events",
    "start": "up", "serve": "up", "server": "up", "shutdown": "down", "reason": "why", "explain": "why",
    "suspend": "hold", "pause": "hold", "resume": "release", "unhold": "release", "restart": "requeue",
    "retry": "requeue", "nice": "priority", "users": "user", "sacctmgr": "user", "sreport": "usage",
    "sattach": "attach", "ssh": "shell", "bash": "shell", "watch": "top", "nvidia-smi": "top",
    "job": "ps", "init": "up", "quota": "queue",
    "simulate": "sim", "check": "doctor", "auth": "login", "help": "--help",
}  # fmt: skip
#: The same within a group of commands: the first of these that the group has.
MEANT_IN_GROUP = {
    "delete": "remove revoke down prune", "rm": "remove revoke down delete prune", "del": "remove revoke down prune",
    "remove": "revoke down delete prune", "stop": "down drain", "start": "up", "resize": "scale",
    "ls": "list", "get": "show", "describe": "show",
    "info": "show", "status": "show", "add": "set make up create", "create": "set make up", "new": "set make up create",
    "set": "make up create", "update": "set scale create", "edit": "set",
    "resume": "undrain",
    "close": "cordon", "open": "uncordon", "fix": "clear", "repair": "clear", "enable": "set", "disable": "set",
}  # fmt: skip
#: Options that other programs have, and those of Corral that do the same.
MEANT_OPTION = {
    "--last": "--tail", "--lines": "--tail", "--num-gpus": "--gpus", "--gpu": "--gpus", "--mem": "--memory",
    "--cpu": "--cpus", "--state-filter": "--state", "--watch": "--follow", "--partition": "--queue",
}  # fmt: skip


def meant(path: str, word: str, known: Iterable[str]) -> Complaint:
    """An unknown command: the one that does what the word means elsewhere, the nearest one, or all of them."""
    what, names = f"there is no command '{path} {word}'", list(known)
    same = MEANT.get(word, "")
    if " " in path:
        same = next((each for each in MEANT_IN_GROUP.get(word, "").split() if each in names), "")
    if same:
        return Complaint(what, f"did you mean: {path} {same}")
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return Complaint(what, f"did you mean: {path} {near[0]}" if near else f"see: {path} --help")


def likely_options(typed: str, near: Iterable[str], known: Collection[str]) -> list[str]:
    """Which options were probably meant: the one of that meaning, or those whose names hardly differ."""
    if (same := MEANT_OPTION.get(typed, "")) in known:
        return [same]
    name = typed.lstrip("-")
    return [each for each in near if difflib.SequenceMatcher(None, name, each.lstrip("-")).ratio() >= 0.7]


def unknown(kind: str, word: str, known: Iterable[str]) -> Complaint:
    """An unknown name, with the nearest known one or all of them as the hint."""
    return Complaint(f"there is no {kind} {word!r}", nearest(word, known))


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint: the known name that was probably meant, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
