"""``srun``: inside a job, a job step; outside, a job that is submitted and followed."""

from __future__ import annotations

import os
import sys

from corral.cli.slurm.shim_parts.arguments import OptionTable, UsageError
from corral.runtime.steps.seat_link import own_finder
from corral.runtime.steps.step_client import StepPlan, StepRun
from corral.runtime.steps.step_environment import base_environment
from corral.runtime.steps.step_ranks import Rank, slurm_step_env

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.runtime.steps.seat_link import SeatFinder

#: The options of srun 22.05 and 24.11.
TABLE = OptionTable(
    "account/A acctg-freq bb bbf bcast/z begin chdir/D cluster-constraint clusters/M comment compress constraint/C "
    "container cores-per-socket cpu-bind cpu-freq cpus-per-gpu cpus-per-task/c deadline delay-boot dependency/d "
    "distribution/m epilog error/e exclude/x export extra extra-node-info/B gpu-bind gpu-freq gpus/G gpus-per-node "
    "gpus-per-socket gpus-per-task gres gres-flags hint input/i jobid job-name/J licenses/L mail-type "
    "mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus mpi msg-timeout multi-prog-file network "
    "nodefile nodelist/w nodes/N ntasks/n ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket "
    "tasks-per-node open-mode output/o partition/p power prefer prolog propagate qos/q relative/r reservation "
    "send-libs segment signal slurmd-debug sockets-per-node stepmgr switches task-epilog task-prolog thread-spec "
    "core-spec/S threads-per-core time/t time-min tmp tree-width tres-bind tres-per-task uid gid wait/W wckey "
    "container-image container-mounts container-workdir container-name container-env container-save "
    "het-group resv-ports-count",
    "contiguous debugger-test disable-status/X exact external-launcher hold/H interactive label/l multi-prog "
    "no-allocate/Z overcommit/O overlap preserve-env/E quiet/Q quit-on-interrupt reboot "
    "spread-job oversubscribe/s test-only unbuffered/u use-min-nodes verbose/v version/V whole help usage "
    "container-mount-home no-container-mount-home container-remap-root no-container-remap-root container-writable "
    "no-container-entrypoint container-readonly",
    "exclusive immediate/I kill-on-bad-exit/K no-kill/k pty nice resv-ports accel-bind get-user-env",
)
_WITH_CONTAINER = ("container-image", "container")
BAD_OPTION = 255  # as srun ends then
_NOT_EXECUTED = {127: 2, 126: 13}  # a task of Slurm that cannot be executed ends with the number of the error


def main(words: list[str]) -> int:
    try:
        found, command = TABLE.read(words)
    except UsageError as wrong:
        return _usage(str(wrong), BAD_OPTION)
    given = dict(found)
    if "version" in given:
        print("slurm 24.11.0 (Corral)")
        return 0
    if "help" in given or "usage" in given:
        print("Usage: srun [OPTIONS...] executable [args...]\nInside a job it starts a step: corral step --help")
        return 0
    if not command:
        return _usage("No command given to execute.")
    finder = own_finder()
    if finder is None or os.environ.get("SLURM_JOB_ID") is None or given.get("jobid", "") not in ("", _own_job()):
        from corral.cli.slurm.srun_outside import run_outside

        return run_outside(found, command)
    if any(name in given for name in _WITH_CONTAINER):
        print(
            "srun: error: a step cannot have an image of its own here: use #SBATCH --container-image", file=sys.stderr
        )
        return BAD_OPTION
    return run_step(finder, given, command)


def run_step(finder: SeatFinder, given: dict[str, str], command: list[str]) -> int:
    """A step on the seats that ``finder`` reaches, as the options and the variables of the job describe it."""
    try:
        plan = _plan(given, command)
    except UsageError as wrong:
        return _usage(str(wrong))

    def tell(text: str) -> None:
        if "quiet" not in given or text.startswith("error"):
            print(f"srun: {text}", file=sys.stderr, flush=True)

    return StepRun(finder, plan, tell).run()


def _own_job() -> str:
    return os.environ.get("SLURM_JOB_ID", "")


def _usage(why: str, code: int = 1) -> int:
    print(
        f'srun: {why if why.startswith("error") else f"error: {why}"}\nTry "srun --help" for more information',
        file=sys.stderr,
    )
    return code


def _plan(given: dict[str, str], command: list[str]) -> StepPlan:
    env = os.environ
    wanted = step_request(given)
    plan = StepPlan(wanted, command)
    cpus_per_task = wanted["cpus"] if "cpus-per-task" in given else 0
    plan.env = exported(given.get("export", env.get("SLURM_EXPORT_ENV", "ALL")))
    plan.env_of = lambda rank, shares, step: slurm_step_env(rank, shares, step, cpus_per_task)
    plan.directory = os.path.abspath(given.get("chdir") or os.getcwd())
    plan.labels = "label" in given
    plan.start_codes = _NOT_EXECUTED
    plan.unbuffered = "unbuffered" in given
    plan.kills_on_failure = given.get("kill-on-bad-exit", env.get("SLURM_KILL_BAD_EXIT", "0")) in ("", "1")
    plan.is_cyclic = given.get("distribution", "").split(":")[0].split(",")[0] in ("cyclic",)
    if wanted.get("unit") == "task":
        plan.gpus_per_task = wanted["gpus"]
    plan.name = given.get("job-name") or os.path.basename(command[0])
    plan.input = _input(given.get("input", "all"))
    plan.appends = given.get("open-mode", env.get("SLURM_OPEN_MODE", "")).startswith("a")
    if "output" in given or "error" in given:
        output, error = given.get("output", ""), given.get("error", "")
        plan.files = lambda rank, step: _files(output, error, rank, step)
    if "multi-prog" in given:
        plan.commands = _multi_prog(command, wanted.get("tasks") or 1)
    if "pty" in given:
        from corral.cli.steps.terminal import give_terminal

        give_terminal(plan)
    return plan


def step_request(given: dict[str, str]) -> dict[str, Any]:
    """What to ask of the coordinator, from options and the variables of the job."""
    env = os.environ
    wanted: dict[str, Any] = {}
    tasks = _number(given, "ntasks") or (
        0 if "nodes" in given and "ntasks" not in given else _int(env.get("SLURM_NTASKS"))
    )
    per_node = _number(given, "ntasks-per-node") or _number(given, "tasks-per-node")
    nodes = _nodes(given.get("nodes", ""))
    if not nodes and "nodelist" not in given:
        nodes = _int(env.get("SLURM_JOB_NUM_NODES"))
        if tasks and nodes > tasks:
            nodes = tasks
    if "nodes" in given and "ntasks" not in given:
        tasks = nodes * (per_node or _int(env.get("SLURM_NTASKS_PER_NODE")) or 1)
    if per_node and "ntasks" not in given and nodes:
        tasks = per_node * nodes
    wanted |= {"tasks": tasks, "nodes": nodes, "per_node": per_node if "ntasks" in given else 0}
    wanted["cpus"] = _number(given, "cpus-per-task") or 1
    _gpus(given, wanted)
    memory = given.get("mem") or ""
    if memory and memory != "0":
        wanted["memory_mib"] = _mib(memory)
    for name, option in (("names", "nodelist"), ("excluded", "exclude")):
        if given.get(option):
            from corral.runtime.hostlist import BadHostlist, expand

            try:
                wanted[name] = expand(given[option])
            except BadHostlist as wrong:
                raise UsageError(str(wrong)) from None
    wanted["overlaps"] = "overlap" in given or bool(env.get("SLURM_OVERLAP")) or "oversubscribe" in given
    wanted["immediate"] = "immediate" in given
    is_exact = "exact" in given or "cpus-per-task" in given or "exclusive" in given or bool(env.get("SLURM_EXACT"))
    wanted["is_whole"] = not is_exact and not wanted["overlaps"]
    if "overcommit" in given or env.get("SLURM_OVERCOMMIT"):
        wanted |= {"cpus": 1, "overcommits": True}
    return wanted


def _gpus(given: dict[str, str], wanted: dict[str, Any]) -> None:
    for option, unit in (("gpus-per-task", "task"), ("gpus-per-node", "node"), ("gpus", "total")):
        if option in given:
            wanted["gpus"], wanted["unit"] = _count_of(given[option], option), unit
            return
    for part in given.get("gres", "").split(","):
        name, _, rest = part.partition(":")
        if name == "none":
            wanted["gpus"] = 0
        elif name.removeprefix("gres/") == "gpu":
            wanted["gpus"], wanted["unit"] = _count_of(rest.split("(")[0] or "1", "gres"), "node"


def _count_of(text: str, option: str) -> int:
    """``4``, ``a100:4`` or ``a100:2,h100:2``."""
    total = 0
    for part in text.split(","):
        last = part.rpartition(":")[2]
        if last.isdecimal():
            total += int(last)
        elif last.replace("_", "").replace("-", "").replace(".", "").isalnum() and last:
            total += 1
        else:
            raise UsageError(f"error: Invalid --{option} specification: {text}")
    return total


def _number(given: dict[str, str], option: str) -> int:
    text = given.get(option, "")
    if text and not text.isdecimal():
        raise UsageError(f'error: Invalid numeric value "{text}" for --{option}.')
    return int(text or 0)


def _nodes(text: str) -> int:
    low, _, high = text.partition("-")
    if text and not (low.isdecimal() and (not high or high.isdecimal())):
        raise UsageError(f'error: "{text}" is not a valid node count')
    return int(high or low or 0)


def _int(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


def _mib(text: str) -> int:
    units = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1 << 20}
    unit = text[-1].upper()
    number = text[:-1] if unit in units else text
    if not number.isdecimal():
        raise UsageError(f"error: Invalid --mem specification: {text}")
    return max(1, int(int(number) * units.get(unit, 1)))


def exported(spec: str) -> dict[str, str]:
    """The environment of a step: ALL, NONE, or variables with or without values."""
    env = base_environment(dict(os.environ))
    words = [word for word in spec.split(",") if word]
    if "ALL" not in words:
        kept = {word for word in words if "=" not in word}
        env = {
            name: value
            for name, value in env.items()
            if name in kept or name.startswith(("SLURM", "CORRAL_")) or name in ("HOME", "USER", "PATH", "TMPDIR")
        }
    env |= dict(word.split("=", 1) for word in words if "=" in word)
    return env


def _input(text: str) -> int:
    if text == "none":
        return -2
    if text.isdecimal():
        return int(text)
    if text != "all":
        os.dup2(os.open(text, os.O_RDONLY), 0)
    try:
        nothing = os.stat("/dev/null")
        own = os.fstat(0)
    except OSError:
        return -2
    return -2 if (own.st_rdev, own.st_ino) == (nothing.st_rdev, nothing.st_ino) else -1


def _files(output: str, error: str, rank: Rank, step: str) -> tuple[str, str]:
    out = _named(output, rank, step)
    return out, _named(error, rank, step) if error else out


def _named(pattern: str, rank: Rank, step: str) -> str:
    """``%j_%t.out``; ``none`` is nowhere, ``all`` or nothing is this process's own output."""
    if pattern in ("", "all"):
        return ""
    if pattern == "none":
        return "/dev/null"
    env = os.environ
    job = env.get("SLURM_JOB_ID", "")
    values = {
        "A": env.get("SLURM_ARRAY_JOB_ID", job),
        "a": env.get("SLURM_ARRAY_TASK_ID", "4294967294"),
        "J": f"{job}.{step}",
        "j": job,
        "N": rank.share.node,
        "n": str(rank.group),
        "s": step,
        "t": str(rank.rank),
        "u": env.get("USER", ""),
        "x": env.get("SLURM_JOB_NAME", ""),
        "%": "%",
    }
    found, at = "", 0
    while at < len(pattern):
        if pattern[at] != "%" or at + 1 == len(pattern):
            found += pattern[at]
            at += 1
            continue
        end = at + 1
        while end < len(pattern) - 1 and pattern[end].isdecimal():
            end += 1
        width, letter = pattern[at + 1 : end], pattern[end]
        value = values.get(letter)
        found += pattern[at : end + 1] if value is None else value.rjust(int(width or 0), "0") if width else value
        at = end + 1
    return found


def _multi_prog(command: list[str], tasks: int) -> list[list[str]]:
    """Lines of a file: ranks, and a command, with %t for the rank and %o for its number in the line."""
    import shlex

    found: list[list[str]] = [[] for _ in range(tasks)]
    try:
        with open(command[0]) as file:
            lines = file.read().splitlines()
    except OSError as fault:
        raise UsageError(f"error: Unable to open configuration file {command[0]}: {fault.strerror}") from None
    for line in lines:
        words = shlex.split(line, comments=True)
        if len(words) < 2:
            continue
        for offset, rank in enumerate(_ranks(words[0], tasks)):
            if rank < tasks:
                found[rank] = [w.replace("%t", str(rank)).replace("%o", str(offset)) for w in words[1:]] + command[1:]
    missing = [rank for rank, words in enumerate(found) if not words]
    if missing:
        raise UsageError(f"error: Configuration file {command[0]} invalid, no record for task id {missing[0]}")
    return found


def _ranks(text: str, tasks: int) -> list[int]:
    if text == "*":
        return list(range(tasks))
    found = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if not low.isdecimal() or (high and not high.isdecimal()):
            raise UsageError(f"error: Invalid task id range: {text}")
        found += list(range(int(low), int(high or low) + 1))
    return found
