"""Every environment variable that Corral sets for a job: the one table for the page, for ``--export`` and for tests.

Knows names and meanings, not how values are computed. Light to import, because every client needs the names.
"""

from __future__ import annotations

from typing import NamedTuple


class Variable(NamedTuple):
    """``mine``: a value of the job itself takes precedence (its ``env``, or what it was submitted with)."""

    name: str
    meaning: str
    mine: bool = False


class VariableGroup(NamedTuple):
    title: str
    about: str
    variables: tuple[Variable, ...]


ACCOUNT = VariableGroup(
    "The account",
    "Of the Unix account that the job runs as. In a container `HOME` is set if it is mounted there, and `PATH` and "
    "`SHELL` are those of the image.",
    (
        Variable("HOME", "Home directory.", mine=True),
        Variable("USER", "Name of the account.", mine=True),
        Variable("LOGNAME", "The same.", mine=True),
        Variable("SHELL", "Login shell.", mine=True),
        Variable("PATH", "As submitted (see below); otherwise the directories of the system.", mine=True),
    ),
)
JOB = VariableGroup(
    "The job",
    "In every task.",
    (
        Variable("CORRAL_JOB_ID", "Id of the job."),
        Variable("CORRAL_JOB_NAME", "Its name; may be empty."),
        Variable("CORRAL_QUEUE", "Its queue."),
        Variable("CORRAL_USER", "The user who submitted it."),
        Variable("CORRAL_ARRAY_INDEX", "Index of this element; only in job arrays."),
        Variable("CORRAL_ROLE", "Role of the gang: `main` unless the job has several gangs."),
        Variable("CORRAL_GANG", "Id of the gang: job, index and role."),
        Variable("CORRAL_ATTEMPT", "Number of this attempt, from 1. Above 1 there may be a checkpoint."),
        Variable("CORRAL_RESUME_STEP", "Step of the newest checkpoint that the job has reported, if any."),
        Variable("CORRAL_RESUME_PATH", "Where it is, as the job reported it; may be empty."),
        Variable("CORRAL_NODES", "Nodes of the gang, with commas."),
        Variable("CORRAL_NODE", "Node of this task."),
        Variable("CORRAL_TASK", "Number of this task in the gang, from 0."),
        Variable("CORRAL_REQUEUE_EXIT", "Exit code that means: saved, run me again."),
        Variable("PYTHONUNBUFFERED", "1: Python writes its output at once.", mine=True),
        Variable("OMP_NUM_THREADS", "CPUs of the task for each of its processes.", mine=True),
    ),
)
FILES = VariableGroup(
    "Files of the task",
    "In a private directory, which is removed when the task has ended.",
    (
        Variable("TMPDIR", "Directory for temporary files."),
        Variable("CORRAL_CHECKPOINT_FILE", 'Append a line such as `{"step": 1200}` when a checkpoint is saved.'),
        Variable("CORRAL_WARNING_FILE", "Exists once the task must save and exit: deadline and reason as JSON."),
        Variable(
            "CORRAL_PYTHONPATH",
            "Directory with `corral_training`, `corral_checkpoints` and `corral_batch`, to import.",
        ),
        Variable(
            "PYTHONPATH", "Ends with `CORRAL_PYTHONPATH`, after the job's own value. Not set in containers.", mine=True
        ),
    ),
)
STEPS = VariableGroup(
    "Job steps",
    "For `corral step` and `srun`, which start processes inside a running job.",
    (
        Variable("CORRAL_STEP_SOCKET", "Where the supervisor of the task listens."),
        Variable("CORRAL_STEP_TOKEN", "Proves that a process belongs to the gang."),
        Variable("CORRAL_STEP", "Number of the step, from 0; only in its processes."),
        Variable("CORRAL_SHIMS", "Directory with the commands of Slurm, first in `PATH`; only with `compat: slurm`."),
    ),
)
RANKS = VariableGroup(
    "Ranks",
    "Only if `processes` is given or there are several tasks: libraries that see a rank wait for other processes.",
    (
        Variable("RANK", "Rank of this process in the gang, from 0."),
        Variable("WORLD_SIZE", "Number of processes of the gang."),
        Variable("LOCAL_RANK", "Rank of this process in its task, from 0."),
        Variable("LOCAL_WORLD_SIZE", "Number of processes of the task."),
        Variable("GROUP_RANK", "Number of the task, from 0."),
        Variable("GROUP_WORLD_SIZE", "Number of tasks."),
        Variable("NODE_RANK", "The same as `GROUP_RANK`."),
        Variable("MASTER_ADDR", "Address at which all processes reach rank 0.", mine=True),
        Variable("MASTER_PORT", "Port for that; another one for each attempt.", mine=True),
        Variable("TORCHELASTIC_RESTART_COUNT", "Attempts before this one. Not with `compat: slurm`."),
        Variable("TORCHELASTIC_MAX_RESTARTS", "0: Corral restarts jobs. Not with `compat: slurm`."),
        Variable("TORCHELASTIC_RUN_ID", "Different for each attempt. Not with `compat: slurm`."),
    ),
)
GPUS = VariableGroup(
    "GPUs",
    "",
    (
        Variable("CUDA_VISIBLE_DEVICES", "UUIDs of the GPUs of the task; empty: it has none."),
        Variable("ROCR_VISIBLE_DEVICES", "The same for GPUs of AMD; only if it has such."),
        Variable("CORRAL_SIMULATED_GPUS", "1: the GPUs are simulated (`--fake-gpus`)."),
        Variable(
            "CUDA_MPS_PIPE_DIRECTORY",
            "For a VRAM slice, if NVIDIA's Multi-Process Service runs on the node.",
            mine=True,
        ),
        Variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "The same: the size of the slice.", mine=True),
    ),
)
CONTAINERS = VariableGroup(
    "Containers",
    "Only in jobs with an `image`. Variables of the image are there too, under those of the job.",
    (
        Variable("NVIDIA_VISIBLE_DEVICES", "`void`: GPUs come by CDI."),
        Variable("CORRAL_FAILED_FILE", "Where the launcher of several processes notes which failed first."),
    ),
)
SLURM = VariableGroup(
    "Slurm",
    "Only with `compat: slurm`, which scripts with `#SBATCH` lines have. Slurm's tasks are Corral's processes.",
    (
        Variable("SLURM_JOB_ID", "Id of the job.", mine=True),
        Variable("SLURM_JOBID", "The same.", mine=True),
        Variable("SLURM_JOB_NAME", "Its name, or its id.", mine=True),
        Variable("SLURM_JOB_PARTITION", "Its queue.", mine=True),
        Variable("SLURM_JOB_ACCOUNT", "The queue above its queue.", mine=True),
        Variable("SLURM_JOB_QOS", "`normal`.", mine=True),
        Variable("SLURM_CLUSTER_NAME", "`corral`.", mine=True),
        Variable("SLURM_JOB_START_TIME", "When it was placed, in seconds since 1970.", mine=True),
        Variable("SLURM_JOB_END_TIME", "When its time limit ends; only with a time limit.", mine=True),
        Variable("SLURM_RESTART_COUNT", "Attempts before this one.", mine=True),
        Variable("SLURM_JOB_NODELIST", "Nodes of the job, with commas.", mine=True),
        Variable("SLURM_NODELIST", "The same.", mine=True),
        Variable("SLURM_JOB_NUM_NODES", "Number of nodes.", mine=True),
        Variable("SLURM_NNODES", "The same.", mine=True),
        Variable("SLURM_NODEID", "Number of this node, from 0."),
        Variable("SLURM_NTASKS", "Number of processes.", mine=True),
        Variable("SLURM_NPROCS", "The same.", mine=True),
        Variable("SLURM_NTASKS_PER_NODE", "Most processes on one node.", mine=True),
        Variable("SLURM_TASKS_PER_NODE", "Processes on each node: `2(x3),1`.", mine=True),
        Variable("SLURM_PROCID", "Rank of this process, from 0."),
        Variable("SLURM_LOCALID", "Rank of this process on its node, from 0."),
        Variable("SLURMD_NODENAME", "Node of this process."),
        Variable("SLURM_GTIDS", "Ranks on this node.", mine=True),
        Variable("SLURM_JOB_USER", "The user who submitted it.", mine=True),
        Variable("SLURM_SUBMIT_DIR", "Directory in which it was submitted.", mine=True),
        Variable("SLURM_JOB_CPUS_PER_NODE", "CPUs of the job on each node: `8(x2)`.", mine=True),
        Variable("SLURM_JOB_GPUS", "Numbers of its GPUs on this node.", mine=True),
        Variable("SLURM_TOPOLOGY_ADDR", "Node of this process.", mine=True),
        Variable("SLURM_TOPOLOGY_ADDR_PATTERN", "`node`.", mine=True),
        Variable("SLURM_GPUS", "As `--gpus`; only if given.", mine=True),
        Variable("SLURM_GPUS_PER_TASK", "As `--gpus-per-task`; only if given.", mine=True),
        Variable("SLURM_CPUS_PER_GPU", "As `--cpus-per-gpu`; only if given.", mine=True),
        Variable("SLURM_NTASKS_PER_GPU", "As `--ntasks-per-gpu`; only if given.", mine=True),
        Variable("SLURM_MEM_PER_GPU", "As `--mem-per-gpu` in MiB; only if given.", mine=True),
        Variable("SLURM_MEM_PER_CPU", "As `--mem-per-cpu` in MiB; only if given.", mine=True),
        Variable("SLURM_STEP_ID", "Number of the job step; only in its processes, like all `SLURM_STEP_*`."),
        Variable("SLURM_STEPID", "The same."),
        Variable("SLURM_STEP_NODELIST", "Nodes of the step."),
        Variable("SLURM_STEP_NUM_NODES", "Number of its nodes."),
        Variable("SLURM_STEP_NUM_TASKS", "Number of its processes."),
        Variable("SLURM_STEP_TASKS_PER_NODE", "Its processes on each node."),
        Variable("SLURM_STEP_GPUS", "Numbers of its GPUs on this node."),
        Variable("SLURM_CPU_BIND", "`quiet,none`: processes are not pinned."),
        Variable("SLURM_GPUS_ON_NODE", "GPUs of the job on this node.", mine=True),
        Variable("SLURM_GPUS_PER_NODE", "The same.", mine=True),
        Variable("SLURM_CPUS_PER_TASK", "CPUs of each process.", mine=True),
        Variable("SLURM_CPUS_ON_NODE", "CPUs of the job on this node.", mine=True),
        Variable("SLURM_MEM_PER_NODE", "Memory of the job on this node in MiB, if it requests memory.", mine=True),
        Variable("SLURM_ARRAY_JOB_ID", "Id of the job; only in job arrays, like all that follow.", mine=True),
        Variable("SLURM_ARRAY_TASK_ID", "Index of this element.", mine=True),
        Variable("SLURM_ARRAY_TASK_COUNT", "Number of elements.", mine=True),
        Variable("SLURM_ARRAY_TASK_MIN", "Smallest index.", mine=True),
        Variable("SLURM_ARRAY_TASK_MAX", "Largest index.", mine=True),
        Variable("SLURM_ARRAY_TASK_STEP", "Difference of the first two indexes.", mine=True),
    ),
)
GROUPS = (ACCOUNT, JOB, FILES, STEPS, RANKS, GPUS, CONTAINERS, SLURM)
NAMES = frozenset(variable.name for group in GROUPS for variable in group.variables)
