"""The commands of Slurm as users and tools call them: real programs, against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import live
from tests.cli.typed import command

SCRIPT = """#!/bin/bash
#SBATCH --job-name=abc --ntasks=2 --time=10 --output=%x-%j.txt
echo "$1 $SLURM_JOB_ID $SLURM_SUBMIT_DIR"
srun -l sh -c 'echo task $SLURM_PROCID'
HOME={home} XDG_CONFIG_HOME={home}/config squeue -h -j $SLURM_JOB_ID -o "%j %T"
"""


class Shell:
    def __init__(self, variables: dict[str, str], shims: Path, place: Path) -> None:
        self.env = live(variables) | {"PATH": f"{shims}:/usr/bin:/bin"}
        self.place = place

    def __call__(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, env=self.env, cwd=self.place, input=given, capture_output=True, text=True, timeout=120, check=False
        )

    def said(self, *words: str) -> str:
        done = self(*words)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout.strip()


@pytest.fixture(scope="module")
def shims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shims")
    done = subprocess.run(command("slurm", "install", str(folder)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def slurm(house: dict[str, str], shims: Path, tmp_path: Path) -> Shell:
    return Shell(house, shims, tmp_path)


def until(slurm: Shell, job: str, state: str) -> None:
    end = time.monotonic() + 90
    while (now := slurm.said("sacct", "-X", "-n", "-P", "-j", job, "-o", "State").split(" ")[0]) != state:
        is_late = now == "FAILED" or time.monotonic() > end
        assert not is_late, (slurm.said("sacct", "-j", job), _output(slurm.place))
        time.sleep(0.2)


def _output(place: Path) -> list[str]:
    return [path.read_text() for path in place.glob("*.txt")]


def test_a_script_runs_as_under_slurm(slurm: Shell, tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(SCRIPT.replace("{home}", slurm.env["HOME"]))
    said = slurm.said("sbatch", "a.sh", "word")
    assert said.startswith("Submitted batch job ")
    job = said.rpartition(" ")[2]
    until(slurm, job, "COMPLETED")
    first, *tasks, last = (tmp_path / f"abc-{job}.txt").read_text().splitlines()
    assert first == f"word {job} {tmp_path}"
    assert sorted(tasks) == ["0: task 0", "1: task 1"]
    assert last == "abc RUNNING"
    assert slurm.said("sacct", "-n", "-P", "-j", job, "-o", "JobID,JobName,ExitCode").splitlines() == [
        f"{job}|abc|0:0",
        f"{job}.batch|batch|0:0",
    ]


def test_elements_of_an_array_have_ids(slurm: Shell) -> None:
    job = slurm.said("sbatch", "--parsable", "--array=0-3%1", "--wrap", "sleep 60")
    end = time.monotonic() + 60
    while f"{job}_0 R" not in slurm.said("squeue", "-h", "-o", "%i %t", "-j", job):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert f"{job}_[1-3] PD" in slurm.said("squeue", "-h", "-o", "%i %t", "-j", job)
    assert slurm.said("squeue", "-r", "-h", "-o", "%i", "-t", "PD", "-j", job).split() == [
        f"{job}_{n}" for n in (1, 2, 3)
    ]
    slurm.said("scancel", f"{job}_3")
    assert slurm.said("sacct", "-X", "-n", "-P", "-j", f"{job}_3", "-o", "State").startswith("CANCELLED by ")
    slurm.said("scancel", job)
    until(slurm, f"{job}_1", "CANCELLED")


def test_a_step_and_a_signal_of_a_job(slurm: Shell, tmp_path: Path) -> None:
    text = "#!/bin/bash\ntrap 'echo received' USR1\nsrun sleep 60\necho step $?\ntouch on\nsleep 60 & wait $!\nexit 0\n"
    (tmp_path / "b.sh").write_text(text)
    job = slurm.said("sbatch", "--parsable", "-o", "b.txt", "b.sh")
    end = time.monotonic() + 60
    while slurm("scancel", f"{job}.0").returncode:
        assert time.monotonic() < end
        time.sleep(0.3)
    while not (tmp_path / "on").exists():
        assert time.monotonic() < end
        time.sleep(0.1)
    slurm.said("scancel", "--batch", "-s", "USR1", job)
    until(slurm, job, "COMPLETED")
    assert (tmp_path / "b.txt").read_text().splitlines()[-2:] == ["step 143", "received"]


def test_srun_and_salloc_outside_of_jobs(slurm: Shell) -> None:
    done = slurm("srun", "-n2", "sh", "-c", "echo $SLURM_PROCID; exit 4")
    assert (sorted(done.stdout.split()), done.returncode) == (["0", "1"], 4)
    done = slurm("salloc", "-n1", "sh", "-c", "srun echo in $SLURM_JOB_ID; exit 3")
    assert done.returncode == 3
    job = done.stderr.partition("Granted job allocation ")[2].split()[0]
    assert done.stdout == f"in {job}\n"
    until(slurm, job, "CANCELLED")
    assert "hi there" in slurm("srun", "--pty", "sh", given="echo hi there\n").stdout


def test_lists_of_nodes_and_accounts(slurm: Shell) -> None:
    name = slurm.said("sinfo", "-h", "-N", "-o", "%N").split()[0]
    partitions = slurm.said("sinfo", "-h", "-o", "%P %G").splitlines()  # other tests have queues on this server too
    assert partitions[0] == "default* gpu:h100:8"
    assert all(line.endswith(" gpu:h100:8") for line in partitions)
    assert "Gres=gpu:h100:8" in slurm.said("scontrol", "show", "node", name)
    assert "default" in slurm.said("sacctmgr", "-n", "-P", "show", "assoc", "format=account").splitlines()
    assert json.loads(slurm.said("sinfo", "--json"))["sinfo"][0]["name"] == name
    job = slurm.said("sbatch", "--parsable", "--hold", "--wrap", "true")
    assert json.loads(slurm.said("squeue", "--json", "-j", job))["jobs"][0]["job_state"] == ["PENDING"]
    assert "JobState=PENDING Reason=JobHeldUser" in slurm.said("scontrol", "show", "job", job)
    slurm.said("scontrol", "release", job)
    until(slurm, job, "COMPLETED")


#: What is typed, the exit code of Slurm, and a part of the message.
WRONG = (
    ("sbatch --bogus", 255, "unrecognized option '--bogus'"),
    ("sbatch /no/such", 1, "Unable to open file /no/such"),
    ("sbatch -n x --wrap=true", 1, "--ntasks"),
    ("salloc --bogus", 255, "unrecognized option"),
    ("srun --bogus", 255, "unrecognized option"),
    ("srun", 1, "No command given"),
    ("squeue --bogus", 1, "unrecognized option"),
    ("squeue -j 99999999", 1, "Invalid job id specified"),
    ("squeue -j abc", 1, "Invalid job id: abc"),
    ("squeue -t bogus", 1, "Invalid job state specified: bogus"),
    ("squeue -o", 1, "option requires an argument"),
    ("squeue -O nothing", 1, "Invalid job format specification"),
    ("scancel", 1, "No job identification provided"),
    ("scancel abc", 1, "Invalid job id abc"),
    ("scancel --bogus", 1, "unrecognized option"),
    ("scancel 99999999", 0, ""),
    ("scancel -s NO 1", 1, "Unknown job signal: NO"),
    ("sacct --bogus", 1, "unrecognized option"),
    ("sacct -o nothing", 1, "Invalid field requested"),
    ("sacct -S never", 1, "Invalid time specification"),
    ("sinfo --bogus", 1, "unrecognized option"),
    ("sacctmgr --bogus", 1, "unrecognized option"),
    ("sacctmgr delete user x", 1, "corral user"),
    ("scontrol --bogus", 1, "unrecognized option"),
    ("scontrol bogus", 1, "invalid keyword: bogus"),
    ("scontrol show", 1, "too few arguments"),
    ("scontrol show job 99999999", 1, "Invalid job id specified"),
    ("scontrol show node nope", 1, "Node nope not found"),
    ("scontrol update JobId=1 TimeLimit=5", 1, "cancel it and submit it again"),
    ("sbcast --bogus", 1, "unrecognized option"),
    ("sbcast a", 1, "Need two file names"),
    ("sbcast a b", 1, "corral cp"),
)


def test_what_is_wrong_ends_as_in_slurm(slurm: Shell) -> None:
    found = []
    for line, code, part in WRONG:
        done = slurm(*line.split())
        if done.returncode != code or part not in done.stderr or "Traceback" in done.stderr:
            found.append((line, done.returncode, done.stderr[-300:]))
    assert not found


def test_programs_are_not_replaced_by_accident(shims: Path) -> None:
    again = subprocess.run(command("slurm", "install", str(shims)), capture_output=True, text=True, timeout=60)
    assert again.returncode
    assert "--force" in again.stderr
    done = subprocess.run(
        command("slurm", "install", "--force", str(shims)), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert os.access(shims / "srun", os.X_OK)
