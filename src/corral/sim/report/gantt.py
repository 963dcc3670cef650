"""Gantt chart: one row per node, split into one lane per GPU; one box per attempt.

A history does not say which GPU of a node an attempt had, so lanes are assigned first come, first served; they show
how full a node was, not which device was used. The chart's description states what is left out to limit its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from msgspec import Struct

from corral.core.cluster.topology import natural
from corral.sim.history import History
from corral.sim.report.plots import Chart
from corral.sim.report.result import Result
from corral.sim.report.svg import Axis, Canvas, time_axis
from corral.sim.report.wording import duration

NODES_MAX = 40
BOXES_MAX = 1_500
LANES_MAX = 16
ROW_HEIGHT_MIN = 18
ROW_HEIGHT_MAX = 36
HEIGHT = 320


class _Box(Struct):
    node: int
    lanes: range
    since_ms: int
    until_ms: int
    team: str
    tip: str


def gantt(result: Result, colours: dict[str, int], between: tuple[int, int]) -> Chart:
    """The nodes of one run, up to a maximum, with their largest boxes."""
    history = result.history
    names = sorted(_nodes(history), key=natural)
    shown = names[:NODES_MAX]
    boxes = _boxes(history, {name: number for number, name in enumerate(shown)})
    drawn = sorted(boxes, key=lambda box: (box.since_ms - box.until_ms) * len(box.lanes))[:BOXES_MAX]
    row_height = min(ROW_HEIGHT_MAX, max(ROW_HEIGHT_MIN, HEIGHT // max(1, len(shown))))
    canvas = Canvas(width=1300, height=row_height * max(2, len(shown)) + 46, left=110)
    across = time_axis(*between)
    canvas.axes(across, Axis(0, 1, ()))
    for number, name in enumerate(shown):
        canvas.label((0, 1 - (number + 0.5) / len(shown)), name if len(name) <= 14 else f"{name[:13]}…")
    for box in sorted(drawn, key=lambda box: (box.node, box.since_ms, box.lanes.start)):
        lanes = _lanes(history, shown[box.node])
        top = 1 - (box.node + 0.06 + 0.88 * box.lanes.start / lanes) / len(shown)
        bottom = 1 - (box.node + 0.06 + 0.88 * box.lanes.stop / lanes) / len(shown)
        at, to = (across.place(box.since_ms), bottom), (across.place(box.until_ms), top)
        canvas.box(at, to, colours.get(box.team, 0), box.tip)
    losses = [loss for number, name in enumerate(shown) for loss in _losses(history, number, name)]
    for box in losses:
        at = (across.place(box.since_ms), 1 - (box.node + 0.97) / len(shown))
        to = (across.place(box.until_ms), 1 - (box.node + 0.03) / len(shown))
        canvas.box(at, to, 0, box.tip, "lost")
    if not boxes:
        canvas.note("nothing ran")
    words = _description(len(shown), len(names), len(drawn), len(boxes))
    lost = f" Red with a dashed edge: the node was lost ({len(losses)} times)." if losses else ""
    return Chart(f"Nodes under {result.policy}", words + lost, canvas)


def _losses(history: History, number: int, node: str) -> Iterator[_Box]:
    """When the node was not in service."""
    steps = history.nodes.get(node, [])
    if not any(gpu_milli for _, gpu_milli in steps):
        return  # it has no GPUs
    for (since, gpu_milli), until in zip(steps, [*(at for at, _ in steps[1:]), history.end_ms], strict=True):
        if not gpu_milli and until > since:
            tip = f"{node} was lost {duration(since - history.begin_ms)} after the start, for {duration(until - since)}"
            yield _Box(number, range(1), since, until, "", tip)


def _description(shown: int, nodes: int, drawn: int, boxes: int) -> str:
    parts = [f"All {nodes} nodes" if shown == nodes else f"The first {shown} of {nodes} nodes"]
    parts.append(f"all {boxes:,} boxes" if drawn == boxes else f"the largest {drawn:,} of {boxes:,} boxes")
    return f"{' and '.join(parts)} are drawn: a box is a run on a node, its height the GPUs it held there."


def _nodes(history: History) -> set[str]:
    seen = {node for job in history.jobs.values() for run in job.runs for node in run.nodes}
    return seen | set(history.nodes)


def _lanes(history: History, node: str) -> int:
    most = max((value for _, value in history.nodes.get(node, [])), default=8_000)
    return min(LANES_MAX, max(1, most // 1000))


def _boxes(history: History, numbers: dict[str, int]) -> list[_Box]:
    """Attempts in order of their start, each in the lowest free lanes."""
    runs = []
    for job in history.jobs.values():
        for run in job.runs:
            for node in dict.fromkeys(run.nodes):
                if node in numbers:
                    until = history.end_ms if run.ended_ms is None else run.ended_ms
                    each = run.gpu_milli * run.nodes.count(node) // len(run.nodes)
                    runs.append((run.placed_ms, until, run.gang, run.attempt, node, each, job.queue, run.cause))
    busy_until = {node: [0] * _lanes(history, node) for node in numbers}
    boxes: list[_Box] = []
    for since, until, gang, attempt, node, milli, team, cause in sorted(runs):
        ends = busy_until[node]
        dealt = _deal(ends, since, max(1, -(-milli // 1000)))
        tip = f"{gang}, attempt {attempt}, {team}: {milli / 1000:g} GPUs here for {duration(until - since)}"
        tip += f", left: {cause}" if cause else ""
        for lane in dealt:
            ends[lane] = until
        boxes += [_Box(numbers[node], lanes, since, until, team, tip) for lanes in _together(dealt)]
    return boxes


def _deal(busy_until: list[int], now_ms: int, wanted: int) -> list[int]:
    """The lowest free lanes. If slices share a GPU there may be too few; then also the lanes that are free soonest."""
    soonest = sorted((max(until, now_ms), lane) for lane, until in enumerate(busy_until))
    return sorted(lane for _, lane in soonest[:wanted])


def _together(lanes: list[int]) -> list[range]:
    """Adjacent lanes as ranges."""
    groups = groupby(enumerate(lanes), key=lambda pair: pair[1] - pair[0])
    found = [[lane for _, lane in members] for _, members in groups]
    return [range(members[0], members[-1] + 1) for members in found]
