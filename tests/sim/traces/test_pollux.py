"""Pollux: the length of a job from small tables whose result can be worked out by hand."""

from __future__ import annotations

import pytest

from corral.sim.traces.pollux import read_pollux
from corral.sim.traces.text_rows import TraceError
from tests.sim.traces.files import written

HEADER = "name,time,application,num_replicas,batch_size"


@pytest.fixture
def folder(tmp_path):
    """Half of the gradient is noise, so twice the batch makes 4/3 of the progress a step."""
    steps = (
        "placement,local_bsz,step_time,sync_time",
        "1,10,1.0,0.2",
        "1,20,2.0,0.2",
        "2,10,1.5,0.5",
        "24,10,3.0,1.0",
        "24,20,4.0,1.0",
    )
    written(tmp_path, "app_profiles/net/placements.csv", *steps)
    written(
        tmp_path,
        "app_profiles/net/scalability.csv.gz",
        "num_nodes,num_replicas,local_bsz,step_time,sync_time",
        "6,24,5,8,1",
        "6,24,10,9,1",
    )
    for batch in (20, 40, 80, 240):
        rows = ("progress,iteration,metric,grad_sqr,grad_var", "30,9,0,1.0,1.0", f"{60 + batch / 1000},9,0,1.0,1.0")
        written(tmp_path, f"app_profiles/net/validation-{batch}.csv", *rows)
    return tmp_path


def job(folder, row):
    return read_pollux(written(folder, "workloads/w.csv", HEADER, row)).jobs[0]


LENGTHS = {
    "the smallest batch makes a step of progress a step": ("a,5,net,1,20", 60.02 * 2.0),
    "one GPU with more accumulates over two steps": ("a,5,net,1,40", 60.02 * 0.75 * (2 * 2.0 - 0.2)),
    "six GPUs are four and two": ("a,5,net,6,80", 60.02 * (1 / (84 / 20) + 1) / 2 * 3.4),
    "many nodes are in the other table": ("a,5,net,24,240", 60.02 * (1 / 12 + 1) / 2 * 9),
}


@pytest.mark.parametrize(("row", "seconds"), LENGTHS.values(), ids=LENGTHS.keys())
def test_length(folder, row, seconds):
    found = job(folder, row)
    assert found.submit_ms == 5000
    assert found.application == "net"
    assert found.work_ms == pytest.approx(seconds * 1000, abs=1)


WRONG = {
    "an application without tables": ("a,0,nett,1,20", "application", "Did you mean 'net'"),
    "a size that was not measured": ("a,0,net,3,30", "num_replicas", "nothing was measured"),
    "a batch that was not measured": ("a,0,net,24,24", "batch_size", "from 5 to 10 only"),
    "a batch smaller than all": ("a,0,net,1,10", "batch_size", "was measured for 20, 40, 80, 240"),
}


@pytest.mark.parametrize(("row", "field", "why"), WRONG.values(), ids=WRONG.keys())
def test_refuses(folder, row, field, why):
    with pytest.raises(TraceError) as caught:
        job(folder, row)
    assert (caught.value.line, caught.value.field) == (2, field)
    assert why in caught.value.why


def test_profiles_that_are_not_there_are_named(tmp_path):
    with pytest.raises(TraceError, match="app_profiles: there is no such folder"):
        job(tmp_path, "a,0,net,1,20")


def test_an_application_without_validation_is_named(folder):
    for path in (folder / "app_profiles" / "net").glob("validation*"):
        path.unlink()
    with pytest.raises(TraceError, match="validation"):
        job(folder, "a,0,net,1,20")
