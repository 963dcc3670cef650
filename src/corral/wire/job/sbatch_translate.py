"""Translates the options of a script to one job document, with notes where the meaning differs.

Slurm counts tasks (processes), Corral counts seats: a seat is a node's share of the job, so GPUs, CPUs and memory of
``ntasks-per-node`` processes are requested together. Account or partition becomes the queue.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import tzinfo
from typing import Any

from msgspec import Struct, field

from corral.duration_text import write_span
from corral.wire.document.errors import Fault, Wrong, show
from corral.wire.job.program import signal_name
from corral.wire.job.slurm_units import SLURM_AFTER, slurm_count, slurm_mib, slurm_moment, slurm_span
from corral.wire.job.timing import PRIORITIES, write_moment
from corral.wire.sizes import write_size

SWITCH_LEVEL = "rack"  # what a leaf switch usually connects
SWITCH_WAIT_MS = 300_000  # max_switch_wait of Slurm, unless its site says otherwise
GRACE_S, GRACE_S_MAX = 30, 600  # of a job that says nothing; as far as sites usually allow
_MODEL_COUNT = re.compile(r"(?:([A-Za-z][\w.+-]*):)?(\d{1,6})")


class Meaning(Struct):
    """``origin``: which option a key of the document comes from. ``wrap``: a command line in place of a script."""

    given: dict[str, str]
    now_ms: int
    zone: tzinfo
    document: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)
    faults: list[tuple[str, Fault]] = field(default_factory=list)
    wrap: str = ""

    def put(self, key: str, value: Any, option: str) -> None:
        self.document[key] = value
        self.origin.setdefault(key, option)

    def note(self, option: str, why: str) -> None:
        self.notes.append((option, why))

    def number(self, option: str, says: str) -> int | None:
        return slurm_count(self.given[option], says) if option in self.given else None


def meaning_of(given: dict[str, str], now_ms: int, zone: tzinfo) -> Meaning:
    """Options by their long name. Finds all errors, option by option."""
    meaning = Meaning(given, now_ms, zone)
    meaning.document["compat"] = "slurm"
    meaning.document["output"] = "slurm-%A_%a.out" if "array" in given else "slurm-%j.out"
    meaning.document["export"] = "ALL"
    for option, say in _ALONE.items():
        if option in given:
            _tried(meaning, option, say)
    for option, check in _CHECKS.items():
        if option in given:
            _tried(meaning, option, check)
    for options, say in _TOGETHER:
        stated = [option for option in options if option in given]
        if stated and not any(option in stated for option, _ in meaning.faults):
            _tried(meaning, stated[0], say)
    if "error" not in meaning.document:
        meaning.document["error"] = meaning.document["output"]
    return meaning


def _tried(meaning: Meaning, option: str, say: Callable[[Meaning, str], object]) -> None:
    try:
        say(meaning, meaning.given[option])
    except Wrong as wrong:
        meaning.faults.append((option, Fault((), wrong.code, f"--{option}: {wrong.why}", wrong.hint)))


# --- independent options ---------------------------------------------------------------------------------------------


def _job_name(meaning: Meaning, value: str) -> None:
    name = re.sub(r"[^A-Za-z0-9._+=@:/-]", "-", value)[:128].lstrip("._+=@:/-")
    if name != value:
        meaning.note("job-name", f"the job is named {name or 'script'}: names have no spaces or special characters")
    if name:
        meaning.put("name", name, "job-name")


def _time(meaning: Meaning, value: str) -> None:
    span = slurm_span(value)
    if span:
        meaning.put("time_limit", write_span(span), "time")


def _queue(meaning: Meaning, _: str) -> None:
    """An account is a share, as a queue is; without an account the partition becomes the queue."""
    option = "account" if "account" in meaning.given else "partition"
    names = meaning.given[option].split(",")
    if len(names) > 1:
        meaning.note(option, f"only the first is used: {names[0]}")
    name = re.sub(r"/[._/-]*", "/", re.sub(r"[^A-Za-z0-9._/-]", "-", names[0])).strip("._-/")[:100]
    if name:
        meaning.put("queue", name, option)
    if name != names[0]:
        meaning.note(option, f"the queue is named {name or 'default'}: names have only letters, digits and . _ - /")
    if option == "account" and "partition" in meaning.given:
        meaning.note("partition", f"the account is used as the queue; {meaning.given['partition']} is kept as a label")
    for each in ("account", "partition"):
        if each in meaning.given:
            meaning.document.setdefault("labels", {})[f"slurm.{each}"] = meaning.given[each].split(",")[0][:256]


def _qos(meaning: Meaning, value: str) -> None:
    if value in PRIORITIES:
        meaning.put("priority", value, "qos")
    else:
        meaning.note("qos", f"there is no QOS {show(value)}, only {', '.join(PRIORITIES)}; kept as a label")
        meaning.document.setdefault("labels", {})["slurm.qos"] = value[:256]


def _nice(meaning: Meaning, value: str) -> None:
    if not re.fullmatch(r"-?\d{1,9}|", value):
        raise Wrong("bad_number", f"{show(value)} is not a number", "write it like --nice=100")
    if "priority" not in meaning.document:
        meaning.put("priority", max(-1_000_000, min(1_000_000, -int(value or 100))), "nice")


def _dependency(meaning: Meaning, value: str) -> None:
    after: list[str] = []
    if "?" in value:
        why = "dependencies joined by ? (any of them) are not supported"
        raise Wrong("unsupported", why, "use commas: all of them")
    for part in value.split(","):
        kind, *jobs = part.split(":")
        if kind == "singleton" and not jobs:
            meaning.put("singleton", True, "dependency")
            continue
        when = SLURM_AFTER.get(kind)
        if when is None or not jobs:
            hint = "supported: afterok:ID, afterany:ID, afternotok:ID, singleton"
            raise Wrong("unsupported", f"{show(part)} is not supported", hint)
        for job in jobs:
            if not re.fullmatch(r"\d{1,15}", job):
                raise Wrong(
                    "bad_job", f"{show(job)} is not the number of a job", "elements of arrays are not supported"
                )
            after.append(f"{when}:{job}")
    if after:
        meaning.put("after", after, "dependency")


def _signal(meaning: Meaning, value: str) -> None:
    match = re.fullmatch(r"(?:([RB]{1,2}):)?([A-Za-z0-9+]{1,12})(?:@(\d{1,6}))?", value)
    if match is None:
        raise Wrong("bad_signal", f"{show(value)} is not a signal", "write it like B:USR1@120")
    lead_s = int(match[3] or 60)
    audience = "script" if "B" in (match[1] or "") else "steps"
    meaning.put("signal", f"{audience}:{signal_name(match[2])}@{lead_s}s", "signal")
    grace_s = min(lead_s, GRACE_S_MAX)
    if grace_s > GRACE_S:  # it is sent with the warning: what follows takes as long as the script expects
        meaning.put("grace", f"{grace_s}s", "signal")


def _switches(meaning: Meaning, value: str) -> None:
    count, at, wait = value.partition("@")
    if slurm_count(count, "a number of switches") > 1:
        meaning.note("switches", "only a single switch can be preferred")
        return
    wait_ms = slurm_span(wait) if at else SWITCH_WAIT_MS
    meaning.note("switches", f"a placement in one {SWITCH_LEVEL} is preferred")
    meaning.put("prefer", {"level": SWITCH_LEVEL, "wait": write_span(wait_ms or SWITCH_WAIT_MS)}, "switches")


def _requeue(meaning: Meaning, _: str) -> None:
    meaning.note("requeue", "a job is always requeued when it is preempted or the infrastructure fails")


def _no_requeue(meaning: Meaning, _: str) -> None:
    never = dict.fromkeys(("gpu_fault", "network", "node_lost", "start_failed"), 0)
    meaning.put("retries", never, "no-requeue")
    meaning.put("preemptible", False, "no-requeue")


def _hold(meaning: Meaning, _: str) -> None:
    meaning.put("hold", True, "hold")


def _comment(meaning: Meaning, value: str) -> None:
    meaning.document.setdefault("labels", {})["comment"] = value[:256]


def _wrap(meaning: Meaning, value: str) -> None:
    meaning.wrap = value


def _moment(key: str) -> Callable[[Meaning, str], None]:
    def say(meaning: Meaning, value: str) -> None:
        meaning.put(key, write_moment(slurm_moment(value, meaning.now_ms, meaning.zone)), key)

    return say


def _same(key: str, option: str) -> Callable[[Meaning, str], None]:
    return lambda meaning, value: meaning.put(key, value, option)


_ALONE: dict[str, Callable[[Meaning, str], None]] = {
    "job-name": _job_name,
    "time": _time,
    "qos": _qos,
    "nice": _nice,
    "dependency": _dependency,
    "signal": _signal,
    "switches": _switches,
    "requeue": _requeue,
    "no-requeue": _no_requeue,
    "export": _same("export", "export"),
    "hold": _hold,
    "comment": _comment,
    "wrap": _wrap,
    "begin": _moment("begin"),
    "deadline": _moment("deadline"),
    "array": _same("array", "array"),
    "output": _same("output", "output"),
    "error": _same("error", "error"),
    "chdir": _same("directory", "chdir"),
    "workdir": _same("directory", "workdir"),
    "container-image": _same("image", "container-image"),
    "container-workdir": _same("directory", "container-workdir"),
    "container-mounts": lambda meaning, value: meaning.put("mounts", value.split(","), "container-mounts"),
    "tmp": lambda meaning, value: meaning.put("disk", write_size(slurm_mib(value)), "tmp"),
}

# --- dependent options -----------------------------------------------------------------------------------------------


def _layout(meaning: Meaning, _: str) -> None:
    """Nodes, tasks, GPUs, CPUs and memory: each node's share of the job."""
    fewest, most = _nodes(meaning)
    per_node = _tasks_per_node(meaning, most)
    if most > 1:
        option = next(name for name in ("nodes", "ntasks", "ntasks-per-node") if name in meaning.given)
        meaning.put("nodes", most if fewest == most else f"{fewest}..{most}", option)
    gpus = _gpus(meaning, most, per_node)
    _cpus(meaning, per_node, gpus)
    _memory(meaning, gpus)
    _stated(meaning, per_node * most)


#: Options with a variable of their own in the environment of the script.
_VARIABLES = {
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node", "SLURM_CPUS_PER_TASK": "cpus-per-task", "SLURM_GPUS": "gpus",
    "SLURM_GPUS_PER_NODE": "gpus-per-node", "SLURM_GPUS_PER_TASK": "gpus-per-task",
    "SLURM_CPUS_PER_GPU": "cpus-per-gpu", "SLURM_NTASKS_PER_GPU": "ntasks-per-gpu",
}  # fmt: skip
_MEMORY = {"SLURM_MEM_PER_NODE": "mem", "SLURM_MEM_PER_GPU": "mem-per-gpu", "SLURM_MEM_PER_CPU": "mem-per-cpu"}


def _stated(meaning: Meaning, tasks: int) -> None:
    """The variables by which Slurm repeats options to the script; others are not set."""
    env = {variable: meaning.given[option] for variable, option in _VARIABLES.items() if option in meaning.given}
    if any(name in meaning.given for name in ("ntasks", "ntasks-per-node", "ntasks-per-gpu")):
        count = str(meaning.number("ntasks", "a number of tasks") or tasks)
        env |= {"SLURM_NTASKS": count, "SLURM_NPROCS": count}
    for variable, option in _MEMORY.items():
        if option in meaning.given:
            env[variable] = str(slurm_mib(meaning.given[option]))
    if env:
        meaning.document["env"] = env | meaning.document.get("env", {})


def _nodes(meaning: Meaning) -> tuple[int, int]:
    tasks = meaning.number("ntasks", "a number of tasks")
    per_node = meaning.number("ntasks-per-node", "a number of tasks")
    if "nodes" not in meaning.given:
        count = -(-tasks // per_node) if tasks and per_node else 1
        return count, count
    low, dash, high = meaning.given["nodes"].partition("-")
    fewest = slurm_count(low, "a number of nodes")
    most = slurm_count(high, "a number of nodes") if dash else fewest
    if most < fewest:
        raise Wrong(
            "bad_range", f"{show(meaning.given['nodes'])} ends before it begins", "put the smaller number first"
        )
    if most > fewest:
        meaning.note("nodes", f"the job may also shrink and grow between {fewest} and {most} nodes, by a restart")
    return fewest, most


def _tasks_per_node(meaning: Meaning, nodes: int) -> int:
    stated = meaning.number("ntasks-per-node", "a number of tasks")
    tasks = meaning.number("ntasks", "a number of tasks")
    of_gpu = meaning.number("ntasks-per-gpu", "a number of tasks")
    if of_gpu and not stated and not tasks:
        return of_gpu * max(1, _gpus(meaning, nodes, 1))
    return stated or (-(-tasks // nodes) if tasks else 1)


def _gpus(meaning: Meaning, nodes: int, per_node: int) -> int:
    """GPUs of each node."""
    model = ""
    count = 0
    source = ""
    for part in meaning.given.get("gres", "").split(",") if "gres" in meaning.given else ():
        name, _, rest = part.partition(":")
        if name.removeprefix("gres/") == "gpu":
            model, count, source = *_model_count(rest.split("(")[0] or "1"), "gres"
        elif name and name.lower() != "none":
            amount = rest.rpartition(":")[2] or "1"
            meaning.document.setdefault("resources", {})[name] = slurm_count(amount, "an amount")
            meaning.origin["resources"] = "gres"
    if "gpus-per-node" in meaning.given:
        model, count, source = *_model_count(meaning.given["gpus-per-node"]), "gpus-per-node"
    elif "gpus-per-task" in meaning.given:
        model, each = _model_count(meaning.given["gpus-per-task"])
        count, source = each * per_node, "gpus-per-task"
    elif "gpus" in meaning.given:
        model, total = _model_count(meaning.given["gpus"])
        if total % nodes:
            each = -(-total // nodes)
            meaning.note("gpus", f"{total} GPUs cannot be divided evenly among {nodes} nodes: each gets {each}")
        count, source = -(-total // nodes), "gpus"
    if count:
        meaning.put("gpus", f"{model}:{count}" if model else count, source)
    return count


def _model_count(text: str) -> tuple[str, int]:
    """Slurm's sites write models in small letters; the models that GPUs report are in capitals."""
    if re.fullmatch(r"[A-Za-z][\w.+-]*", text):
        return text.upper(), 1
    match = _MODEL_COUNT.fullmatch(text)
    if match is None:
        raise Wrong("bad_number", f"{show(text)} is not a number of GPUs", "write it like 8 or h100:8")
    return (match[1] or "").upper(), int(match[2])


def _cpus(meaning: Meaning, per_node: int, gpus: int) -> None:
    each = meaning.number("cpus-per-task", "a number of CPUs")
    of_gpu = meaning.number("cpus-per-gpu", "a number of CPUs")
    if each or per_node > 1:
        meaning.put("cpus", (each or 1) * per_node, "cpus-per-task" if each else "ntasks")
    elif of_gpu:
        meaning.put("cpus", of_gpu * max(1, gpus), "cpus-per-gpu")


def _memory(meaning: Meaning, gpus: int) -> None:
    cpus = int(meaning.document.get("cpus", 1))
    for option, times in (("mem", 1), ("mem-per-gpu", max(1, gpus)), ("mem-per-cpu", cpus)):
        if option in meaning.given:
            mib = slurm_mib(meaning.given[option]) * times
            if mib:
                meaning.put("memory", write_size(mib), option)
            else:
                meaning.note(option, "all memory of a node cannot be requested: give an amount")
            return


#: Dependent options are checked one by one first, so that each error has its own position.
_CHECKS: dict[str, Callable[[Meaning, str], object]] = {
    "ntasks": lambda _, value: slurm_count(value, "a number of tasks"),
    "ntasks-per-node": lambda _, value: slurm_count(value, "a number of tasks"),
    "ntasks-per-gpu": lambda _, value: slurm_count(value, "a number of tasks"),
    "cpus-per-task": lambda _, value: slurm_count(value, "a number of CPUs"),
    "cpus-per-gpu": lambda _, value: slurm_count(value, "a number of CPUs"),
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task"), lambda _, value: _model_count(value)),
    **dict.fromkeys(("mem", "mem-per-gpu", "mem-per-cpu"), lambda _, value: slurm_mib(value)),
}
_LAYOUT = (
    "nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "gpus", "gpus-per-node", "gpus-per-task", "gres",
    "cpus-per-task", "cpus-per-gpu", "mem", "mem-per-gpu", "mem-per-cpu",
)  # fmt: skip
_TOGETHER: tuple[tuple[tuple[str, ...], Callable[[Meaning, str], None]], ...] = (
    (("account", "partition"), _queue),
    (_LAYOUT, _layout),
)
