"""Golden scenarios: a small language for a cluster, its queues and its gangs, and for the plan expected.

Reads the part above the line, drives the engine through its public functions only, and writes the part below
the line. README.md in this folder is the reference of the language. Does not know pytest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from corral.core import events as e
from corral.core import facts as f
from corral.core.commit import commit
from corral.core.engine import Policy, apply_all, react
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.laws import LawBroken, check
from corral.core.model import GangState, Health, Settings
from corral.core.plan import Plan
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.policy.backfill.backfill import CONSERVATIVE, EASY, GREEDY, STRICT, Backfill
from corral.policy.catalog import standard
from corral.policy.explain.holds import explain
from corral.policy.placement.scoring import best_fit
from corral.sim.research.published import POLICIES
from corral.sim.research.published import policy as named_policy
from tests.scenarios.plan_text import plan_lines, reason_lines
from tests.scenarios.words import Words, job_spec, node_specs, queue_spec, seats_on

LINE = "---"
NOW_MS = 30 * 24 * 3_600_000  # when the first plan is made; times are relative to it
BACKFILLS = {"none": STRICT, "greedy": GREEDY, "easy": EASY, "conservative": CONSERVATIVE}
STEP = re.compile(r"^then (?P<time>\S+) later$")


def split(text: str) -> tuple[str, str]:
    """What is given and what is expected."""
    given, line, expected = text.partition(f"\n{LINE}\n")
    if not line:
        raise ValueError(f"no {LINE} between what is given and what is expected")
    return given, expected


def play(given: str) -> str:
    """What the engine does with what is given: the text that belongs below the line."""
    lines = [line.split("#")[0].strip() for line in given.splitlines()]
    stage = Stage([line for line in lines if line])
    return "\n".join(stage.play()) + "\n"


@dataclass
class Moment:
    """Something that happens at a time, in the order of the file among equals."""

    at_ms: int
    act: Callable[[], None]


@dataclass
class Stage:
    """One scenario on its way through the engine."""

    lines: list[str]
    moments: list[Moment] = field(default_factory=list)
    shows: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    journal: list[e.Event] = field(default_factory=list)
    now_ms: int = NOW_MS
    default_queue: str = ""

    def play(self) -> Iterator[str]:
        steps = [[]]  # type: list[list[str]]
        for line in self.lines:
            if STEP.match(line):
                steps.append([])
            steps[-1].append(line)
        self._set_the_stage(steps[0])
        yield from self._tell()
        for step in steps[1:]:
            yield ""
            yield step[0]
            self.now_ms += Words(STEP.match(step[0])["time"]).duration()  # type: ignore[index]
            self._tell_fact(f.Ticked())
            for line in step[1:]:
                self._read(Words(line))
            self._happen()
            yield from self._tell()

    def _set_the_stage(self, lines: Sequence[str]) -> None:
        self.policy = self._policy(lines)
        self.state = State(Settings(levels=self._levels(lines)))
        if not any(line.startswith("queue ") for line in lines):
            self._read(Words("queue main"))
        for line in lines:
            if line.split()[0] not in ("levels", "policy"):
                self._read(Words(line))
        self._happen()

    def _levels(self, lines: Sequence[str]) -> tuple[str, ...]:
        stated = [line.split()[1:] for line in lines if line.startswith("levels ")]
        return tuple(stated[0]) if stated else ("rack",)

    def _policy(self, lines: Sequence[str]) -> Policy:
        stated = [Words(line) for line in lines if line.startswith("policy ")]
        words = stated[0] if stated else Words("policy standard")
        words.next()
        name, backfill, scorer, patience = words.next(), None, None, None
        while words.left:
            match words.next():
                case "backfill":
                    kind = words.next()
                    backfill = BACKFILLS[kind] if kind in BACKFILLS else Backfill(depth=int(kind))
                case "patience":
                    patience = words.duration()
                case "score":
                    assert words.next() == "best_fit"
                    scorer = best_fit
                case other:
                    raise ValueError(f"policy: what is {other!r}?")
        if patience is not None:
            assert name == "standard", "only the standard policy has a patience"
            return standard(patience_ms=patience, depth=(backfill or EASY).depth)
        assert name in POLICIES, name
        made = named_policy(name, backfill, scorer)
        assert not isinstance(made, Refusal)
        return made

    # ---- what is given ------------------------------------------------------------------------------------

    def _read(self, words: Words) -> None:
        kind = words.next()
        readers: dict[str, Callable[[Words], None]] = {
            "nodes": self._nodes,
            "queue": self._queue,
            "pending": self._pending,
            "running": self._running,
            "past": self._past,
            "show": lambda words: self.shows.update(words.rest()),
            "gpu": self._gpu,
            "until": self._until,
            "saves": self._saves,
            "change": self._change_priority,
        }
        if kind in readers:
            readers[kind](words)
        elif kind in ("lost", "back", "drained", "undrained", *Health):
            for node in words.rest():
                self._at(self.now_ms, lambda node=node: self._node_news(kind, node))  # type: ignore[misc]
        elif kind in ("cancels", "holds", "releases", "requeues"):
            command = getattr(commands, {"cancels": "cancel"}.get(kind, kind[:-1]))
            for job in words.rest():
                self._at(self.now_ms, lambda job=job: self._command(command(self.state, job, self.now_ms)))  # type: ignore[misc]
        elif kind in ("stops", "finishes", "fails"):
            self._ends(kind, words)
        else:
            raise ValueError(f"what is {kind!r}?")

    def _at(self, at_ms: int, act: Callable[[], None]) -> None:
        self.moments.append(Moment(at_ms, act))

    def _happen(self) -> None:
        for moment in sorted(self.moments, key=lambda moment: moment.at_ms):
            moment.act()
            check(self.state)
        self.moments.clear()

    def _nodes(self, words: Words) -> None:
        for spec in node_specs(words, self.state.settings.levels):
            self._command(commands.add_node(self.state, spec, 0))

    def _queue(self, words: Words) -> None:
        spec = queue_spec(words, self.now_ms)
        self.default_queue = self.default_queue or spec.name
        self._command(commands.set_queue(self.state, spec, 0))

    def _pending(self, words: Words) -> None:
        name = words.next()
        told = job_spec(words, self.default_queue, self.now_ms)
        at_ms = self.now_ms - told.waited_ms

        def submit() -> None:
            answer = commands.submit(self.state, name, told.spec, told.user, at_ms)
            if isinstance(answer, Refusal):
                self.refused.append(f"refuse   {name:<7} {answer.code}: {answer.why}")
            else:
                self._take(answer, at_ms)

        self._at(at_ms, submit)

    def _running(self, words: Words) -> None:
        name = words.next()
        told = job_spec(words, self.default_queue, self.now_ms)
        begun = self.now_ms - told.ran_ms

        def start() -> None:
            self._command(commands.submit(self.state, name, told.spec, told.user, begun - told.waited_ms), begun)
            gang = self.state.gangs[self.state.jobs[name].gangs[0]]
            seats = seats_on(self.state.capacity, gang.demand, told.on)
            split_at = len(seats) - gang.demand.spares
            self._take([e.GangPlaced(begun, gang.id, 1, seats[:split_at], seats[split_at:])], begun)
            self._take([e.GangStarted(begun, gang.id, 1)], begun)

        self._at(begun, start)
        if told.saved_ms is not None:
            self._at(self.now_ms - told.saved_ms, lambda: self._saved(name, self.now_ms - (told.saved_ms or 0)))
        if told.leaving_ms is not None:
            since = self.now_ms - told.leaving_ms
            self._at(since, lambda: self._command(commands.requeue(self.state, name, since), since))

    def _past(self, words: Words) -> None:
        """A gang that ran and is over: for what its queue and its user have used."""
        ended = self.now_ms - words.clone().duration_after("ended")
        gang = f"{words.peek()}/main"
        now, self.now_ms = self.now_ms, ended
        self._running(words)
        self.now_ms = now
        self._at(ended, lambda: self._tell_fact(f.TasksDown(gang, 1, self.state.gangs[gang].everyone, 0), ended))

    def _gpu(self, words: Words) -> None:
        node, number, health = words.next(), int(words.next()), Health(words.next())
        self._at(self.now_ms, lambda: self._tell_fact(f.GpuObserved(node, number, health)))

    def _until(self, words: Words) -> None:
        until_ms = self.now_ms + words.duration()
        for node in words.rest():
            self._at(self.now_ms, lambda node=node: self._tell_fact(f.NodeEnds(node, until_ms)))  # type: ignore[misc]

    def _node_news(self, kind: str, node: str) -> None:
        match kind:
            case "lost":
                self._tell_fact(f.NodeGone(node))
            case "back":
                self._tell_fact(f.NodeBack(node))
            case "drained":
                self._command(commands.drain(self.state, node, self.now_ms))
            case "undrained":
                self._command(commands.undrain(self.state, node, self.now_ms))
            case _:
                self._tell_fact(f.NodeObserved(node, Health(kind)))

    def _saves(self, words: Words) -> None:
        for name in words.rest():
            self._at(self.now_ms, lambda name=name: self._saved(name, self.now_ms))  # type: ignore[misc]

    def _saved(self, name: str, at_ms: int) -> None:
        gang = self._gang(name)
        self._tell_fact(f.Saved(gang.id, gang.attempt, gang.saved_step + 1), at_ms)

    def _change_priority(self, words: Words) -> None:
        job, _, priority = words.next(), words.next(), int(words.next())
        self._at(
            self.now_ms,
            lambda: self._command(commands.change_priority(self.state, job, priority, self.now_ms)),
        )

    def _ends(self, kind: str, words: Words) -> None:
        names = []
        while words.left and words.peek() != "exit":
            names.append(words.next())
        code = int(words.rest()[1]) if words.left else {"stops": 85, "finishes": 0, "fails": 1}[kind]

        def end(name: str) -> None:
            gang = self._gang(name)
            self._tell_fact(f.TasksDown(gang.id, gang.attempt, gang.everyone, code))

        for name in names:
            self._at(self.now_ms, lambda name=name: end(name))  # type: ignore[misc]

    def _gang(self, name: str) -> Any:
        return self.state.gangs[name] if name in self.state.gangs else self.state.gangs[f"{name}/main"]

    def _command(self, answer: list[e.Event] | Refusal, at_ms: int | None = None) -> None:
        assert not isinstance(answer, Refusal), f"refused: {answer}"
        self._take(answer, at_ms)

    def _take(self, events: Sequence[e.Event], at_ms: int | None = None) -> None:
        self.journal += apply_all(self.state, events, self.now_ms if at_ms is None else at_ms).events

    def _tell_fact(self, fact: f.Fact, at_ms: int | None = None) -> None:
        self._take(react(self.state, fact, self.now_ms if at_ms is None else at_ms), at_ms)
        check(self.state)

    # ---- what is expected ---------------------------------------------------------------------------------

    def _tell(self) -> Iterator[str]:
        """Plan, commit, and print what was decided, which gangs wait and why. Planning again must change nothing."""
        told = self._news()
        plan = self._cycle()
        check(self.state)
        again = self._cycle()
        if again.decisions:
            raise LawBroken(f"a second plan for the same moment decides more: {list(again.decisions)}")
        told += [*self.refused, *plan_lines(plan, "gpus" in self.shows)]
        self.refused.clear()
        snapshot = Snapshot(self.state, self.now_ms)
        for gang in self.state.gangs.values():
            if gang.state is GangState.WAITING:
                hold = explain(snapshot, self.policy, gang.id)
                assert not isinstance(hold, Refusal)
                told += reason_lines(hold, self.now_ms, "ways" in self.shows)
        yield from told or ["nothing"]
        for gang in list(self.state.holders.values()):
            if gang.state is GangState.STARTING:
                self._tell_fact(f.TasksUp(gang.id, gang.attempt, gang.everyone))

    def _cycle(self) -> Plan:
        plan = self.policy(Snapshot(self.state, self.now_ms))
        self._take(commit(self.state, plan, self.now_ms))
        return plan

    def _news(self) -> list[str]:
        """What followed from facts and commands alone, before anything was planned."""
        told = []
        for event in self.journal:
            if isinstance(event, e.GangFinished | e.GangEvicted) and event.at_ms == self.now_ms:
                name = event.gang.removesuffix("/main")
                if isinstance(event, e.GangEvicted):
                    told.append(f"evict    {name:<7} ({event.cause})")
                else:
                    told.append(f"end      {name:<7} {event.state}" + (f": {event.why}" if event.why else ""))
        return told
