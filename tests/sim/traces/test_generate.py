"""The generator: what a description says is what the jobs are, and the same seed gives the same bytes."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from itertools import pairwise
from statistics import mean, median

import msgspec
import pytest

from corral.sim.traces.catalog import list_traces, open_trace
from corral.sim.traces.description import KEYS
from corral.sim.traces.generate import generate, offered_load
from corral.sim.traces.text_rows import TraceError
from corral.sim.traces.trace import Trace
from tests.architecture.repository import ROOT
from tests.sim.traces.files import written

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
OWN = [name for name in list_traces() if name.startswith("synthetic:")]

PLAIN = {
    "seed": "1",
    "jobs": "4000",
    "span": "7d",
    "sizes": "{1: 3, 8: 1}",
    "durations": "{fixed: 10m}",
}


def drawn(tmp_path, **keys: str | None) -> Trace:
    """A small description with some keys changed; None leaves one out."""
    lines = [f"{key}: {value}" for key, value in (PLAIN | keys).items() if value is not None]
    return generate(written(tmp_path, "w.yaml", *lines))


@cache
def shipped(name: str) -> Trace:
    return open_trace(name)


def digest(trace: Trace) -> str:
    return hashlib.sha256(msgspec.json.encode(trace)).hexdigest()


# --- sameness ------------------------------------------------------------------------------------------------

# If this changes, results that people published with the shipped workloads can no longer be reproduced.
LAB = "39d352f885085c004d5fbabd96bb1b81a68b897afd7739c6dfb9534e8b0ab2a6"


def test_the_shipped_lab_is_what_it_always_was():
    assert digest(open_trace("synthetic:lab")) == LAB


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_the_order_of_sets_does_not_matter(hash_seed):
    program = (
        "import hashlib, msgspec; from corral.sim.traces.catalog import open_trace; "
        "print(hashlib.sha256(msgspec.json.encode(open_trace('synthetic:lab'))).hexdigest())"
    )
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == LAB, done.stderr


def test_another_curve_of_arrivals_leaves_the_jobs_as_they_are(tmp_path):
    bare = [job.work_ms for job in drawn(tmp_path, durations="{lognormal: {median: 1h, sigma: 1}}").jobs]
    curved = drawn(tmp_path, durations="{lognormal: {median: 1h, sigma: 1}}", arrivals="{week: [1, 1, 1, 1, 1, 0, 0]}")
    assert [job.work_ms for job in curved.jobs] == bare


@pytest.mark.parametrize("name", OWN)
def test_shipped_workloads_are_sorted_whole_and_within_their_cluster(name):
    trace = shipped(name)
    capacity = sum(entry.count * entry.gpus for entry in trace.nodes)
    submissions = [job.submit_ms for job in trace.jobs]
    assert submissions == sorted(submissions)
    assert len({job.id for job in trace.jobs}) == len(trace.jobs)
    for job in trace.jobs[:5000]:
        assert type(job.submit_ms) is type(job.work_ms) is int
        assert 0 < job.gpus <= capacity
        assert job.limit_ms is None or job.limit_ms >= job.work_ms > 0
        assert not job.models or job.gpus <= sum(n.count * n.gpus for n in trace.nodes if n.model in job.models)


def test_the_large_cluster_is_large_and_busy():
    trace = shipped("synthetic:large")
    assert len(trace.jobs) == 200_000
    assert sum(entry.count * entry.gpus for entry in trace.nodes) == 10_000
    assert 0.8 < offered_load(trace, 30 * DAY_MS) < 1.0


def test_the_examples_in_the_folder_and_on_the_page_can_be_drawn(tmp_path):
    for path in sorted((ROOT / "examples" / "workloads").glob("*.yaml")):
        assert generate(path).jobs
    page = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert len(generate(written(tmp_path, "page.yaml", example)).jobs) == 500


def test_every_key_of_a_description_is_on_the_page():
    page = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")
    assert [key for key in KEYS if f"`{key}" not in page] == []


# --- how many and when ---------------------------------------------------------------------------------------

NODES = "[{count: 4, gpus: 8}]"


def test_jobs_and_span_are_met(tmp_path):
    trace = drawn(tmp_path)
    assert len(trace.jobs) == 4000
    assert 6.9 * DAY_MS < trace.jobs[-1].submit_ms < 7 * DAY_MS


def test_a_load_and_a_span_give_the_number_of_jobs(tmp_path):
    trace = drawn(tmp_path, jobs=None, load="0.8", nodes=NODES)
    assert offered_load(trace, 7 * DAY_MS) == pytest.approx(0.8, rel=0.001)


def test_a_load_and_jobs_give_the_span(tmp_path):
    trace = drawn(tmp_path, span=None, load="0.8", nodes=NODES)
    assert len(trace.jobs) == 4000
    assert offered_load(trace, trace.jobs[-1].submit_ms) == pytest.approx(0.8, rel=0.005)


def test_a_rate_gives_jobs_or_span(tmp_path):
    trace = drawn(tmp_path, jobs=None, arrivals="{per_hour: 20}")
    assert len(trace.jobs) == pytest.approx(7 * 24 * 20, rel=0.05)
    trace = drawn(tmp_path, span=None, arrivals="{per_hour: 20}")
    assert trace.jobs[-1].submit_ms == pytest.approx(200 * HOUR_MS, rel=0.05)


def test_gaps_between_arrivals_are_those_of_a_poisson_process(tmp_path):
    moments = [job.submit_ms for job in drawn(tmp_path).jobs]
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    usual = mean(gaps)
    assert mean(gap > usual for gap in gaps) == pytest.approx(0.368, abs=0.03)


def test_days_and_weeks_have_their_curve(tmp_path):
    night = "[1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 1, 1, 1, 1]"
    trace = drawn(tmp_path, arrivals=f"{{day: {night}, week: [1, 1, 1, 1, 1, 0, 0]}}")
    assert max(job.submit_ms for job in trace.jobs) < 5 * DAY_MS
    by_day = mean(8 <= job.submit_ms // HOUR_MS % 24 < 20 for job in trace.jobs)
    assert by_day == pytest.approx(0.75, abs=0.03)


BURSTS = {
    "once": ("{at: 90m, for: 2h, times: 50}", [(90, 210)]),
    "within an hour": ("{at: 125m, for: 10m, times: 500}", [(125, 135)]),
    "every day": ("{at: 30m, for: 1h, times: 50, every: 1d}", [(1440 * day + 30, 1440 * day + 90) for day in range(7)]),
    "every twenty minutes": ("{at: 0m, for: 5m, times: 50, every: 20m}", [(t, t + 5) for t in range(0, 10080, 20)]),
}


@pytest.mark.parametrize(("burst", "minutes"), BURSTS.values(), ids=BURSTS.keys())
def test_a_burst_comes(tmp_path, burst, minutes):
    trace = drawn(tmp_path, arrivals=f"{{bursts: [{burst}]}}")
    times = float(burst.partition("times: ")[2].split(",")[0].rstrip("}"))
    length = sum(end - start for start, end in minutes)
    expected = length * times / (length * times + 10080 - length)
    inside = mean(any(start <= job.submit_ms / 60_000 < end for start, end in minutes) for job in trace.jobs)
    assert inside == pytest.approx(expected, abs=0.03)


# --- what the jobs are ---------------------------------------------------------------------------------------


def test_sizes_teams_and_users_have_their_shares(tmp_path):
    trace = drawn(tmp_path, teams="{red: {share: 3, users: 2}, blue: {share: 1, users: 1}}")
    assert mean(job.gpus == 8 for job in trace.jobs) == pytest.approx(0.25, abs=0.03)
    users = Counter(job.user for job in trace.jobs)
    assert users["blue-1"] / 4000 == pytest.approx(0.25, abs=0.03)
    assert users["red-1"] / users["red-2"] == pytest.approx(2, rel=0.15)


DURATIONS = {
    "fixed": ("{fixed: 10m}", 600, 600),
    "lognormal": ("{lognormal: {median: 1h, sigma: 1}}", 3600, 3600 * 1.6487),
    "pareto": ("{pareto: {least: 1h, shape: 3}}", 3600 * 2 ** (1 / 3), 5400),
    "a mixture": ("{mixture: [{weight: 3, fixed: 10s}, {weight: 1, fixed: 50s}]}", 10, 20),
    "cut at both ends": ("{lognormal: {median: 1h, sigma: 3}, least: 1h, most: 1h}", 3600, 3600),
}


@pytest.mark.parametrize(("durations", "middle_s", "mean_s"), DURATIONS.values(), ids=DURATIONS.keys())
def test_durations_are_distributed_as_described(tmp_path, durations, middle_s, mean_s):
    work_s = [job.work_ms / 1000 for job in drawn(tmp_path, durations=durations).jobs]
    assert median(work_s) == pytest.approx(middle_s, rel=0.08)
    assert mean(work_s) == pytest.approx(mean_s, rel=0.08)


def test_large_jobs_may_have_durations_of_their_own(tmp_path):
    trace = drawn(tmp_path, durations="{fixed: 10m, by_size: [{from: 4, fixed: 1h}]}")
    assert {(job.gpus, job.work_ms) for job in trace.jobs} == {(1, 600_000), (8, HOUR_MS)}


def test_failures_shorten_and_limits_do_not(tmp_path):
    keys = {"failures": "{part: 0.3, after: [0.2, 0.4]}", "limits": "{part: 0.5, factor: 2, round_to: 15m}"}
    jobs = drawn(tmp_path, **keys).jobs
    failed = [job for job in jobs if job.status == "failed"]
    assert len(failed) / len(jobs) == pytest.approx(0.3, abs=0.03)
    assert {job.work_ms for job in jobs if job.status == "completed"} == {600_000}
    assert all(119_000 <= job.work_ms <= 241_000 for job in failed)
    assert Counter(job.limit_ms for job in jobs).keys() == {None, 30 * 60_000}


def test_a_model_is_wanted_only_where_there_is_enough_of_it(tmp_path):
    nodes = "[{count: 1, gpus: 4, model: A}, {count: 1, gpus: 8, model: B}]"
    trace = drawn(tmp_path, nodes=nodes, models="{A: 1, B: 1, A|B: 1, any: 1}", fractions="{500: 1, 1000: 1}")
    assert {job.models for job in trace.jobs if job.gpus == 1} == {(), ("A",), ("B",), ("A", "B")}
    assert {job.models for job in trace.jobs if job.gpus == 8} == {(), ("B",), ("A", "B")}
    assert {(job.gpus, job.gpu_milli) for job in trace.jobs} == {(1, 500), (1, 1000), (8, 1000)}


def test_cpus_and_memory_follow_the_gpus(tmp_path):
    trace = drawn(tmp_path, cpus_per_gpu="6.5", memory_gib_per_gpu="2", priorities="{5: 1}")
    assert {(job.gpus, job.cpu_milli, job.memory_mib, job.priority) for job in trace.jobs} == {
        (1, 6500, 2048, 5),
        (8, 52_000, 16_384, 5),
    }


# --- what is refused -----------------------------------------------------------------------------------------

WRONG = {
    "a key that is not known": ({"sizez": "{1: 1}"}, "sizez", "Did you mean 'sizes'"),
    "a key within": ({"durations": "{lognormal: {median: 1h, sigmo: 1}}"}, "durations.lognormal.sigmo", "'sigma'"),
    "a key in a list": ({"nodes": "[{count: 1, gpu: 8}]"}, "nodes[0].gpu", "'gpus'"),
    "a key that is missing": ({"sizes": None}, "sizes", "is missing"),
    "a word for a number": ({"seed": "one"}, "seed", "must be a number"),
    "a number for a span": ({"span": "90"}, "span", "90s"),
    "a fraction of a job": ({"jobs": "1.5"}, "jobs", "whole number"),
    "a part above one": ({"failures": "{part: 1.5, after: 1}"}, "failures.part", "at most 1"),
    "not a number": ({"load": ".nan", "jobs": None}, "load", "number"),
    "no weight at all": ({"sizes": "{1: 0}"}, "sizes", "above 0"),
    "a size that is a word": ({"sizes": "{one: 1}"}, "sizes.one", "whole number"),
    "two distributions": ({"durations": "{fixed: 1h, pareto: {least: 1h, shape: 2}}"}, "durations.fixed", "needs one"),
    "no distribution": ({"durations": "{most: 1h}"}, "durations", "needs one of"),
    "bounds the wrong way round": ({"limits": "{factor: [3, 2]}"}, "limits.factor", "smaller number first"),
    "a limit below the duration": ({"limits": "{factor: 0.5}"}, "limits.factor", "at least 1"),
    "half a day": ({"arrivals": "{day: [1, 2]}"}, "arrivals.day", "must have 24"),
    "a week without work": ({"arrivals": "{week: [0, 0, 0, 0, 0, 0, 0]}"}, "arrivals.week", "above 0"),
    "a burst longer than its turn": (
        {"arrivals": "{bursts: [{at: 1h, for: 2h, times: 2, every: 1h}]}"},
        "arrivals.bursts[0].every",
        "longer",
    ),
    "too little to know how much": ({"span": None}, "jobs", "give two of"),
    "too much to know how much": ({"load": "0.5", "nodes": NODES}, "load", "give two of"),
    "a load of nothing": ({"load": "0.5", "span": None}, "load", "nodes with GPUs"),
    "a load of jobs without GPUs": ({"load": "0.5", "span": None, "nodes": NODES, "sizes": "{0: 1}"}, "load", "no job"),
    "a load and a rate": ({"load": "0.5", "arrivals": "{per_hour: 2}"}, "load", "Leave one"),
    "a job larger than the cluster": ({"nodes": "[{count: 1, gpus: 4}]"}, "sizes", "have 4 together"),
    "a model that no node has": (
        {"nodes": "[{count: 1, gpus: 8, model: A100}]", "models": "{A10: 1}"},
        "models.A10",
        "'A100'",
    ),
    "too much of a GPU": ({"fractions": "{1500: 1}"}, "fractions", "between 1 and 1000"),
    "a list for a mapping": ({"teams": "[a, b]"}, "teams", "must be a mapping"),
    "a mapping for a list": ({"nodes": "{a: 1}"}, "nodes", "must be a list"),
    "sizes out of order": (
        {"durations": "{fixed: 1h, by_size: [{from: 8, fixed: 1h}, {from: 4, fixed: 1h}]}"},
        "durations.by_size[1].from",
        "larger",
    ),
}


@pytest.mark.parametrize(("keys", "field", "why"), WRONG.values(), ids=WRONG.keys())
def test_a_description_that_cannot_be_followed(tmp_path, keys, field, why):
    with pytest.raises(TraceError) as caught:
        drawn(tmp_path, **keys)
    assert caught.value.field.rstrip(".") == field
    assert why in caught.value.why


def test_the_line_of_the_key_is_named(tmp_path):
    path = written(tmp_path, "w.yaml", "seed: 1", "sizes: {1: 1}", "durations:", "  lognormal:", "    medien: 1h")
    with pytest.raises(TraceError) as caught:
        generate(path)
    assert (caught.value.line, caught.value.field) == (5, "durations.lognormal.medien")


FILES = {
    "nothing": ([""], "is empty"),
    "no YAML": (["seed: [1"], "is not YAML"),
    "two of one key": (["seed: 1", "seed: 2"], "twice"),
    "a list": (["- seed"], "must be a mapping"),
}


@pytest.mark.parametrize(("lines", "why"), FILES.values(), ids=FILES.keys())
def test_a_file_that_is_no_description(tmp_path, lines, why):
    with pytest.raises(TraceError) as caught:
        generate(written(tmp_path, "w.yaml", *lines))
    assert why in str(caught.value)


def test_a_span_in_which_nothing_may_come_is_refused(tmp_path):
    with pytest.raises(TraceError, match="0 all through the span"):
        drawn(tmp_path, span="1d", arrivals="{week: [0, 1, 1, 1, 1, 1, 1]}")
