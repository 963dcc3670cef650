"""From a job document, as JSON values, to a ``JobSpec``; or to all errors in it.

Invalid input never raises and costs little. Nothing is corrected silently. Does not know whether the named queues,
jobs and levels exist.
"""

from __future__ import annotations

from typing import Any

from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, Demand, TaskDemand
from corral.core.cluster.slots import NODE_LEVEL
from corral.core.gang_id import MAIN
from corral.core.intake.submission import faults_of
from corral.core.model import GangSpec, JobSpec
from corral.core.work import Work
from corral.wire.document.errors import Enough, Fault, Path, Reading, Wrong, show
from corral.wire.document.key_table import Key, KeyTable
from corral.wire.document.kinds import ValueKind, bounded
from corral.wire.job.document_limits import LIMITS, DocumentLimits
from corral.wire.job.keys import DISK_MIB, ELSEWHERE, GANG_KEYS, GANG_NAMES, HIDES, JOB_KEYS, PAGE, WITH_ROLE

DEFAULT_QUEUE = "default"
_ONE_CPU = ((CPU_MILLI, 1000),)
_AMOUNTS = (("cpus", CPU_MILLI), ("memory", MEMORY_MIB), ("disk", DISK_MIB))


def parse_job(
    document: object, *, now_ms: int = 0, queue: str = DEFAULT_QUEUE, limits: DocumentLimits = LIMITS
) -> JobSpec | list[Fault]:
    """``now_ms``: what ``+2h`` counts from. ``queue``: for jobs that name none."""
    reading = Reading(limits, now_ms, limits.faults)
    try:
        values = JOB_FILE.read(document, (), reading)
        gangs = _gangs(values, reading)
        if not reading.faults:
            spec = _job(values, gangs, queue)
            _check(spec, values, reading)
            if not reading.faults:
                return spec
    except Wrong as wrong:
        reading.faults.append(Fault((), wrong.code, wrong.why, wrong.hint))
    except Enough:
        pass
    return reading.faults


_JOB_FIELDS = {key.name: key.into for key in JOB_KEYS.keys if key.into and key.name != "queue"}


def _job(values: dict[str, Any], gangs: tuple[GangSpec, ...], queue: str) -> JobSpec:
    stated = {_JOB_FIELDS[name]: value for name, value in values.items() if name in _JOB_FIELDS}
    if "array" in values:
        stated["array"], stated["array_parallel"] = values["array"]
    return JobSpec(queue=values.get("queue", queue), gangs=gangs, **stated)


# --- gangs -----------------------------------------------------------------------------------------------------------


def _gangs(values: dict[str, Any], reading: Reading) -> tuple[GangSpec, ...]:
    several = values.get("gangs")
    if several is None:
        return (_gang(MAIN, values, (), reading),)
    shared = {name: value for name, value in values.items() if name in GANG_NAMES}
    return tuple(
        _gang(own.get("role", ""), _inherited(shared, own), ("gangs", n), reading) for n, own in enumerate(several)
    )


def _inherited(shared: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Keys of the gang override those that all gangs share; variables are merged one by one."""
    hidden = {name for stated in own for name in HIDES.get(stated, ())}
    found = {name: value for name, value in shared.items() if name not in hidden} | own
    for name in ("env", "secrets"):
        if name in shared and name in own:
            found[name] = tuple((dict(shared[name]) | dict(own[name])).items())
    return found


_WORK_FIELDS = {key.name: key.into for key in GANG_KEYS.keys if key.into in Work.__struct_fields__}
_DEMAND_FIELDS = {key.name: key.into for key in GANG_KEYS.keys if key.into in Demand.__struct_fields__}


def _gang(role: str, values: dict[str, Any], path: Path, reading: Reading) -> GangSpec:
    if "command" not in values:
        if not any(fault.path == (*path, "command") for fault in reading.faults):
            hint = "give the command to run: command: python train.py"
            reading.fault((*path, "command"), "missing", "there is no command", hint)
        values = values | {"command": ()}
    work = Work(**{_WORK_FIELDS[name]: value for name, value in values.items() if name in _WORK_FIELDS})
    return GangSpec(_demand(values, path, reading), role, work)


def _demand(values: dict[str, Any], path: Path, reading: Reading) -> Demand:
    stated = {_DEMAND_FIELDS[name]: value for name, value in values.items() if name in _DEMAND_FIELDS}
    size = values.get("tasks")
    if "nodes" in values:
        if size is not None:
            reading.fault((*path, "nodes"), "conflict", "tasks and nodes are both given", "give one of them")
        if "spread" in values:
            reading.fault((*path, "spread"), "conflict", "nodes already places one task per node", "remove spread")
        size, stated["spread"] = values["nodes"], NODE_LEVEL
    if size is not None:
        stated["tasks_min"], stated["tasks"], stated["step"] = size
    if "prefer" in values:
        stated["prefer"], stated["prefer_wait_ms"] = values["prefer"]
    if "spread" in values:
        stated["spread"], stated["spread_max"] = values["spread"]
    return Demand(task=_task(values, path, reading), **stated)


def _task(values: dict[str, Any], path: Path, reading: Reading) -> TaskDemand:
    slice_mib = values.get("vram", 0)
    count = None
    models = ()
    low = 0
    high = None
    if "gpus" in values:
        count, models = values["gpus"]
    if "gpu" in values:
        gpu = values["gpu"]
        for name, other in (("count", count), ("model", models)):
            if name in gpu and other not in (None, ()):
                reading.fault((*path, "gpu", name), "conflict", f"{name} is already given in gpus", "give it once")
        count, models = gpu.get("count", count), gpu.get("model", models)
        low, high = gpu.get("vram", (0, None))
        if count is None and not slice_mib:
            count = 1
    named = [(name, values[key]) for key, name in _AMOUNTS if key in values]
    amounts = tuple(sorted([*named, *values.get("resources", ())]))
    if not amounts and not count and not slice_mib:
        amounts = _ONE_CPU
    return TaskDemand(count or 0, slice_mib, models, low, high, amounts)


def _read_gangs(value: Any, path: Path, reading: Reading) -> list[dict[str, Any]]:
    if type(value) is not list:
        raise Wrong(
            "wrong_type", f"this must be a list of gangs, not {show(value)}", "begin each gang with - role: ..."
        )
    bounded(value, reading.limits.gangs, 1)
    found = []
    for n, each in enumerate(value):
        try:
            found.append(WITH_ROLE.read(each, (*path, n), reading))
        except Wrong as wrong:
            reading.wrong((*path, n), wrong)
            found.append({"command": ()})
    return found


GANGS = ValueKind(
    _read_gangs,
    {"type": "array", "minItems": 1, "items": WITH_ROLE.schema},
    "a list of gangs: each has a role and the keys of a gang",
)
GANGS_KEY = Key(
    "gangs",
    GANGS,
    "The gangs of the job; keys beside `gangs` are defaults for each of them.",
    [{"role": "trainer", "gpus": 8, "command": "python train.py"}, {"role": "reader", "command": "python read.py"}],
)
JOB_FILE = KeyTable("job", (*JOB_KEYS.keys, *GANG_KEYS.keys, GANGS_KEY), ELSEWHERE, PAGE)

# --- keys that exclude each other ------------------------------------------------------------------------------------

#: Fields of the specs that have another name in the document, or none.
_KEY_OF_FIELD = {
    "slice_mib": ("vram",),
    "vram_mib_min": ("gpu", "vram"),
    "vram_mib_max": ("gpu", "vram"),
    "step": ("tasks",),
    "spread_max": ("spread",),
    "array_parallel": ("array",),
    "task": (),
}


def _check(spec: JobSpec, values: dict[str, Any], reading: Reading) -> None:
    """What the engine would refuse on any cluster, with its path in the document."""
    for refusal in faults_of(spec):
        field, why = refusal.field, refusal.why
        path: Path = ()
        if field.startswith("gangs."):
            _, role, field = field.split(".", 2)
            why = why.removeprefix(f"gang {role}: ")
            roles = [gang.role for gang in spec.gangs]
            path = ("gangs", roles.index(role)) if "gangs" in values else ()
        name = field.removesuffix("_ms")
        reading.fault((*path, *_KEY_OF_FIELD.get(field, (name,))), refusal.code, why, refusal.hint)
