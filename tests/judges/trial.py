"""One scenario played and judged, plan by plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from corral.core import events as e
from corral.core.plan import MakeRoom, Plan
from tests.judges.case import Case, Violation
from tests.judges.facts import Ask, Facts
from tests.judges.playback import PlanFailedError, Stage
from tests.judges.scenario import Scenario
from tests.judges.stability import unstable
from tests.judges.table import COMMITS, JUDGES, PLAN_MADE, STABLE, WHY
from tests.judges.why import why_is_true

WHY_EVERY = 8  # and so often those who wait are asked about
STABLE_EVERY = 4  # so often a plan is made twice; always where that is all that is asked


class Found(Struct, frozen=True):
    """What one scenario gave: plans judged, the violations with the number of the plan, and how often each judge was
    asked."""

    seed: str
    plans: int
    violations: tuple[tuple[int, Violation], ...]
    asked: dict[str, int]


class _EnoughError(Exception):
    """A violation was seen; nothing else is of interest."""


def try_out(scenario: Scenario, only: str = "") -> Found:
    """Play a scenario and judge every plan of it; with ``only``, by one judge and up to its first violation."""
    trial = _Trial(scenario, only)
    stage = Stage(scenario, trial.watch, trial.look)
    try:
        stage.play()
    except _EnoughError:
        pass
    except PlanFailedError as fault:
        if only in ("", PLAN_MADE):
            trial.say(stage, PLAN_MADE, f"no plan was made: {fault}")
    asked = dict.fromkeys((*JUDGES, PLAN_MADE), stage.plans) | dict(trial.asked)
    return Found(scenario.seed, stage.plans, tuple(trial.found), asked)


class _Trial:
    def __init__(self, scenario: Scenario, only: str) -> None:
        self.scenario, self.only = scenario, only
        self.found: list[tuple[int, Violation]] = []
        self.asked = Counter[str]()
        self._promised: frozenset[str] = frozenset()
        self._case: Case | None = None  # the plan that is being carried out
        self._asks: dict[tuple[str, int], Ask] = {}
        self._judges = [judge for name, judge in JUDGES.items() if only in ("", name)]

    def say(self, stage: Stage, judge: str, words: str) -> None:
        self.found.append((stage.plans, Violation(judge, words)))

    def watch(self, stage: Stage, plan: Plan) -> None:
        self._case = None
        if self._judges or self.only == STABLE:
            facts = Facts(stage.state, stage.now_ms, self._asks)
            case = self._case = Case(facts, plan, stage.book, self.scenario.patience_ms, self._promised)
            for judge in self._judges:
                self.found.extend((stage.plans, violation) for violation in judge(case))
        self._promised = frozenset(promise.gang for promise in plan.reservations)
        if self.only and self.found:
            raise _EnoughError

    def look(self, stage: Stage, plan: Plan, events: Sequence[e.Event]) -> None:
        """A plan made from the present commits in full, and planning again at once makes nobody leave."""
        if self.only in ("", COMMITS) and plan.decisions:
            self.asked[COMMITS] += 1
            named = {event.gang for event in events if isinstance(event, e.GangEvent)}
            for decision in plan.decisions:
                wanted = {decision.gang}
                if isinstance(decision, MakeRoom):
                    wanted.update(victim.gang for victim in decision.victims)
                if not wanted <= named:
                    self.say(stage, COMMITS, f"a plan made from the present is not carried out: {decision}")
        if self.only == STABLE or (not self.only and stage.plans % STABLE_EVERY == 0 and plan.decisions):
            assert self._case is not None
            self.asked[STABLE] += 1
            for words in unstable(self._case, stage.planned()):
                self.say(stage, STABLE, words)
        if self.only == WHY or (not self.only and stage.plans % WHY_EVERY == 0):
            self.asked[WHY] += 1
            for words in why_is_true(stage.journal, stage.state.settings, stage.policy, stage.now_ms):
                self.say(stage, WHY, words)
        if self.only and self.found:
            raise _EnoughError
