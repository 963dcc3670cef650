"""The public traces as they are: how many jobs each has, and what is known of them from elsewhere."""

from __future__ import annotations

import gzip
import json

import pytest

from corral.sim.traces.catalog import open_trace
from corral.sim.traces.gavel import read_throughputs
from tests.sim.traces.files import PUBLIC, needs_public_traces

pytestmark = needs_public_traces

COUNTS = {
    "muri:trace1": 1494,
    "muri:trace1_pr": 1494,
    "muri:trace3": 992,
    "muri:testbed": 400,
    "tiresias:60": 60,
    "philly:all": 82_247,
    "philly:6c71a0": 9953,
    "philly:A": 2929,
    "philly:D": 7050,
    "itp:cluster06": 2396,
    "itp:cluster07": 12_699,
    "openb:default": 8152,
    "openb:multigpu50": 9061,
    "pollux:6": 160,
    "gavel:small_test": 20,
    "shockwave:120": 120,
    "swf:lublin_256": 10_000,
    "swf:hpc2n_sample": 3145,
}


@pytest.mark.parametrize(("name", "count"), COUNTS.items(), ids=COUNTS.keys())
def test_number_of_jobs(name, count):
    assert len(open_trace(name, PUBLIC).jobs) == count


def test_all_of_itp():
    clusters = range(1, 11)
    assert sum(len(open_trace(f"itp:cluster{number:02}", PUBLIC).jobs) for number in clusters) == 69_351


def test_the_nodes_of_openb():
    nodes = open_trace("openb:default", PUBLIC).nodes
    assert sum(entry.count for entry in nodes) == 1213
    assert sum(entry.count * entry.gpus for entry in nodes) == 6212
    names = [name for entry in nodes for name in entry.names]
    assert names == sorted(names)


def test_what_swf_leaves_out_is_counted():
    assert open_trace("swf:hpc2n_sample", PUBLIC).skipped == (("run time unknown", 25),)


def test_work_of_muri_is_iterations_by_their_time():
    jobs = open_trace("muri:trace3", PUBLIC).jobs
    assert jobs[0].work_ms == round(1_046_811 * 886 * 1.015)
    assert {job.priority for job in jobs} == {0, 1}


def test_work_of_shockwave_is_what_its_throughputs_say():
    table = read_throughputs(PUBLIC / "shockwave" / "tacc_throughputs.json.gz", "v100")
    job = open_trace("shockwave:120", PUBLIC).jobs[0]
    assert job.work_ms / 1000 == pytest.approx(134_583 / table[f"({job.application!r}, 1)"], abs=0.5)


def test_work_of_pollux_is_the_shortest_time_any_user_got_from_its_simulator():
    """A job that ran undisturbed took its work, 30 s to start and up to a tick of 60 s (published per job)."""
    path = PUBLIC / "pollux" / "published_results" / "results-jobload" / "tiresias-1.0.json.gz"
    published = json.loads(gzip.decompress(path.read_bytes()))["jcts"]
    shortest: dict[tuple[str, int], float] = {}
    work: dict[tuple[str, int], float] = {}
    for number in range(1, 5):
        for job in open_trace(f"pollux:{number}", PUBLIC).jobs:
            kind = (job.application, job.gpus)
            work[kind] = job.work_ms / 1000
            shortest[kind] = min(shortest.get(kind, float("inf")), published[f"workload-{number}"][job.id])
    for kind in [("cifar10", 6), ("cifar10", 12), ("cifar10", 16), ("bert", 12), ("yolov3", 4), ("ncf", 1)]:
        assert 25 <= shortest[kind] - work[kind] <= 90, kind
