"""Whole servers on real Slurm: pilots start, gangs run on them, and faults of Slurm affect nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import corral
from tests.accounts import VARIABLE
from tests.e2e.slurm_server import SlurmServer
from tests.providers.private_slurm import why_not

pytestmark = [
    pytest.mark.timeout(280),
    pytest.mark.skipif(bool(why_not()), reason=f"Slurm: {why_not()}"),
]

#: Counts from where it was saved, says where it is and on which GPUs; when it is preempted it saves and says so.
TRAIN = """
import json, os, signal, sys, time
e, folder, last = os.environ, sys.argv[1], int(sys.argv[2])
rank, path = e["CORRAL_TASK"], os.path.join(folder, "state-" + e["CORRAL_JOB_ID"] + "." + e["CORRAL_TASK"])
step = int(open(path).read()) if os.path.exists(path) else 0
with open(os.path.join(folder, "runs"), "a") as file:
    run = {"task": int(rank), "attempt": int(e["CORRAL_ATTEMPT"]), "node": e["CORRAL_NODE"], "from": step}
    file.write(json.dumps(run | {"gpus": e["CUDA_VISIBLE_DEVICES"].split(",")}) + "\\n")
def leave(*_):
    with open(path + ".new", "w") as file:
        file.write(str(step))
    os.replace(path + ".new", path)
    with open(e["CORRAL_CHECKPOINT_FILE"], "a") as file:
        file.write(json.dumps({"step": step}) + "\\n")
    os._exit(85)
signal.signal(signal.SIGTERM, leave)
while step < last:
    time.sleep(0.1)
    step += 1
"""


class Training:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(TRAIN)

    def command(self, steps: int) -> str:
        return f"exec python3 {self.folder}/train.py {self.folder} {steps}"

    def runs(self) -> list[dict[str, Any]]:
        path = self.folder / "runs"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_fleet_comes_up_and_a_gang_runs_across_it_on_exact_gpus_and_it_goes_back(tmp_path: Path) -> None:
    train = Training(tmp_path / "train")
    with SlurmServer(tmp_path / "bed") as slurm_server:
        slurm_server.up(4, lasts_ms=3_600_000)
        slurm_server.until(
            "Slurm starts the pilots", lambda: len([j for j in slurm_server.live_jobs() if j[1] == "RUNNING"]) == 4
        )
        assert slurm_server.until_joined(4) <= 10
        nodes = slurm_server.ask(lambda client: client.nodes()).nodes
        assert [len(node.gpus) for node in nodes] == [4, 4, 4, 4]
        assert all(gpu.simulated for node in nodes for gpu in node.gpus)
        assert {node.amounts["cpu_milli"] for node in nodes} == {16_000}, "what Slurm granted, not what the machine has"
        slurm_server.until(
            "their end is known",
            lambda: all(node.until_ms is not None for node in slurm_server.ask(lambda client: client.nodes()).nodes),
        )
        assert {node.fleet for node in nodes} == {"gpu"}

        job = slurm_server.submit(train.command(20), nodes=4, gpus=3, time_limit="5m")
        slurm_server.until("the gang has run", lambda: slurm_server.job(job).state == "succeeded")
        runs = train.runs()
        assert len({run["node"] for run in runs}) == 4
        assert all(len(set(run["gpus"])) == 3 for run in runs)

        slurm_server.ask(lambda client: client.recall_fleet("gpu"))
        slurm_server.until("all is given back", lambda: not slurm_server.ask(lambda client: client.fleets()).fleets)
        assert slurm_server.ask(lambda client: client.nodes()).nodes == ()
        assert {state for _, state, _ in slurm_server.jobs_of_slurm()} == {"COMPLETED"}, "pilots left in order"
        assert len(slurm_server.jobs_of_slurm()) == 4
        users = slurm_server.ask(lambda client: client.users()).users
        assert not [user for user in users if user.name.startswith("node:")]
        tokens = slurm_server.ask(lambda client: client.tokens()).tokens
        assert not [token for token in tokens if token.name.startswith("join:")]


def test_a_pilot_that_is_cancelled_under_a_gang_drains_and_the_gang_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    train = Training(tmp_path / "train")
    with SlurmServer(tmp_path / "bed") as slurm_server:
        slurm_server.up(3)
        slurm_server.until_joined(3)
        job = slurm_server.submit(train.command(150), nodes=2, gpus=4, checkpoints=True, time_limit="1h")
        slurm_server.until("the gang runs", lambda: len(train.runs()) == 2)
        time.sleep(2)
        victim = str(train.runs()[0]["node"])
        slurm_server.slurm.command("scancel", slurm_server.job_of(victim))
        took_s = slurm_server.until("it runs again", lambda: len(train.runs()) == 4)
        assert took_s < 30
        again = train.runs()[2:]
        assert victim not in {run["node"] for run in again}
        assert all(run["from"] for run in again), "from where it was saved"
        slurm_server.until("the pilot is let go", lambda: slurm_server.events("PilotEnded"))
        ended = slurm_server.events("PilotEnded")
        assert [event.data["pilot"] for event in ended] == [victim]
        assert "cancelled" in ended[0].data["why"]
        slurm_server.until("another pilot takes the place", lambda: slurm_server.fleet().joined == 3)
        assert slurm_server.job(job).state == "running"
        slurm_server.until("it is done", lambda: slurm_server.job(job).state == "succeeded")
        assert not [event for event in slurm_server.events("GangRequeued") if event.data["counted"] == "user_error"]


def test_work_leaves_before_the_time_of_a_pilot_is_over_and_nothing_is_placed_that_would_not_fit(
    tmp_path: Path,
) -> None:
    train = Training(tmp_path / "train")
    with SlurmServer(tmp_path / "bed") as slurm_server:
        slurm_server.up(2, lasts_ms=60_000)
        slurm_server.until_joined(2)
        slurm_server.until(
            "its end is known",
            lambda: all(node.until_ms is not None for node in slurm_server.ask(lambda client: client.nodes()).nodes),
        )
        long = slurm_server.submit("sleep 500", nodes=1, gpus=4, time_limit="10m")
        short = slurm_server.submit(
            train.command(700), nodes=1, gpus=4, checkpoints=True, grace="5s", time_limit="10m", restart_cost="10s"
        )
        slurm_server.until("the one that saves runs", lambda: len(train.runs()) == 1)
        why = slurm_server.ask(lambda client: client.why(long))
        told = [reason.text for gang in why.gangs for reason in gang.reasons]
        assert any("given back before" in text for text in told), told
        first = str(train.runs()[0]["node"])
        end_ms = slurm_server.ask(lambda client: client.node(first)).until_ms
        slurm_server.until("it is evicted", lambda: slurm_server.events("GangEvicted"))
        asked = slurm_server.events("GangEvicted")[0]
        assert asked.data["cause"] == "drain"
        assert asked.at_ms <= end_ms - 5_000
        slurm_server.until("it runs elsewhere", lambda: len(train.runs()) == 2, within_s=120)
        again = train.runs()[1]
        assert again["node"] != first
        assert again["from"], "from where it was saved"
        assert slurm_server.job(long).state == "waiting", "no machine is lent for as long as it needs"
        assert slurm_server.events("TasksLost") == []
        assert slurm_server.job(short).state == "running"


@pytest.mark.parametrize("wait_s", [0.0, 7.0], ids=["before it has saved", "after it has saved"])
def test_a_controller_that_is_killed_makes_no_second_pilot_and_loses_no_work(tmp_path: Path, wait_s: float) -> None:
    """Killed within seconds of a submission Slurm forgets what it acknowledged, and ends what it no longer knows."""
    train = Training(tmp_path / "train")
    with SlurmServer(tmp_path / "bed") as slurm_server:
        slurm_server.up(2)
        slurm_server.until("Slurm has them", lambda: len(slurm_server.live_jobs()) == 2)
        time.sleep(wait_s)
        job = slurm_server.submit(train.command(40), nodes=2, gpus=4, checkpoints=True) if wait_s else ""
        if job:
            slurm_server.until("the gang runs", lambda: len(train.runs()) == 2)
        slurm_server.slurm.kill_controller()
        time.sleep(3)
        slurm_server.slurm.start_controller()
        slurm_server.until("there are two nodes", lambda: slurm_server.fleet().joined == 2, within_s=150)
        slurm_server.until("all is well", lambda: not slurm_server.fleet().trouble)
        pilots = [pilot for _, _, pilot in slurm_server.live_jobs()]
        assert len(pilots) == len(set(pilots)) == 2
        by_pilot = [pilot for _, _, pilot in slurm_server.jobs_of_slurm()]
        assert len(by_pilot) == len(set(by_pilot)), "no pilot was ever submitted twice"
        job = job or slurm_server.submit(train.command(5), nodes=2, gpus=4)
        slurm_server.until("its work is done", lambda: slurm_server.job(job).state == "succeeded", within_s=120)


def test_who_needs_the_machines_more_has_them_and_the_work_leaves_in_order(tmp_path: Path) -> None:
    """Slurm preempts a pilot for a job of its own; the gang saves, and goes on when there is a machine again."""
    train = Training(tmp_path / "train")
    with SlurmServer(tmp_path / "bed", nodes=2) as slurm_server:
        slurm_server.up(2, settings={"partition": "gpu"})
        slurm_server.until_joined(2)
        job = slurm_server.submit(train.command(60), nodes=2, gpus=4, checkpoints=True, time_limit="1h")
        slurm_server.until("the gang runs", lambda: len(train.runs()) == 2)
        time.sleep(1)
        words = ["sbatch", "--parsable", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=sleep 8"]
        urgent = slurm_server.slurm.command(*words).strip()
        slurm_server.until("it is evicted", lambda: slurm_server.events("GangEvicted"))
        slurm_server.until(
            "the urgent job has run", lambda: not [j for j in slurm_server.live_jobs() if j[0] == urgent]
        )
        slurm_server.until("the gang is done", lambda: slurm_server.job(job).state == "succeeded", within_s=120)
        assert len(train.runs()) == 4
        assert all(run["from"] for run in train.runs()[2:])
        assert not [event for event in slurm_server.events("GangRequeued") if event.data["counted"] == "user_error"]


def python_of(user: str) -> dict[str, Any]:
    """How this user can run the program that is tested: with the Python of the tests, or with that of the machine."""
    package = str(Path(corral.__file__).parents[1])
    for python, path in (
        (sys.executable, package),
        ("/usr/bin/python3", f"{package}:{Path(msgspec.__file__).parents[1]}"),
    ):
        words = [python, "-c", "import corral.cli.fleet.pilot, msgspec, rich_click"]
        with suppress(OSError):
            done = subprocess.run(
                words, user=user, group="nogroup", env={"PYTHONPATH": path}, capture_output=True, cwd="/"
            )
            if done.returncode == 0:
                return {"corral": [python, "-m", "corral"], "pythonpath": path}
    pytest.skip(f"{user} can run neither the Python of the tests nor that of the machine")


def test_pilots_of_a_user_who_is_not_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = python_of("nobody")
    monkeypatch.delenv(VARIABLE, raising=False)  # jobs run as the account of the pilot
    with SlurmServer(tmp_path / "bed", nodes=1) as slurm_server:
        spool = slurm_server.slurm.folder / "lent"
        spool.mkdir()
        spool.chmod(0o777)
        slurm_server.up(1, settings={"user": "nobody", "folder": str(spool), **python})
        slurm_server.until_joined(1)
        job = slurm_server.submit("id -un", nodes=1, gpus=4)
        slurm_server.until("it has run", lambda: slurm_server.job(job).state == "succeeded")
        told = slurm_server.ask(lambda client: b"".join(part.data for part in client.logs(job)))
        assert told.strip() == b"nobody"
        assert slurm_server.slurm.command("squeue", "--noheader", "--format=%u").split() == ["nobody"]
        slurm_server.ask(lambda client: client.recall_fleet("gpu"))
        slurm_server.until("all is given back", lambda: not slurm_server.ask(lambda client: client.fleets()).fleets)
