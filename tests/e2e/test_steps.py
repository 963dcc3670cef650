"""Job steps between nodes: real agents, and a server that is killed while steps run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.cli.fleet.testbed_parts import SERVER, Testbed
from corral.wire.api.words import ENDED

pytestmark = pytest.mark.timeout(280)
LEASE_MS = 60_000  # the tasks of a node may run that long without a server
DOWN_S = 3.0
LINES = 1_000

#: Three steps on the other node: one ends while the server is down, with more output than a pipe holds; one ends after
#: that, with input and output that no buffer holds; one begins while the server is down.
SCRIPT = """#!/bin/bash
cd {folder}
other=$(scontrol show hostnames | tail -1)
seq 200000 >input
step() { srun --overlap -N1 -n1 -w "$other" bash -c "$@"; }
step 'echo begun; touch a; while [ ! -e down ]; do sleep 0.05; done; seq -f %099g {lines}; exit 7' </dev/null >out-a &
a=$!
step 'touch b; while [ ! -e up ]; do sleep 0.05; done; seq -f %0999g {lines}; md5sum; exit 8' <input >out-b &
b=$!
while [ ! -e down ]; do sleep 0.05; done
step 'hostname >/dev/null; echo late' </dev/null >out-c &
wait $a; echo "a $?" >>codes
wait $b; echo "b $?" >>codes
wait; md5sum <input >>out-b
"""


def test_steps_on_another_node_survive_the_end_of_the_server(tmp_path: Path) -> None:
    script = SCRIPT.replace("{folder}", str(tmp_path)).replace("{lines}", str(LINES))
    document = {"command": "run.sh", "script": script, "launch": "first", "compat": "slurm", "tasks": 2, "gpus": 8}
    bed = Testbed(tmp_path / "bed", 2, "8xH100", LEASE_MS)
    bed.start()
    try:
        with bed.client() as client:
            job = client.submit({**document, "directory": str(tmp_path)}).id
        _until(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists())
        bed.kill(SERVER)
        (tmp_path / "down").touch()
        time.sleep(DOWN_S)
        bed.start_server()
        (tmp_path / "up").touch()
        with bed.client() as client:
            _until(lambda: client.job(job).state in ENDED)
            view = client.job(job)
    finally:
        bed.stop()
    assert view.state == "succeeded"
    assert (tmp_path / "codes").read_text() == "a 7\nb 8\n"
    assert (tmp_path / "out-a").read_text() == "begun\n" + "".join(f"{n:099}\n" for n in range(1, LINES + 1))
    *lines, read, expected = (tmp_path / "out-b").read_text().splitlines()
    assert lines == [f"{n:0999}" for n in range(1, LINES + 1)]
    assert read == expected
    assert (tmp_path / "out-c").read_text() == "late\n"


def _until(is_so: Callable[[], bool], patience_s: float = 120.0) -> None:
    end = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)
