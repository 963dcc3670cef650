"""Job steps in real tasks: from a script on the first seat, on that seat and another of the same machine."""

import json
import sys
from pathlib import Path

import pytest

from corral.runtime.base import SeatOfGang, TaskKey
from tests.runtime.local_backend import Harness
from tests.runtime.reports import until

SEATS = (SeatOfGang("n1", ("SIM-A-0", "SIM-A-1")), SeatOfGang("n2", ("SIM-A-2", "SIM-A-3")))


class Gang:
    """A gang of two seats whose script runs on the first."""

    def __init__(self, harness: Harness, script: str, **rest: object) -> None:
        first = harness.key()
        self.first, self.held = first, TaskKey(first.gang, 1, 1)
        common = {"cpu_milli": 4000, "has_shims": True, **rest}
        env = (("SLURM_JOB_ID", "1"), ("SLURM_JOB_NUM_NODES", "2"), ("SLURM_JOB_NODELIST", "n[1-2]"))
        self.harness = harness
        harness.backend.launch(
            [
                harness.order(self.held, "x", processes=(), gpus=SEATS[1].gpus, env=(("CORRAL_NODE", "n2"),), **common),
                harness.order(
                    first,
                    "run.sh",
                    script=f"#!/bin/bash\n{script}\n",
                    gpus=SEATS[0].gpus,
                    seats=SEATS,
                    env=env,
                    **common,
                ),
            ]
        )

    def output(self, code: int = 0) -> str:
        down = self.harness.collector.down(self.first)
        assert down.exit_code == code, self.harness.log(self.first, "stderr")
        return self.harness.log(self.first)


def test_a_step_runs_on_every_seat(harness: Harness) -> None:
    gang = Gang(harness, "srun -l sh -c 'echo $SLURM_PROCID $SLURM_NTASKS $CORRAL_NODE $CUDA_VISIBLE_DEVICES'")
    assert sorted(gang.output().splitlines()) == ["0: 0 2 SIM-A-0,SIM-A-1", "1: 1 2 n2 SIM-A-2,SIM-A-3"]


def test_the_worst_exit_code_is_that_of_the_step(harness: Harness) -> None:
    gang = Gang(harness, "srun -n4 sh -c 'exit $SLURM_PROCID'")
    gang.output(3)
    assert "task 3: Exited with exit code 3" in harness.log(gang.first, "stderr")


def test_a_held_seat_ends_well_when_it_is_not_needed(harness: Harness) -> None:
    gang = Gang(harness, "srun hostname >/dev/null")
    gang.output()
    harness.backend.kill(gang.held)
    assert harness.collector.down(gang.held).exit_code == 0


def test_output_is_binary_safe_and_lines_do_not_mix(harness: Harness) -> None:
    script = "srun -n8 sh -c 'for n in $(seq 300); do echo $SLURM_PROCID-$n-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done'"
    lines = Gang(harness, script).output().splitlines()
    assert sorted(lines) == sorted(f"{rank}-{n}-{'x' * 30}" for rank in range(8) for n in range(1, 301))
    echo = "head -c 300000 /dev/urandom >a; srun -n1 cat <a >b; cmp a b && echo same"
    assert Gang(harness, f"cd $TMPDIR; {echo}").output() == "same\n"


def test_steps_wait_for_each_other_unless_they_overlap(harness: Harness) -> None:
    step = "sh -c 'echo begin; sleep 0.3; echo end'"
    waits = f"srun -N1 -n1 -w n1 {step} & srun -N1 -n1 -w n1 {step} & wait"
    assert Gang(harness, waits).output().split() == ["begin", "end", "begin", "end"]
    overlaps = waits.replace("srun", "srun --overlap")
    assert Gang(harness, overlaps).output().split() == ["begin", "begin", "end", "end"]


def test_a_step_of_a_step_reaches_every_seat(harness: Harness) -> None:
    gang = Gang(harness, "srun -N1 -n1 -w n2 srun --overlap -N2 -n2 sh -c 'echo $CUDA_VISIBLE_DEVICES'")
    assert sorted(gang.output().split()) == ["SIM-A-0,SIM-A-1", "SIM-A-2,SIM-A-3"]


def test_signals_are_passed_on(harness: Harness) -> None:
    body = "trap 'echo got it; exit 5' USR1; echo ready; while :; do sleep 0.05; done"
    gang = Gang(harness, f'srun -n2 bash -c "{body}" & sleep 1; kill -USR1 $!; wait $!')
    assert gang.output(5).split() == ["ready", "ready", "got", "it", "got", "it"]


def test_a_step_ends_with_its_client(harness: Harness) -> None:
    gang = Gang(
        harness, "srun -n1 -N1 -w n2 sleep 300 & sleep 0.7; kill -9 $!; sleep 0.5; srun -n1 -N1 -w n2 echo free"
    )
    assert gang.output() == "free\n"


def test_a_step_survives_the_end_of_the_server(harness: Harness) -> None:
    gang = Gang(harness, "srun -n2 sh -c 'echo a; sleep 1; echo b'")
    harness.says(gang.first, "a")
    harness.backend.close()
    harness.open()
    assert gang.output().split() == ["a", "a", "b", "b"]


def test_the_end_of_one_step_leaves_the_output_of_another_alone(harness: Harness) -> None:
    """The first has closed its output, so that the second gets descriptors of the same numbers."""
    script = """
    cd $TMPDIR
    srun --overlap -n1 -N1 sh -c 'exec >&- 2>&- <&-; touch closed; while [ ! -e begun ]; do sleep 0.1; done' &
    first=$!
    while [ ! -e closed ]; do sleep 0.1; done
    srun --overlap -n1 -N1 sh -c 'touch begun; while [ ! -e over ]; do sleep 0.1; done; echo late' &
    wait $first; sleep 0.5; touch over; wait $!
    """
    assert Gang(harness, script).output() == "late\n"


def test_what_cannot_run_is_said(harness: Harness) -> None:
    gang = Gang(
        harness, "srun -N3 true; echo $?; srun --gpus-per-task=9 -n1 true; echo $?; srun nothing-like-it; echo $?"
    )
    assert gang.output().split() == ["1", "1", "2"]
    said = harness.log(gang.first, "stderr")
    assert "3 nodes are requested, and the job has 2" in said
    assert "nothing-like-it: not found" in said


def test_wrong_options_end_with_1_and_a_hint(harness: Harness) -> None:
    gang = Gang(
        harness,
        "srun --bogus x; echo $?; srun -n; echo $?; srun -n x true; echo $?; scontrol show hostnames 'n['; echo $?",
    )
    assert gang.output().split() == ["255", "255", "1", "1"]
    assert "unrecognized option '--bogus'" in harness.log(gang.first, "stderr")


def test_another_gang_cannot_use_the_socket(harness: Harness) -> None:
    gang = Gang(harness, "echo $CORRAL_STEP_SOCKET; sleep 60")
    until(lambda: harness.log(gang.first).strip() != "")
    place = harness.log(gang.first).strip()
    other = Gang(harness, f"CORRAL_STEP_SOCKET={place} srun -n1 echo in; echo $?")
    assert other.output() == "1\n"
    assert "its token is not valid" in harness.log(other.first, "stderr")


def test_begin_and_end_of_steps_are_recorded(harness: Harness) -> None:
    gang = Gang(harness, "srun -n1 true; srun -n3 false; sleep 60")
    path = Path(harness.state(gang.first), "job-steps")
    until(lambda: path.exists() and path.read_text().count("\n") == 4)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(each["step"], each.get("name"), each.get("exit_code")) for each in lines] == [
        (0, "true", None), (0, None, 0), (1, "false", None), (1, None, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("words", [["-h"], ["--gpus", "1", "true"]])
def test_outside_of_a_job_srun_says_so(words, capsys, monkeypatch) -> None:
    from corral.cli.slurm.srun import main

    monkeypatch.delenv("CORRAL_STEP_SOCKET", raising=False)
    assert main(words) in (1, 255)
    assert "srun: error" in capsys.readouterr().err


def test_a_script_that_requeues_itself_is_ended_and_run_again(harness: Harness) -> None:
    """As Lightning does at SIGUSR1: it saves, calls scontrol, and goes on until it is ended."""
    gang = Gang(harness, "trap '' TERM; scontrol requeue 2; echo $?; scontrol requeue 1; echo $?; sleep 60")
    down = harness.collector.down(gang.first)
    assert (down.exit_code, down.failure, down.why) == (85, None, "asked to be run again (scontrol requeue)")
    assert harness.log(gang.first).split() == ["1", "0"], "for other jobs it would need a token"


def test_a_program_that_has_saved_and_requeues_itself_does_not_go_on(tmp_path: Path) -> None:
    """What it does after that is lost; SIGTERM it ignores, as Lightning does."""
    work = "import signal, subprocess, time; signal.signal(15, lambda *_: None)"
    ask = (
        "subprocess.call(['scontrol', 'requeue', '1']); print('asked', flush=True); [time.sleep(1) for _ in range(60)]"
    )
    harness = Harness(tmp_path, peer_grace_ms=600_000)
    try:
        gang = Gang(harness, f'srun -n1 {sys.executable} -c "{work}; {ask}"')
        down = harness.collector.down(gang.first)
        assert (down.exit_code, down.failure) == (85, None)
        assert harness.log(gang.first).split() == ["asked"]
    finally:
        harness.close()
