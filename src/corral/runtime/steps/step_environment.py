"""The environment of a process of a job, without what belongs to its own seat or rank: what a step starts from."""

from __future__ import annotations

_OF_RANK = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASK_PID", "SLURM_SCRIPT_CONTEXT",
)  # fmt: skip


def base_environment(env: dict[str, str]) -> dict[str, str]:
    shims, private = env.get("CORRAL_SHIMS", ""), env.get("CORRAL_PYTHONPATH", "")
    found = {name: value for name, value in env.items() if name not in _OF_RANK and name != "CORRAL_SHIMS"}
    found["PATH"] = ":".join(part for part in env.get("PATH", "").split(":") if part and part != shims)
    python = ":".join(part for part in env.get("PYTHONPATH", "").split(":") if part and part != private)
    found.pop("PYTHONPATH", None)
    return found | ({"PYTHONPATH": python} if python else {})
