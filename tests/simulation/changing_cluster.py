"""The random driver on a cluster that changes: nodes and queues are added, removed and changed.

Two laws more than the plain driver has. A change of the cluster disturbs no gang: gangs keep seats, claims and
attempts. And preemption comes to rest: while nothing else changes, no gang is evicted again and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from corral.core import events as e
from corral.core import facts as f
from corral.core.apply import apply
from corral.core.cluster.resources import GPU_MILLI, amounts
from corral.core.effects import StartGang, effects
from corral.core.intake import commands
from corral.core.intake.never_fits import why_never
from corral.core.intake.refusal import Refusal
from corral.core.laws import LawBroken, check
from corral.core.model import Cause, GangSpec, JobSpec, QueueSpec
from corral.core.state import State, lasts
from corral.sim.research.published import policy as named_policy
from tests.simulation.driver import Driver
from tests.world import image

NEW_QUEUES = ("lab/green", "guests", "guests/a")
MOVING = frozenset({Cause.RECLAIM, Cause.PRIORITY, Cause.SHRINK})
ROUNDS_MAX = 100
MOVES_MAX = 4


@dataclass
class ChangingDriver(Driver):
    nodes_added: int = 0

    def actions(self) -> list[tuple[Callable[[], None], int]]:
        return [
            *super().actions(), (self._node_comes, 2), (self._node_goes, 2), (self._node_differs, 1),
            (self._node_ends, 2), (self._queue_comes, 1), (self._queue_goes, 1), (self._stand_still, 1),
            (self._race, 6),
        ]  # fmt: skip

    # ---- the cluster changes ------------------------------------------------------------

    def _undisturbed(self, change: Callable[[], None]) -> None:
        before = self._standing()
        change()
        if self._standing() != before:
            raise LawBroken("a change of the cluster disturbed a gang")

    def _standing(self) -> list[object]:
        gangs = self.state.gangs.values()
        return [(g.id, g.state, g.attempt, g.seats, g.spares, g.claim, g.charged, g.rank) for g in gangs]

    def _node_comes(self) -> None:
        if len(self.state.nodes) < 12:
            self.nodes_added += 1
            rack = self.rng.choice(("r0", "r1", "r9"))
            name, model = f"new{self.nodes_added}", self.rng.choice(("H100", "H100", "A100"))
            self._undisturbed(lambda: self._add_node(name, ("z0", rack), model))

    def _node_goes(self) -> None:
        if len(self.state.nodes) > 2:
            name = self._some_node()
            self._undisturbed(lambda: self._command(commands.remove_node(self.state, name, self.now)))

    def _node_differs(self) -> None:
        node, model = self.state.nodes.get(self._some_node()), self.rng.choice(("H100", "A100"))
        if node is not None:
            spec = node.spec
            self._undisturbed(lambda: self._add_node(spec.name, spec.path, model))

    def _node_ends(self) -> None:
        """It is lent until then; or it turns out that it is not."""
        left = self.rng.choice((None, 0, 20_000, 120_000, 900_000, 7_200_000))
        until = None if left is None else self.now + left
        self._undisturbed(lambda: self._tell(f.NodeEnds(self._some_node(), until)))

    def _write(self, events: Sequence[e.Event]) -> None:
        for event in events:
            if isinstance(event, e.GangPlaced):
                gang = self.state.gangs[event.gang]
                if not lasts(self.state, gang, (*event.seats, *event.spares), event.at_ms):
                    raise LawBroken(f"{gang.id} is placed where it cannot be done before the machine goes back")
        super()._write(events)

    def _queue_comes(self) -> None:
        rng = self.rng
        spec = QueueSpec(
            name=rng.choice(NEW_QUEUES),
            guarantee=amounts({GPU_MILLI: 1000}) if rng.random() < 0.5 else (),
            lend=amounts({GPU_MILLI: 0}) if rng.random() < 0.2 else (),
            weight=rng.randint(1, 3),
            limit=self._maybe({GPU_MILLI: 4000}),
            time_share=rng.choice((0, 0, 2)),
        )
        self._undisturbed(lambda: self._command(commands.set_queue(self.state, spec, self.now)))

    def _queue_goes(self) -> None:
        name = self.rng.choice((*NEW_QUEUES, "lab/blue"))
        self._undisturbed(lambda: self._command(commands.remove_queue(self.state, name, self.now)))

    def _submit(self) -> None:
        """As before, and now and then to a queue that may have been made on the way."""
        known = [name for name in NEW_QUEUES if name in self.state.queues.queues]
        if not known or self.rng.random() < 0.7:
            super()._submit()
            return
        self.jobs += 1
        rng = self.rng
        spec = JobSpec(
            queue=rng.choice(known),
            gangs=(GangSpec(self._demand()),),
            priority=rng.choice((0, 1)),
            time_limit_ms=rng.choice((None, 600_000)),
            grace_ms=rng.choice((0, 5_000)),
            checkpoints=rng.random() < 0.5,
        )
        self._command(commands.submit(self.state, f"j{self.jobs}", spec, "cat", self.now))

    # ---- plans that come late -----------------------------------------------------------------------

    def _race(self) -> None:
        """Law 5, where it matters: another change was faster, and the plan comes late."""
        rival = named_policy(self.rng.choice(("fifo", "sjf", "fair", "srtf")))
        assert not isinstance(rival, Refusal)
        late, faster = self.chosen(self._snapshot()), rival(self._snapshot())
        self.take(self._commit(faster))
        self.take(self._commit(late))

    # ---- preemption comes to rest -------------------------------------------------------

    def _stand_still(self) -> None:
        """Everyone does at once what is asked and nothing else happens: soon nothing more is decided."""
        made_way: Counter[tuple[str, str]] = Counter()
        for _ in range(ROUNDS_MAX):
            plan = self.chosen(self._snapshot())
            events = self._commit(plan)
            self._must_commit_in_full(plan, events)
            self._no_circle(events, made_way)
            if not events and not any(self._is_pending(effect.gang) for effect in effects(self.state)):
                return
            self.take(events)
            self.now += 1
            for effect in effects(self.state):
                gang = self.state.gangs[effect.gang]
                if isinstance(effect, StartGang):
                    self._tell(f.TasksUp(gang.id, gang.attempt, gang.everyone))
                else:
                    self._tell(f.TasksDown(gang.id, gang.attempt, gang.everyone, 85))
        raise LawBroken(f"nothing has happened for {ROUNDS_MAX} rounds, and there is still something to decide")

    def _is_pending(self, name: str) -> bool:
        """Whether a gang still has something to do; one that has ended may wait to be judged."""
        gang = self.state.gangs[name]
        return gang.ended != gang.everyone or gang.eviction is None or gang.eviction.judge_ms <= self.now

    def _no_circle(self, events: Sequence[e.Event], made_way: Counter[tuple[str, str]]) -> None:
        """Rights shift while others start, so a gang may have to move again; what goes on and on is a circle."""
        for event in events:
            if isinstance(event, e.GangEvicted) and event.cause in MOVING:
                pair = (event.gang, event.beneficiary)
                made_way[pair] += 1
                if made_way[pair] > MOVES_MAX:
                    raise LawBroken(f"{pair[0]} is evicted for {pair[1]} again and again, and nothing has changed")

    # ---- the end ------------------------------------------------------------------------

    def calm(self, rounds: int = 3_000) -> None:
        """Work for which the cluster has become too small is taken back; all else must come to an end."""
        for node in list(self.state.ending):
            self._tell(f.NodeEnds(node, None))
        self.late_facts = [fact for fact in self.late_facts if not isinstance(fact, f.NodeEnds)]
        for job in list(self.state.jobs.values()):
            gangs = [self.state.gangs[name] for name in job.gangs]
            if any(why_never(self.state, gang.demand, gang.profile.avoid) is not None for gang in gangs):
                self._command(commands.cancel(self.state, job.id, self.now))
        super().calm(rounds)


def check_replay(driver: Driver) -> None:
    """Law 6: the journal, written and read, gives the same state."""
    again = State(driver.state.settings)
    for event in msgspec.json.decode(msgspec.json.encode(driver.journal), type=list[e.Event]):
        apply(again, event)
    check(again)
    there, here = image(again), image(driver.state)
    for part, value in here.items():
        if there[part] != value:
            raise LawBroken(f"a replay gives other {part}")
