"""The simulated nodes: starting, working, saving and stopping take time, and a restart costs work.

Knows the work of a job and its speed at its placement; decides nothing. It reports facts, which the engine treats like
those of real nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from corral.core import facts as f
from corral.core.cluster.resources import Seat
from corral.core.effects import Effect, StartGang, WarnGang
from corral.core.model import Cause, GangState
from corral.core.state import State
from corral.sim.faults import NodeDies

#: The speed of a job on these seats, in thousandths of full speed.
SpeedModel = Callable[[str, Sequence[Seat]], int]


class Costs(Struct, frozen=True):
    """Times that are not work. All zero: the model of most publications."""

    start_ms: int = 0  # from the order to the first step, at the first start
    restart_ms: int = 0  # the same when a checkpoint has to be loaded
    save_ms: int = 0  # to write a checkpoint when preempted
    stop_ms: int = 0  # from the kill to the end of the processes
    checkpoint_every_ms: int = 0  # of work; 0: saves only when preempted
    stall_ms: int = 0  # for which a periodic save stops the work
    write_ms: int = 0  # from then until it is durable; the work continues meanwhile
    standby_ms: int = 0  # to restart with tasks on spares where a process is ready; 0: as any restart
    saves: bool = True  # whether jobs save when preempted; otherwise they start from the beginning


FREE = Costs()
#: A reasonable default for training jobs; docs/simulator.md has the sources of the figures.
TYPICAL = Costs(start_ms=30_000, restart_ms=60_000, save_ms=15_000, stop_ms=2_000, checkpoint_every_ms=1_800_000)


#: A gang that has lost tasks cannot write a checkpoint.
_TOO_LATE_TO_SAVE = frozenset({Cause.FAILURE, Cause.UNREPAIRABLE})


class Save(Struct, frozen=True, gc=False):
    """An event: this attempt writes a checkpoint now, if it still runs."""

    gang: str
    attempt: int


class SaveWritten(Struct, frozen=True, gc=False):
    """An event: a periodic save of this attempt is durable, if the attempt still runs."""

    gang: str
    attempt: int
    work_ms: int


#: Items of the agenda.
Item = f.Fact | Save | SaveWritten | NodeDies


class Attempt(Struct):
    """One running attempt of a gang."""

    number: int
    up_ms: int  # when work begins
    speed: int  # thousandths
    step: int  # of its newest checkpoint
    is_leaving: bool = False  # it was warned
    unsaved_ms: int = 0  # work before ``up_ms`` that no checkpoint holds yet
    spares: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()


class World:
    """Executes effects. ``later`` adds an item to the agenda."""

    def __init__(
        self,
        state: State,
        work_ms: Mapping[str, int],
        later: Callable[[int, Item], None],
        costs: Costs = FREE,
        speed: SpeedModel | None = None,
        exits: Mapping[str, int] | None = None,
    ) -> None:
        self._state = state
        self._work = work_ms
        self._later = later
        self._costs = costs
        self.speed = speed
        self._exits = exits or {}
        self._running: dict[str, Attempt] = {}
        self._dead: set[str] = set()  # nodes that have failed, whether the server knows it or not
        self._safe: dict[str, int] = {}  # gang -> work saved in a checkpoint, in ms at full speed

    def obey(self, effects: Sequence[Effect], now_ms: int) -> None:
        for effect in effects:
            if isinstance(effect, StartGang):
                self._start(effect, now_ms)
            elif isinstance(effect, WarnGang):
                self._stop(effect, now_ms)
            else:
                self._down(effect.gang, effect.attempt, now_ms, 137)

    def happen(self, item: Item, now_ms: int) -> f.Fact | None:
        """The report for an item of the agenda; None if it no longer applies."""
        if isinstance(item, NodeDies):
            self._dead.add(item.node)
            return None
        if isinstance(item, f.NodeBack):
            self._dead.discard(item.node)
        if not isinstance(item, Save | SaveWritten):
            return item
        attempt = self._running.get(item.gang)
        if attempt is None or attempt.number != item.attempt or attempt.is_leaving or not self._goes_on(item):
            return None
        if self._dead & attempt.nodes:
            return None  # the other ranks wait for one that will not answer
        if isinstance(item, SaveWritten):
            return self._written(item, attempt)
        if not self._costs.stall_ms and not self._costs.write_ms:
            self._later(now_ms + self._costs.checkpoint_every_ms, item)
            return self._saved(item.gang, attempt, now_ms)
        self._save_behind(item, attempt, now_ms)
        return None

    def _save_behind(self, item: Save, attempt: Attempt, now_ms: int) -> None:
        """The work stops for the copy, and continues while it is written."""
        costs = self._costs
        done = max(0, now_ms - attempt.up_ms) * attempt.speed // 1000
        attempt.unsaved_ms += done
        attempt.up_ms = now_ms + costs.stall_ms
        self._later(attempt.up_ms + costs.write_ms, SaveWritten(item.gang, item.attempt, attempt.unsaved_ms))
        self._later(attempt.up_ms + max(costs.checkpoint_every_ms, costs.write_ms + 1), item)

    def _written(self, item: SaveWritten, attempt: Attempt) -> f.Saved:
        self._safe[item.gang] = self._safe.get(item.gang, 0) + item.work_ms
        attempt.unsaved_ms -= item.work_ms
        attempt.step += 1
        costs = self._costs
        return f.Saved(
            item.gang, attempt.number, attempt.step, save_ms=costs.stall_ms + costs.write_ms, stall_ms=costs.stall_ms
        )

    def _start(self, effect: StartGang, now_ms: int) -> None:
        known = self._running.get(effect.gang)
        if known is not None and known.number == effect.attempt:
            return  # sent twice
        job = self._state.gangs[effect.gang].job
        safe = self._safe.get(effect.gang, 0)
        delay = self._delay_ms(effect, known, bool(safe))
        speed = 1000 if self.speed is None else self.speed(job, effect.seats)
        up_ms = now_ms + delay
        step = known.step if known is not None else 0
        nodes = frozenset(seat.node for seat in effect.seats)
        spares = frozenset(seat.node for seat in self._state.gangs[effect.gang].spares)
        self._running[effect.gang] = Attempt(effect.attempt, up_ms, speed, step, spares=spares, nodes=nodes)
        everyone = (1 << len(effect.seats)) - 1
        self._later(up_ms, f.TasksUp(effect.gang, effect.attempt, everyone))
        left = max(1, -(-(self._work[job] - safe) * 1000 // speed))
        if self._costs.checkpoint_every_ms and self._costs.stall_ms:
            left += (left - 1) // self._costs.checkpoint_every_ms * self._costs.stall_ms
        self._later(up_ms + left, f.TasksDown(effect.gang, effect.attempt, everyone, self._exits.get(job, 0)))
        if self._costs.checkpoint_every_ms:
            self._later(up_ms + self._costs.checkpoint_every_ms, Save(effect.gang, effect.attempt))

    def _delay_ms(self, effect: StartGang, before: Attempt | None, has_saved: bool) -> int:
        """From the order to the first step. Where only spares with a process that is ready have joined, it is short."""
        costs = self._costs
        joined = {seat.node for seat in effect.seats} - (before.nodes if before is not None else frozenset())
        if costs.standby_ms and before is not None and joined <= before.spares:
            return costs.standby_ms
        return costs.restart_ms if has_saved else costs.start_ms

    def _stop(self, effect: WarnGang, now_ms: int) -> None:
        attempt = self._running.get(effect.gang)
        if attempt is None or attempt.number != effect.attempt or attempt.is_leaving:
            return  # the engine repeats the warning until the gang has left
        attempt.is_leaving = True
        last_ms = now_ms
        if self._costs.saves and attempt.up_ms <= now_ms and effect.cause not in _TOO_LATE_TO_SAVE:
            last_ms = now_ms + self._costs.save_ms
            if last_ms <= effect.deadline_ms:
                self._later(last_ms, self._saved(effect.gang, attempt, now_ms))
            else:  # killed while writing: there is no checkpoint
                last_ms = max(now_ms, effect.deadline_ms)
        self._down(effect.gang, effect.attempt, last_ms + self._costs.stop_ms, self._saved_exit(effect.gang))

    def _saved_exit(self, gang: str) -> int:
        return self._state.jobs[self._state.gangs[gang].job].spec.requeue_exit

    def _down(self, gang: str, attempt: int, when_ms: int, exit_code: int) -> None:
        self._later(when_ms, f.TasksDown(gang, attempt, self._state.gangs[gang].everyone, exit_code))

    def _saved(self, gang: str, attempt: Attempt, when_ms: int) -> f.Saved:
        """Save the work done so far. The attempt continues."""
        done = max(0, when_ms - attempt.up_ms) * attempt.speed // 1000 + attempt.unsaved_ms
        attempt.unsaved_ms = 0
        self._safe[gang] = self._safe.get(gang, 0) + done
        attempt.up_ms = max(attempt.up_ms, when_ms)
        attempt.step += 1
        return f.Saved(gang, attempt.number, attempt.step)

    def _goes_on(self, item: Save | SaveWritten) -> bool:
        gang = self._state.gangs[item.gang]
        return gang.attempt == item.attempt and gang.state in (GangState.STARTING, GangState.RUNNING)
