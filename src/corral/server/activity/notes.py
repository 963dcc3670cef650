"""What is wrong with a running job by what it does: idle GPUs, ranks that hang, a loss that is not a number. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from corral.duration_text import span
from corral.wire.api.activity import GpuActivityView, RankActivityView, TaskActivityView

IDLE_MS_MIN = 5 * 60_000
#: A rank is stalled if its last step was longer ago than this, and than this many of its steps take.
STALLED_MS_MIN = 60_000
STALLED_STEPS_MIN = 10
NO_CPU_MILLI = 20
_NAMED_MAX = 4  # GPUs and ranks that are named
ALONE_RANKS_MIN = 3  # fewer cannot outvote one
_SUSPICION = "suspected silent data corruption"


def notes(tasks: Sequence[TaskActivityView]) -> tuple[str, ...]:
    corrupt = tuple(_corrupt_ranks(tasks))
    return (*_idle_gpus(tasks), *_stalled_ranks(tasks), *corrupt, *(() if corrupt else _lost_losses(tasks)))


def is_idle(gpu: GpuActivityView) -> bool:
    return gpu.idle_ms is not None and gpu.idle_ms >= IDLE_MS_MIN


def is_stalled(rank: RankActivityView) -> bool:
    """No step for many times as long as a step usually takes."""
    if rank.since_step_ms is None or rank.step_ms is None:
        return False
    return rank.since_step_ms >= max(STALLED_MS_MIN, STALLED_STEPS_MIN * rank.step_ms)


def hangs(rank: RankActivityView, task: TaskActivityView) -> bool:
    """Stalled, and no CPU is used that could still be making a step."""
    cpu_milli = task.cpu_milli if rank.cpu_milli is None else rank.cpu_milli
    return is_stalled(rank) and cpu_milli is not None and cpu_milli < NO_CPU_MILLI


def _idle_gpus(tasks: Sequence[TaskActivityView]) -> Iterator[str]:
    every = [(task, gpu) for task in tasks for gpu in task.gpus]
    idle = [(task, gpu) for task, gpu in every if is_idle(gpu)]
    if not idle:
        return
    least_ms = min(gpu.idle_ms or 0 for _, gpu in idle)
    which = "" if len(idle) == len(every) else f": {_named([f'{task.node} GPU {gpu.slot}' for task, gpu in idle])}"
    yield f"{len(idle)} of {len(every)} GPUs idle for {span(least_ms)}{which}"


def _stalled_ranks(tasks: Sequence[TaskActivityView]) -> Iterator[str]:
    stalled = [(task, rank) for task in tasks for rank in task.ranks if is_stalled(rank)]
    hung = [(task, rank) for task, rank in stalled if hangs(rank, task)]
    for found, why in ((hung, ", and it uses no CPU: it probably hangs"), ([] if hung else stalled, "")):
        if found:
            task, rank = max(found, key=lambda each: each[1].since_step_ms or 0)
            others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            usual = f"a step usually takes {span(rank.step_ms or 0)}"
            yield (
                f"rank {rank.rank} on {task.node}{others} has done no step for {span(rank.since_step_ms or 0)}; "
                f"{usual}{why}"
            )


def _lost_losses(tasks: Sequence[TaskActivityView]) -> Iterator[str]:
    found = [
        (rank.rank, name)
        for task in tasks
        for rank in task.ranks
        for name, value in rank.metrics.items()
        if value is None
    ]
    if found:
        names = _named([f"{name} of rank {rank}" for rank, name in found])
        yield f"not a finite number: {names}; the training may have diverged"


def _corrupt_ranks(tasks: Sequence[TaskActivityView]) -> Iterator[str]:
    """What one rank alone computes wrongly is probably the fault of its hardware: all do the same work."""
    every = [(task, rank) for task in tasks for rank in task.ranks]
    losses = [(task, rank) for task, rank in every if "loss" in rank.metrics]
    bad = [(task, rank) for task, rank in losses if rank.metrics["loss"] is None]
    if len(losses) >= ALONE_RANKS_MIN and len(bad) == 1:
        yield f"the loss of {_place(*bad[0])} alone is not a finite number: {_SUSPICION}"
    steps = Counter(rank.parameters[0] for _, rank in every if rank.parameters is not None)
    for step in (step for step, count in steps.items() if count >= ALONE_RANKS_MIN):
        same = [(task, rank) for task, rank in every if rank.parameters is not None and rank.parameters[0] == step]
        prints = Counter(rank.parameters[1] for _, rank in same if rank.parameters is not None)
        usual, count = prints.most_common(1)[0]
        others = [each for each in same if each[1].parameters is not None and each[1].parameters[1] != usual]
        if others and count > len(same) / 2:
            places = _named([_place(task, rank) for task, rank in others])
            yield f"after step {step} the parameters of {places} differ from those of the other ranks: {_SUSPICION}"


def _place(task: TaskActivityView, rank: RankActivityView) -> str:
    """The rank, its node and its GPU, if each rank of the task has one."""
    ranks = sorted(each.rank for each in task.ranks)
    has_own = len(ranks) == len(task.gpus)
    gpu = f" GPU {task.gpus[ranks.index(rank.rank)].slot}" if has_own else ""
    return f"rank {rank.rank} on {task.node}{gpu}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more
