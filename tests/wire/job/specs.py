"""Strategies for jobs: any spec that a document can express, and any JSON at all."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from corral.core.cluster.resources import Demand, TaskDemand, amounts
from corral.core.intake.submission import faults_of
from corral.core.model import DEFAULT_RETRIES, After, Dependency, GangSpec, JobSpec, RetryRule
from corral.core.work import EarlySignal, Mount, Work
from corral.wire.durations import MOST_MS
from corral.wire.job.program import SIGNALS
from corral.wire.job.timing import LATEST_MS

WORDS = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,11}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
PATHS = st.builds("/{}".format, TEXTS)
SPANS = st.integers(0, MOST_MS)
POSITIVE_SPANS = st.integers(1, MOST_MS)
MOMENTS = st.integers(0, LATEST_MS)
MIB = st.integers(1, 1 << 30)


def some(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | of


def pairs(key: st.SearchStrategy[str], value: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.dictionaries(key, value, max_size=3).map(lambda found: tuple(found.items()))


def tuples(of: st.SearchStrategy[Any], least: int = 0) -> st.SearchStrategy[Any]:
    return st.lists(of, min_size=least, max_size=3).map(tuple)


NAMED = st.fixed_dictionaries(
    {}, optional={"cpu_milli": st.integers(1, 10**9), "memory_mib": MIB, "disk_mib": MIB, "licence": st.integers(0, 9)}
).map(amounts)


@st.composite
def task_demands(draw: st.DrawFn) -> TaskDemand:
    slice_mib = draw(st.just(0) | MIB)
    gpus = 0 if slice_mib else draw(st.integers(0, 16))
    low, high = sorted(draw(st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 20))))
    high_or_none = draw(st.sampled_from([high, None]))
    return TaskDemand(gpus, slice_mib, draw(tuples(WORDS)), low, high_or_none, draw(NAMED))


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    task = draw(task_demands())
    least = draw(st.integers(0, 4))
    step = draw(st.integers(1, 3))
    tasks = (least or draw(st.integers(1, 8))) + step * draw(st.integers(0, 4))
    spread, prefer = draw(st.just("") | WORDS), draw(st.just("") | WORDS)
    return Demand(
        task=task,
        tasks=tasks,
        tasks_min=least,
        step=step if least else 1,
        spares=draw(st.integers(0, 3)),
        tp=draw(st.sampled_from([1, task.gpus])) if task.gpus else 1,
        within=draw(st.just("") | WORDS),
        prefer=prefer,
        prefer_wait_ms=draw(SPANS) if prefer else 0,
        spread=spread,
        spread_max=draw(st.integers(1, 5)) if spread else 1,
    )


WORKS = st.builds(
    Work,
    command=tuples(TEXTS, least=1),
    env=pairs(WORDS, TEXTS),
    secrets=pairs(WORDS, WORDS),
    directory=st.just("") | PATHS,
    processes=st.integers(0, 8),
    image=st.just("") | TEXTS,
    mounts=tuples(st.builds(Mount, PATHS, PATHS, st.booleans())),
    output=st.just("") | TEXTS,
    error=st.just("") | TEXTS,
    early_signal=some(st.builds(EarlySignal, st.sampled_from(SIGNALS), SPANS)),
    compat=st.sampled_from(["", "slurm"]),
    hold_on_fail_ms=SPANS,
)
GANGS = st.one_of(
    st.builds(GangSpec, demands(), st.just("main"), WORKS).map(lambda gang: (gang,)),
    st.lists(st.builds(GangSpec, demands(), WORDS, WORKS), min_size=1, max_size=3, unique_by=lambda g: g.role).map(
        tuple
    ),
)
RULES = st.builds(RetryRule, some(st.integers(0, 9)), SPANS, st.booleans(), st.integers(0, 900))
RETRIES = st.dictionaries(st.sampled_from(list(DEFAULT_RETRIES)), RULES, max_size=3).map(lambda r: tuple(r.items()))
ARRAYS = st.lists(st.integers(0, 30), unique=True, max_size=12).map(tuple)


@st.composite
def job_specs(draw: st.DrawFn) -> JobSpec:
    array = draw(ARRAYS)
    return JobSpec(
        queue=draw(WORDS),
        gangs=draw(GANGS),
        name=draw(WORDS),
        priority=draw(st.integers(-1000, 1000)),
        array=array,
        array_parallel=draw(some(st.integers(1, 40))) if array else None,
        after=draw(tuples(st.builds(Dependency, WORDS, st.sampled_from(After)))),
        singleton=draw(st.booleans()),
        begin_ms=draw(some(MOMENTS)),
        deadline_ms=draw(some(MOMENTS)),
        time_limit_ms=draw(some(POSITIVE_SPANS)),
        estimate_ms=draw(some(POSITIVE_SPANS)),
        min_runtime_ms=draw(SPANS),
        grace_ms=draw(SPANS),
        start_timeout_ms=draw(SPANS),
        restart_cost_ms=draw(SPANS),
        checkpoints=draw(st.booleans()),
        leaves_slow_nodes=draw(st.booleans()),
        preemptible=draw(st.booleans()),
        requeue_exit=draw(st.integers(0, 255)),
        retries=draw(RETRIES),
        held=draw(st.booleans()),
        labels=draw(pairs(WORDS, TEXTS)),
    )


def is_sound(spec: JobSpec) -> bool:
    return next(faults_of(spec), None) is None


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
    | st.sampled_from(["8xH100", "2..8", "1h", "+2h", "40GB..", "64GiB", "0-9%2", "SIGUSR1@60s", "gpu", "forever"])
    | st.just("\ud800")
)  # fmt: skip
