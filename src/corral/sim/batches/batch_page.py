"""The curve of throughput and latency over batch size and wait, as a page in the style of the other reports."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from corral.sim.batches.batch_study import BatchStudy, CurvePoint, curve
from corral.sim.report.page import figure, framed
from corral.sim.report.plots import Chart
from corral.sim.report.svg import Axis, Canvas, amount_axis, text


def batch_page(study: BatchStudy) -> str:
    points = curve(study)
    numbers = count(1)
    facts = (
        f"a batch of n takes {study.times.fixed_us / 1000:g} + {study.times.each_us / 1000:g} n ms",
        f"{study.workers} worker{'s' if study.workers > 1 else ''}",
        f"{study.items} items, {max(study.rates) * study.capacity_per_s:.0f} per second",
    )
    head = f'<h1>Batch size and wait</h1><ul class="facts">{"".join(f"<li>{text(each)}</li>" for each in facts)}</ul>'
    return framed("Batch size and wait", [head, figure(throughput_curve(points), numbers)])


def throughput_curve(points: Sequence[CurvePoint]) -> Chart:
    """One line per batch size, through its waits; further left and higher is better."""
    sizes = sorted({point.size for point in points})
    across = _latencies(points)
    up = amount_axis(max(point.items_per_s for point in points))
    canvas = Canvas(width=1300, height=420)
    canvas.axes(across, up)
    for number, size in enumerate(sizes):
        line = [point for point in points if point.size == size]
        places = [(across.place(max(point.p95_ms, across.lo)), up.place(point.items_per_s)) for point in line]
        canvas.line(places, number, number)
        for (x, y), point in zip(places, line, strict=True):
            tip = f"size {size}, wait {point.wait_ms} ms: {point.items_per_s:.0f} items/s, p95 {point.p95_ms:.0f} ms"
            canvas.box(
                (max(0.0, x - 0.003), max(0.0, y - 0.01)), (min(1.0, x + 0.003), min(1.0, y + 0.01)), number, tip
            )
    return Chart(
        "Throughput and latency",
        "Items per second over the p95 latency (logarithmic), by batch size; each mark is a longer wait. "
        "Further left and higher is better.",
        canvas,
        tuple((f"size {size}", number, number) for number, size in enumerate(sizes)),
    )


def _latencies(points: Sequence[CurvePoint]) -> Axis:
    greatest = max(point.p95_ms for point in points)
    ticks = [each * 10**power for power in range(6) for each in (1, 3)]
    hi = next((tick for tick in ticks if tick >= greatest), ticks[-1])
    return Axis(1, hi, tuple((float(tick), f"{tick:,} ms") for tick in ticks if tick <= hi), is_log=True)
