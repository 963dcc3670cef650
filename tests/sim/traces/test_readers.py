"""Each reader on rows in the layout of its source, written for this test."""

from __future__ import annotations

import json

import pytest

from corral.sim.traces.acme import read_acme
from corral.sim.traces.corral_csv import read_table, write_table
from corral.sim.traces.gavel import read_gavel, read_shockwave
from corral.sim.traces.helios import read_helios
from corral.sim.traces.itp import read_itp
from corral.sim.traces.muri import read_muri, read_tiresias
from corral.sim.traces.openb import read_openb
from corral.sim.traces.philly import read_philly, virtual_clusters
from corral.sim.traces.swf import read_swf
from corral.sim.traces.text_rows import TraceError, UnknownTrace
from corral.sim.traces.trace import Trace, TraceJob, TraceNodes, from_zero
from tests.sim.traces.files import written

DAY_MS = 86_400_000
MIDNIGHT_MS = 1_577_836_800_000  # of the first day of 2020, UTC


def caught(read, *arguments) -> TraceError:
    with pytest.raises(TraceError) as found:
        read(*arguments)
    return found.value


# --- Philly ----------------------------------------------------------------------------------------------

WHOLE = (
    "timestamp,duration,num_gpus,gpu_time,cluster",
    "2020-01-02 00:00:00,60.0,2,120.0,1234e5",
    "2020-01-01 00:00:01,5.0,1,5.0,abc",
    "2020-01-01 00:00:00,7.0,1,7.0,1234e5",
)


def test_philly_takes_dates_and_text_ids_of_virtual_clusters(tmp_path):
    trace = read_philly(written(tmp_path, "p.csv.gz", *WHOLE))
    assert [job.id for job in trace.jobs] == ["2", "1", "0"]
    assert trace.jobs[0] == TraceJob(id="2", submit_ms=MIDNIGHT_MS, work_ms=7000, gpus=1, team="1234e5")
    assert trace.jobs[2].submit_ms == MIDNIGHT_MS + DAY_MS


def test_philly_gives_one_virtual_cluster_with_the_ids_of_the_whole(tmp_path):
    path = written(tmp_path, "p.csv", *WHOLE)
    assert virtual_clusters(path) == ["1234e5", "abc"]
    assert [job.id for job in read_philly(path, cluster="1234e5").jobs] == ["2", "0"]
    with pytest.raises(UnknownTrace, match="Did you mean 'abc'"):
        read_philly(path, cluster="abd")


def test_a_philly_slice_has_seconds_ids_and_its_cluster(tmp_path):
    path = written(tmp_path, "s.csv", "job_id,vc,num_gpu,submit_time,duration", "0,11cb48,8,0,52", "1,11cb48,1,600,67")
    trace = read_philly(path)
    assert trace.nodes == (TraceNodes(5, 8),)
    assert trace.jobs[1] == TraceJob(id="1", submit_ms=600_000, work_ms=67_000, gpus=1, team="11cb48")


def test_philly_with_a_bad_date_or_an_empty_file_says_so(tmp_path):
    bad = caught(read_philly, written(tmp_path, "p.csv", WHOLE[0], "yesterday,1.0,1,1.0,a"))
    assert (bad.line, bad.field) == (2, "timestamp")
    assert "2020-06-09" in bad.why
    assert "is empty" in caught(read_philly, written(tmp_path, "e.csv")).why


# --- Muri, Tiresias, ITP ------------------------------------------------------------------------------------

MURI = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
    "resource_time_0,resource_time_1,resource_time_2,priority"
)


def test_muri_works_for_its_iterations_not_for_its_duration(tmp_path):
    trace = read_muri(written(tmp_path, "m.csv", MURI, "0,8,1500,1000,gpt2,4,99,0,437,0,0,0,1"))
    assert trace.nodes == (TraceNodes(8, 8),)
    assert trace.jobs == (TraceJob(id="0", submit_ms=1500, work_ms=443_555, gpus=8, application="gpt2", priority=1),)


def test_muri_rounds_work_to_the_nearest_millisecond(tmp_path):
    trace = read_muri(written(tmp_path, "m.csv", MURI, "0,8,0,1,a,4,9,0,1,0,0,0,0", "1,8,0,3,a,4,9,0,0.5,0,0,0,0"))
    assert [job.work_ms for job in trace.jobs] == [1, 2]


def test_tiresias_is_in_seconds(tmp_path):
    header = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval"
    trace = read_tiresias(written(tmp_path, "t.csv", header, "0,1,30,606,vgg19,164,30"))
    assert trace.jobs == (TraceJob(id="0", submit_ms=30_000, work_ms=164_000, gpus=1, application="vgg19"),)


def test_itp_is_in_seconds(tmp_path):
    trace = read_itp(written(tmp_path, "i.csv", "job_id,submission_time,duration,num_gpu", "a-b,16,3890,4"))
    assert trace.jobs == (TraceJob(id="a-b", submit_ms=16_000, work_ms=3_890_000, gpus=4),)


# --- Alibaba openb ------------------------------------------------------------------------------------------

POD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
NODE = "sn,cpu_milli,memory_mib,gpu,model"


def test_openb_pods_have_parts_of_gpus_models_and_times(tmp_path):
    pods = written(
        tmp_path, "pods.csv", POD,
        "p0,6000,100,1,460,T4|P100,LS,Running,10,30,12",
        "p1,8000,200,0,0,,BE,Failed,11,20,",
        "p2,1,1,8,1000,,BE,Running,12,13,12",
    )  # fmt: skip
    first, second, third = read_openb(pods).jobs
    assert (first.gpus, first.gpu_milli, first.models, first.kind) == (1, 460, ("T4", "P100"), "LS")
    assert (first.submit_ms, first.started_ms, first.work_ms) == (10_000, 12_000, 18_000)
    assert (second.gpus, second.cpu_milli, second.memory_mib, second.status) == (0, 8000, 200, "Failed")
    assert (second.started_ms, second.work_ms) == (None, 9000)  # never scheduled: from creation to deletion
    assert third.gpus * third.gpu_milli == 8000


def test_openb_nodes_keep_the_order_of_the_file(tmp_path):
    pods = written(tmp_path, "pods.csv", POD, "p0,6000,100,1,460,,LS,Running,10,30,12")
    rows = ("n0,64000,262144,2,P100", "n1,64000,262144,2,P100", "n2,96000,1,8,G2", "n3,64000,262144,2,P100")
    nodes = read_openb(pods, written(tmp_path, "nodes.csv", NODE, *rows)).nodes
    assert [entry.names for entry in nodes] == [("n0", "n1"), ("n2",), ("n3",)]
    assert nodes[1] == TraceNodes(1, 8, "G2", 0, 96000, 1, ("n2",))


def test_openb_without_times_says_so_in_its_notes(tmp_path):
    trace = read_openb(
        written(tmp_path, "pods.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli", "b,1,1,1,1000", "a,1,1,0,0")
    )
    assert [(job.id, job.submit_ms, job.work_ms) for job in trace.jobs] == [("b", 0, 0), ("a", 0, 0)]
    assert "no times" in trace.notes[0]


OPENB_WRONG = {
    "deleted before it began": ("p,1,1,1,500,,LS,Running,10,5,", "deletion_time"),
    "more than a whole GPU": ("p,1,1,1,1500,,LS,Running,10,15,", "gpu_milli"),
    "none of its GPU": ("p,1,1,1,0,,LS,Running,10,15,", "gpu_milli"),
    "half of two GPUs": ("p,1,1,2,500,,LS,Running,10,15,", "gpu_milli"),
    "no creation": ("p,1,1,1,500,,LS,Running,,15,", "creation_time"),
}


@pytest.mark.parametrize(("row", "field"), OPENB_WRONG.values(), ids=OPENB_WRONG.keys())
def test_openb_refuses(tmp_path, row, field):
    error = caught(read_openb, written(tmp_path, "pods.csv", POD, row))
    assert (error.line, error.field) == (2, field)


def test_openb_with_only_some_times_names_the_missing_column(tmp_path):
    path = written(tmp_path, "pods.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli,deletion_time", "a,1,1,1,1000,5")
    assert caught(read_openb, path).field == "creation_time"


# --- Helios and Acme ----------------------------------------------------------------------------------------

HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"


def test_helios_skips_and_counts_what_is_no_gpu_job(tmp_path):
    path = written(
        tmp_path, "cluster_log.csv", HELIOS,
        "1,u1,vc1,16,64,2,COMPLETED,2020-01-01 00:00:00,2020-01-01 00:00:10,2020-01-01 00:01:10,60,10",
        "2,u1,vc1,0,64,1,COMPLETED,2020-01-01 00:00:00,2020-01-01 00:00:10,2020-01-01 00:01:10,60,10",
        "3,u1,vc1,1,4,1,CANCELLED,2020-01-01 00:00:00,,2020-01-01 00:01:10,,",
        "4,u1,vc1,1,4,1,CANCELLED,2020-01-01 00:00:00,None,Unknown,0,0",
        "5,u1,vc1,1,4,1,SUSPENDED,2020-01-01 00:00:00,2020-01-01 00:00:10,NaT,0,0",
    )  # fmt: skip
    trace = read_helios(path)
    assert dict(trace.skipped) == {"requests no GPU": 1, "never started": 2, "has no end": 1}
    assert trace.jobs == (
        TraceJob(
            id="1", submit_ms=MIDNIGHT_MS, work_ms=60_000, gpus=16, cpu_milli=64_000, team="vc1", user="u1",
            status="COMPLETED", started_ms=MIDNIGHT_MS + 10_000, nodes=2,
        ),
    )  # fmt: skip
    assert [job.gpus for job in read_helios(path, with_cpu_jobs=True).jobs] == [16, 0]


def test_helios_refuses_an_end_before_the_start(tmp_path):
    row = "1,u1,vc1,1,4,1,FAILED,2020-01-01 00:00:00,2020-01-01 00:00:10,2020-01-01 00:00:09,60,10"
    error = caught(read_helios, written(tmp_path, "h.csv", HELIOS, row))
    assert (error.line, error.field) == (2, "end_time")


ACME = (
    "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,"
    "end_time,fail_time,stop_time,duration,queue,gpu_time"
)


def test_acme_counts_work_from_the_start_and_memory_by_pod(tmp_path):
    row = (
        "dlc1,u2,8,64,960,1000,100.0,Pretrain,FAILED,2020-01-01 08:00:00+08:00,2020-01-01 08:00:10+08:00,"
        "2020-01-01 08:00:18+08:00,,,18,10.0,1152.0"
    )
    (job,) = read_acme(written(tmp_path, "trace_kalos.csv", ACME, row)).jobs
    assert (job.submit_ms, job.started_ms, job.work_ms) == (MIDNIGHT_MS, MIDNIGHT_MS + 10_000, 8000)
    assert (job.gpus, job.nodes, job.kind, job.memory_mib) == (64, 8, "Pretrain", 8 * 10**12 // 2**20)


def test_acme_seren_has_no_memory_and_skips_like_helios(tmp_path):
    header = "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time"
    times = "2020-01-01 00:00:00+08:00,2020-01-01 00:00:00+08:00,2020-01-01 00:00:09+08:00,9,0,0"
    rows = (f"1,u,1,8,128,Other,COMPLETED,{times}", f"2,u,1,0,128,Other,COMPLETED,{times}")
    trace = read_acme(written(tmp_path, "trace_seren.csv", header, *rows))
    assert [job.memory_mib for job in trace.jobs] == [0]
    assert trace.skipped == (("requests no GPU", 1),)


# --- Standard Workload Format -------------------------------------------------------------------------------

SWF = ("; Version: 2.2", "; MaxNodes: 120", "; MaxProcs: 240 (two each)", ";")


def test_swf_takes_what_is_known_and_leaves_what_is_not(tmp_path):
    path = written(
        tmp_path, "w.swf", *SWF,
        "  1 10  5 100 4 99.5 -1  8 600 2048 1 7  3 -1 0 -1 -1 -1",
        "  2 20 -1  50 2   -1 -1 -1  -1   -1 0 -1 -1  4 0 -1 -1 -1",
        "  ",
    )  # fmt: skip
    trace = read_swf(path)
    assert trace.nodes == (TraceNodes(120, 2),)
    assert trace.jobs == (
        TraceJob(
            id="1", submit_ms=10_000, work_ms=100_000, gpus=8, memory_mib=16, team="3", user="7",
            limit_ms=600_000, status="completed", started_ms=15_000,
        ),
        TraceJob(id="2", submit_ms=20_000, work_ms=50_000, gpus=2, application="4", status="failed"),
    )  # fmt: skip


def test_swf_skips_and_counts_what_cannot_be_replayed(tmp_path):
    path = written(
        tmp_path, "w.swf",
        "1 0 -1 -1 4 -1 -1 4 -1 -1 5 -1 -1 -1 -1 -1 -1 -1",
        "2 0 -1 9 -1 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1",
        "3 0 -1 9 1 -1 -1 -1 -1 -1 2 -1 -1 -1 -1 -1 -1 -1",
        "3 0 -1 9 1 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1",
    )  # fmt: skip
    trace = read_swf(path)
    assert [job.id for job in trace.jobs] == ["3"]
    assert [count for _, count in trace.skipped] == [1, 1, 1]
    assert trace.nodes == ()


SWF_WRONG = {
    "too few numbers": ("1 0 -1 9 1", "average_cpu_time"),
    "too many numbers": ("1 0 -1 9 1 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1 7", ""),
    "a word": ("1 0 -1 nine 1 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1", "run_time"),
    "a status that there is not": ("1 0 -1 9 1 -1 -1 -1 -1 -1 9 -1 -1 -1 -1 -1 -1 -1", "status"),
    "no submission": ("1 -1 -1 9 1 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1", "submit_time"),
}


@pytest.mark.parametrize(("line", "field"), SWF_WRONG.values(), ids=SWF_WRONG.keys())
def test_swf_refuses(tmp_path, line, field):
    error = caught(read_swf, written(tmp_path, "w.swf", ";", line))
    assert (error.line, error.field) == (2, field)


# --- Gavel and Shockwave ------------------------------------------------------------------------------------

TYPE = "LM (batch size 5)"
TABLE = {
    "v100": {f"('{TYPE}', 1)": {"null": 4.0}, f"('{TYPE}', 2)": {"null": 0.0}},
    "k80": {f"('{TYPE}', 1)": {"null": 2.0}},
}


def gavel_line(kind: str = TYPE, steps: str = "100", scale: str = "1", *extra: str) -> str:
    return "\t".join([kind, "python3 main.py", "lm", "--steps", "1", steps, scale, *extra, "1", "-1.000000", "30.5"])


def test_gavel_turns_steps_into_time_on_a_gpu_type(tmp_path):
    table = written(tmp_path, "x_throughputs.json.gz", json.dumps(TABLE))
    path = written(tmp_path, "w.trace", gavel_line())
    assert read_gavel(path, table).jobs == (
        TraceJob(id="0", submit_ms=30_500, work_ms=25_000, gpus=1, application=TYPE),
    )
    assert read_gavel(path, table, gpu_type="k80").jobs[0].work_ms == 50_000
    with pytest.raises(UnknownTrace, match="Did you mean 'v100'"):
        read_gavel(path, table, gpu_type="v10")


GAVEL_WRONG = {
    "a job type that was not measured": (gavel_line("LM (batch size 6)"), "job_type", "Did you mean"),
    "a size that does not run": (gavel_line(scale="2"), "job_type", "Choose another GPU type"),
    "a line that ends early": ("LM\tpython3", "working_directory", "ends before"),
    "steps that are no number": (gavel_line(steps="many"), "total_steps", "not a number"),
}


@pytest.mark.parametrize(("line", "field", "why"), GAVEL_WRONG.values(), ids=GAVEL_WRONG.keys())
def test_gavel_refuses(tmp_path, line, field, why):
    table = written(tmp_path, "x_throughputs.json", json.dumps(TABLE))
    error = caught(read_gavel, written(tmp_path, "w.trace", line), table)
    assert (error.line, error.field) == (1, field)
    assert why in error.why


def test_gavel_with_a_broken_table_names_the_table(tmp_path):
    table = written(tmp_path, "x_throughputs.json", "{", "nothing")
    assert caught(read_gavel, written(tmp_path, "w.trace", gavel_line()), table).file == str(table)


def test_shockwave_has_its_time_in_a_column(tmp_path):
    line = f"{TYPE}\tpython3\tlm\t--steps\t1\t100\t4\tgns\t1\t-1.0\t1418\t55"
    assert read_shockwave(written(tmp_path, "w.trace", line)).jobs == (
        TraceJob(id="0", submit_ms=55_000, work_ms=1_418_000, gpus=4, application=TYPE, kind="gns"),
    )


# --- Corral's own table, and moving to zero ------------------------------------------------------------------

FULL = TraceJob(
    id="a", submit_ms=7, work_ms=9, gpus=1, gpu_milli=250, models=("A", "B"), cpu_milli=5, memory_mib=6, team="t",
    user="None", application="x, y", kind="k", priority=-3, limit_ms=11, status="failed", started_ms=8, nodes=1,
)  # fmt: skip


def test_what_is_written_is_read_back_equal(tmp_path):
    jobs = (FULL, TraceJob(id="b", submit_ms=8, work_ms=0, gpus=0))
    write_table(Trace("x", jobs), tmp_path / "jobs.csv")
    assert read_table(tmp_path / "jobs.csv").jobs == jobs


def test_a_table_needs_four_columns_only(tmp_path):
    path = written(tmp_path, "jobs.csv", "id,submit_ms,work_ms,gpus,limit_ms", "a,1,2,3,", "b,1,2,3,4")
    assert [job.limit_ms for job in read_table(path).jobs] == [None, 4]


def test_a_misspelt_column_of_a_table_is_an_error(tmp_path):
    path = written(tmp_path, "jobs.csv", "id,submit_ms,work_ms,gpus,prioritty", "a,1,2,3,4")
    error = caught(read_table, path)
    assert (error.line, error.field) == (1, "prioritty")
    assert "'priority'" in error.why


def test_moving_to_zero_moves_starts_too():
    moved = from_zero(Trace("x", (FULL, TraceJob(id="b", submit_ms=9, work_ms=1, gpus=1))))
    assert [(job.submit_ms, job.started_ms) for job in moved.jobs] == [(0, 1), (2, None)]
    assert from_zero(Trace("x", ())).jobs == ()
