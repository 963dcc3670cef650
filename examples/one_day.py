"""One small simulated day: the engine decides, simulated machines obey, and every event is printed as a sentence.

Run it with `make demo`. Nothing here is random; the story is the same every time. The world is twenty lines long:
tasks start after five seconds, end when their work is done, and save when they are warned.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

from corral.core import events as e
from corral.core import facts as f
from corral.core.cluster.resources import GPU_MILLI, Demand, Gpu, Seat, TaskDemand, amounts
from corral.core.cluster.topology import NodeSpec
from corral.core.commit import commit
from corral.core.effects import Effect, StartGang, WarnGang
from corral.core.engine import apply_all, react
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.laws import check
from corral.core.model import (
    Dependency,
    FailureClass,
    GangSpec,
    GangState,
    JobSpec,
    QueueSpec,
    RetryRule,
    Settings,
)
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.policy.catalog import standard
from corral.policy.explain.holds import explain
from corral.policy.explain.reasons import Hold

MINUTE, HOUR = 60_000, 3_600_000
NODES = [f"{rack}{n}" for rack in "ab" for n in (1, 2)]


def gpus(count: int, tasks: int = 1, **terms: object) -> Demand:
    return Demand(task=TaskDemand(gpus=count), tasks=tasks, **terms)  # type: ignore[arg-type]


class Day:
    """The clock, the world and the storyteller."""

    def __init__(self) -> None:
        self.state = State(Settings(levels=("rack",)))
        self.policy = standard()
        self.now = 8 * HOUR
        self.agenda: list[tuple[int, int, f.Fact]] = []
        self.tickets = count()  # of two things due at once, the one that was put down first comes first
        self.length: dict[str, int] = {}
        self.crashes: dict[str, int] = {}
        self.busy_gpu_ms = self.preemptions = 0

    # ---- the story ---------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        seconds = self.now // 1000
        print(f"  {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}  {text}")

    def describe(self, events: Sequence[e.Event]) -> None:
        for event in events:
            match event:
                case e.JobSubmitted():
                    self.say(f"{event.user} submits {event.job} to {event.spec.queue}")
                case e.GangPlaced() | e.GangRepaired():
                    verb = "starts on" if isinstance(event, e.GangPlaced) else "continues, repaired, on"
                    self.say(f"{event.gang} {verb} {where(event.seats)} (attempt {event.attempt})")
                case e.GangEvicted():
                    self.preemptions += bool(event.beneficiary)
                    sake = f" for {event.beneficiary}" if event.beneficiary else ""
                    self.say(f"{event.gang} is preempted: {event.cause}{sake}")
                case e.CheckpointCommitted():
                    self.say(f"{event.gang} has saved its work")
                case e.GangRequeued():
                    self.say(f"{event.gang} is requeued")
                case e.GangFinished():
                    self.say(f"{event.gang} {event.state}{f' ({event.why})' if event.why else ''}")
                case e.NodeLost():
                    self.say(f"node {event.node} is lost")
                case e.NodeReturned():
                    self.say(f"node {event.node} is back")
                case e.TasksLost():
                    self.say(f"{event.gang} lost a task with {event.node}; the others keep their seats")

    # ---- the world ---------------------------------------------------------------------------------------------

    def later(self, delay: int, what: f.Fact) -> None:
        heapq.heappush(self.agenda, (self.now + delay, next(self.tickets), what))

    def tell(self, fact: f.Fact) -> None:
        self.take(react(self.state, fact, self.now))

    def take(self, events: Sequence[e.Event]) -> None:
        """What both drivers do: apply, write (here: tell the story), then act."""
        applied = apply_all(self.state, events, self.now)
        self.describe(applied.events)
        self.obey(applied.effects)

    def obey(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            gang = self.state.gangs[effect.gang]
            if isinstance(effect, StartGang):
                self.later(5_000, f.TasksUp(gang.id, gang.attempt, gang.everyone))
                left = max(1, self.length[gang.job] - gang.done_ms)
                code = 1 if self.crashes.get(gang.job, 0) >= gang.attempt else 0
                self.later(
                    5_000 + (left if not code else MINUTE),
                    f.TasksDown(gang.id, gang.attempt, gang.everyone, code),
                )
            elif isinstance(effect, WarnGang):
                self.later(4_000, f.Saved(gang.id, gang.attempt, gang.saved_step + 1))
                self.later(6_000, f.TasksDown(gang.id, gang.attempt, gang.everyone, 85))

    def submit(self, job: str, user: str, length: int, **terms: object) -> None:
        demand = terms.pop("demand")
        spec = JobSpec(gangs=(GangSpec(demand),), estimate_ms=length, **terms)  # type: ignore[arg-type]
        answer = commands.submit(self.state, job, spec, user, self.now)
        if isinstance(answer, Refusal):
            self.say(f"{user}'s {job} is refused: {answer}")
            return
        self.length[job] = length
        self.take(answer)

    def until(self, hour: int, minute: int = 0) -> None:
        """Let time pass: carry out the agenda, tick, and plan whenever something has happened."""
        end = hour * HOUR + minute * MINUTE
        while True:
            plan = self.policy(Snapshot(self.state, self.now))
            self.take(commit(self.state, plan, self.now))
            check(self.state)
            if plan.decisions:
                continue
            due = [end, self.state.queues.next_change_ms(self.now), self.state.next_timer_ms() or end]
            then = min(due + [each[0] for each in self.agenda[:1]])
            held = sum(gang.gpu_milli for gang in self.state.holders.values())
            self.busy_gpu_ms += held * (max(then, self.now) - self.now) // 1000
            self.now = max(then, self.now)
            if self.now >= end:
                return
            self.tell(f.Ticked())
            while self.agenda and self.agenda[0][0] <= self.now:
                self.tell(heapq.heappop(self.agenda)[2])

    def why(self, job: str) -> None:
        snapshot = Snapshot(self.state, self.now)
        for name in self.state.jobs[job].gangs:
            hold = explain(snapshot, self.policy, name)
            assert isinstance(hold, Hold)
            self.say(f"why does {name} wait? {'; '.join(reason.text(self.now) for reason in hold.reasons)}")


def where(seats: Sequence[Seat]) -> str:
    held = ((seat.node, seat.gpus.bit_count()) for seat in seats)
    return ", ".join(f"{node}[{gpus} GPU{'s' * (gpus != 1)}]" for node, gpus in held)


def main() -> None:
    day = Day()
    print("A cluster of 4 nodes x 8 H100 in two racks.")
    print("vision is guaranteed 16 GPUs, speech 8; the rest can be borrowed.\n")
    for name in NODES:
        node = NodeSpec(name, tuple(Gpu(f"{name}-{i}", "H100", 81_559) for i in range(8)), (), (name[0],))
        day.take(commands.add_node(day.state, node, day.now))  # type: ignore[arg-type]
    for name, owned in (("vision", 16), ("speech", 8), ("guests", 0)):
        queue = QueueSpec(name=name, guarantee=amounts({GPU_MILLI: owned * 1000}) if owned else ())
        day.take(commands.set_queue(day.state, queue, day.now))  # type: ignore[arg-type]
    story(day)
    over = [gang for gang in day.state.gangs.values() if gang.is_over]
    good = sum(gang.state is GangState.SUCCEEDED for gang in over)
    print(
        f"\n{len(over)} gangs ended, {good} succeeded; {day.preemptions} preemptions; GPUs were in use "
        f"{day.busy_gpu_ms * 100 // (32 * 12 * HOUR)} % of the day. Every law was checked after every decision."
    )


def story(day: Day) -> None:
    day.submit("borrow", "gwen", 5 * HOUR, queue="guests", demand=gpus(8, tasks=4), checkpoints=True)
    day.until(9)
    day.submit("train", "vera", 3 * HOUR, queue="vision", demand=gpus(8, tasks=2), checkpoints=True)
    day.submit("giant", "vera", HOUR, queue="vision", demand=gpus(8, tasks=5))
    day.until(9, 5)
    day.why("borrow")
    day.submit("sweep", "sam", 40 * MINUTE, queue="speech", demand=gpus(1), array=(0, 1, 2, 3), array_parallel=2)
    day.until(10)
    day.tell(f.NodeGone("a2"))
    day.until(10, 20)
    day.tell(f.NodeBack("a2"))
    day.until(10, 30)
    day.submit("flexible", "gwen", 75 * MINUTE, queue="guests", demand=gpus(4, tasks=4, tasks_min=2), checkpoints=True)
    day.until(11)
    day.submit("urgent", "sam", 30 * MINUTE, queue="speech", priority=10, demand=gpus(8), time_limit_ms=HOUR)
    day.submit("report", "sam", 10 * MINUTE, queue="speech", demand=gpus(1), after=(Dependency("urgent"),))
    day.until(12)
    day.crashes["flaky"] = 1
    day.submit("flaky", "gwen", 20 * MINUTE, queue="guests", demand=gpus(2),
               retries=((FailureClass.USER_ERROR, RetryRule(2)),))  # fmt: skip
    day.until(20)


if __name__ == "__main__":
    main()
