"""Programs in place of what scripts start: each notes that it ran, where, and with how many GPUs, and exits with 0.

They replace training code, launchers, modules, conda and container tools, none of which is installed here.
"""

from __future__ import annotations

from pathlib import Path

PROGRAMS = (
    *("python", "python3", "python3.8", "python3.9", "python3.10", "python3.11", "torchrun", "accelerate", "deepspeed"),
    *("mpirun", "mpiexec", "horovodrun", "singularity", "apptainer", "docker", "podman", "enroot", "ray", "jupyter"),
    *("tensorboard", "nvidia-smi", "nvcc", "pip", "pip3", "wandb", "mamba", "poetry", "uv", "wget", "curl", "git"),
    *("rsync", "scp", "ssh", "make", "cmake", "Rscript", "R", "julia", "matlab", "ffmpeg", "gsutil", "aws", "hf"),
    *("huggingface-cli", "composer", "nsys", "dcgmi", "rocm-smi", "litgpt", "lm_eval", "vllm", "axolotl", "tune"),
)
_PROGRAM = """#!/bin/sh
gpus=0
[ -n "$CUDA_VISIBLE_DEVICES" ] && gpus=$(echo "$CUDA_VISIBLE_DEVICES" | tr ',' '\\n' | grep -c .)
echo "${0##*/}|${SLURMD_NODENAME}|${gpus}|${SLURM_PROCID}|${SLURM_NTASKS}" >>"$COMPAT_RECORD.$$.$SLURMD_NODENAME"
exit 0
"""
_FUNCTIONS = """
module() { :; }; ml() { :; }; conda() { :; }; spack() { :; }; deactivate() { :; }; micromamba() { :; }
sleep() { command sleep 0.1; }
"""


def write_stubs(folder: Path) -> dict[str, str]:
    """Write the programs. Returns the variables by which scripts find them."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for name in PROGRAMS:
        path = programs / name
        path.write_text(_PROGRAM)
        path.chmod(0o755)
    functions = folder / "functions.sh"
    functions.write_text(_FUNCTIONS)
    return {"PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "BASH_ENV": str(functions)}
