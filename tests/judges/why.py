"""Whether the reasons and the advice that are given for a gang that waits are true: without the only reason it starts,
and advice that is followed works.

Takes the reason away, or does what was advised, on a state of its own. What to say is the business of the policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from corral.core import events as e
from corral.core.apply import apply
from corral.core.commit import commit
from corral.core.engine import Policy, apply_all
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.model import GangState, QueueSpec, Settings
from corral.core.plan import MakeRoom, Place
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.policy.explain import reasons as r
from corral.policy.explain.advice import smallest_changes
from corral.policy.explain.holds import explain
from tests.judges.runs.advice import follow

GANGS = 2  # of one plan, that are asked about

#: Reasons that are a bound of a queue, and the terms without which there is no such bound.
_BOUNDS = {r.OverLimit: "limit", r.OverUserLimit: "user_limit", r.OverBudget: "budget", r.NotLent: "lend"}


def why_is_true(journal: Sequence[e.Event], settings: Settings, policy: Policy, now_ms: int) -> list[str]:
    """What is said about the first few who wait, and is not so."""
    state, found = _state(journal, settings), list[str]()
    waiting = [each for each in state.gangs.values() if each.state is GangState.WAITING and not each.claim]
    for gang in [each for each in waiting if not each.blockers][:GANGS]:
        hold = explain(Snapshot(state, now_ms), policy, gang.id)
        assert not isinstance(hold, Refusal), hold
        if not hold.reasons:
            found.append(f"{gang.id} waits, and no reason is given")
        if len(hold.reasons) == 1 and type(hold.reasons[0]) in _BOUNDS:
            term = _BOUNDS[type(hold.reasons[0])]
            if not _starts_without(_state(journal, settings), policy, gang.id, term, now_ms):
                text = hold.reasons[0].text(now_ms)
                found.append(f"{gang.id} waits, it is said, only because {text}; without any {term} it waits, too")
        for change in smallest_changes(Snapshot(state, now_ms), policy, hold):
            if not follow(_state(journal, settings), policy, gang.id, change, now_ms):
                found.append(f"advice for {gang.id}: {change.text}; that was done, and it did not start")
    return found


def _state(journal: Iterable[e.Event], settings: Settings) -> State:
    state = State(settings)
    for event in journal:
        apply(state, event)
    return state


def _starts_without(state: State, policy: Policy, name: str, term: str, now_ms: int) -> bool:
    """Whether it starts once no queue has such a bound; or others start, who may use up another bound before it; or it
    is behind somebody who does not start either."""
    plain = QueueSpec(name="plain")
    for queue in list(state.queues.queues.values()):
        if queue.spec.name and getattr(queue.spec, term) != getattr(plain, term):
            spec = structs.replace(queue.spec, **{term: getattr(plain, term)})
            answer = commands.set_queue(state, spec, now_ms)
            assert not isinstance(answer, Refusal), answer
            apply_all(state, answer, now_ms)
    plan = policy(Snapshot(state, now_ms))
    apply_all(state, commit(state, plan, now_ms), now_ms)
    if any(isinstance(each, Place | MakeRoom) for each in plan.decisions):
        return True
    again = explain(Snapshot(state, now_ms), policy, name)
    return not isinstance(again, Refusal) and any(type(each) not in _BOUNDS for each in again.reasons)
