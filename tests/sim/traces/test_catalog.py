"""Names of workloads: what is found, and the error when it is not."""

from __future__ import annotations

import json

import pytest

from corral.sim.traces.catalog import FAMILIES, FOLDER_VARIABLE, list_traces, open_trace
from corral.sim.traces.text_rows import TraceError, UnknownTrace
from tests.architecture.repository import ROOT
from tests.sim.traces.files import written

ITP = ("job_id,submission_time,duration,num_gpu", "a,1,2,3")
MURI = (
    "job_id,num_gpu,submit_time,iterations,model_name,iteration_time,priority",
    "0,8,1500,1000,gpt2,437,1",
)
HELIOS = (
    "job_id,user,vc,gpu_num,cpu_num,state,submit_time,start_time,end_time",
    "1,u,v,1,4,COMPLETED,2020-01-01,2020-01-01,2020-01-02",
    "2,u,v,0,4,COMPLETED,2020-01-01,2020-01-01,2020-01-02",
)
ACME = (
    "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time",
    "1,u,1,8,4,Other,COMPLETED,2020-01-01,2020-01-01,2020-01-02",
)
SHOCKWAVE = "LM\tx\tx\tx\t1\t9\t1\tgns\t1\t-1\t60\t0"
TABLES = {"v100": {"('LM', 1)": {"null": 3.0}}, "p100": {"('LM', 1)": {"null": 1.0}}}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)


@pytest.fixture
def folder(tmp_path):
    """A folder laid out like that of the public traces, with a row or two in each."""
    written(tmp_path, "itp/raw/cluster06.csv.gz", *ITP)
    written(tmp_path, "itp/195job.csv", *ITP)
    written(tmp_path, "muri/trace3.csv.gz", *MURI)
    written(tmp_path, "muri/testbed_400jobs.csv", *MURI)
    written(tmp_path, "tiresias/60_job.csv", "job_id,num_gpu,submit_time,model_name,duration", "0,1,0,x,5")
    written(tmp_path, "philly/slices/A-11cb48.csv", "job_id,vc,num_gpu,submit_time,duration", "0,11cb48,1,0,52")
    written(
        tmp_path,
        "philly/philly.csv.gz",
        "timestamp,duration,num_gpus,cluster",
        "2020-01-01,1,1,6c71a0",
        "2020-01-01,1,1,x",
    )
    written(
        tmp_path, "openb/pods/openb_pod_list_default.csv.gz", "name,cpu_milli,memory_mib,num_gpu,gpu_milli", "p,1,1,0,0"
    )
    written(tmp_path, "openb/openb_node_list_gpu_node.csv", "sn,cpu_milli,memory_mib,gpu,model", "n0,1,1,8,G2")
    written(tmp_path, "pollux/workloads/workload-6.csv", "name,time,application,num_replicas,batch_size")
    written(tmp_path, "gavel/physical_cluster/debug.trace", "LM\tx\tx\tx\t1\t9\t1\t1\t-1\t0")
    written(tmp_path, "gavel/physical_cluster_throughputs.json.gz", json.dumps(TABLES))
    written(tmp_path, "shockwave/120_0.2_5.trace", SHOCKWAVE)
    written(tmp_path, "shockwave/900_0.2_10.trace", SHOCKWAVE)
    written(tmp_path, "shockwave/900_0.2_100.trace", SHOCKWAVE)
    written(tmp_path, "swf/mine.swf.gz", "1 0 -1 9 1 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1")
    written(tmp_path, "helios/Venus/cluster_log.csv", *HELIOS)
    written(tmp_path, "acme/trace_seren.csv", *ACME)
    return tmp_path


IN_THE_FOLDER = [
    "acme:seren", "gavel:debug", "helios:Venus", "itp:195job", "itp:cluster06", "muri:testbed", "muri:trace3",
    "openb:default", "philly:6c71a0", "philly:A", "philly:all", "philly:x", "shockwave:120", "shockwave:900_0.2_10",
    "shockwave:900_0.2_100", "swf:mine", "tiresias:60",
]  # fmt: skip
OWN = ["synthetic:department", "synthetic:lab", "synthetic:large", "synthetic:overload"]


def test_what_is_there_is_listed(folder, monkeypatch):
    assert list_traces() == OWN
    assert list_traces(folder) == sorted([*IN_THE_FOLDER, "pollux:6", *OWN])
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    assert list_traces() == list_traces(folder)


@pytest.mark.parametrize("name", IN_THE_FOLDER)
def test_what_is_listed_opens_under_its_name(folder, name):
    trace = open_trace(name, folder)
    assert trace.name == name
    assert len(trace.jobs) == (2 if name == "philly:all" else 1)


def test_the_folder_may_come_from_the_environment(folder, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    assert open_trace("openb:default").nodes[0].model == "G2"


def test_a_file_elsewhere_is_opened_by_its_path(folder, tmp_path, monkeypatch):
    assert len(open_trace(f"itp:{folder}/itp/195job.csv").jobs) == 1
    assert len(open_trace(f"philly:{folder}/philly/philly.csv.gz@x").jobs) == 1
    assert len(open_trace(f"csv:{written(tmp_path, 'own.csv', 'id,submit_ms,work_ms,gpus', 'a,1,2,3')}").jobs) == 1
    assert len(open_trace(f"itp:{written(tmp_path, 'odd@name.csv', *ITP)}").jobs) == 1
    monkeypatch.chdir(tmp_path)
    assert len(open_trace("csv:own.csv").jobs) == 1


def test_a_word_after_at_chooses(folder):
    assert [open_trace(f"gavel:debug{at}", folder).jobs[0].work_ms for at in ("", "@p100")] == [3000, 9000]
    assert [len(open_trace(f"helios:Venus{at}", folder).jobs) for at in ("", "@all")] == [1, 2]
    assert open_trace("synthetic:lab@5").jobs != open_trace("synthetic:lab").jobs


UNKNOWN = {
    "a family": ("murri:trace3", "Did you mean 'muri'"),
    "no family": ("trace3", "named family:name"),
    "no name": ("muri:", "named family:name"),
    "a trace": ("muri:trace33", "Did you mean 'trace3'"),
    "a virtual cluster": ("philly:6c71a1", "Did you mean '6c71a0'"),
    "several at once": ("shockwave:900", "900_0.2_10, 900_0.2_100"),
    "a GPU type": ("gavel:debug@p10", "Did you mean 'p100'"),
    "a choice where there is none": ("muri:trace3@x", "Leave @x out"),
    "another choice": ("helios:Venus@cpu", "write all"),
    "a seed that is none": ("synthetic:lab@x", "seed"),
    "a synthetic workload": ("synthetic:labb", "Did you mean 'lab'"),
}


@pytest.mark.parametrize(("name", "why"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_unknown(folder, name, why):
    with pytest.raises(UnknownTrace) as caught:
        open_trace(name, folder)
    assert why in str(caught.value)


def test_without_a_folder_the_error_says_how_to_name_one():
    with pytest.raises(UnknownTrace, match=f"Set {FOLDER_VARIABLE}"):
        open_trace("muri:trace3")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UnknownTrace, match=r"there is no folder .*nowhere"):
        open_trace("muri:trace3", tmp_path / "nowhere")


def test_an_empty_folder_has_none(tmp_path):
    with pytest.raises(UnknownTrace, match="contains none"):
        open_trace("muri:trace3", tmp_path)
    assert list_traces(tmp_path) == OWN


def test_gavel_without_throughputs_says_what_it_needs(tmp_path):
    path = written(tmp_path, "a/b/w.trace", "LM\tx\tx\tx\t1\t9\t1\t1\t-1\t0")
    with pytest.raises(TraceError, match=r"_throughputs\.json"):
        open_trace(f"gavel:{path}")


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_path_that_leads_nowhere_is_an_error_in_every_family(family, tmp_path):
    with pytest.raises(TraceError):
        open_trace(f"{family}:{tmp_path}/nothing")


def test_every_family_is_on_the_page():
    page = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")
    assert [family for family in FAMILIES if f"| `{family}:" not in page] == []
