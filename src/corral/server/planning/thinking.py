"""The planner's own process: it follows the journal with a state of its own, and answers what takes thought.

Plans, explanations, trials and images are made here, so that the server never has to wait for them. What is answered
may be late by the time it arrives: whoever asked checks it against the present. Reads from standard input, writes to
standard output, and ends when the input ends. Knows nothing of files, sockets or clocks.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Mapping

import msgspec
from msgspec import Struct, structs

from corral.core.cluster.resources import Seat
from corral.core.engine import Engine, Policy
from corral.core.fleets.outlook import could_come
from corral.core.intake.commands import cancel, forget, submit_many
from corral.core.intake.refusal import Refusal
from corral.core.model import JobSpec
from corral.core.plan import MakeRoom, Place, Plan
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.policy.advice import Change, smallest_changes
from corral.policy.catalog import policy as named_policy
from corral.policy.catalog import standard
from corral.policy.demand import needs
from corral.policy.explain import explain
from corral.policy.reasons import Hold, NeverFits, NodesMayCome, Quarantined
from corral.server import garbage
from corral.server.planning import frames
from corral.server.planning.blame import Search, search
from corral.server.saved import Known
from corral.wire.codec import FORMAT, decode
from corral.wire.config import PolicyChoice

#: Beyond so many in line, the changes that would help are not tried out: each of them is a plan of its own.
ADVICE_LINE_MAX = 20_000


class Question(Struct, frozen=True, gc=False):
    """Why a gang waits, or what would become of these jobs, at this time."""

    now_ms: int
    gang: str = ""
    user: str = ""
    specs: dict[str, JobSpec] = {}


class Why(Struct, frozen=True, gc=False):
    hold: Hold
    changes: tuple[Change, ...] = ()


class Prospect(Struct, frozen=True, gc=False):
    """What would become of one gang if it were submitted now."""

    gang: str
    seats: tuple[Seat, ...] = ()  # where it would sit, now or later
    starts_ms: int | None = None  # None: not foreseen
    victims: tuple[str, ...] = ()  # who would have to leave first
    hold: Hold | None = None


class Answer(Struct, frozen=True, gc=False):
    """What was asked for, or why not."""

    refusal: Refusal | None = None
    why: Why | None = None
    prospects: tuple[Prospect, ...] = ()


class Thinker:
    """A state that follows, and a policy."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.known: Known

    @property
    def state(self) -> State:
        return self.known.state

    def answer(self, kind: bytes, body: bytes) -> bytes | None:
        """Take one message. None: there is nothing to say to it."""
        if kind == frames.BEGIN:
            self.known = Known.unpack(body)
            garbage.look_at_everything()
            return None
        if kind == frames.FOLLOW:
            for each in frames.unpack(body):
                self.known.apply(decode(FORMAT, each))
            return None
        if kind == frames.READY:
            return b""
        if kind == frames.BLAME:
            return msgspec.json.encode(search(self.state, self.policy, msgspec.json.decode(body, type=Search)))
        if kind == frames.PLAN:
            return msgspec.json.encode(self.policy(Snapshot(self.state, msgspec.json.decode(body, type=int))))
        if kind == frames.NEEDS:
            snapshot = Snapshot(self.state, msgspec.json.decode(body, type=int))
            return msgspec.json.encode(needs(snapshot, self.known.fleets.fleets))
        if kind == frames.IMAGE:
            return self.known.pack()
        question = msgspec.json.decode(body, type=Question)
        return msgspec.json.encode(self.why(question) if kind == frames.WHY else self.prospects(question))

    def why(self, question: Question) -> Answer:
        snapshot = Snapshot(self.state, question.now_ms)
        known = self.state.gangs.get(question.gang)
        job = None if known is None else self.state.jobs[known.job]
        if job is not None and job.held_why:  # nothing more is tried with it: planning has failed because of it
            return Answer(why=Why(Hold(question.gang, (Quarantined(job.id, job.held_why),))))
        hold = explain(snapshot, self.policy, question.gang)
        if isinstance(hold, Refusal):
            return Answer(refusal=hold)
        hold = self._hopeful(hold)
        changes: list[Change] | Refusal = []
        if hold.reasons and self.state.backlog.count <= ADVICE_LINE_MAX:
            changes = smallest_changes(snapshot, self.policy, question.gang)
        return Answer(why=Why(hold, () if isinstance(changes, Refusal) else tuple(changes)))

    def _hopeful(self, hold: Hold) -> Hold:
        """What fits on nothing that is here may fit on what fleets bring."""
        never = [reason for reason in hold.reasons if isinstance(reason, NeverFits)]
        names = tuple(name for name, fleet in self.known.fleets.fleets.items() if not fleet.is_recalled)
        gang = self.state.gangs.get(hold.gang)
        if not never or gang is None or not could_come(self.state, self.known.fleets)(gang.demand):
            return hold
        others = tuple(reason for reason in hold.reasons if not isinstance(reason, NeverFits))
        return structs.replace(hold, reasons=(NodesMayCome(names), *others))

    def prospects(self, question: Question) -> Answer:
        """Take the jobs in, plan, and let them go again: nobody sees it, and the state is as it was before."""
        state, now_ms = self.state, question.now_ms
        events = submit_many(state, question.specs, question.user, now_ms, could_come(state, self.known.fleets))
        if isinstance(events, Refusal):
            return Answer(refusal=events)
        counters = (state.next_rank, state.next_job, state.version, state.now_ms)
        engine = Engine(state, self.policy, lambda events: None)  # noqa: ARG005 - nothing of this is written
        engine.take(events, now_ms)
        try:
            return Answer(prospects=tuple(self._prospects(question.specs, now_ms)))
        finally:
            for job in question.specs:
                for take_back in (cancel, forget):
                    undone = take_back(state, job, now_ms)
                    assert not isinstance(undone, Refusal), undone
                    engine.take(undone, now_ms)
            state.next_rank, state.next_job, state.version, state.now_ms = counters

    def _prospects(self, specs: Mapping[str, JobSpec], now_ms: int) -> list[Prospect]:
        snapshot = Snapshot(self.state, now_ms)
        plan = self.policy(snapshot)
        found = []
        for job in specs:
            for gang in self.state.jobs[job].gangs:
                prospect = _foreseen(plan, gang, now_ms)
                if prospect is None:
                    hold = explain(snapshot, self.policy, gang)
                    prospect = Prospect(gang, hold=None if isinstance(hold, Refusal) else hold)
                found.append(prospect)
        return found


def _foreseen(plan: Plan, gang: str, now_ms: int) -> Prospect | None:
    for decision in plan.decisions:
        if decision.gang == gang and isinstance(decision, Place):
            return Prospect(gang, decision.seats, now_ms)
        if decision.gang == gang and isinstance(decision, MakeRoom):
            return Prospect(gang, decision.seats, victims=tuple(victim.gang for victim in decision.victims))
    promised = next((each for each in plan.reservations if each.gang == gang), None)
    return None if promised is None else Prospect(gang, promised.seats, promised.at_ms)


def chosen_policy(choice: PolicyChoice) -> Policy | Refusal:
    """The policy of a configuration. How many starts are promised, and its patience, are settings of ``standard``."""
    if choice.name == "standard":
        return standard(depth=choice.reservations, patience_ms=choice.patience_ms)
    return named_policy(choice.name)


def main(choice: str) -> None:
    chosen = chosen_policy(msgspec.json.decode(choice, type=PolicyChoice))
    assert not isinstance(chosen, Refusal), chosen
    thinker = Thinker(chosen)
    garbage.set_survivors_aside()
    looked_s = time.monotonic()
    while message := frames.read_frame(sys.stdin.buffer):
        kind, body = message
        try:
            answer = thinker.answer(kind, body)
            reply = None if answer is None else frames.frame(kind, answer)
        except Exception:
            if kind in (frames.BEGIN, frames.FOLLOW):
                raise  # it no longer follows: better to end and begin anew
            reply = frames.frame(frames.FAILED, traceback.format_exc().encode())
        if reply is not None and not _is_told(reply):
            return  # the server is gone
        if time.monotonic() - looked_s > garbage.WHOLE_LOOK_S:
            garbage.look_at_everything()
            looked_s = time.monotonic()


def _is_told(reply: bytes) -> bool:
    try:
        sys.stdout.buffer.write(reply)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left unwritten is complained about
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1])
