"""What an effect leads to, and when: starting, working, saving and stopping take time, and a restart costs.

Plays the machines. Knows how much work a job is and how fast it goes where it sits; decides nothing. Whatever it
reports, it reports as facts, and the engine treats them as it treats those of real machines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from corral.core import facts as f
from corral.core.cluster.resources import Seat
from corral.core.effects import Effect, StartGang, WarnGang
from corral.core.model import Cause, GangState
from corral.core.state import State

#: What part of its full speed a job reaches on these seats, in thousandths.
SpeedModel = Callable[[str, Sequence[Seat]], int]


class Costs(Struct, frozen=True):
    """How long things take that are not work. All zero: the literature's idea of a cluster."""

    start_ms: int = 0  # from the order to the first step, of a first start
    restart_ms: int = 0  # the same when a checkpoint has to be loaded
    save_ms: int = 0  # to write a checkpoint when told to leave
    stop_ms: int = 0  # from the last word to the end of the processes
    checkpoint_every_ms: int = 0  # 0: saves only when told to leave
    saves: bool = True  # whether jobs save when told to leave; those that do not begin anew


FREE = Costs()
#: A sound guess for training jobs: see docs/simulator.md for where the figures come from.
TYPICAL = Costs(start_ms=30_000, restart_ms=60_000, save_ms=15_000, stop_ms=2_000, checkpoint_every_ms=1_800_000)


#: A gang of which a part has died cannot write a checkpoint any more.
_TOO_LATE_TO_SAVE = frozenset({Cause.FAILURE, Cause.UNREPAIRABLE})


class Save(Struct, frozen=True, gc=False):
    """A mark on the agenda: this attempt writes a checkpoint now, if it still runs."""

    gang: str
    attempt: int


#: What may stand on the agenda.
Item = f.Fact | Save


class Attempt(Struct):
    """One run of a gang under way."""

    number: int
    up_ms: int  # when work begins
    speed: int  # thousandths
    step: int  # of its newest checkpoint
    is_leaving: bool = False  # it has been told so


class World:
    """Carries effects out. ``later`` puts something on the agenda."""

    def __init__(
        self,
        state: State,
        work_ms: Mapping[str, int],
        later: Callable[[int, Item], None],
        costs: Costs = FREE,
        speed: SpeedModel | None = None,
        exits: Mapping[str, int] | None = None,
    ) -> None:
        self._state, self._work, self._later = state, work_ms, later
        self._costs, self.speed, self._exits = costs, speed, exits or {}
        self._running: dict[str, Attempt] = {}
        self._safe: dict[str, int] = {}  # gang -> work that a checkpoint has made safe, in ms at full speed

    def obey(self, effects: Sequence[Effect], now_ms: int) -> None:
        for effect in effects:
            if isinstance(effect, StartGang):
                self._start(effect, now_ms)
            elif isinstance(effect, WarnGang):
                self._stop(effect, now_ms)
            else:
                self._down(effect.gang, effect.attempt, now_ms, 137)

    def happen(self, item: Item, now_ms: int) -> f.Fact | None:
        """What is told when an item of the agenda comes up; None if it no longer means anything."""
        if not isinstance(item, Save):
            return item
        attempt = self._running.get(item.gang)
        if attempt is None or attempt.number != item.attempt or attempt.is_leaving or not self._goes_on(item):
            return None
        self._later(now_ms + self._costs.checkpoint_every_ms, item)
        return self._saved(item.gang, attempt, now_ms)

    def _start(self, effect: StartGang, now_ms: int) -> None:
        known = self._running.get(effect.gang)
        if known is not None and known.number == effect.attempt:
            return  # told twice
        job = self._state.gangs[effect.gang].job
        safe = self._safe.get(effect.gang, 0)
        delay = self._costs.restart_ms if safe else self._costs.start_ms
        speed = 1000 if self.speed is None else self.speed(job, effect.seats)
        up_ms = now_ms + delay
        step = known.step if known is not None else 0
        self._running[effect.gang] = Attempt(effect.attempt, up_ms, speed, step)
        everyone = (1 << len(effect.seats)) - 1
        self._later(up_ms, f.TasksUp(effect.gang, effect.attempt, everyone))
        left = max(1, -(-(self._work[job] - safe) * 1000 // speed))
        self._later(up_ms + left, f.TasksDown(effect.gang, effect.attempt, everyone, self._exits.get(job, 0)))
        if self._costs.checkpoint_every_ms:
            self._later(up_ms + self._costs.checkpoint_every_ms, Save(effect.gang, effect.attempt))

    def _stop(self, effect: WarnGang, now_ms: int) -> None:
        attempt = self._running.get(effect.gang)
        if attempt is None or attempt.number != effect.attempt or attempt.is_leaving:
            return  # a warning is owed until the gang has left, and is given again
        attempt.is_leaving = True
        last_ms = now_ms
        if self._costs.saves and attempt.up_ms <= now_ms and effect.cause not in _TOO_LATE_TO_SAVE:
            last_ms = now_ms + self._costs.save_ms
            if last_ms <= effect.deadline_ms:
                self._later(last_ms, self._saved(effect.gang, attempt, now_ms))
            else:  # killed while it writes: there is no such checkpoint
                last_ms = max(now_ms, effect.deadline_ms)
        self._down(effect.gang, effect.attempt, last_ms + self._costs.stop_ms, self._saved_exit(effect.gang))

    def _saved_exit(self, gang: str) -> int:
        return self._state.jobs[self._state.gangs[gang].job].spec.requeue_exit

    def _down(self, gang: str, attempt: int, when_ms: int, exit_code: int) -> None:
        self._later(when_ms, f.TasksDown(gang, attempt, self._state.gangs[gang].everyone, exit_code))

    def _saved(self, gang: str, attempt: Attempt, when_ms: int) -> f.Saved:
        """The work done by then is safe. The attempt goes on from there."""
        done = max(0, when_ms - attempt.up_ms) * attempt.speed // 1000
        self._safe[gang] = self._safe.get(gang, 0) + done
        attempt.up_ms = max(attempt.up_ms, when_ms)
        attempt.step += 1
        return f.Saved(gang, attempt.number, attempt.step)

    def _goes_on(self, item: Save) -> bool:
        gang = self._state.gangs[item.gang]
        return gang.attempt == item.attempt and gang.state in (GangState.STARTING, GangState.RUNNING)
