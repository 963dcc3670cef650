"""Whether advice works when it is followed: the job is cancelled and submitted again as advised, or its queue given the
terms that were named, and then it starts in the next plan.

Follows the words of the advice alone. What to advise is the business of the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from msgspec import structs

from corral.core import events as e
from corral.core.apply import apply
from corral.core.cluster.resources import GPU_MILLI, Demand, amounts
from corral.core.commit import commit
from corral.core.engine import Policy, apply_all
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.model import GangState, JobSpec, Settings
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.policy.explain.advice import smallest_changes
from corral.policy.explain.holds import explain
from tests.judges.runs.site import HOUR, START_MS, Run, Site, live, policy_of


class Change(Protocol):
    """What was advised: the field, its new value, and the same as a sentence."""

    @property
    def field(self) -> str: ...

    @property
    def value(self) -> str: ...

    @property
    def text(self) -> str: ...


MOMENTS = (2 * HOUR, 4 * HOUR)  # when everyone who waits is asked


def judge_advice(run: Run) -> list[str]:
    return [violation for at_ms in MOMENTS for violation in _at(replace(run.site, until_ms=at_ms))]


def _at(site: Site) -> list[str]:
    run = live(site)
    decides, found = policy_of(site), []
    now = max(run.end_ms, run.events[-1].at_ms)
    state = _state(run.events, site)
    for gang in [each for each in state.gangs.values() if each.state is GangState.WAITING and not each.claim]:
        hold = explain(Snapshot(state, now), decides, gang.id)
        assert not isinstance(hold, Refusal), hold
        for change in smallest_changes(Snapshot(state, now), decides, hold):
            if not follow(_state(run.events, site), decides, gang.id, change, now):
                at = f"{(now - START_MS) / HOUR:.1f} h"
                found.append(f"{gang.id} was told at {at}: {change.text}; that was done, and it did not start")
    return found


def _state(events: Sequence[e.Event], site: Site) -> State:
    state = State(structs.replace(Settings(), **site.settings))
    for event in events:
        apply(state, event)
    return state


def follow(state: State, decides: Policy, name: str, change: Change, now: int) -> bool:
    """Whether the gang starts, or room is made for it, when the advice is followed."""
    gang, job = state.gangs[name], state.jobs[state.gangs[name].job]
    if change.field.startswith("queue."):
        return True  # which queue is said in words only
    if change.field == "held":
        _take(state, commands.release(state, job.id, now), now)
    else:
        spec = _changed(job.spec, change)
        _take(state, commands.cancel(state, job.id, now), now)
        _take(state, commands.submit(state, "again", spec, gang.user, now), now)
        name = state.jobs["again"].gangs[0]
    events = commit(state, decides(Snapshot(state, now)), now)
    return any(isinstance(event, e.GangPlaced | e.GangClaimed) and event.gang == name for event in events)


def _take(state: State, answer: commands.Answer, now: int) -> None:
    assert not isinstance(answer, Refusal), answer
    apply_all(state, answer, now)


def _changed(spec: JobSpec, change: Change) -> JobSpec:
    demand = spec.gangs[0].demand
    if change.field == "time_limit":
        return structs.replace(spec, time_limit_ms=int(change.value), estimate_ms=None)
    gang = structs.replace(spec.gangs[0], demand=_reshaped(demand, change))
    return structs.replace(spec, gangs=(gang,))


def _reshaped(demand: Demand, change: Change) -> Demand:
    task: dict[str, Any] = {}
    terms: dict[str, Any] = {}
    if change.field == "tasks":
        tasks, _, each = change.value.partition(" x ")
        terms = {"tasks": int(tasks), "tasks_min": 0, "step": 1}
        if each:
            pieces = demand.task.gpus // int(each)
            task = {"gpus": int(each), "amounts": tuple((n, -(-v // pieces)) for n, v in demand.task.amounts)}
    elif change.field in ("models", "vram_mib_min"):
        task = {change.field: () if change.field == "models" else 0}
    elif change.field in ("within", "spread", "prefer"):
        terms = {change.field: change.value}
    elif change.field != GPU_MILLI:
        task = {"amounts": amounts({**dict(demand.task.amounts), change.field: int(change.value)})}
    return structs.replace(demand, task=structs.replace(demand.task, **task), **terms)
