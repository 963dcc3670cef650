"""The keys of a job document: the one table from which the parser, the hints, the JSON Schema and the reference come.

``JOB_KEYS`` belong to the job, ``GANG_KEYS`` to a gang. At the top of a document both may stand: the latter then
describe the only gang, or are inherited by every gang of ``gangs``.
"""

from __future__ import annotations

from corral.core.cluster.resources import CPU_MILLI, GPU_MILLI, MEMORY_MIB
from corral.wire.document.faults import Path, Reading, Wrong
from corral.wire.document.kinds import (
    FLAG,
    SIZE_OVER_ZERO,
    SPAN,
    SPAN_OVER_ZERO,
    Kind,
    choice,
    listing,
    number,
    pairs,
    text,
)
from corral.wire.document.table import Key, Table, table_kind
from corral.wire.job.demands import CPUS, GPU_COUNT, GPUS, LEVEL, MODEL, PREFER, SPREAD, TASKS, VRAM_RANGE
from corral.wire.job.program import COMMAND, MOUNT, PATH_TEXT, PROCESSES, SIGNAL
from corral.wire.job.terms import AFTER, ARRAY, MOMENT, PRIORITY, RETRIES

DISK_MIB = "disk_mib"
#: Amounts that have keys of their own, by the name that the engine knows them by.
OWN_KEYS = {CPU_MILLI: "cpus", MEMORY_MIB: "memory", DISK_MIB: "disk", GPU_MILLI: "gpus"}

NAME = text(
    "a name of letters, digits and . _ - + = @ : /",
    most="name_chars",
    pattern=r"[A-Za-z0-9][A-Za-z0-9._+=@:-]*(/+[A-Za-z0-9_+=@:-][A-Za-z0-9._+=@:-]*)*/*",
    hint="begin with a letter or a digit, use no blanks, and no . after a /",
)
QUEUE = text(
    "the path of a queue such as lab/vision",
    most="name_chars",
    pattern=r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*",
    hint="letters, digits, . _ - and a / between the parts",
)
ROLE = text("a role such as trainer", most="name_chars", pattern=r"[A-Za-z][A-Za-z0-9_-]*")
VARIABLE = text(
    "a name of a variable", most="name_chars", pattern=r"[A-Za-z_][A-Za-z0-9_]*", hint="letters, digits and _"
)
SECRET = text("the name of a secret", most="name_chars", pattern=r"[A-Za-z0-9][A-Za-z0-9._-]*")
LABEL = text(
    "a name of a label", most="name_chars", pattern=r"[A-Za-z0-9][A-Za-z0-9._-]*(/+[A-Za-z0-9_-][A-Za-z0-9._-]*)*/*"
)


def _written_out(most: str, says: str) -> Kind:
    """Text; whole numbers are taken as they are written, since they can be written in one way only."""
    plain = text(says, most=most, empty=True)

    def read(value: object, path: Path, reading: Reading) -> str:
        return str(value) if type(value) is int and abs(value) < 10**18 else str(plain.read(value, path, reading))

    return Kind(read, {"type": ["string", "integer"]}, says)


def _read_resource(value: object, path: Path, reading: Reading) -> str:
    name = str(_RESOURCE_NAME.read(value, path, reading))
    if name in OWN_KEYS:
        raise Wrong("bad_choice", f"{name} has a key of its own", f"use {OWN_KEYS[name]}")
    return name


_RESOURCE_NAME = text("a name of a resource", most="name_chars", pattern=r"[A-Za-z][A-Za-z0-9._/:-]*")
_RESOURCES = pairs(
    Kind(_read_resource, _RESOURCE_NAME.schema, _RESOURCE_NAME.says),
    number("an amount", 0),
    "a mapping of resources and amounts",
    "resources",
)
_MODELS = listing(MODEL, "a GPU model, or a list of them", "models", lone=True, least=1)

_IN_QUOTES = "text; put decimals and true or false in quotes"
_ENV = pairs(
    VARIABLE, _written_out("env_chars", _IN_QUOTES), "a mapping of variables and values", "env_count", "env_bytes"
)
_SECRETS = pairs(VARIABLE, SECRET, "a mapping of variables and names of secrets", "env_count")
_LABELS = pairs(LABEL, _written_out("label_chars", _IN_QUOTES), "a mapping of labels and values", "labels")
_MOUNTS = listing(MOUNT, "a list of mounts", "mounts")
_AFTER = listing(AFTER, "a job, or a list of jobs", "after", lone=True)
_PATTERN = text("a path")

GPU_KEYS = Table(
    "gpu",
    [
        Key("count", GPU_COUNT, "How many whole GPUs each task gets.", 8, default="1"),
        Key("model", _MODELS, "Models that will do; one, or a list.", ["H100", "H200"], default="any"),
        Key("vram", VRAM_RANGE, "How much memory such a GPU has. `80GB` means a card sold as that.", "40GB..80GB"),
    ],
    {"memory": "did you mean vram?", "name": "did you mean model?", "gpus": "did you mean count?"},
)

_GPU = table_kind(GPU_KEYS, "a mapping of count, model and vram")

#: What a gang does not inherit any more once it states a key: other ways to say the same.
HIDES = {
    "gpus": ("gpu", "vram"),
    "gpu": ("gpus", "vram"),
    "vram": ("gpus", "gpu"),
    "tasks": ("nodes",),
    "nodes": ("tasks", "spread"),
}

GANG_KEYS = Table(
    "gang",
    [
        Key("command", COMMAND, "What each task runs: a line for `sh -c`, or a list (a program and its arguments).",
            "python train.py", into="command"),
        Key("gpus", GPUS, "Whole GPUs of each task, with the model if it matters: `8`, `8xH100`, `H100:8`.",
            "8xH100", default="0"),
        Key("gpu", _GPU, "The same in full: how many, which models, how much VRAM.",
            {"count": 8, "model": ["H100", "H200"], "vram": "80GB.."}),
        Key("vram", SIZE_OVER_ZERO, "A slice of one GPU, shared with others, instead of whole GPUs.", "10GB"),
        Key("cpus", CPUS, "CPUs of each task.", 16, default="1 where nothing else is asked for"),
        Key("memory", SIZE_OVER_ZERO, "Main memory of each task.", "64GiB"),
        Key("disk", SIZE_OVER_ZERO, "Scratch space of each task.", "200GB"),
        Key("resources", _RESOURCES, "Other countable things of each task, by the names that nodes give them.",
            {"license": 1}),
        Key("tasks", TASKS,
            "How many tasks; `2..8` if the job can run with any number between (`2..8/2`: in steps of 2).",
            "2..8", default="1"),
        Key("nodes", TASKS, "The same, each task on a node of its own. Short for `tasks` with `spread: node`.", 4),
        Key("processes", PROCESSES,
            "Processes of each task, each with a rank of its own: a number, or `gpu` for one on each GPU.",
            "gpu", default="one, without variables for ranks if there is one task", into="processes"),
        Key("tp", number("a number of ranks", 1, 65_536), "So many consecutive ranks share an NVLink domain.",
            8, default="1", into="tp"),
        Key("within", LEVEL, "All tasks in one domain of this level: required.", "rack", into="within"),
        Key("prefer", PREFER, "All tasks in one domain of this level: if possible, and worth so long a wait.",
            {"level": "rack", "wait": "10m"}),
        Key("spread", SPREAD, "At most so many tasks in one domain of this level.", {"level": "rack", "max": 2}),
        Key("spares", number("a number of tasks", 0, "tasks"), "Seats held idle, to replace a lost one at once.",
            1, default="0", into="spares"),
        Key("env", _ENV, "Environment variables.", {"WANDB_MODE": "offline"}, into="env"),
        Key("secrets", _SECRETS, "Environment variables whose values are secrets, by the name of the secret.",
            {"WANDB_API_KEY": "wandb"}, into="secrets"),
        Key("directory", PATH_TEXT, "Where the command is run.", "/home/ada/project", into="directory"),
        Key("image", text("the name of an image"), "The container image it runs in, by the job's own command.",
            "pytorch/pytorch:2.9", into="image"),
        Key("mounts", _MOUNTS, "What of the machine a container sees: `from:to`, or `from:to:ro`.",
            ["/data:/data:ro"], into="mounts"),
        Key("output", _PATTERN, "A file that gets the output too; `%j %A %a %x %N %u` as in sbatch.",
            "logs/%x-%j.out", into="output"),
        Key("error", _PATTERN, "The same for errors, where they are to be apart.", "logs/%x-%j.err", into="error"),
        Key("signal", SIGNAL, "A signal ahead of the end. Unhandled it kills, so it comes only on request.",
            "SIGUSR1@60s", into="early_signal"),
        Key("compat", choice(["slurm"]), "`slurm`: set the `SLURM_*` variables as well.", "slurm", into="compat"),
        Key("hold_on_fail", SPAN, "Keep the place so long after a failure, for a look.",
            "30m", default="0s", into="hold_on_fail_ms"),
    ],
)  # fmt: skip

JOB_KEYS = Table(
    "job",
    [
        Key("name", NAME, "What people call it.", "train-7b", into="name"),
        Key("queue", QUEUE, "Whose share it uses.", "lab/vision", default="that of the user", into="queue"),
        Key("priority", PRIORITY,
            "`low` (-100), `normal` (0), `high` (100), or a number, up to the queue's ceiling. Higher goes first.",
            "high", default="normal", into="priority"),
        Key("array", ARRAY, "Many jobs that differ in an index only; `%10` runs ten at once.", "0-99%10"),
        Key("after", _AFTER, "Jobs that must have ended: `12`, or `any:12`, `not_ok:12` for how.",
            ["12", "any:13"], into="after"),
        Key("singleton", FLAG, "Only one job of this name and user at a time.",
            True, default="false", into="singleton"),
        Key("begin", MOMENT, "Not before this time.", "2026-05-01T08:00:00Z", into="begin_ms"),
        Key("deadline", MOMENT, "Of no use after this time.", "+12h", into="deadline_ms"),
        Key("time_limit", SPAN_OVER_ZERO, "A run that takes longer is stopped.", "6h", into="time_limit_ms"),
        Key("estimate", SPAN_OVER_ZERO, "How long a run will probably take; a good one starts earlier.",
            "4h30m", into="estimate_ms"),
        Key("min_runtime", SPAN, "Not preempted before it has run so long.",
            "30m", default="0s", into="min_runtime_ms"),
        Key("grace", SPAN, "Between the warning and SIGKILL.", "2m", default="30s", into="grace_ms"),
        Key("start_timeout", SPAN, "A start that is not complete by then is rolled back.",
            "10m", default="5m", into="start_timeout_ms"),
        Key("restart_cost", SPAN, "What a restart costs it, beside the work since its last checkpoint.",
            "3m", default="1m", into="restart_cost_ms"),
        Key("checkpoints", FLAG, "Whether it saves its work and says so.", True, default="false", into="checkpoints"),
        Key("preemptible", FLAG, "Whether it may be asked to leave for another's sake.",
            False, default="true, unless its queue or the site says otherwise", into="preemptible"),
        Key("requeue_exit", number("an exit code", 0, 255), "The exit code that means: saved, run me again.",
            85, default="85", into="requeue_exit"),
        Key("retries", RETRIES,
            "How often to try again after a failure: a number, or a rule for each class.",
            {"user_error": 2, "out_of_memory": {"count": 1, "grow_memory": "50%"}},
            default="infrastructure faults: forever; others: 0", into="retries"),
        Key("hold", FLAG, "Wait until it is released.", True, default="false", into="held"),
        Key("labels", _LABELS, "Names and values to find it by.", {"project": "llm"}, into="labels"),
    ],
)  # fmt: skip

ROLE_KEY = Key("role", ROLE, "What this gang is called within the job.", "trainer", required=True)

#: Words of other tools, and what to say to them.
ELSEWHERE = {
    "partition": "did you mean queue?",
    "account": "queues carry the accounts here: did you mean queue?",
    "qos": "did you mean priority?",
    "job_name": "did you mean name?",
    "time": "did you mean time_limit?",
    "walltime": "did you mean time_limit?",
    "timeout": "did you mean time_limit?",
    "max_duration": "did you mean time_limit?",
    "mem": "did you mean memory?",
    "ntasks": "did you mean tasks?",
    "num_nodes": "did you mean nodes?",
    "replicas": "did you mean tasks?",
    "num_gpus": "did you mean gpus?",
    "accelerators": "did you mean gpus?",
    "run": "did you mean command?",
    "cmd": "did you mean command?",
    "commands": "did you mean command? Join several lines with |, as YAML has it",
    "args": "write command as a list: [program, argument, ...]",
    "script": "did you mean command?",
    "envs": "did you mean env?",
    "environment": "did you mean env?",
    "workdir": "did you mean directory?",
    "working_dir": "did you mean directory?",
    "cwd": "did you mean directory?",
    "chdir": "did you mean directory?",
    "volumes": "did you mean mounts?",
    "file_mounts": "did you mean mounts?",
    "dependency": "did you mean after?",
    "depends_on": "did you mean after?",
    "model": "did you mean gpu: {model: ...}?",
    "stdout": "did you mean output?",
    "stderr": "did you mean error?",
    "user": "it is set by the server: the user of the token",
    "id": "it is set by the server",
    "submitted_ms": "it is set by the server",
}

PAGE = "docs/job-file.md"
WITH_ROLE = Table("gang", (ROLE_KEY, *GANG_KEYS.keys), ELSEWHERE, PAGE)
GANG_NAMES = frozenset(GANG_KEYS.by_name)
