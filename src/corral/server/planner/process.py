"""The planner process: it follows the journal with a state of its own and answers expensive requests.

Plans, explanations, dry runs and images are made here, so that the server does not block. An answer may be out of date
when it arrives: the server checks it against the current state. Reads from standard input, writes to standard output,
and ends when the input ends. Knows nothing about files, sockets or clocks.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from importlib import import_module
from typing import Any

import msgspec
from msgspec import structs

from corral.core.engine import Policy, apply_all
from corral.core.events import QueueSet
from corral.core.fleets.outlook import could_come
from corral.core.intake.commands import submit_many
from corral.core.intake.refusal import Refusal
from corral.core.model import GangState, QueueSpec
from corral.core.plan import MakeRoom, Place, Plan
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.policy.catalog import PUBLISHED_MODULE, PUBLISHED_NAMES, standard
from corral.policy.catalog import policy as named_policy
from corral.policy.cycle.standard import Standard
from corral.policy.cycle.turns import turns
from corral.policy.demand import needs
from corral.policy.explain.advice import smallest_changes
from corral.policy.explain.holds import assumed_ends, explain, first_reason
from corral.policy.explain.reasons import Change, Hold, NeverFits, NodesMayCome, Quarantined
from corral.server import gc_tuning
from corral.server.journal_state import JournalState
from corral.server.planner import pipe_frames
from corral.server.planner.bisect import Search, search
from corral.server.planner.forked import TrialFailed, forked
from corral.server.planner.questions import (
    DryRunOutcome,
    PlannerAnswer,
    PlannerQuestion,
    QueueOutcome,
    ReclaimedGang,
    StartOutlook,
    WhyAnswer,
)
from corral.wire.codec import FORMAT, decode
from corral.wire.config import PolicyChoice

#: With more waiting gangs than this, changes that would help are not tried: each of them needs a plan of its own.
ADVICE_LINE_MAX = 20_000
ADVISED_MAX = 4  # of the gangs of one dry run, the first ones
#: Reservations of a plan that is made only to see when gangs will start, and reasons that are found for one request.
FORESIGHT, OUTLOOKS_MAX = 50, 100
OUTLOOK_S, NEAR_S = 0.5, 60.0
#: A dry run may take this part of the time that a plan may take: a plan that is requested meanwhile is still in time.
DRY_RUN_PART = 0.5


class PlannerProcess:
    """A state that follows the journal, and a policy."""

    def __init__(self, policy: Policy, timeout_s: float, foresight: Policy | None = None) -> None:
        self.policy = policy
        self._foresight = foresight  # the same policy, with reservations for many more gangs
        self._timeout_s = timeout_s  # of a plan
        self._near_until_s = 0.0  # until then it does not look far ahead
        self.known: JournalState
        self._last: tuple[int, Plan] | None = None  # the last plan, and the version of the state that it was made for

    @property
    def state(self) -> State:
        return self.known.state

    def answer(self, kind: bytes, body: bytes) -> bytes | None:
        """Handle one message. None: it has no answer."""
        if kind == pipe_frames.BEGIN:
            self.known = JournalState.unpack(body)
            self._last = None
            gc_tuning.look_at_everything()
            return None
        if kind == pipe_frames.FOLLOW:
            for each in pipe_frames.unpack(body):
                self.known.apply(decode(FORMAT, each))
            return None
        if kind == pipe_frames.READY:
            return b""
        if kind == pipe_frames.BLAME:
            return msgspec.json.encode(search(self.state, self.policy, msgspec.json.decode(body, type=Search)))
        if kind == pipe_frames.PLAN:
            plan = self.policy(Snapshot(self.state, msgspec.json.decode(body, type=int)))
            self._last = (self.state.version, plan)
            return msgspec.json.encode(structs.replace(plan, why=None))
        if kind == pipe_frames.NEEDS:
            snapshot = Snapshot(self.state, msgspec.json.decode(body, type=int))
            return msgspec.json.encode(needs(snapshot, self.known.fleets.fleets))
        if kind == pipe_frames.IMAGE:
            return self.known.pack()
        question = msgspec.json.decode(body, type=PlannerQuestion)
        if kind == pipe_frames.WHY:
            return msgspec.json.encode(self.why(question))
        if kind == pipe_frames.OUTLOOK:
            self._last_plan(Snapshot(self.state, question.now_ms))
            return self._tried_outlooks(question)
        if kind == pipe_frames.LINE:
            return forked(lambda: msgspec.json.encode(self._line(question)), OUTLOOK_S)
        return forked(lambda: msgspec.json.encode(self._prospects(question)), self._timeout_s * DRY_RUN_PART)

    def why(self, question: PlannerQuestion) -> PlannerAnswer:
        snapshot = Snapshot(self.state, question.now_ms)
        known = self.state.gangs.get(question.gang)
        job = None if known is None else self.state.jobs[known.job]
        if job is not None and job.held_why:  # planning failed because of it, so it is not planned again
            return PlannerAnswer(why=WhyAnswer(Hold(question.gang, (Quarantined(job.id, job.held_why),))))
        hold = explain(snapshot, self._last_plan, question.gang)
        if isinstance(hold, Refusal):
            return PlannerAnswer(refusal=hold)
        hold = self._hopeful(hold)
        return PlannerAnswer(why=WhyAnswer(hold, self._changes(snapshot, hold)))

    def _last_plan(self, snapshot: Snapshot) -> Plan:
        """The last plan, with its record of why gangs wait; a new one if something has happened since."""
        if self._last is None or self._last[0] != self.state.version:
            self._last = (self.state.version, self.policy(snapshot))
        return self._last[1]

    def _changes(self, snapshot: Snapshot, hold: Hold) -> tuple[Change, ...]:
        """The changes that would let a waiting gang start now."""
        if not hold.reasons or self.state.backlog.count > ADVICE_LINE_MAX:
            return ()
        return tuple(smallest_changes(snapshot, self.policy, hold))

    def _hopeful(self, hold: Hold) -> Hold:
        """A gang that fits on no current node may fit on nodes that fleets can add."""
        never = [reason for reason in hold.reasons if isinstance(reason, NeverFits)]
        names = tuple(name for name, fleet in self.known.fleets.fleets.items() if not fleet.is_recalled)
        gang = self.state.gangs.get(hold.gang)
        if not never or gang is None or not could_come(self.state, self.known.fleets)(gang.demand):
            return hold
        others = tuple(reason for reason in hold.reasons if not isinstance(reason, NeverFits))
        return structs.replace(hold, reasons=(NodesMayCome(names), *others))

    def _tried_outlooks(self, question: PlannerQuestion) -> bytes:
        """Outlooks, if they are found soon: plans must not wait for them. On a site where looking far ahead takes too
        long, that is not tried again for a while."""
        looks_far = time.monotonic() >= self._near_until_s
        try:
            return forked(lambda: msgspec.json.encode(self._outlooks(question, looks_far)), OUTLOOK_S)
        except TrialFailed:
            self._near_until_s = time.monotonic() + NEAR_S
            return msgspec.json.encode(PlannerAnswer())

    def _outlooks(self, question: PlannerQuestion, looks_far: bool) -> PlannerAnswer:
        """In short why gangs wait, and when they start. Gangs of one entry of the backlog have the same reason, which
        is found once; of too many different ones only the first get a reason."""
        snapshot, state = Snapshot(self.state, question.now_ms), self.state
        starts, assumed = self._starts(snapshot, looks_far), assumed_ends(snapshot)
        known: dict[tuple[Any, ...], Hold] = {}
        found: list[StartOutlook] = []
        for name in question.gangs:
            gang = state.gangs.get(name)
            if gang is None or gang.state is not GangState.WAITING:
                continue
            held_why = state.jobs[gang.job].held_why
            if held_why:
                found.append(StartOutlook(Hold(name, (Quarantined(gang.job, held_why),))))
                continue
            is_alone = bool(gang.blockers or gang.claim)
            shape = (name,) if is_alone else (gang.queue, gang.user, gang.priority, gang.profile)
            if shape not in known and len(known) < OUTLOOKS_MAX:
                known[shape] = self._hopeful(first_reason(snapshot, self._last_plan, name))
            hold = known.get(shape, Hold(name))
            starts_ms = starts.get(name)
            found.append(StartOutlook(structs.replace(hold, gang=name), starts_ms, assumed.get(starts_ms or 0, 0)))
        return PlannerAnswer(outlooks=tuple(found))

    def _starts(self, snapshot: Snapshot, looks_far: bool = True) -> dict[str, int]:
        """When waiting gangs are expected to start: by reservations, as many as can be made in time."""
        plans = [self._last_plan(snapshot)]
        if looks_far and self._foresight is not None and self.state.backlog.count <= ADVICE_LINE_MAX:
            plans.append(self._foresight(snapshot))
        return {each.gang: each.at_ms for plan in reversed(plans) for each in plan.reservations}

    def _line(self, question: PlannerQuestion) -> PlannerAnswer:
        """The first gangs in line. A policy that is not made of parts has no order to tell."""
        if not isinstance(self.policy, Standard):
            return PlannerAnswer()
        found = turns(Snapshot(self.state, question.now_ms), self.policy.parts, question.most)
        return PlannerAnswer(line=tuple(found))

    def _prospects(self, question: PlannerQuestion) -> PlannerAnswer:
        """Submit the jobs and plan. Changes the state: only for a copy that is thrown away."""
        state, now_ms = self.state, question.now_ms
        if question.queue is not None:
            return PlannerAnswer(queue=with_settings(state, self.policy, question.queue, now_ms))
        events = submit_many(state, question.specs, question.user, now_ms, could_come(state, self.known.fleets))
        if isinstance(events, Refusal):
            return PlannerAnswer(refusal=events)
        apply_all(state, events, now_ms)
        snapshot = Snapshot(state, now_ms)
        plan = self.policy(snapshot)
        self._last = (state.version, plan)
        starts: dict[str, int] | None = None
        found: list[DryRunOutcome] = []
        for gang in [gang for job in question.specs for gang in state.jobs[job].gangs]:
            prospect = _foreseen(plan, gang, now_ms)
            if prospect is None:
                hold = explain(snapshot, lambda _: plan, gang)
                starts = self._starts(snapshot) if starts is None else starts
                seats = next((each.seats for each in plan.reservations if each.gang == gang), ())
                starts_ms = starts.get(gang)
                prospect = DryRunOutcome(
                    gang,
                    seats,
                    starts_ms,
                    assumed_ends(snapshot).get(starts_ms or 0, 0),
                    hold=None if isinstance(hold, Refusal) else hold,
                )
                if prospect.hold is not None and len(found) < ADVISED_MAX:
                    prospect = structs.replace(prospect, changes=self._changes(snapshot, prospect.hold))
            found.append(prospect)
        return PlannerAnswer(prospects=tuple(found))


def with_settings(state: State, policy: Policy, spec: QueueSpec, now_ms: int) -> QueueOutcome:
    """Change the queue and plan, and compare. Changes the state: only for a copy that is thrown away."""
    reclaimed_before, starts_before = _moves(policy(Snapshot(state, now_ms)))
    apply_all(state, [QueueSet(now_ms, spec)], now_ms)
    reclaimed, starts = _moves(policy(Snapshot(state, now_ms)))
    return QueueOutcome(
        reclaimed=tuple(ReclaimedGang(*each) for each in reclaimed.items() if each[0] not in reclaimed_before),
        starts=tuple(gang for gang in starts if gang not in starts_before),
        kept_waiting=tuple(gang for gang in starts_before if gang not in starts),
    )


def _moves(plan: Plan) -> tuple[dict[str, str], dict[str, None]]:
    """Gangs that have to leave, each with the one it leaves for; and gangs that start, at once or then."""
    reclaimed: dict[str, str] = {}
    starts: dict[str, None] = {}
    for decision in plan.decisions:
        if isinstance(decision, Place | MakeRoom):
            starts[decision.gang] = None
        if isinstance(decision, MakeRoom):
            reclaimed |= dict.fromkeys((victim.gang for victim in decision.victims), decision.gang)
    return reclaimed, starts


def _foreseen(plan: Plan, gang: str, now_ms: int) -> DryRunOutcome | None:
    for decision in plan.decisions:
        if decision.gang == gang and isinstance(decision, Place):
            return DryRunOutcome(gang, decision.seats, now_ms)
        if decision.gang == gang and isinstance(decision, MakeRoom):
            return DryRunOutcome(gang, decision.seats, victims=tuple(victim.gang for victim in decision.victims))
    return None


def chosen_policy(choice: PolicyChoice) -> Policy | Refusal:
    """The policy of a configuration. The number of reservations and the patience are settings of ``standard``."""
    if choice.name == "standard":
        return standard(depth=choice.reservations, patience_ms=choice.patience_ms)
    if choice.name in PUBLISHED_NAMES:  # only then is the simulator loaded, which has them
        return named_policy(choice.name, catalog=import_module(PUBLISHED_MODULE).PUBLISHED)
    return named_policy(choice.name)


def main(choice: str) -> None:
    settings = msgspec.json.decode(choice, type=PolicyChoice)
    chosen = chosen_policy(settings)
    assert not isinstance(chosen, Refusal), chosen
    is_standard = settings.name == "standard"
    foresight = standard(depth=FORESIGHT, patience_ms=settings.patience_ms) if is_standard else None
    planner = PlannerProcess(chosen, settings.timeout_ms / 1000, foresight)
    gc_tuning.set_survivors_aside()
    looked_s = time.monotonic()
    while message := pipe_frames.read_frame(sys.stdin.buffer):
        kind, body = message
        try:
            answer = planner.answer(kind, body)
            reply = None if answer is None else pipe_frames.frame(kind, answer)
        except Exception:
            if kind in (pipe_frames.BEGIN, pipe_frames.FOLLOW):
                raise  # its state is incomplete: end, and let the server restart it
            reply = pipe_frames.frame(pipe_frames.FAILED, traceback.format_exc().encode())
        if reply is not None and not _is_sent(reply):
            return  # the server is gone
        if time.monotonic() - looked_s > gc_tuning.WHOLE_LOOK_S:
            gc_tuning.look_at_everything()
            looked_s = time.monotonic()


def _is_sent(reply: bytes) -> bool:
    try:
        sys.stdout.buffer.write(reply)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # prevents an error message at exit
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1])
