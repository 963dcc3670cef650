"""Workloads of the Pollux simulator: applications, numbers of GPUs and batch sizes.

The length of a job is not in the source. It follows from the measured tables of its application, as in the published
simulator: each epoch needs a certain progress, a step makes more of it the larger the batch (by the measured gradient
noise), and a step takes as long as it was measured to take on GPUs packed four to a node. Resizing is not modelled.
"""

from __future__ import annotations

import re
from itertools import pairwise
from math import ceil
from pathlib import Path

from msgspec import Struct

from corral.sim.traces.text_rows import Gathering, TraceError, TraceRow, nearest, read_rows
from corral.sim.traces.trace import Trace, TraceJob, TraceNodes

_WORKLOAD = ("name", "time", "application", "num_replicas", "batch_size")
_CLUSTER = TraceNodes(16, 4, "T4")

# yolov3 was measured with more images a GPU than the published simulator lets it have.
_LOCAL_BATCH_MAX = {"yolov3": 8}

_VALIDATION = re.compile(r"validation-(?P<batch>\d+)\.csv(\.gz)?$")

_NOTE = "Work is derived from the tables of each application for GPUs packed four to a node, without start-up time."


class Step(Struct, frozen=True):
    """Measured: the time of a step by samples per GPU, and its part for synchronisation."""

    local_batch: int
    step_s: float
    sync_s: float


class Epoch(Struct, frozen=True):
    """Measured: progress at the end of an epoch, and the gradient's square and variance in it."""

    progress: float
    grad_sqr: float
    grad_var: float


class Measured(Struct, frozen=True):
    """The tables of one application."""

    steps: dict[tuple[int, ...], tuple[Step, ...]]  # by GPUs on each node, smallest rotation first
    spread: dict[tuple[int, int], tuple[Step, ...]]  # by (nodes, GPUs), for more than four nodes
    epochs: dict[int, tuple[Epoch, ...]]  # by batch size, sizes rising
    local_batch_max: int


def read_pollux(path: Path, profiles: Path | None = None, name: str = "pollux") -> Trace:
    """Profiles are looked for beside the folder of the workload if not given."""
    profiles = profiles or path.parent.parent / "app_profiles"
    known: dict[str, Measured] = {}
    gathering = Gathering(name, path)
    for row in read_rows(path, _WORKLOAD):
        application = row.text("application")
        if application not in known:
            known[application] = _tables_of(row, profiles)
        gathering.take(row, "name", _job(row, known[application]))
    return gathering.trace([_CLUSTER], [_NOTE])


def _job(row: TraceRow, tables: Measured) -> TraceJob:
    gpus = row.whole("num_replicas", least=1)
    return TraceJob(
        id=row.text("name"),
        submit_ms=row.ms("time"),
        work_ms=round(_work_s(row, tables, gpus, row.whole("batch_size", least=1)) * 1000),
        gpus=gpus,
        application=row.text("application"),
    )


def _work_s(row: TraceRow, tables: Measured, gpus: int, batch: int) -> float:
    local_batch, extra_steps = _split(tables, gpus, batch)
    step_s, sync_s = _step_time(row, tables, gpus, local_batch)
    whole_step_s = step_s + extra_steps * (step_s - sync_s)  # only the last of them is synchronised
    really = gpus * local_batch * (extra_steps + 1)
    low = max((size for size in tables.epochs if size <= really), default=None)
    high = min((size for size in tables.epochs if size >= really), default=None)
    if low is None or high is None:
        sizes = ", ".join(map(str, tables.epochs))
        raise row.wrong("batch_size", f"comes to {really}, but was measured for {sizes} only.")
    part = (really - low) / (high - low) if high > low else 0.0
    scale = really / min(tables.epochs)
    steps, reached = 0.0, 0.0
    for number, ends in enumerate(zip(*tables.epochs.values(), strict=False)):
        needed = min(epoch.progress for epoch in ends)
        sqr = _between(tables.epochs[low][number].grad_sqr, tables.epochs[high][number].grad_sqr, part)
        var = _between(tables.epochs[low][number].grad_var, tables.epochs[high][number].grad_var, part)
        steps += (needed - reached) * (var / scale + sqr) / (var + sqr)
        reached = needed
    return steps * whole_step_s


def _split(tables: Measured, gpus: int, batch: int) -> tuple[int, int]:
    """Samples per GPU in one pass, and the number of further passes before it synchronises."""
    share = ceil(batch / gpus)
    extra_steps = ceil(share / tables.local_batch_max) - 1
    if gpus == 1 and batch > min(tables.epochs):
        extra_steps = max(1, extra_steps)  # the gradient's noise cannot be measured on one GPU in one step
    at_once = ceil(share / (extra_steps + 1))
    return min(at_once, max(tables.epochs) // (gpus * (extra_steps + 1))), extra_steps


def _step_time(row: TraceRow, tables: Measured, gpus: int, local_batch: int) -> tuple[float, float]:
    packed = (4,) * (gpus // 4) + ((gpus % 4,) if gpus % 4 else ())
    steps = tables.steps.get(_smallest_rotation(packed)) or tables.spread.get((len(packed), gpus))
    if not steps:
        raise row.wrong("num_replicas", f"is {gpus}, for which nothing was measured on nodes of four GPUs.")
    for one, other in pairwise(steps):
        if one.local_batch <= local_batch <= other.local_batch > one.local_batch:
            part = (local_batch - one.local_batch) / (other.local_batch - one.local_batch)
            return _between(one.step_s, other.step_s, part), _between(one.sync_s, other.sync_s, part)
    least, most = steps[0].local_batch, steps[-1].local_batch
    raise row.wrong("batch_size", f"gives {local_batch} a GPU, but was measured from {least} to {most} only.")


def _between(one: float, other: float, part: float) -> float:
    return one + part * (other - one)


def _smallest_rotation(placement: tuple[int, ...]) -> tuple[int, ...]:
    return min(placement[i:] + placement[:i] for i in range(len(placement)))


def _tables_of(row: TraceRow, profiles: Path) -> Measured:
    application = row.text("application")
    folder = profiles / application
    if not folder.is_dir():
        if not profiles.is_dir():
            raise TraceError(str(profiles), 0, "", "there is no such folder. It must contain a folder per application.")
        near = nearest(application, [entry.name for entry in profiles.iterdir()])
        raise row.wrong("application", f"is {application!r}, which has no tables in {profiles}.{near}")
    steps: dict[tuple[int, ...], list[Step]] = {}
    for measured in read_rows(_either(folder / "placements.csv"), ("placement", "local_bsz", "step_time", "sync_time")):
        steps.setdefault(tuple(map(int, str(measured.whole("placement", least=1)))), []).append(_step(measured))
    spread: dict[tuple[int, int], list[Step]] = {}
    for measured in read_rows(_either(folder / "scalability.csv"), ("num_nodes", "num_replicas", "local_bsz")):
        spread.setdefault((measured.whole("num_nodes"), measured.whole("num_replicas")), []).append(_step(measured))
    return Measured(
        {key: _rising(found) for key, found in steps.items()},
        {key: _rising(found) for key, found in spread.items()},
        _epochs(folder),
        _LOCAL_BATCH_MAX.get(application) or max(step.local_batch for found in steps.values() for step in found),
    )


def _epochs(folder: Path) -> dict[int, tuple[Epoch, ...]]:
    files = {int(found["batch"]): path for path in folder.iterdir() if (found := _VALIDATION.match(path.name))}
    if not files:
        raise TraceError(
            str(folder), 0, "", "has no validation-<batch size>.csv, so the end of a job cannot be computed."
        )
    return {batch: tuple(_epoch(row) for row in read_rows(files[batch], ("progress",))) for batch in sorted(files)}


def _epoch(row: TraceRow) -> Epoch:
    epoch = Epoch(row.number("progress"), row.number("grad_sqr"), row.number("grad_var"))
    if epoch.grad_sqr + epoch.grad_var <= 0:
        raise row.wrong("grad_sqr", "and grad_var are 0, so nothing is known of the gradient's noise.")
    return epoch


def _step(row: TraceRow) -> Step:
    return Step(row.whole("local_bsz", least=1), row.number("step_time"), row.number("sync_time"))


def _rising(steps: list[Step]) -> tuple[Step, ...]:
    return tuple(sorted(steps, key=lambda step: step.local_batch))


def _either(path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    return packed if packed.exists() and not path.exists() else path
