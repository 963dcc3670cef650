"""Tools that submit to Slurm, unmodified and installed for real: they call sbatch, squeue and sacct of Corral."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT
from tests.cli.typed import command, environment, free_port

PYTHON = ROOT / ".venv-slurm-tools" / "bin" / "python"
pytestmark = [
    pytest.mark.timeout(280),
    pytest.mark.skipif(not PYTHON.exists(), reason="no tools for Slurm beside the checkout: make services"),
]

SUBMITIT = """
import submitit
executor = submitit.AutoExecutor(folder="logs")
assert executor.cluster == "slurm", executor.cluster

def add(a, b):
    env = submitit.JobEnvironment()
    return a + b, env.global_rank, env.num_tasks

def fail():
    raise ValueError("wrong on purpose")

executor.update_parameters(timeout_min=5, tasks_per_node=2, slurm_partition="gpu", slurm_additional_parameters={})
print(executor.submit(add, 2, 3).results())
executor.update_parameters(tasks_per_node=1, slurm_array_parallelism=2)
jobs = executor.map_array(add, [1, 2, 3], [4, 5, 6])
print([job.result() for job in jobs], [job.job_id.partition("_")[2] for job in jobs])
job = executor.submit(fail)
try:
    job.result()
except submitit.core.utils.FailedJobError as error:
    print("wrong on purpose" in str(error))
"""
DASK = """
from dask.distributed import Client
from dask_jobqueue import SLURMCluster

def double(x):
    return 2 * x

if __name__ == "__main__":
    options = {"cores": 1, "memory": "1GB", "walltime": "00:10:00", "interface": "lo", "queue": "gpu", "account": "acc"}
    with SLURMCluster(**options, log_directory="logs") as cluster:
        cluster.scale(jobs=1)
        with Client(cluster, timeout="60s") as client:
            client.wait_for_workers(1, timeout=120)
            print(client.submit(double, 21).result(timeout=60))
"""
HYDRA = """
import os, sys
import hydra
sys.argv += ["-m", "+x=1,2", "hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=5"]

@hydra.main(version_base=None, config_path=None)
def main(config):
    with open(os.path.join(os.environ["PLACE"], f"out-{config.x}"), "w") as file:
        file.write(f"{2 * config.x} {os.environ['SLURM_ARRAY_TASK_ID']}")

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables of a user with a server, and the commands of Slurm first in PATH."""
    folder = tmp_path_factory.mktemp("tools")
    own = {"XDG_CONFIG_HOME": str(folder / "config"), "CORRAL_DATA": str(folder / "data"), "HOME": str(folder)}
    env = {name: value for name, value in environment().items() if name not in ("CORRAL_URL", "CORRAL_TOKEN")} | own
    env["PATH"] = f"{folder}/bin:{os.environ['PATH']}"
    for words in (
        ("slurm", "install", str(folder / "bin")),
        ("up", "--detach", "--listen", f"127.0.0.1:{free_port()}", "--fake-gpus", "8xH100"),
    ):
        subprocess.run(command(*words), env=env, check=True, capture_output=True, timeout=120)
    yield env
    subprocess.run(command("down"), env=env, check=True, capture_output=True, timeout=120)


def said(env: dict[str, str], program: str, place: Path) -> list[str]:
    (place / "program.py").write_text(program)
    done = subprocess.run(
        [str(PYTHON), "program.py"], env=env, cwd=place, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_submitit(shell: dict[str, str], tmp_path: Path) -> None:
    assert said(shell, SUBMITIT, tmp_path) == [
        "[(5, 0, 2), (5, 1, 2)]",
        "[(5, 0, 1), (7, 0, 1), (9, 0, 1)] ['0', '1', '2']",
        "True",
    ]


def test_dask_jobqueue(shell: dict[str, str], tmp_path: Path) -> None:
    assert said(shell, DASK, tmp_path) == ["42"]


def test_the_launcher_of_hydra(shell: dict[str, str], tmp_path: Path) -> None:
    said(shell | {"PLACE": str(tmp_path)}, HYDRA, tmp_path)
    assert [(tmp_path / f"out-{x}").read_text() for x in (1, 2)] == ["2 0", "4 1"]
