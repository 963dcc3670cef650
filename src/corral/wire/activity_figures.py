"""What GPUs and ranks do at a time: utilisation, memory, power, steps. For display only; no decision depends on it.

Values only. None: unknown.
"""

from __future__ import annotations

from msgspec import Struct


class GpuActivity(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One GPU of a node. ``idle_ms``: for how long every reading has shown no work. ``is_simulated``: the GPU does not
    exist, and its figures are made up from the CPU time and memory of its tasks."""

    slot: int
    utilisation_percent: int | None = None
    memory_used_mib: int | None = None
    memory_mib: int | None = None
    power_mw: int | None = None
    idle_ms: int | None = None
    is_simulated: bool = False


class RankActivity(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One rank of a task. ``step``: the last one, as the program counts; ``step_ms``: the recent mean time of a step;
    ``since_step_ms``: how long ago it last reported one; ``metrics``: numbers that the program reports, such as its
    loss; None: nan or infinite. All of them only if the program reports steps. ``cpu_milli``: thousandths of a CPU."""

    rank: int
    cpu_milli: int | None = None
    step: int | None = None
    step_ms: int | None = None
    since_step_ms: int | None = None
    metrics: dict[str, float | None] = {}
