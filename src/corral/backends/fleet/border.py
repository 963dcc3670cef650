"""The border towards nodes: everything that an agent says is bounded here, and checked against who says it.

An agent may run on a machine that somebody else controls, or have the credential of one. Behind this module nobody
checks again. A message that is wrong as a whole (for another node, numbers that cannot be, more than fits) is refused
with `BadReport`; what is wrong in one item is cut, put right or left out, and counted. Pure: knows messages and what
the node was given, neither clocks nor files. Which task was given to whom is known to `Given`.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection, Iterator

from msgspec import Struct, structs

from corral.backends.base import HealthReport, LogPart, Phase, TaskKey, TaskReport
from corral.backends.fleet.messages import AgentReport, DesiredAsk, LogChunk, LogDelivery, LogReply, ObservedTask
from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass
from corral.wire.hosts import is_address

#: Whole numbers that every reader of JSON and every database can hold.
INT_MAX = (1 << 53) - 1
TASKS_MAX = 20_000  # in one report
GPUS_MAX = 128  # of one node
TEXT_MAX = 500  # of a reason, a complaint, a line about health
NAME_MAX = 253  # of a node
GANG_MAX = 400
RANKS_MAX = 1_024
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
_AMOUNTS_MAX, _PATH_MAX, _LIST_MAX, _DEPTH_MAX = 64, 16, 256, 6

#: What a node can know about the end of a task. The others are decisions of the server.
NODE_FAILURES = frozenset(
    {
        FailureClass.USER_ERROR,
        FailureClass.OUT_OF_MEMORY,
        FailureClass.VRAM_EXCEEDED,
        FailureClass.KILLED,
        FailureClass.GPU_FAULT,
        FailureClass.NETWORK,
        FailureClass.NODE_LOST,
        FailureClass.START_FAILED,
    }
)


class BadReport(Exception):
    """A message of a node that is refused as a whole."""

    def __init__(self, node: str, why: str) -> None:
        super().__init__(f"node {node[:NAME_MAX]} sent a message that is refused: {why}")
        self.node, self.why = node[:NAME_MAX], why


class NotYours(BadReport):
    """An agent speaks of a task that was given to another node."""

    def __init__(self, node: str, key: TaskKey) -> None:
        task = f"{key.gang[:GANG_MAX]} {key.attempt}.{key.task}"
        super().__init__(node, f"it speaks of task {task}, which it was never given")


class Given:
    """Which task was given to which node: what the server ordered, and nothing that a node says.

    ``live`` are tasks that a node may still have; of those that were let go the newest are remembered for their logs.
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
        """The node that has or had it, as far as is remembered."""
        return self.live.get(key) or self._past.get(key)

    def remove(self, node: str) -> None:
        for key in [key for key, owner in self.live.items() if owner == node]:
            self.let_go(key)


class Checked(Struct, frozen=True):
    """What is left of a report. ``strays``: tasks that the node has and was never given, to be ended there. ``fault``:
    why the description of the machine was not taken. ``dropped``: how many items were cut, put right or left out."""

    said: AgentReport
    strays: tuple[ObservedTask, ...] = ()
    fault: str = ""
    dropped: int = 0


def checked_report(said: AgentReport, given: Given, gpus: int, now_ms: int) -> Checked:
    """``gpus``: how many the node is known to have."""
    node = said.node
    _check_numbers(said)
    if len(said.tasks) > TASKS_MAX or len(said.health) > 4 * GPUS_MAX:
        raise BadReport(node, f"{len(said.tasks)} tasks and {len(said.health)} lines about health are too many")
    count = _Count()
    own: list[ObservedTask] = []
    strays: list[ObservedTask] = []
    for task in said.tasks:
        _check_own(node, task, given)
        if task.key not in given.live:
            strays.append(task)
            count.dropped += 1
        else:
            own.append(_checked_task(task, now_ms, count))
    fault = "" if said.spec is None else spec_fault(said.spec, node)
    spec = None if fault else said.spec
    known_gpus = gpus if spec is None else len(spec.gpus)
    health = tuple(_checked_health(said.health, node, known_gpus, count)) if said.health else ()
    details = said.details if is_plain(said.details) else None
    count.dropped += (details is None) != (said.details is None)
    if count.dropped == 0 and not fault and not said.lacks and said.leaves_in_ms is None:
        return Checked(said)  # as nearly always
    said = structs.replace(
        said, tasks=tuple(own), health=health, details=details, spec=spec,
        lacks={key[:64]: _cut(why) for key, why in list(said.lacks.items())[:LACKS_MAX]},
        leaves_in_ms=None if said.leaves_in_ms is None else min(max(said.leaves_in_ms, 0), LEAVES_MS_MAX),
    )  # fmt: skip
    return Checked(said, tuple(strays), fault, count.dropped)


def checked_ask(ask: DesiredAsk) -> DesiredAsk:
    if not (0 <= ask.epoch <= INT_MAX and -1 <= ask.term <= INT_MAX and 0 <= ask.version <= INT_MAX):
        raise BadReport(ask.node, "it asks with numbers that cannot be")
    return ask if 0 <= ask.wait_ms <= WAIT_MS_MAX else structs.replace(ask, wait_ms=min(max(ask.wait_ms, 0), 20_000))


def checked_delivery(delivery: LogDelivery) -> LogDelivery:
    """A reply that cannot be is an answer all the same: that there is no such log."""
    if len(delivery.replies) > LOG_ITEMS_MAX or len(delivery.chunks) > LOG_ITEMS_MAX:
        raise BadReport(delivery.node, "too many parts of logs at once")
    if not all(map(_is_plausible_chunk, delivery.chunks)):
        raise BadReport(delivery.node, "a part of a log cannot be where it is said to be")
    if all(reply.part is None or _is_plausible_part(reply.part) for reply in delivery.replies):
        return delivery
    replies = tuple(
        reply if reply.part is None or _is_plausible_part(reply.part) else LogReply(reply.id)
        for reply in delivery.replies
    )
    return structs.replace(delivery, replies=replies)


def spec_fault(spec: NodeSpec, node: str) -> str:
    """Why a node cannot be what it says it is; empty: it can."""
    if spec.name != node:
        return f"it describes a machine named {spec.name[:NAME_MAX]!r}, and speaks for {node!r} only"
    if spec.address and not is_address(spec.address):
        return f"{spec.address[:NAME_MAX]!r} is neither an IP address nor the name of a host"
    if len(spec.gpus) > GPUS_MAX:
        return f"it has {len(spec.gpus)} GPUs, and {GPUS_MAX} are the most a node may have"
    for slot, gpu in enumerate(spec.gpus):
        if not _UUID.fullmatch(gpu.uuid):
            return f"the UUID of GPU {slot} is not one: {gpu.uuid[:100]!r}"
        if not (0 < gpu.vram_mib <= VRAM_MIB_MAX and 0 <= gpu.island < GPUS_MAX and len(gpu.model) <= 100):
            return f"GPU {slot} has memory, an NVLink island or a model that cannot be"
    if len({gpu.uuid for gpu in spec.gpus}) < len(spec.gpus):
        return "two of its GPUs have the same UUID"
    if len(spec.amounts) > _AMOUNTS_MAX or len(spec.path) > _PATH_MAX or any(len(name) > 100 for name in spec.path):
        return "it names too many amounts or domains"
    for name, amount in spec.amounts:
        if not _AMOUNT.fullmatch(name) or not 0 <= amount <= INT_MAX:
            return f"it cannot have {str(amount)[:30]} of {name[:64]!r}"
    return ""


def is_plain(value: object, depth: int = 0) -> bool:
    """Whether what is only shown is small enough to be shown: numbers, texts and lists of them."""
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


# ---- within a report -------------------------------------------------------------------------------------------------


class _Count(Struct):
    dropped: int = 0


def _check_numbers(said: AgentReport) -> None:
    numbers = (said.session, said.seq, said.epoch, said.term, said.base, said.version, said.refused)
    if min(numbers) < 0 or max(numbers) > INT_MAX:
        raise BadReport(said.node, "one of its numbers is negative or too large")


def _check_own(node: str, task: ObservedTask, given: Given) -> None:
    """Raises where a node speaks of a task of another one, or for another one."""
    key = task.key
    if len(key.gang) > GANG_MAX or not (0 < key.attempt <= INT_MAX and 0 <= key.task <= INT_MAX):
        raise BadReport(node, "it names a task that cannot be")
    if given.live.get(key, node) != node:
        raise NotYours(node, key)
    for report, phase in ((task.up, Phase.UP), (task.down, Phase.DOWN)):
        if report is not None and (report.key != key or report.node != node):
            raise NotYours(node, key)
        if report is not None and report.phase is not phase:
            raise BadReport(node, "it says that a task is over where it should say that it began, or the reverse")


def _checked_task(task: ObservedTask, now_ms: int, count: _Count) -> ObservedTask:
    """Of a task that is the node's own. Nothing of it is left out as a whole: its end would be lost."""
    before = count.dropped
    up = None if task.up is None else _checked_end(task.up, now_ms, count)
    down = None if task.down is None else _checked_end(task.down, now_ms, count)
    step = task.step
    if step is not None and not 0 <= step <= INT_MAX:
        step, count.dropped = None, count.dropped + 1
    busy_ms = task.busy_ms
    if busy_ms and not _are_paces(busy_ms):
        busy_ms, count.dropped = (), count.dropped + 1
    if count.dropped == before:
        return task
    return structs.replace(task, up=up, down=down, step=step, busy_ms=busy_ms)


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
        unenforced=tuple(map(_cut, report.unenforced[:LACKS_MAX])),
        gpus=None if gpus is None or len(gpus) > GPUS_MAX or not all(map(_UUID.fullmatch, gpus)) else gpus,
    )
    if fixed == report:
        return report
    count.dropped += 1
    return fixed


def _checked_health(told: tuple[HealthReport, ...], node: str, gpus: int, count: _Count) -> Iterator[HealthReport]:
    for each in told:
        if each.node != node or (each.gpu is not None and not 0 <= each.gpu < gpus):
            count.dropped += 1
        elif len(each.why) > TEXT_MAX:
            count.dropped += 1
            yield structs.replace(each, why=_cut(each.why))
        else:
            yield each


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


# ---- logs ------------------------------------------------------------------------------------------------------------


def _is_plausible_chunk(chunk: LogChunk) -> bool:
    key = chunk.key
    is_key = len(key.gang) <= GANG_MAX and 0 < key.attempt <= INT_MAX and 0 <= key.task <= INT_MAX
    return is_key and 0 <= chunk.offset <= INT_MAX and len(chunk.data) <= LOG_BYTES_MAX


def _is_plausible_part(part: LogPart) -> bool:
    is_there = 0 <= part.offset <= INT_MAX and len(part.data) <= LOG_BYTES_MAX
    return is_there and part.next_offset == part.offset + len(part.data)
