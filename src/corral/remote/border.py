"""Validates everything that an agent sends: sizes and ranges, and whether the node may say it.

An agent may run on a machine that an attacker controls, or its credential may be stolen. Nothing is checked again
behind this module. A message that is invalid as a whole (for another node, numbers out of range, too many items) is
refused with `BadReport`; a single invalid item is cut, corrected or dropped, and counted. Pure: knows messages and
which tasks the node was given (`Given`), neither clocks nor files.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection, Iterator

from msgspec import Struct, structs

from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass
from corral.remote.activity_border import checked_activity
from corral.remote.messages import AgentReport, DesiredAsk, LogChunk, LogDelivery, LogReply, ObservedTask
from corral.runtime.base import ActivityReport, HealthReport, LogPart, Phase, TaskKey, TaskReport
from corral.runtime.last_words import plain_text
from corral.runtime.local.time_marks import READ_MAX
from corral.wire.host_names import is_address

#: Whole numbers that every reader of JSON and every database can hold.
INT_MAX = (1 << 53) - 1
TASKS_MAX = 20_000  # in one report
GPUS_MAX = 128  # of one node
TEXT_MAX = 500  # of a reason, a complaint, a health report
NAME_MAX = 253  # of a node
GANG_MAX = 400
RANKS_MAX = 1_024
RANK_MAX = (1 << 31) - 1
PATH_MAX = 1_000
BUSY_MS_MAX = 86_400_000
LACKS_MAX = 32
LEAVES_MS_MAX = 366 * 86_400_000
AT_MS_AHEAD_MAX = 86_400_000
LOG_ITEMS_MAX = 1_024  # chunks and replies in one delivery
LOG_BYTES_MAX = 4 << 20  # of one chunk
VRAM_MIB_MAX = 1 << 24
WAIT_MS_MAX = 60_000
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@ -]{0,199}")
_AMOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}")
_AMOUNTS_MAX = 64
_PATH_MAX = 16
_LIST_MAX = 256
_DEPTH_MAX = 6

#: The causes of failure that a node can know. The others are decisions of the server.
NODE_FAILURES = frozenset(
    {
        FailureClass.USER_ERROR,
        FailureClass.OUT_OF_MEMORY,
        FailureClass.VRAM_EXCEEDED,
        FailureClass.KILLED,
        FailureClass.STALLED,
        FailureClass.GPU_FAULT,
        FailureClass.NETWORK,
        FailureClass.NODE_LOST,
        FailureClass.START_FAILED,
    }
)


class BadReport(Exception):
    """A message of a node that is refused as a whole."""

    def __init__(self, node: str, why: str) -> None:
        super().__init__(f"refused a message of node {node[:NAME_MAX]}: {why}")
        self.node, self.why = node[:NAME_MAX], why


class NotYours(BadReport):
    """An agent reports a task that was given to another node."""

    def __init__(self, node: str, key: TaskKey) -> None:
        task = f"{key.gang[:GANG_MAX]} {key.attempt}.{key.task}"
        super().__init__(node, f"it reports task {task}, which it was not given")


class Given:
    """Which task was given to which node: by the orders of the server, never by what a node reports.

    ``live`` are tasks that a node may still have. Of the others the newest are remembered, for their logs.
    """

    def __init__(self, past_max: int = 50_000) -> None:
        self.live: dict[TaskKey, str] = {}
        self._past: OrderedDict[TaskKey, str] = OrderedDict()
        self._past_max = past_max

    def give(self, key: TaskKey, node: str) -> None:
        self.live[key] = node

    def let_go(self, key: TaskKey) -> None:
        node = self.live.pop(key, None)
        if node is not None:
            self._past[key] = node
            if len(self._past) > self._past_max:
                self._past.popitem(last=False)

    def ever(self, key: TaskKey) -> str | None:
        """The node that has or had the task, if that is remembered."""
        return self.live.get(key) or self._past.get(key)

    def remove(self, node: str) -> None:
        for key in [key for key, owner in self.live.items() if owner == node]:
            self.let_go(key)


class CheckedReport(Struct, frozen=True):
    """The valid part of a report. ``strays``: tasks that the node has but was never given; they are killed there.
    ``fault``: why the description of the machine was refused. ``dropped``: how many items were cut, corrected or
    dropped."""

    report: AgentReport
    strays: tuple[ObservedTask, ...] = ()
    fault: str = ""
    dropped: int = 0


def checked_report(report: AgentReport, given: Given, gpus: int, now_ms: int) -> CheckedReport:
    """``gpus``: how many GPUs the node is known to have."""
    node = report.node
    _check_numbers(report)
    if len(report.tasks) > TASKS_MAX or len(report.health) > 4 * GPUS_MAX:
        raise BadReport(node, f"{len(report.tasks)} tasks and {len(report.health)} health reports are too many")
    count = _Count()
    own: list[ObservedTask] = []
    strays: list[ObservedTask] = []
    for task in report.tasks:
        _check_own(node, task, given)
        if task.key not in given.live:
            strays.append(task)
            count.dropped += 1
        else:
            own.append(_checked_task(task, now_ms, count))
    fault = "" if report.spec is None else spec_fault(report.spec, node)
    spec = None if fault else report.spec
    known_gpus = gpus if spec is None else len(spec.gpus)
    health = tuple(_checked_health(report.health, node, known_gpus, count)) if report.health else ()
    details = report.details if is_plain(report.details) else None
    count.dropped += (details is None) != (report.details is None)
    activity = None if report.activity is None else _checked_activity(report.activity, node, given, known_gpus)
    count.dropped += activity != report.activity
    if count.dropped == 0 and not fault and not report.lacks and not report.separation and report.leaves_in_ms is None:
        return CheckedReport(report)  # the usual case
    report = structs.replace(
        report,
        tasks=tuple(own),
        health=health,
        details=details,
        activity=activity,
        spec=spec,
        lacks=_cut_all(report.lacks),
        separation=_cut_all(report.separation),
        leaves_in_ms=None if report.leaves_in_ms is None else min(max(report.leaves_in_ms, 0), LEAVES_MS_MAX),
    )
    return CheckedReport(report, tuple(strays), fault, count.dropped)


def _cut_all(texts: dict[str, str]) -> dict[str, str]:
    return {key[:64]: _cut(why) for key, why in list(texts.items())[:LACKS_MAX]}


def checked_ask(ask: DesiredAsk) -> DesiredAsk:
    if not (0 <= ask.epoch <= INT_MAX and -1 <= ask.term <= INT_MAX and 0 <= ask.version <= INT_MAX):
        raise BadReport(ask.node, "its request has numbers that are out of range")
    return ask if 0 <= ask.wait_ms <= WAIT_MS_MAX else structs.replace(ask, wait_ms=min(max(ask.wait_ms, 0), 20_000))


def checked_delivery(delivery: LogDelivery) -> LogDelivery:
    """An invalid reply becomes the reply that there is no such log: the reader must not wait for it."""
    if len(delivery.replies) > LOG_ITEMS_MAX or len(delivery.chunks) > LOG_ITEMS_MAX:
        raise BadReport(delivery.node, "too many parts of logs in one message")
    if not all(map(_is_plausible_chunk, delivery.chunks)):
        raise BadReport(delivery.node, "a part of a log has an invalid offset or size")
    if all(reply.part is None or _is_plausible_part(reply.part) for reply in delivery.replies):
        return delivery
    replies = tuple(
        reply if reply.part is None or _is_plausible_part(reply.part) else LogReply(reply.id)
        for reply in delivery.replies
    )
    return structs.replace(delivery, replies=replies)


def spec_fault(spec: NodeSpec, node: str) -> str:
    """Why the description of a node is invalid. Empty: it is valid."""
    if spec.name != node:
        return f"it describes a machine named {spec.name[:NAME_MAX]!r}, but the node is {node!r}"
    if spec.address and not is_address(spec.address):
        return f"{spec.address[:NAME_MAX]!r} is neither an IP address nor a host name"
    if len(spec.gpus) > GPUS_MAX:
        return f"it has {len(spec.gpus)} GPUs; a node may have at most {GPUS_MAX}"
    for slot, gpu in enumerate(spec.gpus):
        if not _UUID.fullmatch(gpu.uuid):
            return f"GPU {slot} has an invalid UUID: {gpu.uuid[:100]!r}"
        if not (0 < gpu.vram_mib <= VRAM_MIB_MAX and 0 <= gpu.island < GPUS_MAX and len(gpu.model) <= 100):
            return f"GPU {slot} has an invalid memory size, NVLink island or model"
    if len({gpu.uuid for gpu in spec.gpus}) < len(spec.gpus):
        return "two of its GPUs have the same UUID"
    if len(spec.amounts) > _AMOUNTS_MAX or len(spec.path) > _PATH_MAX or any(len(name) > 100 for name in spec.path):
        return "it has too many amounts or topology levels"
    for name, amount in spec.amounts:
        if not _AMOUNT.fullmatch(name) or not 0 <= amount <= INT_MAX:
            return f"invalid amount of {name[:64]!r}: {str(amount)[:30]}"
    return ""


def is_plain(value: object, depth: int = 0) -> bool:
    """Whether a value that is only displayed is small enough: numbers, texts and lists of them."""
    if value is None or isinstance(value, bool | float):
        return True
    if isinstance(value, int):
        return -INT_MAX <= value <= INT_MAX
    if isinstance(value, str):
        return len(value) <= TEXT_MAX
    if depth > _DEPTH_MAX:
        return False
    within = structs.astuple(value) if isinstance(value, Struct) else value
    return isinstance(within, Collection) and len(within) <= _LIST_MAX and all(is_plain(v, depth + 1) for v in within)


# ---- parts of a report -----------------------------------------------------------------------------------------------


class _Count(Struct):
    dropped: int = 0


def _check_numbers(report: AgentReport) -> None:
    numbers = (report.session, report.seq, report.epoch, report.term, report.base, report.version, report.refused)
    if min(numbers) < 0 or max(numbers) > INT_MAX:
        raise BadReport(report.node, "a number is negative or too large")


def _check_own(node: str, task: ObservedTask, given: Given) -> None:
    """Raises if a node reports a task of another node, or on behalf of another node."""
    key = task.key
    if len(key.gang) > GANG_MAX or not (0 < key.attempt <= INT_MAX and 0 <= key.task <= INT_MAX):
        raise BadReport(node, "it names an invalid task")
    if given.live.get(key, node) != node:
        raise NotYours(node, key)
    for report, phase in ((task.up, Phase.UP), (task.down, Phase.DOWN)):
        if report is not None and (report.key != key or report.node != node):
            raise NotYours(node, key)
        if report is not None and report.phase is not phase:
            raise BadReport(node, "it reports the end of a task as its start, or the reverse")


def _checked_task(task: ObservedTask, now_ms: int, count: _Count) -> ObservedTask:
    """Check a task of the node itself. It is never dropped as a whole: its end would be lost."""
    before = count.dropped
    up = None if task.up is None else _checked_end(task.up, now_ms, count)
    down = None if task.down is None else _checked_end(task.down, now_ms, count)
    step = task.step
    if step is not None and not 0 <= step <= INT_MAX:
        step = None
        count.dropped += 1
    stop = task.stop
    if stop is not None and not 0 <= stop <= INT_MAX:
        stop = None
        count.dropped += 1
    path, times = task.path, (task.save_ms, task.stall_ms)
    if len(path) > PATH_MAX or not path.isprintable() or not all(0 <= ms <= BUSY_MS_MAX for ms in times):
        path, times = "", (0, 0)
        count.dropped += 1
    busy_ms = task.busy_ms
    if busy_ms and not _are_paces(busy_ms):
        busy_ms = ()
        count.dropped += 1
    if count.dropped == before:
        return task
    save_ms, stall_ms = times
    task = structs.replace(task, path=path, save_ms=save_ms, stall_ms=stall_ms)
    return structs.replace(task, up=up, down=down, step=step, busy_ms=busy_ms, stop=stop)


def _are_paces(busy_ms: tuple[tuple[int, int], ...]) -> bool:
    return len(busy_ms) <= RANKS_MAX and all(0 <= rank <= INT_MAX and 0 <= ms <= BUSY_MS_MAX for rank, ms in busy_ms)


def _checked_end(report: TaskReport, now_ms: int, count: _Count) -> TaskReport:
    gpus, latest_ms = report.gpus, now_ms + AT_MS_AHEAD_MAX
    fixed = structs.replace(
        report,
        at_ms=min(max(report.at_ms, 0), latest_ms),
        exit_code=report.exit_code if 0 <= report.exit_code <= 255 else 255,
        signal=report.signal if 0 <= report.signal <= 64 else 0,
        failure=report.failure if report.failure in NODE_FAILURES else None,
        why=_cut(report.why),
        failed_ms=min(max(report.failed_ms, 0), latest_ms),
        rank=report.rank if report.rank is None or 0 <= report.rank <= RANK_MAX else None,
        said=plain_text(report.said),
        unenforced=tuple(map(_cut, report.unenforced[:LACKS_MAX])),
        gpus=None if gpus is None or len(gpus) > GPUS_MAX or not all(map(_UUID.fullmatch, gpus)) else gpus,
    )
    if fixed == report:
        return report
    count.dropped += 1
    return fixed


def _checked_health(reports: tuple[HealthReport, ...], node: str, gpus: int, count: _Count) -> Iterator[HealthReport]:
    for each in reports:
        if each.node != node or (each.gpu is not None and not 0 <= each.gpu < gpus):
            count.dropped += 1
        elif len(each.why) > TEXT_MAX:
            count.dropped += 1
            yield structs.replace(each, why=_cut(each.why))
        else:
            yield each


def _checked_activity(activity: ActivityReport, node: str, given: Given, gpus: int) -> ActivityReport | None:
    if activity.node != node:
        return None
    return checked_activity(activity, gpus, lambda key: given.live.get(key) == node)


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


# ---- logs ------------------------------------------------------------------------------------------------------------


def _is_plausible_chunk(chunk: LogChunk) -> bool:
    key = chunk.key
    is_key = len(key.gang) <= GANG_MAX and 0 < key.attempt <= INT_MAX and 0 <= key.task <= INT_MAX
    is_there = 0 <= chunk.offset <= INT_MAX and len(chunk.data) <= LOG_BYTES_MAX
    return is_key and is_there and _are_marks(chunk.marks, chunk.offset, chunk.offset + len(chunk.data))


def _is_plausible_part(part: LogPart) -> bool:
    is_there = 0 <= part.offset <= INT_MAX and len(part.data) <= LOG_BYTES_MAX
    is_whole = part.next_offset == part.offset + len(part.data)
    return is_there and is_whole and _are_marks(part.marks, part.offset, part.next_offset)


def _are_marks(marks: tuple[tuple[int, int, int], ...], begin: int, end: int) -> bool:
    """In order, each within the bytes that it is about."""
    if len(marks) > READ_MAX:
        return False
    for offset, at_ms, rank in marks:
        if not (begin <= offset < end and 0 <= at_ms <= INT_MAX and 0 <= rank <= RANK_MAX):
            return False
        begin = offset + 1
    return True
