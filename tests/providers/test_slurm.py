"""What is sent to Slurm and what is read from it: tables of texts."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.core.cluster.resources import Gpu
from corral.providers.allocation import Allocation, granted, offered
from corral.providers.base import PilotOrder, PilotPhase, ProviderRefused, ProviderUnavailable
from corral.providers.catalog import BadSettings, kind_of, read_settings
from corral.providers.slurm import SlurmProvider, SlurmSettings
from corral.providers.slurm.slurm_commands import (
    SlurmCommands,
    SlurmConfig,
    SlurmJob,
    _complaint,
    _read_job,
    read_left,
)

LEFT = {
    "9:59": 599_000, "59:59": 3_599_000, "2:00:00": 7_200_000, "1-00:00:00": 86_400_000, "0:00": 0,
    "UNLIMITED": None, "INVALID": None, "NOT_SET": None, "": None,
}  # fmt: skip


@pytest.mark.parametrize(("text", "left_ms"), LEFT.items())
def test_how_long_a_job_has_left(text: str, left_ms: int | None) -> None:
    assert read_left(text) == left_ms


def test_a_line_of_the_queue() -> None:
    job = _read_job("17|RUNNING|n3|9:59|None|corral:c0ffee:gpu-1")
    assert job == SlurmJob(17, "RUNNING", "n3", 599_000, "None", "corral:c0ffee:gpu-1")
    assert _read_job("17_3|RUNNING|n3|9:59|None|of an array") is None
    assert _read_job("slurm_load_jobs error") is None


def test_of_very_many_jobs_slurm_is_asked_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def answer(_self: SlurmCommands, words: Sequence[str]) -> str:
        asked.append(words[-1].removeprefix("--name=").split(","))
        return f"{len(asked)}|RUNNING|n3|9:59|None|{asked[-1][0]}\n"

    monkeypatch.setattr(SlurmCommands, "_run", answer)
    names = [f"corral-c0ffee-pilot-of-a-large-fleet-{number}" for number in range(2_500)]
    jobs = SlurmCommands(SlurmSettings()).jobs(names)
    assert [name for part in asked for name in part] == names
    assert [job.comment for job in jobs] == [names[0], names[1_000], names[2_000]]
    assert all(len(",".join(part)) < 1 << 17 for part in asked)
    assert SlurmCommands(SlurmSettings()).jobs([]) == []


COMPLAINTS = {
    "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)": (
        ProviderUnavailable
    ),
    "slurm_load_jobs error: Socket timed out on send/recv operation": ProviderUnavailable,
    "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received": ProviderUnavailable,
    "sbatch: error: If munged is up, restart with --num-threads=10": ProviderUnavailable,
    "sbatch: error: invalid partition specified: gpus": ProviderRefused,
    "sbatch: error: Batch job submission failed: Invalid account or account/partition combination": ProviderRefused,
    "sbatch: error: Batch job submission failed: Requested node configuration is not available": ProviderRefused,
}


@pytest.mark.parametrize(("told", "kind"), COMPLAINTS.items())
def test_whether_it_said_no_or_could_not_be_asked(told: str, kind: type[Exception]) -> None:
    complaint = _complaint("sbatch", told, 1)
    assert type(complaint) is kind
    assert "sbatch:" not in str(complaint)


FAULTS: dict[str, dict[str, Any]] = {
    "an option in disguise": {"partition": "gpu --uid=0"},
    "two ways to say one thing": {"gpus": 4, "gres": "gpu:4"},
    "what is set by us": {"extra": ["--comment=mine"]},
    "an unknown word": {"partitoin": "gpu"},
    "a folder that is none": {"folder": "tmp"},
    "GPUs that there are not": {"fake_gpus": "8xB9000"},
    "a negative number": {"cpus": -1},
    "a number that is none": {"gpus": "four"},
}


@pytest.mark.parametrize("said", FAULTS.values(), ids=FAULTS.keys())
def test_settings_that_cannot_be(said: dict[str, Any]) -> None:
    with pytest.raises(BadSettings):
        read_settings(kind_of("slurm"), said)


def test_there_is_no_such_provider() -> None:
    with pytest.raises(BadSettings, match="unknown provider 'slrum'"):
        kind_of("slrum")


class ScriptedCommands(SlurmCommands):
    """Slurm as a list of jobs."""

    def __init__(self, settings: SlurmSettings) -> None:
        super().__init__(settings)
        self.there: list[SlurmJob] = []
        self.cancelled: list[int] = []
        self.signalled: list[int] = []
        self.submitted: list[tuple[Sequence[str], str]] = []
        self.questions: list[Sequence[str]] = []
        self.room = 1_000

    def submit(self, words: Sequence[str], script: str) -> int:
        if len(self.submitted) == self.room:
            raise ProviderRefused("Slurm refused: there is no room")
        self.submitted.append((words, script))
        return len(self.submitted)

    def jobs(self, names: Sequence[str]) -> list[SlurmJob]:
        self.questions.append(names)
        return self.there

    def signal(self, job: int) -> None:
        self.signalled.append(job)

    def cancel(self, job: int) -> None:
        self.cancelled.append(job)

    def config(self) -> SlurmConfig:
        return SlurmConfig(kill_wait_ms=30_000, has_accounts=False)


def provider(**said: Any) -> tuple[SlurmProvider, ScriptedCommands]:
    settings = msgspec.convert(said, SlurmSettings)
    commands = ScriptedCommands(settings)
    return SlurmProvider(settings, "c0ffee", commands), commands


def job(number: int, state: str, pilot: str = "gpu-1", left_ms: int | None = None) -> SlurmJob:
    return SlurmJob(number, state, "n3", left_ms, "Priority", f"corral:c0ffee:{pilot}")


ORDER = PilotOrder(
    pilot="gpu-1", urls=("http://head:7411", "http://other:7411"), token="it's secret", lasts_ms=7_200_000
)


def test_what_is_submitted_carries_our_id_and_runs_once() -> None:
    slurm, commands = provider(partition="gpu", gpus=4, cpus=8, memory_mib=4096, extra=["--licenses=x"])
    slurm.acquire([ORDER])
    [(words, script)] = commands.submitted
    assert {"--comment=corral:c0ffee:gpu-1", "--dependency=singleton", "--no-requeue", "--time=120"} <= set(words)
    assert {"--partition=gpu", "--gres=gpu:4", "--cpus-per-task=8", "--mem=4096M", "--licenses=x"} <= set(words)
    assert "--exclusive" not in words
    assert "--signal=B:TERM@37" in words
    assert "secret" not in " ".join(words), "arguments of commands are seen by all users"
    assert "export CORRAL_JOIN_TOKEN='it'\"'\"'s secret'\n" in script
    assert "--server http://head:7411 --server http://other:7411" in script
    commands.there = [job(1, "PENDING")]
    slurm.acquire([ORDER])
    assert len(commands.submitted) == 1


@pytest.mark.parametrize("trap", ["none", "a folder of another user", "a link to a folder of another user"])
def test_a_pilot_keeps_its_data_where_no_other_can_have_been(tmp_path: Path, trap: str) -> None:
    shared, theirs = tmp_path / "shared", tmp_path / "theirs"
    shared.mkdir()
    shared.chmod(0o1777)
    theirs.mkdir()
    theirs.chmod(0o777)
    slurm, commands = provider(folder=str(shared), corral=["/bin/sh", "-c", 'echo "$CORRAL_JOIN_TOKEN"', "pilot"])
    slurm.acquire([ORDER])
    guessed = shared / f"corral-{commands.user}-c0ffee"
    if trap == "a folder of another user":
        (guessed / "gpu-1").mkdir(parents=True)
        (guessed / "gpu-1").chmod(0o777)
    elif trap == "a link to a folder of another user":
        guessed.symlink_to(theirs)
    done = subprocess.run(["/bin/sh", "-c", commands.submitted[0][1]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    logs = list(tmp_path.rglob("pilot.log"))
    assert [path.read_text() for path in logs] == ["it's secret\n"]
    folder = logs[0].parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.parent == shared
    assert not (guessed.resolve() / "gpu-1" / "pilot.log").exists()


def test_of_many_slurm_is_asked_once_and_those_that_it_has_are_left() -> None:
    slurm, commands = provider()
    commands.there = [job(1, "PENDING", "gpu-2")]
    slurm.acquire([msgspec.structs.replace(ORDER, pilot=f"gpu-{number}") for number in (1, 2, 3, 3)])
    assert commands.questions == [["corral-c0ffee-gpu-1", "corral-c0ffee-gpu-2", "corral-c0ffee-gpu-3"]]
    assert [words[1] for words, _ in commands.submitted] == [
        "--comment=corral:c0ffee:gpu-1",
        "--comment=corral:c0ffee:gpu-3",
    ]


def test_after_a_no_of_slurm_it_is_asked_for_no_more() -> None:
    slurm, commands = provider()
    commands.room = 1
    with pytest.raises(ProviderRefused, match="there is no room"):
        slurm.acquire([msgspec.structs.replace(ORDER, pilot=f"gpu-{number}") for number in (1, 2, 3)])
    assert len(commands.submitted) == 1


def test_whole_nodes_unless_it_is_said_how_much() -> None:
    slurm, commands = provider()
    slurm.acquire([ORDER])
    assert {"--exclusive", "--mem=0"} <= set(commands.submitted[0][0])


PHASES = {
    "PENDING": PilotPhase.WAITING, "CONFIGURING": PilotPhase.WAITING, "RUNNING": PilotPhase.STARTED,
    "COMPLETING": PilotPhase.STARTED, "SUSPENDED": PilotPhase.STARTED, "COMPLETED": PilotPhase.ENDED,
    "CANCELLED": PilotPhase.ENDED, "TIMEOUT": PilotPhase.ENDED, "PREEMPTED": PilotPhase.ENDED,
    "NODE_FAIL": PilotPhase.ENDED, "BOOT_FAIL": PilotPhase.ENDED, "A_STATE_OF_TOMORROW": PilotPhase.ENDED,
}  # fmt: skip


@pytest.mark.parametrize(("state", "phase"), PHASES.items())
def test_what_is_seen_of_a_job(state: str, phase: PilotPhase) -> None:
    slurm, commands = provider()
    commands.there = [job(7, state, left_ms=60_000)]
    [sighting] = slurm.look(["gpu-1"])
    assert sighting.phase is phase
    assert sighting.left_ms == (60_000 if phase is PilotPhase.STARTED else None)
    assert "job 7" in sighting.where
    assert bool(sighting.why) == (phase is not PilotPhase.STARTED)


def test_of_two_that_came_to_be_the_later_goes() -> None:
    slurm, commands = provider()
    commands.there = [job(8, "PENDING"), job(7, "RUNNING"), job(3, "CANCELLED")]
    [sighting] = slurm.look(["gpu-1"])
    assert sighting.where == "job 7 on n3"
    assert commands.cancelled == [8]


def test_jobs_of_another_server_and_of_others_are_not_ours() -> None:
    slurm, commands = provider()
    commands.there = [SlurmJob(7, "RUNNING", "n3", None, "", "corral:beef:gpu-1"), job(8, "RUNNING", "gpu-2")]
    assert list(slurm.look(["gpu-1"])) == []
    slurm.release("gpu-1")
    assert (commands.cancelled, commands.signalled) == ([], [])


def test_who_runs_is_asked_to_leave_and_who_waits_is_cancelled() -> None:
    slurm, commands = provider()
    commands.there = [job(7, "RUNNING")]
    slurm.release("gpu-1")
    commands.there = [job(8, "PENDING")]
    slurm.release("gpu-1")
    commands.there = [job(9, "COMPLETED")]
    slurm.release("gpu-1")
    assert (commands.signalled, commands.cancelled) == ([7], [8])


ENV = {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "16", "SLURM_TOPOLOGY_ADDR": "spine.leaf1.n3"}
GRANTS: dict[str, tuple[dict[str, str], Allocation]] = {
    "some GPUs": (
        ENV | {"CUDA_VISIBLE_DEVICES": "1,3", "SLURM_MEM_PER_NODE": "4096"},
        Allocation(gpus=("1", "3"), cpus=16, memory_mib=4096, path=("spine", "leaf1")),
    ),
    "memory by CPU": (
        ENV | {"SLURM_MEM_PER_CPU": "100"}, Allocation(gpus=(), cpus=16, memory_mib=1600, path=("spine", "leaf1")),
    ),
    "GPUs without files": (
        ENV | {"SLURM_GPUS_ON_NODE": "2"},
        Allocation(gpus=("0", "1"), cpus=16, path=("spine", "leaf1")),
    ),
    "no GPUs and no switches": (
        {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "NoDevFiles", "SLURM_TOPOLOGY_ADDR": "n3"}, Allocation(gpus=()),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("env", "grant"), GRANTS.values(), ids=GRANTS.keys())
def test_what_slurm_granted(env: dict[str, str], grant: Allocation) -> None:
    assert granted("slurm", env) == grant


def test_an_agent_offers_no_more_than_was_granted() -> None:
    found = [Gpu(f"GPU-{n}", "H100", 81_920) for n in range(4)]
    assert offered(found, Allocation(gpus=("1", "3"))) == (found[1], found[3])
    assert offered(found, Allocation(gpus=("GPU-2",))) == (found[2],)
    assert offered(found, Allocation()) == tuple(found)
    with pytest.raises(ValueError, match="not started by Slurm"):
        granted("slurm", {})
