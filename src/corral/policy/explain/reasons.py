"""Why a gang waits: each reason is a value with its numbers and a text of one sentence.

Values only: they can be compared, stored and sent. Knows the texts; ``explain`` finds the reasons.
"""

from __future__ import annotations

from msgspec import Struct

from corral.amount_text import quantity, size, thousandths
from corral.core.accounts.identity import suspension_text
from corral.core.cluster.resources import GPU_MILLI
from corral.core.gang_id import short_name
from corral.core.intake.refusal import Refusal
from corral.core.model import Suspension
from corral.duration_text import span


class Change(Struct, frozen=True, gc=False):
    """A change of the request: the field, its new value, and the same as a sentence."""

    field: str
    value: str
    text: str


class _Reason(Struct, frozen=True, gc=False, tag=True):
    """Common base. ``text`` is for people; times in it are relative to ``now_ms``."""

    def text(self, _now_ms: int, /) -> str:
        raise NotImplementedError


class NeverFits(_Reason, frozen=True, gc=False, tag=True):
    """The cluster has become too small for it, even if empty and healthy."""

    refusal: Refusal

    def text(self, _now_ms: int, /) -> str:
        return f"can never start here: {self.refusal}"


class NodesMayCome(_Reason, frozen=True, gc=False, tag=True):
    """No present node could ever hold it; these fleets may provide one that can."""

    fleets: tuple[str, ...]

    def text(self, _now_ms: int, /) -> str:
        return f"fits on no present node; fleet {', '.join(self.fleets)} may provide one that can hold it"


class Held(_Reason, frozen=True, gc=False, tag=True):
    job: str

    def text(self, _now_ms: int, /) -> str:
        return f"job {self.job} is held; release it with: corral release {self.job}"


class Quarantined(_Reason, frozen=True, gc=False, tag=True):
    """The server holds it: planning failed while it was queued, and works without it."""

    job: str
    why: str

    def text(self, _now_ms: int, /) -> str:
        then = f"details are in the server log; an operator can release it: corral release {self.job}"
        return f"held by the server: planning failed because of this job ({self.why}); {then}"


class Suspended(_Reason, frozen=True, gc=False, tag=True):
    """Its user was disabled, removed or given another account. ``account``: what it would run as."""

    job: str
    user: str
    why: Suspension
    account: str
    cancel_ms: int | None = None

    def text(self, now_ms: int, /) -> str:
        end = "" if self.cancel_ms is None else f"; it is cancelled in {span(max(0, self.cancel_ms - now_ms))}"
        return suspension_text(self.why, self.job, self.user, self.account) + end


class DependencyUnmet(_Reason, frozen=True, gc=False, tag=True):
    """``after``: ok, any, not_ok; or singleton, when an earlier job of the same name and user has not ended."""

    job: str
    after: str

    def text(self, _now_ms: int, /) -> str:
        how = {"ok": "to succeed", "any": "to end", "not_ok": "to fail"}
        return f"waits for job {self.job} {how.get(self.after, 'to end, which has the same name')}"


class NotYet(_Reason, frozen=True, gc=False, tag=True):
    begin_ms: int

    def text(self, now_ms: int, /) -> str:
        return f"may not start for another {span(self.begin_ms - now_ms)}"


class BackingOff(_Reason, frozen=True, gc=False, tag=True):
    until_ms: int

    def text(self, now_ms: int, /) -> str:
        return f"failed; retried in {span(self.until_ms - now_ms)}"


class ArrayLimit(_Reason, frozen=True, gc=False, tag=True):
    parallel: int

    def text(self, _now_ms: int, /) -> str:
        return f"its array runs at most {self.parallel} at a time"


class OverLimit(_Reason, frozen=True, gc=False, tag=True):
    queue: str
    name: str
    used: int
    limit: int
    asked: int

    def text(self, _now_ms: int, /) -> str:
        has, most = quantity(self.name, self.used), quantity(self.name, self.limit)
        asks = quantity(self.name, self.asked)
        return f"queue {self.queue} uses {has} of its limit of {most}; {asks} requested"


class OverUserLimit(_Reason, frozen=True, gc=False, tag=True):
    queue: str
    user: str
    name: str
    used: int
    limit: int
    asked: int

    def text(self, _now_ms: int, /) -> str:
        has, most = quantity(self.name, self.used), quantity(self.name, self.limit)
        asks = quantity(self.name, self.asked)
        return f"{self.user} uses {has} of the limit of {most} per user in queue {self.queue}; {asks} requested"


class NotLent(_Reason, frozen=True, gc=False, tag=True):
    """Other queues do not lend a part of their guarantee. ``most``: what it could have now."""

    queue: str
    name: str
    used: int
    most: int
    asked: int

    def text(self, _now_ms: int, /) -> str:
        has, most = quantity(self.name, self.used), quantity(self.name, self.most)
        asks = quantity(self.name, self.asked)
        return f"queue {self.queue} uses {has}, and other queues lend it at most {most} in all; {asks} requested"


class OverBudget(_Reason, frozen=True, gc=False, tag=True):
    """``spent`` includes what the running are expected to need."""

    queue: str
    spent_gpu_ms: int
    budget_gpu_ms: int
    asked_gpu_ms: int
    renewed_ms: int

    def text(self, now_ms: int, /) -> str:
        hours = [thousandths(each // 3600) for each in (self.spent_gpu_ms, self.budget_gpu_ms, self.asked_gpu_ms)]
        spent, budget, asked = hours
        when = span(self.renewed_ms - now_ms)
        told = f"queue {self.queue} has spent {spent} of {budget} GPU-hours; {asked} requested"
        return f"{told}; the budget is renewed in {when}"


class NoCapacity(_Reason, frozen=True, gc=False, tag=True):
    """Too few in sum. ``unit`` of the numbers: GPUs, or MiB of VRAM for slices."""

    needed: int
    free: int
    unit: str = "GPUs"

    def text(self, _now_ms: int, /) -> str:
        if self.unit != "GPUs":
            return f"needs {size(self.needed)} of VRAM, {size(self.free)} are free"
        return f"needs {self.needed} GPU{'s' * (self.needed != 1)}, {_free(self.free)}"


class WrongModel(_Reason, frozen=True, gc=False, tag=True):
    """Enough is free, but not of the requested kind."""

    models: tuple[str, ...]
    vram_mib_min: int
    needed: int
    free: int
    free_of_any: int

    def text(self, _now_ms: int, /) -> str:
        kind = " or ".join(self.models) or "that kind"
        kind += f" with {size(self.vram_mib_min)}" if self.vram_mib_min else ""
        return f"needs {self.needed} GPUs of {kind}, {_free(self.free)}; of any kind {self.free_of_any}"


class Fragmented(_Reason, frozen=True, gc=False, tag=True):
    """Enough in sum, but too little in one piece: a task needs ``each`` on one node (a slice: GPU)."""

    tasks: int
    each: int
    tasks_that_fit: int
    best: int
    free: int
    unit: str = "GPUs"

    def text(self, _now_ms: int, /) -> str:
        is_vram = self.unit != "GPUs"
        where = "GPU" if is_vram else "node"
        free = f"{size(self.free)} of VRAM" if is_vram else f"{self.free} GPUs"
        each, best = (size(self.each), size(self.best)) if is_vram else (self.each, self.best)
        return (
            f"{free} are free, but in pieces: each task needs {each} on one {where}, the best {where} has {best} "
            f"({_room(self.tasks_that_fit, self.tasks)})"
        )


class TopologyTight(_Reason, frozen=True, gc=False, tag=True):
    """Enough in the cluster, but no domain of ``level`` holds it. ``by``: within, tp or spread."""

    by: str
    level: str
    needed: int
    best: int

    def text(self, _now_ms: int, /) -> str:
        if self.by == "spread":
            return f"spread over {self.level} leaves {_room(self.best, self.needed)}"
        if self.by == "tp":
            return f"groups that share NVLink ({self.level}) have {_room(self.best, self.needed)}"
        return f"needs room for {self.needed} tasks in one {self.level}, the best has room for {self.best}"


class AmountShort(_Reason, frozen=True, gc=False, tag=True):
    """``best``: the most that is left on a suitable node; None if no such node declares it."""

    name: str
    each: int
    tasks: int
    tasks_that_fit: int
    best: int | None
    nodes_unknown: int

    def text(self, _now_ms: int, /) -> str:
        told = f"each task needs {quantity(self.name, self.each)}, "
        told += (
            "no node states any" if self.best is None else f"the best node has {quantity(self.name, self.best)} left"
        )
        nodes = "1 node does" if self.nodes_unknown == 1 else f"{self.nodes_unknown} nodes do"
        unknown = f"; {nodes} not state it" if self.nodes_unknown and self.best is not None else ""
        return f"{told} ({_room(self.tasks_that_fit, self.tasks)}){unknown}"


class NodesAvoided(_Reason, frozen=True, gc=False, tag=True):
    nodes: tuple[str, ...]

    def text(self, _now_ms: int, /) -> str:
        return f"failed on {', '.join(self.nodes)} before, so it is not placed there again"


class EndsTooSoon(_Reason, frozen=True, gc=False, tag=True):
    """These fleet nodes end too soon for it to finish or save there."""

    nodes: tuple[str, ...]
    need_ms: int

    def text(self, _now_ms: int, /) -> str:
        shown = ", ".join(self.nodes[:5]) + (" …" if len(self.nodes) > 5 else "")
        return f"needs nodes for {span(self.need_ms)}; these are given back before that: {shown}"


class OutOfService(_Reason, frozen=True, gc=False, tag=True):
    """Even in an empty cluster it would not fit until some of these nodes take tasks again. ``how``: what they are."""

    nodes: tuple[str, ...]
    how: str = ""

    def text(self, _now_ms: int, /) -> str:
        shown = ", ".join(self.nodes[:5]) + (" …" if len(self.nodes) > 5 else "")
        many = len(self.nodes) > 1
        nodes, are = ("nodes", "are") if many else ("node", "is")
        return f"does not fit without {nodes} {shown}, which {are} {self.how or 'not in service'}"


class ClaimedBy(_Reason, frozen=True, gc=False, tag=True):
    """It would fit, but the free GPUs are claimed by gangs for which others are preempted."""

    gangs: tuple[str, ...]

    def text(self, _now_ms: int, /) -> str:
        return f"free GPUs are claimed by {_names(self.gangs)}"


class ReservedFor(_Reason, frozen=True, gc=False, tag=True):
    """It would fit, but would delay the reservation of another gang."""

    gang: str
    at_ms: int

    def text(self, now_ms: int, /) -> str:
        return f"would delay {_names((self.gang,))}, which is to start in {span(self.at_ms - now_ms)}"


class WaitingForStops(_Reason, frozen=True, gc=False, tag=True):
    """Its seats are claimed; these gangs are still stopping."""

    gangs: tuple[str, ...]
    until_ms: int

    def text(self, now_ms: int, /) -> str:
        return f"waits for {_names(self.gangs)} to stop, at most {span(self.until_ms - now_ms)}"


class BehindInLine(_Reason, frozen=True, gc=False, tag=True):
    gang: str

    def text(self, _now_ms: int, /) -> str:
        return f"{_names((self.gang,))} comes first"


class PreferringCloser(_Reason, frozen=True, gc=False, tag=True):
    level: str
    until_ms: int

    def text(self, now_ms: int, /) -> str:
        return f"prefers to wait up to {span(self.until_ms - now_ms)} for seats in one {self.level}"


class AboutToStart(_Reason, frozen=True, gc=False, tag=True):
    """Nothing blocks it: the next cycle places it, or preempts these gangs for it."""

    victims: tuple[str, ...] = ()

    def text(self, _now_ms: int, /) -> str:
        return (
            f"starts in the next cycle, after preempting {_names(self.victims)}"
            if self.victims
            else "starts in the next cycle"
        )


Reason = (
    NeverFits
    | NodesMayCome
    | Held
    | Quarantined
    | Suspended
    | DependencyUnmet
    | NotYet
    | BackingOff
    | ArrayLimit
    | OverLimit
    | OverUserLimit
    | NotLent
    | OverBudget
    | NoCapacity
    | WrongModel
    | Fragmented
    | TopologyTight
    | AmountShort
    | NodesAvoided
    | EndsTooSoon
    | OutOfService
    | ClaimedBy
    | ReservedFor
    | WaitingForStops
    | BehindInLine
    | PreferringCloser
    | AboutToStart
)


class InTheWay(Struct, frozen=True, gc=False):
    """A gang whose end would help, its user, and its expected end. ``assumed_ms``: how long it is assumed to run,
    because neither a limit nor an estimate was stated; 0: one was."""

    gang: str
    queue: str
    user: str
    gpu_milli: int
    ends_ms: int
    assumed_ms: int = 0

    def text(self, now_ms: int, /) -> str:
        has, ends = quantity(GPU_MILLI, self.gpu_milli), span(self.ends_ms - now_ms)
        told = f"{short_name(self.gang)} of {self.user} in {self.queue}, {has}, ends in {ends}"
        return told + (f" ({assumption(self.assumed_ms)})" if self.assumed_ms else "")


def _free(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'} free"


def assumption(assumed_ms: int, of: str = "") -> str:
    """What is assumed of a job that states neither a limit nor an estimate; nothing for 0."""
    if not assumed_ms:
        return ""
    days, rest = divmod(assumed_ms, 86_400_000)
    told = span(assumed_ms) if rest else "1 day" if days == 1 else f"{days} days"
    return f"no limit stated{of}; {told} assumed"


class Hold(Struct, frozen=True, gc=False):
    """Why a gang waits: all reasons, and the gangs in its way, the first to end first."""

    gang: str
    reasons: tuple[Reason, ...] = ()
    in_the_way: tuple[InTheWay, ...] = ()


# ---- texts -----------------------------------------------------------------------------------------------


def _names(gangs: tuple[str, ...]) -> str:
    """Gangs that the reader may not see are called "another job", and come last."""
    shown = sorted((short_name(gang) for gang in gangs[:3]), key=lambda name: " " in name)
    jobs = "" if not shown or " " in shown[0] else "job " if len(gangs) == 1 else "jobs "
    return f"{jobs}{', '.join(shown)}" + (f" and {len(gangs) - 3} more" if len(gangs) > 3 else "")


def _room(tasks: int, needed: int) -> str:
    return f"room for {tasks} of {needed} task{'s' * (needed != 1)}"
