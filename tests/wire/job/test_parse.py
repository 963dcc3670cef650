"""The job document, key by key: what each says, what is refused and where, what is inherited."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from corral.core.cluster.resources import Demand, Gpu, TaskDemand
from corral.core.model import After, Dependency, FailureClass, JobSpec, RetryRule
from corral.core.work import EarlySignal, Mount, Work
from corral.wire.job import DocumentLimits, parse_job

NOW_MS = 1_800_000_000_000
ONE_CPU = (("cpu_milli", 1000),)


def job(**keys: Any) -> JobSpec:
    found = parse_job({"command": "x"} | keys, now_ms=NOW_MS)
    assert isinstance(found, JobSpec), found
    return found


def demand(**keys: Any) -> Demand:
    return job(**keys).gangs[0].demand


def work(**keys: Any) -> Work:
    found = job(**keys).gangs[0].work
    assert found is not None
    return found


def faults(document: Any, **options: Any) -> dict[str, str]:
    found = parse_job(document, now_ms=NOW_MS, **options)
    assert isinstance(found, list), found
    return {fault.field: fault.code for fault in found}


# --- what keys say ---------------------------------------------------------------------------------------------------


def test_a_command_alone_is_a_job_on_one_cpu_in_the_default_queue() -> None:
    spec = parse_job({"command": "echo hi"})
    assert isinstance(spec, JobSpec)
    assert spec.queue == "default"
    (gang,) = spec.gangs
    assert gang.role == "main"
    assert gang.work == Work(command=("bash", "-c", "echo hi"))
    assert gang.demand == Demand(task=TaskDemand(amounts=ONE_CPU))


def test_a_list_is_executed_as_it_is() -> None:
    assert work(command=["python", "a b.py"]).command == ("python", "a b.py")


@pytest.mark.parametrize("stated", [8, 8.0, "8"])
def test_gpus(stated: Any) -> None:
    assert demand(gpus=stated).task == TaskDemand(gpus=8)


@pytest.mark.parametrize("stated", ["8xH100", "8 x H100", "H100:8", "8*H100"])
def test_gpus_of_a_model(stated: str) -> None:
    assert demand(gpus=stated).task == TaskDemand(gpus=8, models=("H100",))


def test_gpus_in_other_words() -> None:
    assert demand(gpus="H100").task == TaskDemand(gpus=1, models=("H100",))
    assert demand(gpus="2xH100|H200").task == TaskDemand(gpus=2, models=("H100", "H200"))
    assert demand(gpu={"model": "H100"}).task == TaskDemand(gpus=1, models=("H100",))
    assert demand(gpus=4, gpu={"vram": "40GB.."}).task == TaskDemand(gpus=4, vram_mib_min=38_146)
    assert demand(gpus=0).task == TaskDemand(amounts=ONE_CPU)


def test_80gb_is_a_card_that_is_sold_as_that() -> None:
    task = demand(gpu={"count": 8, "vram": "80GB"}).task
    assert task.accepts(Gpu("u", "H100", 81_559))
    assert not task.accepts(Gpu("u", "A100", 40_960))
    assert not task.accepts(Gpu("u", "H200", 143_771))


def test_a_slice_of_a_gpu() -> None:
    assert demand(vram="10GiB").task == TaskDemand(slice_mib=10_240)
    assert demand(vram="10GiB", gpu={"model": "A100"}).task == TaskDemand(slice_mib=10_240, models=("A100",))


def test_amounts_of_a_task() -> None:
    stated = demand(cpus=0.5, memory="64GiB", disk="1GB", resources={"licence": 2}).task.amounts
    assert stated == (("cpu_milli", 500), ("disk_mib", 954), ("licence", 2), ("memory_mib", 65_536))


def test_sizes_of_a_gang() -> None:
    assert demand(tasks=4).tasks == 4
    assert demand(tasks="2..8/2") == demand(tasks={"min": 2, "max": 8, "step": 2})
    assert demand(tasks="2..8").tasks_min == 2
    spread = demand(nodes=4)
    assert (spread.tasks, spread.spread, spread.spread_max) == (4, "node", 1)


def test_places_of_a_gang() -> None:
    found = demand(gpus=8, tasks=2, tp=8, within="zone", prefer="rack", spread={"level": "rack", "max": 2}, spares=1)
    assert (found.tp, found.within, found.spares) == (8, "zone", 1)
    assert (found.prefer, found.prefer_wait_ms, found.spread, found.spread_max) == ("rack", 0, "rack", 2)
    assert demand(prefer={"level": "rack", "wait": "10m"}).prefer_wait_ms == 600_000


def test_order_and_time() -> None:
    spec = job(priority="high", begin="+2h", deadline="2027-06-01T08:00:00+02:00", time_limit="6h", estimate="90m")
    assert spec.priority == 100
    assert spec.begin_ms == NOW_MS + 7_200_000
    assert spec.deadline_ms == 1_811_829_600_000
    assert (spec.time_limit_ms, spec.estimate_ms) == (21_600_000, 5_400_000)
    assert job(priority=-7).priority == -7


def test_arrays() -> None:
    assert job(array="0-3").array == (0, 1, 2, 3)
    assert job(array="9,1-5:2%2") == job(array={"range": "9,1-5:2", "parallel": 2})
    assert job(array=[3, 1]).array == (3, 1)
    assert job(array="10").array == (10,)


def test_dependencies() -> None:
    found = job(after=["12", "any:13", 14, {"job": "15", "when": "not_ok"}]).after
    assert found == (
        Dependency("12"), Dependency("13", After.ANY), Dependency("14"), Dependency("15", After.NOT_OK)
    )  # fmt: skip
    assert job(after="ok:12").after == (Dependency("12"),)


def test_retries() -> None:
    assert job(retries=3).retries == ((FailureClass.USER_ERROR, RetryRule(3)),)
    found = dict(job(retries={"out_of_memory": {"grow_memory": "50%"}, "gpu_fault": 2, "network": "forever"}).retries)
    assert found[FailureClass.OUT_OF_MEMORY] == RetryRule(1, grow_memory_percent=50)
    assert found[FailureClass.GPU_FAULT] == RetryRule(2, avoid_node=True)
    assert found[FailureClass.NETWORK] == RetryRule(None)


def test_what_surrounds_a_command() -> None:
    found = work(
        env={"A": "1", "B": 2}, secrets={"KEY": "wandb"}, directory="/w", processes="gpu", image="img", output="%j.out",
        mounts=["/a:/b:ro", "/c"], signal="USR1@90s", compat="slurm", hold_on_fail="30m", gpus=1,
    )  # fmt: skip
    assert found.env == (("A", "1"), ("B", "2"))
    assert found.secrets == (("KEY", "wandb"),)
    assert (found.processes, found.hold_on_fail_ms, found.compat) == (0, 1_800_000, "slurm")
    assert found.mounts == (Mount("/a", "/b", True), Mount("/c", "/c"))
    assert found.early_signal == EarlySignal("SIGUSR1", 90_000)


# --- several gangs ---------------------------------------------------------------------------------------------------


def test_gangs_inherit_what_they_do_not_say() -> None:
    spec = job(
        env={"A": "1", "B": "2"}, gpus=8, nodes=2, image="i",
        gangs=[{"role": "a", "env": {"B": "3"}}, {"role": "b", "vram": "1GiB", "tasks": 3, "command": ["y"]}],
    )  # fmt: skip
    first, second = spec.gangs
    assert first.work == Work(command=("bash", "-c", "x"), env=(("A", "1"), ("B", "3")), image="i")
    assert (first.demand.task.gpus, first.demand.tasks, first.demand.spread) == (8, 2, "node")
    assert second.work is not None
    assert second.work.command == ("y",)
    assert second.demand == Demand(task=TaskDemand(slice_mib=1024), tasks=3)


# --- what is wrong ---------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Any, dict[str, str]]] = {
    "no mapping": ([], {"": "wrong_type"}),
    "no command": ({"gpus": 1}, {"command": "missing"}),
    "no command in a gang": ({"gangs": [{"role": "a"}]}, {"gangs[0].command": "missing"}),
    "an empty command": ({"command": " "}, {"command": "empty"}),
    "a command of numbers": ({"command": ["sleep", 5]}, {"command": "wrong_type"}),
    "a NUL": ({"command": "a\0b"}, {"command": "bad_text"}),
    "half a surrogate": ({"command": "x", "directory": "/\ud800"}, {"directory": "bad_text"}),
    "nothing": ({"command": "x", "name": None}, {"name": "empty"}),
    "set by the server": ({"command": "x", "user": "root", "id": "1"}, {"user": "unknown_key", "id": "unknown_key"}),
    "a name with blanks": ({"command": "x", "name": "my job"}, {"name": "bad_text"}),
    "a number that is text": ({"command": "x", "tp": "8"}, {"tp": "wrong_type"}),
    "true is no number": ({"command": "x", "gpus": True}, {"gpus": "wrong_type"}),
    "a span without unit": ({"command": "x", "grace": 30}, {"grace": "bad_span"}),
    "no time limit at all": ({"command": "x", "time_limit": "0s"}, {"time_limit": "out_of_range"}),
    "a time without zone": ({"command": "x", "begin": "2026-05-01T08:00"}, {"begin": "bad_time"}),
    "an array as a number": ({"command": "x", "array": 10}, {"array": "bad_array"}),
    "an index twice": ({"command": "x", "array": "1,1"}, {"array": "bad_array"}),
    "an array that is too large": ({"command": "x", "array": "0-10000"}, {"array": "array_too_large"}),
    "gpus twice": ({"command": "x", "gpus": 1, "gpu": {"count": 2}}, {"gpu.count": "conflict"}),
    "a slice and whole gpus": ({"command": "x", "gpus": 1, "vram": "1GB"}, {"vram": "gpus_and_slice"}),
    "nodes and tasks": ({"command": "x", "nodes": 2, "tasks": 2}, {"nodes": "conflict"}),
    "tp that does not divide": ({"command": "x", "gpus": 8, "tp": 3}, {"tp": "bad_tp"}),
    "a step that leads nowhere": ({"command": "x", "tasks": "2..8/4"}, {"tasks": "bad_range"}),
    "a singleton without name": ({"command": "x", "singleton": True}, {"name": "singleton_without_name"}),
    "an early deadline": ({"command": "x", "begin": "+2h", "deadline": "+1h"}, {"deadline": "deadline_before_begin"}),
    "two equal roles": ({"command": "x", "gangs": [{"role": "a"}, {"role": "a"}]}, {"gangs": "duplicate_role"}),
    "tp in a gang": ({"command": "x", "gangs": [{"role": "a", "gpus": 8, "tp": 3}]}, {"gangs[0].tp": "bad_tp"}),
    "an unknown class": ({"command": "x", "retries": {"oom": 1}}, {"retries.oom": "unknown_key"}),
    "a signal that cannot be had": ({"command": "x", "signal": "SIGKILL@1m"}, {"signal": "bad_signal"}),
    "a known resource": ({"command": "x", "resources": {"cpu_milli": 1}}, {"resources.cpu_milli": "bad_choice"}),
    "a relative directory": ({"command": "x", "directory": "runs"}, {"directory": "bad_text"}),
    "decimals in the environment": ({"command": "x", "env": {"V": 3.1}}, {"env.V": "wrong_type"}),
    "a bad variable": ({"command": "x", "env": {"A-B": "1"}}, {"env.A-B": "bad_text"}),
}  # fmt: skip


@pytest.mark.parametrize(("document", "wanted"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_said_where_it_stands(document: Any, wanted: dict[str, str]) -> None:
    assert faults(document) == wanted


def test_everything_is_reported_at_once() -> None:
    document = {
        "nme": "a",
        "gpus": -1,
        "gpu": {"vrm": 1},
        "time_limit": "soon",
        "env": {"1": "x"},
        "retries": {"network": "x"},
    }
    assert faults(document) == {
        "nme": "unknown_key", "gpus": "out_of_range", "gpu.vrm": "unknown_key", "time_limit": "bad_span",
        "env.1": "bad_text", "retries.network": "wrong_type", "command": "missing",
    }  # fmt: skip


NEAREST = {
    "gpu_s": "gpus", "Memory": "memory", "time-limit": "time_limit", "partition": "queue", "workdir": "directory",
    "num_nodes": "nodes", "accelerators": "gpus", "run": "command",
}  # fmt: skip


@pytest.mark.parametrize(("written", "meant"), NEAREST.items(), ids=NEAREST.keys())
def test_the_nearest_key_is_named(written: str, meant: str) -> None:
    found = parse_job({"command": "x", written: 1})
    assert isinstance(found, list)
    assert f"did you mean {meant}?" in found[0].hint


def test_bounds_can_be_given() -> None:
    tight = DocumentLimits(env_count=1, array_size=2, command_bytes=10, labels=0, gpus=4, name_chars=3)
    document = {
        "name": "long",
        "command": "x" * 11,
        "env": {"A": "1", "B": "2"},
        "array": "0-2",
        "labels": {"a": "b"},
        "gpus": 8,
    }
    assert set(faults(document, limits=tight)) == set(document)


def test_what_parses_jobs_is_light() -> None:
    heavy = ("ruamel.yaml", "rich", "starlette", "sqlite3", "asyncio", "difflib", "corral.policy")
    program = f"import sys, corral.wire.job; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
