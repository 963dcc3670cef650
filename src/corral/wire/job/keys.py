"""The keys of a job document: the one table from which the parser, the hints, the JSON Schema and the reference come.

``JOB_KEYS`` belong to the job, ``GANG_KEYS`` to a gang. At the top of a document both are allowed: the latter then
describe the only gang, or are inherited by every gang of ``gangs``.
"""

from __future__ import annotations

from corral.core.cluster.resources import CPU_MILLI, GPU_MILLI, MEMORY_MIB
from corral.wire.document.errors import Path, Reading, Wrong
from corral.wire.document.key_table import Key, KeyTable, table_kind
from corral.wire.document.kinds import (
    FLAG,
    SIZE_OVER_ZERO,
    SPAN,
    SPAN_OVER_ZERO,
    ValueKind,
    choice,
    listing,
    number,
    pairs,
    text,
)
from corral.wire.job.demands import CPUS, GPU_COUNT, GPUS, LEVEL, MODEL, PREFER, SPREAD, TASKS, VRAM_RANGE
from corral.wire.job.program import COMMAND, EXPORT, MOUNT, PATH_TEXT, PROCESSES, SIGNAL
from corral.wire.job.timing import AFTER, ARRAY, MOMENT, PRIORITY, RETRIES

DISK_MIB = "disk_mib"
#: Amounts that have their own keys, by the name in the engine.
OWN_KEYS = {CPU_MILLI: "cpus", MEMORY_MIB: "memory", DISK_MIB: "disk", GPU_MILLI: "gpus"}

NAME = text(
    "a name of letters, digits and . _ - + = @ : /",
    most="name_chars",
    pattern=r"[A-Za-z0-9][A-Za-z0-9._+=@:-]*(/+[A-Za-z0-9_+=@:-][A-Za-z0-9._+=@:-]*)*/*",
    hint="begin with a letter or a digit, use no spaces, and no . after a /",
)
QUEUE = text(
    "the path of a queue such as lab/vision",
    most="name_chars",
    pattern=r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*",
    hint="letters, digits, . _ - and a / between the parts",
)
ROLE = text("a role such as trainer", most="name_chars", pattern=r"[A-Za-z][A-Za-z0-9_-]*")
VARIABLE = text(
    "the name of a variable", most="name_chars", pattern=r"[A-Za-z_][A-Za-z0-9_]*", hint="letters, digits and _"
)
SECRET = text("the name of a secret", most="name_chars", pattern=r"[A-Za-z0-9][A-Za-z0-9._-]*")
LABEL = text(
    "the name of a label", most="name_chars", pattern=r"[A-Za-z0-9][A-Za-z0-9._-]*(/+[A-Za-z0-9_-][A-Za-z0-9._-]*)*/*"
)


def _written_out(most: str, says: str) -> ValueKind:
    """Text; whole numbers are accepted, since they can be written in one way only."""
    plain = text(says, most=most, empty=True)

    def read(value: object, path: Path, reading: Reading) -> str:
        return str(value) if type(value) is int and abs(value) < 10**18 else str(plain.read(value, path, reading))

    return ValueKind(read, {"type": ["string", "integer"]}, says)


def _read_resource(value: object, path: Path, reading: Reading) -> str:
    name = str(_RESOURCE_NAME.read(value, path, reading))
    if name in OWN_KEYS:
        raise Wrong("bad_choice", f"{name} has a key of its own", f"use {OWN_KEYS[name]}")
    return name


_RESOURCE_NAME = text("the name of a resource", most="name_chars", pattern=r"[A-Za-z][A-Za-z0-9._/:-]*")
_RESOURCES = pairs(
    ValueKind(_read_resource, _RESOURCE_NAME.schema, _RESOURCE_NAME.says),
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
_SCRIPT = text("the text of a script", most="file_bytes", pattern=r"#![\s\S]*", hint="begin it with #!/bin/bash")
_UMASK = text("an octal umask such as 022", pattern=r"0?[0-7]{3}", hint="three digits from 0 to 7, in quotes")

GPU_KEYS = KeyTable(
    "gpu",
    [
        Key("count", GPU_COUNT, "Whole GPUs per task.", 8, default="1"),
        Key("model", _MODELS, "Accepted models: one, or a list.", ["H100", "H200"], default="any"),
        Key("vram", VRAM_RANGE, "Memory (VRAM) of each GPU. `80GB` means a card sold as 80 GB.", "40GB..80GB"),
    ],
    {"memory": "did you mean vram?", "name": "did you mean model?", "gpus": "did you mean count?"},
)

_GPU = table_kind(GPU_KEYS, "a mapping of count, model and vram")

#: Keys that a gang does not inherit once it has a key: other keys for the same setting.
HIDES = {
    "gpus": ("gpu", "vram"),
    "gpu": ("gpus", "vram"),
    "vram": ("gpus", "gpu"),
    "tasks": ("nodes",),
    "nodes": ("tasks", "spread"),
}

GANG_KEYS = KeyTable(
    "gang",
    [
        Key("command", COMMAND, "Command of each task: a line for bash (or sh), or a list (program and arguments).",
            "python train.py", into="command"),
        Key("gpus", GPUS, "Whole GPUs per task, optionally with the model: `8`, `8xH100`, `H100:8`.",
            "8xH100", default="0"),
        Key("gpu", _GPU, "GPUs per task in full: count, accepted models, VRAM range.",
            {"count": 8, "model": ["H100", "H200"], "vram": "80GB.."}),
        Key("vram", SIZE_OVER_ZERO, "VRAM slice of one shared GPU, instead of whole GPUs.", "10GB"),
        Key("cpus", CPUS, "CPUs per task.", 16, default="1 if no other resource is requested"),
        Key("memory", SIZE_OVER_ZERO, "Main memory per task.", "64GiB"),
        Key("disk", SIZE_OVER_ZERO, "Scratch space per task.", "200GB"),
        Key("resources", _RESOURCES, "Other countable resources per task, by the names that nodes declare.",
            {"license": 1}),
        Key("tasks", TASKS,
            "Number of tasks; `2..8` for an elastic job that runs with any number in between (`2..8/2`: in "
            "steps of 2).",
            "2..8", default="1"),
        Key("nodes", TASKS, "Number of nodes, one task on each. Short for `tasks` with `spread: node`.", 4),
        Key("processes", PROCESSES,
            "Processes per task, each with its own rank: a number, or `gpu` for one per GPU.",
            "gpu", default="one; no rank variables if there is only one task", into="processes"),
        Key("tp", number("a number of ranks",
            1, 65_536), "Tensor-parallel group size; each group stays inside one NVLink domain.",
            8, default="1", into="tp"),
        Key("within", LEVEL, "Topology level: all tasks must be in one domain of it.", "rack", into="within"),
        Key("prefer", PREFER, "Topology level: all tasks should be in one domain of it; and how long to wait for that.",
            {"level": "rack", "wait": "10m"}),
        Key("spread", SPREAD, "Spread tasks: at most `max` in each domain of this level.", {"level": "rack", "max": 2}),
        Key("spares", number("a number of tasks",
            0, "tasks"), "Spare seats, held unused to replace a lost one at once.",
            1, default="0", into="spares"),
        Key("env", _ENV, "Environment variables.", {"WANDB_MODE": "offline"}, into="env"),
        Key("secrets", _SECRETS, "Environment variables set from secrets: variable and name of the secret.",
            {"WANDB_API_KEY": "wandb"}, into="secrets"),
        Key("directory", PATH_TEXT, "Working directory.", "/home/ada/project", into="directory"),
        Key("image", text("the name of an image"), "Container image to run the command in.",
            "pytorch/pytorch:2.9", into="image"),
        Key("mounts", _MOUNTS, "Host paths mounted into the container: `from:to`, or `from:to:ro`.",
            ["/data:/data:ro"], into="mounts"),
        Key("output", _PATTERN, "File that also receives standard output, with the filename patterns of sbatch.",
            "logs/%x-%j.out", into="output"),
        Key("error", _PATTERN, "File for standard error, if it is to be separate.", "logs/%x-%j.err", into="error"),
        Key("umask", _UMASK, "Permissions that new files do not get, in octal; also of `output` and `error`.",
            "027", default="`022`; with the CLI, that of your shell", into="umask"),
        Key("signal",
            SIGNAL, "Signal to send before the end, and how long before. It kills programs that do not handle it.",
            "SIGUSR1@60s", into="early_signal"),
        Key("launch", choice(["first", "all"]),
            "Where the command runs: `all`: on every seat; `first`: on the first one, and it starts processes on the "
            "others with `corral step`.",
            "first", default="all", into="launch"),
        Key("script", _SCRIPT,
            "Text of a script, with `#!` and its interpreter in the first line. `command` is then its name and its "
            "arguments.",
            "#!/bin/bash\nhostname\n", into="script"),
        Key("compat", choice(["slurm"]),
            "`slurm`: also set the `SLURM_*` variables, and put the commands of Slurm first in the `PATH`.",
            "slurm", into="compat"),
        Key("rerun_after_exit_0", FLAG,
            "Run the job again if it handles the signal of a preemption and exits with 0 without reporting that it has"
            " finished.", False, default="true", into="rerun_after_exit_0"),
        Key("hold_on_fail", SPAN, "Keep the allocation this long after a failure, for inspection.",
            "30m", default="0s", into="hold_on_fail_ms"),
        Key("stall_timeout", SPAN,
            "Restart the job if no rank reports a step for this time, and for three usual steps. Must be longer than "
            "its evaluations and saves. 0: only the stacks of its ranks are logged.",
            "10m", default="0s", into="stall_ms"),
    ],
)  # fmt: skip

JOB_KEYS = KeyTable(
    "job",
    [
        Key("name", NAME, "Name of the job.", "train-7b", into="name"),
        Key("export", EXPORT,
            "Variables of your shell to take along: `ALL`, `NONE`, names, `NAME=value`, with commas. The CLI and the "
            "Python client read it; for the API use `env`.",
            "NONE", default="`PATH`, and the active Python environment"),
        Key("queue", QUEUE, "Queue to charge.", "lab/vision", default="the user's queue", into="queue"),
        Key("priority", PRIORITY,
            "`low` (-100), `normal` (0), `high` (100), or a number up to the queue's ceiling. Higher runs first.",
            "high", default="normal", into="priority"),
        Key("array", ARRAY, "Job array: one element per index; `%10` runs at most ten at a time.", "0-99%10"),
        Key("after", _AFTER, "Dependencies: `12` (succeeded), `any:12` (ended), `not_ok:12` (failed).",
            ["12", "any:13"], into="after"),
        Key("singleton", FLAG, "Run only one job of this name and user at a time.",
            True, default="false", into="singleton"),
        Key("begin", MOMENT, "Earliest start.", "2026-05-01T08:00:00Z", into="begin_ms"),
        Key("deadline", MOMENT, "Cancel the job if it has not started by this time.", "+12h", into="deadline_ms"),
        Key("time_limit", SPAN_OVER_ZERO, "Longest run time; the job is stopped after it.", "6h", into="time_limit_ms"),
        Key("estimate", SPAN_OVER_ZERO, "Expected run time; a good estimate lets the job start earlier.",
            "4h30m", into="estimate_ms"),
        Key("min_runtime", SPAN, "Minimum run time before the job can be preempted.",
            "30m", default="0s", into="min_runtime_ms"),
        Key("grace", SPAN, "Time between the warning and SIGKILL.", "2m", default="30s", into="grace_ms"),
        Key("start_timeout", SPAN, "Stop and requeue the job if not all its tasks have started after this time.",
            "10m", default="5m", into="start_timeout_ms"),
        Key("restart_cost", SPAN, "Time that a restart costs, in addition to the work since the last checkpoint.",
            "3m", default="1m", into="restart_cost_ms"),
        Key("checkpoints", FLAG, "The job saves checkpoints and reports them.", True, default="false",
            into="checkpoints"),
        Key("leave_slow_nodes", FLAG,
            "After the next checkpoint, leave a node on which a rank is slow, if enough GPUs elsewhere are free.",
            True, default="false", into="leaves_slow_nodes"),
        Key("preemptible", FLAG, "The job may be preempted for other jobs.",
            False, default="that of the queue, else `jobs.preemptible`", into="preemptible"),
        Key("requeue_exit", number("an exit code", 0, 255),
            "Exit code by which the job requests to be requeued, after it has saved its work.",
            85, default="85", into="requeue_exit"),
        Key("retries", RETRIES,
            "Retries after a failure: a number, or a rule for each failure class.",
            {"user_error": 2, "out_of_memory": {"count": 1, "grow_memory": "50%"}},
            default="infrastructure faults: unlimited (killed: 5); others: 0", into="retries"),
        Key("hold", FLAG, "Submit in held state, until released.", True, default="false", into="held"),
        Key("labels", _LABELS, "Labels to filter by.", {"project": "llm"}, into="labels"),
    ],
)  # fmt: skip

ROLE_KEY = Key("role", ROLE, "Name of this gang within the job.", "trainer", required=True)

#: Keys of other tools, with a hint for each.
ELSEWHERE = {
    "partition": "did you mean queue?",
    "account": "queues are used instead of accounts: did you mean queue?",
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
    "commands": "did you mean command? Write several lines as a YAML block: command: |",
    "args": "write command as a list: [program, argument, ...]",
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
WITH_ROLE = KeyTable("gang", (ROLE_KEY, *GANG_KEYS.keys), ELSEWHERE, PAGE)
GANG_NAMES = frozenset(GANG_KEYS.by_name)
