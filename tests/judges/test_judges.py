"""Each judge can fail: a wrong plan is planted for it, and it says so; the engine's own plan it lets pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from corral.core.cluster.resources import Seat
from corral.core.model import Cause
from corral.core.plan import Decision, Evict, Grow, MakeRoom, Place, Plan, Victim
from corral.core.snapshot import Snapshot
from tests.judges import trial
from tests.judges.case import Case
from tests.judges.facts import GPU, Facts
from tests.judges.playback import Stage
from tests.judges.scenario import HOUR_MS, Machine, Scenario, Step, Terms, Work
from tests.judges.table import COMMITS, JUDGES, PLAN_MADE, STABLE

PLAN, MINUTE = Step("plan"), Step("wait", number=60_000)
OWNERS = [Terms("a", guarantee={GPU: 2000}), Terms("b")]


def job(name: str, queue: str = "a", **more: object) -> Step:
    return Step("submit", work=Work(name=name, queue=queue, **more))  # type: ignore[arg-type]


def on(*gpus: int, node: str = "n0") -> tuple[Seat, ...]:
    """One seat for each GPU."""
    return tuple(Seat(node, 1 << gpu) for gpu in gpus)


def place(name: str, *seats: Seat, spares: tuple[Seat, ...] = ()) -> Place:
    return Place(f"{name}/main", 1, seats, spares)


def make_room(name: str, seats: tuple[Seat, ...], *victims: str, cause: Cause = Cause.RECLAIM) -> MakeRoom:
    leaving = tuple(Victim(f"{victim}/main", 1, cause, 0) for victim in victims)
    return MakeRoom(f"{name}/main", 1, seats, leaving)


#: judge -> machines, queues, what happened, and the wrong decisions then
PLANTED: dict[str, tuple[list[Machine], list[Terms], list[Step], list[Decision]]] = {
    "guarantee_served": ([Machine("n0", 2)], OWNERS, [job("x", "b", gpus=2), PLAN, MINUTE, job("own")], []),
    "order": (
        [Machine("n0", 1)],
        [Terms("a"), Terms("b"), Terms("b/c")],
        [job("low"), job("high", "b/c", priority=5)],
        [place("low", *on(0))],
    ),
    "work_conserved": ([Machine("n0", 1)], [Terms("a")], [job("x")], []),
    "limits_kept": (
        [Machine("n0", 2)],
        [Terms("a", limit={GPU: 1000})],
        [job("x"), job("y")],
        [place("x", *on(0)), place("y", *on(1))],
    ),
    "budget_kept": (
        [Machine("n0", 2)],
        [Terms("a", budget_gpu_ms=HOUR_MS, budget_window_ms=24 * HOUR_MS)],
        [job("x", limit_ms=HOUR_MS), job("y", limit_ms=HOUR_MS)],
        [place("x", *on(0)), place("y", *on(1))],
    ),
    "lend_kept": (
        [Machine("n0", 2)],
        [Terms("a"), Terms("a/b", guarantee={GPU: 1000}, lend={GPU: 0}), Terms("c")],
        [job("x", "c"), job("y", "c")],
        [place("x", *on(0)), place("y", *on(1))],
    ),
    "victims_legal": (
        [Machine("n0", 2)],
        [Terms("a", guarantee={GPU: 1000}), Terms("b", guarantee={GPU: 1000})],
        [job("x", "b"), job("y", "a"), PLAN, MINUTE, job("own")],
        [make_room("own", on(0), "x")],
    ),
    "preemption_needed": (
        [Machine("n0", 2)],
        OWNERS,
        [job("x", "b"), PLAN, MINUTE, job("own")],
        [make_room("own", on(0), "x")],
    ),
    "preemption_minimal": (
        [Machine("n0", 2)],
        OWNERS,
        [job("x", "b"), job("y", "b"), PLAN, MINUTE, job("own")],
        [make_room("own", on(0), "x", "y")],
    ),
    "preemption_useful": (
        [Machine("n0", 2)],
        OWNERS,
        [job("x", "b"), job("y", "b"), PLAN, MINUTE, job("own")],
        [make_room("own", on(0, 1), "x")],
    ),
    "preemption_cheapest": (
        [Machine("n0", 2)],
        OWNERS,
        [job("x", "b", restart_ms=HOUR_MS), job("y", "b"), PLAN, MINUTE, job("own")],
        [make_room("own", on(0), "x")],
    ),
    "priority_served": (
        [Machine("n0", 1)],
        [Terms("a"), Terms("b")],
        [job("x", "b"), PLAN, MINUTE, job("more", priority=1)],
        [],
    ),
    "no_turn_in_vain": (
        [Machine("n0", 1)],
        OWNERS,
        [job("x", "b"), job("own")],
        [place("x", *on(0)), make_room("own", on(0), "x")],
    ),
    "seats_valid": ([Machine("n0", 2)], [Terms("a")], [job("x", tasks=2)], [place("x", *on(0))]),
    "claims_used": (
        [Machine("n0", 1)],
        OWNERS,
        [job("x", "b"), PLAN, MINUTE, job("own"), PLAN, MINUTE],
        [],
    ),
    "drained": (
        [Machine("n0", 1), Machine("n1", 1)],
        [Terms("a")],
        [job("x"), PLAN, MINUTE, Step("drain", what="n0"), Step("drain", what="n1")],
        [],
    ),
    "repaired": (
        [Machine("n0", 1), Machine("n1", 1)],
        [Terms("a")],
        [job("x", spares=1), PLAN, MINUTE, Step("lose", what="n0")],
        [],
    ),
    "grows": (
        [Machine("n0", 2)],
        [Terms("a"), Terms("b")],
        [job("y", "b", runs_ms=60_000), PLAN, job("x", tasks=2, tasks_min=1), PLAN, Step("wait", number=HOUR_MS // 2)],
        [],
    ),
    "grows_in_peace": (
        [Machine("n0", 2)],
        [Terms("a"), Terms("b")],
        [job("y", "b"), PLAN, MINUTE, job("x", tasks=2, tasks_min=1), PLAN, MINUTE],
        [Grow("x/main", 1, on(0, 1))],
    ),
}  # fmt: skip


def staged(nodes: list[Machine], queues: list[Terms], steps: list[Step]) -> Stage:
    stage = Stage(Scenario(nodes, queues, steps), lambda _stage, _plan: None)
    stage.play()
    return stage


def judged(stage: Stage, name: str, plan: Plan) -> list[str]:
    case = Case(Facts(stage.state, stage.now_ms), plan, stage.book, stage.scenario.patience_ms)
    return [violation.words for violation in JUDGES[name](case)]


@pytest.mark.parametrize("name", JUDGES)
def test_a_judge_sees_a_wrong_plan_and_lets_the_engines_own_pass(name):
    nodes, queues, steps, wrong = PLANTED[name]
    stage = staged(nodes, queues, steps)
    assert judged(stage, name, Plan(stage.now_ms, tuple(wrong)))
    assert judged(stage, name, stage.policy(Snapshot(stage.state, stage.now_ms))) == []


def planted(monkeypatch: pytest.MonkeyPatch, policy: Callable[[Snapshot], Plan]) -> set[str]:
    """What is said of a scenario that is played under another policy."""
    monkeypatch.setattr("tests.judges.playback.standard", lambda **_: policy)
    monkeypatch.setattr(trial, "STABLE_EVERY", 1)
    found = trial.try_out(Scenario([Machine("n0", 2)], [Terms("a")], [job("x"), job("y"), PLAN, MINUTE, PLAN]))
    return {violation.judge for _, violation in found.violations}


def test_a_policy_that_raises_is_seen(monkeypatch):
    def fails(_: Snapshot) -> Plan:
        raise KeyError("nothing")

    assert planted(monkeypatch, fails) == {PLAN_MADE}


def test_a_plan_that_cannot_be_carried_out_is_seen(monkeypatch):
    def in_vain(snapshot: Snapshot) -> Plan:
        return Plan(snapshot.now_ms, (Evict("x/main", 7, Cause.DRAIN),))

    assert COMMITS in planted(monkeypatch, in_vain)


def test_a_policy_that_changes_its_mind_at_once_is_seen(monkeypatch):
    def fickle(snapshot: Snapshot) -> Plan:
        gang = snapshot.state.gangs["x/main"]
        if gang.state == "waiting":
            return Plan(snapshot.now_ms, (Place(gang.id, 1, on(0)),))
        return Plan(snapshot.now_ms, (Evict(gang.id, gang.attempt, Cause.DRAIN),))

    assert STABLE in planted(monkeypatch, fickle)
