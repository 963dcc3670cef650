"""Whole fleets of real processes: machines are killed, cut off and frozen; what must hold is in `tests.e2e.fleet`."""

from __future__ import annotations

import random
import signal
import sys
import time
from pathlib import Path

import pytest

from corral.agent.agent import Agent
from corral.agent.agent_dir import AgentDir
from corral.agent.server_connection import Refused
from corral.cli.fleet.testbed_parts import SERVER
from corral.client import Client
from corral.core.cluster.resources import Gpu, amounts
from corral.core.cluster.topology import NodeSpec
from corral.remote.messages import AgentReport, DesiredAsk, ObservedTask
from corral.runtime.base import Phase, TaskKey, TaskReport
from corral.server.main import GRACEFUL_S
from tests.accounts import OWN
from tests.agent.agent_connection import line_of, line_to
from tests.agent.connections import FaultyLine
from tests.agent.one_agent import make_agent
from tests.e2e.fleet import (
    FleetTrial,
    freeze_an_agent,
    freeze_server_and_gateway,
    freeze_the_server,
    strike_often,
)
from tests.e2e.live import ROOT

pytestmark = pytest.mark.timeout(280)
SHORT_MS = 2_000


def checked(trial: FleetTrial) -> None:
    assert trial.overlaps() == []
    assert trial.too_early() == []
    assert trial.run_twice() == []
    assert trial.lost_jobs() == []


def test_a_gang_with_a_spare_is_whole_again_soon_after_an_agent_is_killed(tmp_path: Path):
    """With the settings that apply by default."""
    with FleetTrial(tmp_path, 6, 8_000) as trial:
        gang = trial.submit(tasks=4, gpus=8, spares=1, name="gang")
        other = trial.submit(gpus=8, name="other")
        trial.until("both run", lambda: trial.is_whole(gang, 4) and trial.is_whole(other, 1))
        victim = trial.last_runs(gang)[2].node
        trial.bed.kill(victim)
        took_s = trial.until("the gang is whole again", lambda: trial.is_whole(gang, 4, 2))
        assert took_s <= 20
        seats = {run.node for run in trial.last_runs(gang)}
        assert victim not in seats
        assert len(seats) == 4
        assert [run.attempt for run in trial.last_runs(other)] == [1], "no other job was touched"
        trial.check_whole(other, 1)
        checked(trial)
        trial.end_file.touch()


def test_no_gpu_has_two_tasks_when_machines_are_cut_off(tmp_path: Path):
    """Twenty trials, two at a time."""
    chance = random.Random(5)
    with FleetTrial(tmp_path, 4, SHORT_MS) as trial:
        strike_often(trial, ["partition"] * 10, chance)
        assert len(trial.events("NodeLost")) >= 20
        checked(trial)
        trial.end_file.touch()


def test_what_a_frozen_agent_says_when_it_wakes_comes_too_late(tmp_path: Path):
    """For 60 s: python -m tests.e2e.fleet --trials 2 --freeze-s 60."""
    with FleetTrial(tmp_path, 2, SHORT_MS) as trial:
        freeze_an_agent(trial, 4 * SHORT_MS / 1000)
        checked(trial)
        trial.end_file.touch()


def test_a_server_that_slept_does_not_give_its_machines_up(tmp_path: Path):
    with FleetTrial(tmp_path, 3, SHORT_MS) as trial:
        freeze_the_server(trial, 4 * SHORT_MS / 1000)
        freeze_server_and_gateway(trial, 4 * SHORT_MS / 1000)
        checked(trial)
        trial.end_file.touch()


def test_tasks_outlive_their_agent_and_the_server(tmp_path: Path):
    with FleetTrial(tmp_path, 2, 8_000) as trial:
        job = trial.submit(gpus=8, tasks=2)
        trial.until("it begins", lambda: trial.is_whole(job, 2))
        before = trial.last_runs(job)
        for name in ("n1", SERVER, "n2"):
            trial.bed.restart(name)
            trial.bed.until_up(["n1", "n2"])
        time.sleep(1)
        trial.check_whole(job, 2)
        assert [(run.attempt, run.begin_ms) for run in trial.last_runs(job)] == [(1, run.begin_ms) for run in before]
        trial.end_file.touch()
        trial.until("it ends well", lambda: trial.job(job).state == "succeeded")
        assert trial.events("TasksLost", "NodeLost") == []


def test_a_server_that_is_restarted_in_order_is_back_before_any_user_notices(tmp_path: Path):
    """It does not wait for agents that are waiting for it."""
    with FleetTrial(tmp_path, 2, 8_000) as trial:
        job = trial.submit(gpus=8, tasks=2)
        trial.until("it begins", lambda: trial.is_whole(job, 2))
        time.sleep(1)  # both agents wait for orders
        began = time.monotonic()
        trial.bed.send(SERVER, signal.SIGTERM)
        trial.bed.processes[SERVER].wait(30)
        assert time.monotonic() - began < GRACEFUL_S, "it has waited for as long as it ever does"
        trial.bed.start_server()
        trial.bed.until_up(["n1", "n2"])
        time.sleep(2)
        trial.check_whole(job, 2)
        assert [run.attempt for run in trial.last_runs(job)] == [1, 1]
        trial.end_file.touch()


def test_logs_outlive_their_machine(tmp_path: Path):
    with FleetTrial(tmp_path, 1, SHORT_MS) as trial, trial.bed.client() as client:
        job = client.submit(
            {"command": ["sh", "-c", "echo out; seq 100000; echo err >&2"], "gpus": 1, "processes": 1}
        ).id
        trial.until("it ends", lambda: trial.job(job).state == "succeeded")
        kept = tmp_path / "bed" / "server" / "fleet" / "logs"
        trial.until("its log is brought", lambda: any(kept.rglob("whole.stderr")))
        assert [path.read_text() for path in kept.rglob("user")] == ["admin"], "whose it is, as the server knows"
        trial.bed.kill("n1")
        trial.until("it is given up", lambda: trial.is_lost("n1"))
        text = b"".join(part.data for part in client.logs(job))
        assert text.startswith(b"out\n1\n2\n")
        assert text.endswith(b"99999\n100000\n")


def agent_in_here(trial: FleetTrial, node: str, seed: int | None) -> Agent:
    """An agent in this process, on whose line things happen."""
    credential = AgentDir(trial.bed.folder / node).credential()
    line = line_of(credential)
    spec = NodeSpec(
        node,
        tuple(Gpu(f"SIM-H100-{n}@{node}", "H100", 81_920, 0) for n in range(8)),
        amounts({"cpu_milli": 1_000_000, "memory_mib": 4_000_000}),
    )
    agent = make_agent(trial.bed.folder / node, line if seed is None else FaultyLine(line, line, seed), spec)
    agent.begin()
    return agent


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_lost_repeated_and_late_messages_lead_to_the_same_end(tmp_path: Path, seed: int | None):
    ran = tmp_path / "lines"
    ran.mkdir()
    with FleetTrial(tmp_path, 2, 8_000) as trial, trial.bed.client() as client:
        for node in trial.bed.nodes:
            trial.bed.kill(node)
        agents = [
            agent_in_here(trial, node, None if seed is None else seed * 10 + n)
            for n, node in enumerate(trial.bed.nodes)
        ]
        try:
            documents = [
                {
                    "command": ["sh", "-c", f"echo $CORRAL_ATTEMPT >> {ran}/$CORRAL_JOB_ID.$CORRAL_TASK; exit {n % 3}"],
                    "gpus": 1 + n % 4, "tasks": 1 + n % 2, "processes": 1,
                }
                for n in range(30)
            ]  # fmt: skip
            jobs = [client.submit(document).id for document in documents]
            ends = {job: client.wait(job, timeout_s=120) for job in jobs}
            for n, job in enumerate(jobs):
                assert ends[job].state == ("failed" if n % 3 else "succeeded")
                assert ends[job].exit_code == n % 3
                for task in range(1 + n % 2):
                    file = ran / f"{job}.{task}"
                    lines = file.read_text() if file.exists() else ""
                    # when one of two fails, the other may be ended before it has written
                    assert lines == "1\n" or (n % 3 and n % 2 and lines == ""), "each task ran once"
            if seed is not None:
                assert all(isinstance(agent.server, FaultyLine) and agent.server.faults > 5 for agent in agents)
            assert trial.events("NodeLost", "TasksLost") == []
        finally:
            for agent in agents:
                agent.stop()
                if isinstance(agent.server, FaultyLine):
                    agent.server.close()


def test_a_rogue_agent_is_refused_and_found_in_the_record(tmp_path: Path):
    with FleetTrial(tmp_path, 2, 8_000) as trial:
        job = trial.submit(gpus=8)
        trial.until("it begins", lambda: trial.is_whole(job, 1))
        run = trial.last_runs(job)[0]
        mine = "n2" if run.node == "n1" else "n1"
        trial.bed.freeze(mine)  # its credential is used by another machine
        line = line_of(AgentDir(trial.bed.folder / mine).credential())
        key = TaskKey(f"{job}/main", 1, 0)
        lie = TaskReport(key=key, phase=Phase.DOWN, at_ms=0, node=mine, exit_code=0)
        with pytest.raises(Refused) as other_node:
            line.report(AgentReport(node=run.node, session=10**12, seq=1))
        with pytest.raises(Refused) as orders:
            line.desired(DesiredAsk(node=run.node, epoch=1, term=0, wait_ms=20_000))
        with pytest.raises(Refused) as other_job:
            line.report(
                AgentReport(node=mine, session=10**12, seq=1, is_full=True, tasks=(ObservedTask(key, down=lie),))
            )
        with trial.bed.client() as client:
            token = client.make_join_token().token
            with pytest.raises(Refused) as taken, line_to(trial.bed.url, mine, token) as other:
                other.report(AgentReport(node=mine, session=1, seq=1))
        old = line.report(AgentReport(node=mine, session=10**12, seq=2, is_full=True, epoch=0))
        assert old.wants_full
        assert "but has already reported" in old.refused
        codes = [each.value.code for each in (other_node, orders, other_job, taken)]
        assert codes == ["not_your_node", "not_your_node", "not_yours", "out_of_scope"]
        line.hang_up()
        trial.bed.thaw(mine)
        # A refusal is answered before it is written down.
        trial.until("all are in the record", lambda: len(trial.events("AccessRefused")) >= 4)
        told = [(event.data["user"], event.data["what"]) for event in trial.events("AccessRefused")]
        assert [user for user, _ in told] == [f"node:{mine}"] * 4
        expected = ["sent a message for", "sent a message for", "was not given", "has already reported"]
        assert all(words in what for (_, what), words in zip(told, expected, strict=True)), told
        trial.check_whole(job, 1)
        assert trial.job(job).state == "running"
        trial.end_file.touch()


def submitted_by(trial: FleetTrial, users: int, work: dict[str, object], each: int = 1) -> list[str]:
    """By several members of the default queue: what one of them says is never enough to take a machine out."""
    jobs = []
    with trial.bed.client() as client:
        for user in (f"user-{n}" for n in range(users)):
            client.set_user(user, account=OWN)
            client.grant(user, "member", "default")
            with Client(trial.bed.url, client.make_token(user=user).token) as mine:
                jobs += [mine.submit(work).id for _ in range(each)]
    return jobs


def test_a_machine_on_which_work_fails_more_than_elsewhere_takes_nothing_new(tmp_path: Path):
    """No machine knows that of itself: it is found by comparison."""
    with FleetTrial(tmp_path, 3, 8_000) as trial, trial.bed.client() as client:
        script = "sleep 0.5; test $CORRAL_NODE != n1 || { echo ncclSystemError >&2; exit 1; }"
        work = {"command": ["sh", "-c", script], "gpus": 2, "processes": 1, "retries": {"network": 0}}
        jobs = submitted_by(trial, 8, work, 6)
        ends = {client.wait(job, timeout_s=60).state for job in jobs}
        assert ends == {"succeeded", "failed"}
        trial.until("it is suspect", lambda: client.node("n1").health == "suspect")
        assert client.node("n1").why.startswith("lemon: ")
        assert [client.node(node).health for node in ("n2", "n3")] == ["healthy", "healthy"]
        told = [event.data["node"] for event in trial.events("NodeHealthChanged") if "lemon" in event.data["why"]]
        assert told == ["n1"]
        trial.bed.restart(SERVER)
        trial.bed.until_up(["n2", "n3"])
        assert client.node("n1").why.startswith("lemon: "), "the next server knows it from the record"
        client.drain("n1")
        client.undrain("n1")
        trial.until("it is forgiven", lambda: client.node("n1").health == "healthy")


def test_a_machine_that_holds_its_gang_up_is_found_by_what_the_ranks_say_and_its_gang_goes_on(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time\n"
        "from corral import training\n"
        "while True:\n"
        "    training.step_done(0.3 if os.environ['CORRAL_NODE'] == 'n2' else 0.1)\n"
        "    time.sleep(0.1)\n"
    )
    with FleetTrial(tmp_path, 4, 8_000) as trial, trial.bed.client() as client:
        gang = {"command": [sys.executable, str(script)], "gpus": 4, "processes": 1, "nodes": 4}
        gang |= {"env": {"PYTHONPATH": str(ROOT / "src")}}
        job, other = submitted_by(trial, 2, gang)
        trial.until("it is suspect", lambda: client.node("n2").health == "suspect")
        assert "straggler: rank " in client.node("n2").why
        assert "takes 300 ms for a step, the median is 100 ms" in client.node("n2").why
        told = [event.data["node"] for event in trial.events("NodeHealthChanged") if "straggler" in event.data["why"]]
        assert told == ["n2"]
        (slow,) = client.job(job).gangs[0].slow_ranks
        assert "on n2 takes 300 ms for a step, the median is 100 ms" in slow
        for each in (job, other):
            assert (client.job(each).state, client.job(each).attempts) == ("running", 1)
            client.cancel(each)
