"""What looks wrong with a running job: idle GPUs, ranks that hang, a loss that is not a number. And old figures."""

from __future__ import annotations

import pytest

from corral.duration_text import span
from corral.health.gpu_activity import GpuActivities
from corral.health.readings import GpuReading
from corral.runtime.base import ActivityReport, TaskActivity, TaskKey
from corral.runtime.gpus import simulated
from corral.server.activity.notes import notes
from corral.server.activity.store import STALE_MS, Activities
from corral.wire.api import GpuActivityView, RankActivityView, TaskActivityView

MINUTE_MS = 60_000


def task(node: str, gpus: list[int | None], *ranks: RankActivityView, cpu_milli: int = 900) -> TaskActivityView:
    """``gpus``: for how many minutes each is idle."""
    views = [
        GpuActivityView(slot=slot, idle_ms=None if idle is None else idle * MINUTE_MS) for slot, idle in enumerate(gpus)
    ]
    return TaskActivityView(
        gang="1/main", attempt=1, task=0, node=node, gpus=tuple(views), ranks=ranks, cpu_milli=cpu_milli
    )


def rank(n: int, *, since_s: float, step_ms: int | None = 2_000, cpu_milli: int | None = 900) -> RankActivityView:
    return RankActivityView(rank=n, cpu_milli=cpu_milli, step=10, step_ms=step_ms, since_step_ms=round(since_s * 1000))


@pytest.mark.parametrize(
    ("idle", "expected"),
    [
        ([[0, 0], [0, 0]], ()),
        ([[None, None], [4, 0]], ()),
        ([[0, 34], [0, 40]], ("2 of 4 GPUs idle for 34m: n0 GPU 1, n1 GPU 1",)),
        ([[7, 8], [9, 70]], ("4 of 4 GPUs idle for 7m",)),
        ([[0] * 8, [60] * 8], ("8 of 16 GPUs idle for 1h: n1 GPU 0, n1 GPU 1, n1 GPU 2, n1 GPU 3 and 4 more",)),
    ],
)
def test_idle_gpus_are_pointed_out(idle: list[list[int | None]], expected: tuple[str, ...]) -> None:
    assert notes([task(f"n{n}", gpus) for n, gpus in enumerate(idle)]) == expected


def test_a_rank_without_steps_and_without_cpu_hangs() -> None:
    found = notes([task("n1", [], rank(0, since_s=725)), task("n2", [], rank(3, since_s=720, cpu_milli=3))])
    assert found == (
        "rank 3 on n2 has done no step for 12m; a step usually takes 2s, and it uses no CPU: it probably hangs",
    )


def test_a_rank_without_steps_that_computes_is_named_but_does_not_hang() -> None:
    found = notes([task("n1", [], rank(0, since_s=90), rank(1, since_s=80))])
    assert found == ("rank 0 on n1 (and 1 more) has done no step for 1m30s; a step usually takes 2s",)


@pytest.mark.parametrize(
    "slow", [rank(0, since_s=50), rank(0, since_s=300, step_ms=60_000), rank(0, since_s=900, step_ms=None)]
)
def test_a_slow_step_is_no_hang(slow: RankActivityView) -> None:
    assert notes([task("n1", [], slow)]) == (), span(slow.since_step_ms or 0)


def test_a_loss_that_is_not_a_number_is_pointed_out() -> None:
    bad = RankActivityView(rank=2, step=5, metrics={"loss": None, "lr": 0.1})
    assert notes([task("n1", [], bad)]) == ("not a finite number: loss of rank 2; the training may have diverged",)


def test_old_figures_are_not_shown_as_new_ones() -> None:
    kept = Activities()
    kept.take(ActivityReport("n1", 500), 1_000)
    reading = kept.of("n1", 1_000 + STALE_MS)
    assert reading is not None
    assert reading.cpu_milli == 500
    assert kept.of("n1", 1_001 + STALE_MS) is None
    kept.forget("n1")
    assert kept.of("n1", 1_000) is None


# ---- GPUs ----------------------------------------------------------------------------------------------------------


def test_a_gpu_is_idle_since_it_was_last_seen_working() -> None:
    now_s = 100.0
    node = simulated("2xH100")
    gpus = [type(gpu)(f"GPU-{n}", gpu.model, gpu.vram_mib) for n, gpu in enumerate(node)]
    activities = GpuActivities(gpus, lambda: now_s)
    readings = [GpuReading(uuid="GPU-0", utilisation_percent=90, power_mw=5), GpuReading(uuid="GPU-1")]
    activities.take(readings)
    now_s = 160.0
    activities.take([GpuReading(uuid="GPU-0", utilisation_percent=0), GpuReading(uuid="GPU-1")])
    first, second = activities.added(ActivityReport("n1"), ()).gpus
    assert (first.idle_ms, first.is_simulated) == (60_000, False)
    assert second.idle_ms is None, "nothing is known of a GPU that does not say"


def test_simulated_gpus_follow_the_cpus_of_their_task_and_are_marked() -> None:
    node, key = simulated("4xH100"), TaskKey("1/main", 1, 0)
    report = ActivityReport("n1", tasks=(TaskActivity(key, 1_600, 4_000),))
    gpus = GpuActivities(node).added(report, [(key, (node[0].uuid, node[1].uuid))]).gpus
    assert [gpu.utilisation_percent for gpu in gpus] == [80, 80, 0, 0]
    assert [gpu.memory_used_mib for gpu in gpus] == [2_000, 2_000, 0, 0]
    assert all(gpu.is_simulated and gpu.power_mw for gpu in gpus)


def finite(n: int, loss: float | None, parameters: tuple[int, str] | None = None) -> RankActivityView:
    return RankActivityView(rank=n, step=5, metrics={"loss": loss}, parameters=parameters)


def test_a_loss_that_one_rank_alone_cannot_compute_points_at_its_gpu() -> None:
    tasks = [task("n1", [0, 0], finite(0, 0.5), finite(1, 0.6)), task("n2", [0, 0], finite(2, None), finite(3, 0.4))]
    assert notes(tasks) == (
        "the loss of rank 2 on n2 GPU 0 alone is not a finite number: suspected silent data corruption",
    )


def test_parameters_that_differ_on_one_rank_point_at_its_gpu() -> None:
    ranks = [finite(n, 0.5, (100, "aa" if n != 1 else "ab")) for n in range(4)]
    tasks = [task("n1", [0, 0], *ranks[:2]), task("n2", [0, 0], *ranks[2:])]
    assert notes(tasks) == (
        (
            "after step 100 the parameters of rank 1 on n1 GPU 1 differ from those of the other ranks: "
            "suspected silent data corruption"
        ),
    )


def test_fingerprints_of_different_steps_and_of_two_ranks_are_not_compared() -> None:
    apart = [finite(n, 0.5, (100 + n, f"a{n}")) for n in range(4)]
    assert notes([task("n1", [0] * 4, *apart)]) == ()
    assert notes([task("n1", [0] * 2, finite(0, 0.5, (9, "aa")), finite(1, 0.5, (9, "ab")))]) == ()
