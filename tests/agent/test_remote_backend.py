"""The server's side of agents, without agents: reports are written by hand, and so is the clock."""

from pathlib import Path

import pytest

from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass
from corral.core.work import Work
from corral.remote.backend import RemoteBackend
from corral.remote.border import NotYours
from corral.remote.messages import AgentAnswer, AgentReport, DesiredAsk, LeaseAnswer, ObservedTask, Renewal
from corral.remote.settings import RemoteSettings
from corral.runtime.base import NodePhase, NodeReport, Phase, Report, StaleEpoch, TaskKey, TaskReport
from tests.agent.lease_table import InProcessKeeper
from tests.runtime.reports import order

KEY = TaskKey("1/main", 1, 0)
EPOCH = 7


def up(key: TaskKey, node: str = "n1") -> TaskReport:
    return TaskReport(key=key, phase=Phase.UP, at_ms=1, node=node)


def down(key: TaskKey, node: str = "n1", code: int = 0) -> TaskReport:
    return TaskReport(key=key, phase=Phase.DOWN, at_ms=2, node=node, exit_code=code)


class Setup:
    """A fleet with a clock that is moved by hand, and one agent that reports what the test sets."""

    def __init__(self, data: Path) -> None:
        self.now_ms, self.told = 0, list[Report]()
        self.fleet = RemoteBackend(data, RemoteSettings(), monotonic_ms=lambda: self.now_ms)
        self.seq = 0
        self.answer, self.lease = AgentAnswer(epoch=0, term=0), LeaseAnswer(seq=0, epoch=0, term=0)

    def begin(self, *expected: TaskKey, is_gone: bool = False, maybe: tuple[TaskKey, ...] = ()) -> None:
        self.fleet.expect(NodeSpec("n1"), is_gone, expected, maybe)
        self.fleet.open(self.told.append, EPOCH)
        self.keeper = InProcessKeeper(self.fleet, EPOCH, lambda: self.now_ms)

    def say(
        self, *tasks: ObservedTask, epoch: int | None = None, term: int | None = None, **rest: object
    ) -> AgentAnswer:
        """A full report, made after the last answer unless another time is given."""
        self.seq += 1
        known = self.answer
        said = AgentReport(
            node="n1", seq=self.seq, is_full=True, tasks=tasks,
            epoch=known.epoch if epoch is None else epoch, term=known.term if term is None else term,
            **{"session": 1, "version": self.seq, "spec": NodeSpec("n1"), **rest},  # type: ignore[arg-type]
        )  # fmt: skip
        self.answer = self.fleet.report(said)
        self.lease = self.keeper.renew("n1", Renewal(seq=self.seq, epoch=said.epoch, term=said.term))
        return self.answer

    def pass_ms(self, ms: int) -> None:
        for _ in range(ms // 250):
            self.now_ms += 250
            self.keeper.sweep()

    def orders(self, version: int = 0) -> list[TaskKey]:
        ask = DesiredAsk(node="n1", epoch=self.answer.epoch, term=self.answer.term, version=version, wait_ms=0)
        found = self.fleet.desired(ask)
        return [task.key for task in found.tasks if task.order is not None] if found is not None else []


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def test_a_node_is_given_up_with_all_that_ran_there_and_returns_when_it_is_empty(setup: Setup):
    setup.begin()
    setup.say()
    setup.say()
    setup.fleet.launch([order(KEY, "true", epoch=EPOCH)])
    setup.say(ObservedTask(KEY, up(KEY)))
    setup.pass_ms(10_000)
    assert setup.told == [up(KEY)], "a lease and its margin are not over yet"
    setup.pass_ms(500)
    gone, lost = setup.told[1:]
    assert gone == NodeReport("n1", NodePhase.GONE)
    assert isinstance(lost, TaskReport)
    assert (lost.key, lost.failure) == (KEY, FailureClass.NODE_LOST)
    late = setup.say(ObservedTask(KEY, up(KEY)))
    assert (late.is_gone, late.term) == (True, 1)
    assert (setup.lease.is_gone, setup.lease.lease_ms, setup.lease.term) == (True, 0, 1)
    assert setup.fleet.counts.late_reports == 1
    assert setup.say(ObservedTask(KEY, up(KEY))).is_gone, "it still runs something"
    assert len(setup.told) == 3, "and nothing of what it says counts"
    back = setup.say(ObservedTask(KEY, up(KEY), down=down(KEY)))
    assert (back.is_gone, setup.lease.is_gone, setup.lease.lease_ms) == (False, False, 8_000)
    assert setup.told[3:] == [NodeReport("n1", NodePhase.BACK)]


def test_an_agent_that_begins_again_on_a_node_that_was_given_up_is_believed_no_more_than_it_says(setup: Setup):
    """Its versions begin again: reports of the agent before it do not make its own reports old."""
    setup.begin()
    setup.say(version=1_000)
    setup.say(version=1_001)
    setup.pass_ms(11_000)
    assert setup.say(session=2, version=1).is_gone
    back = setup.say(session=2, version=2)
    assert (back.is_gone, back.version) == (False, 2)


def test_a_node_returns_only_by_a_report_made_after_it_was_given_up(setup: Setup):
    setup.begin()
    setup.say()
    setup.pass_ms(11_000)
    assert setup.say(term=0).is_gone, "an empty report from before says nothing of what runs now"
    assert not setup.say().is_gone


def test_orders_of_a_node_that_was_given_up_are_void(setup: Setup):
    setup.begin()
    setup.say()
    setup.say()
    setup.fleet.launch([order(KEY, "true", epoch=EPOCH)])
    assert setup.orders() == [KEY]
    setup.pass_ms(11_000)
    setup.say()
    setup.say()
    assert setup.orders() == []


def test_a_missing_task_is_lost_only_by_a_report_made_after_hearing_this_server(setup: Setup):
    setup.begin(KEY)
    setup.say(epoch=EPOCH - 1)
    assert setup.told == [], "it may have started after that report"
    setup.say()
    assert [(each.key, each.failure) for each in setup.told if isinstance(each, TaskReport)] == [(KEY, "node_lost")]


def test_a_further_attempt_waits_until_every_node_has_reported_what_it_runs(setup: Setup):
    setup.begin(maybe=(KEY,))
    second = TaskKey("1/main", 2, 0)
    setup.fleet.launch([order(second, "true", epoch=EPOCH), order(TaskKey("2/main", 1, 0), "true", epoch=EPOCH)])
    setup.say(ObservedTask(KEY, up(KEY)), epoch=EPOCH - 1)
    assert setup.orders() == [TaskKey("2/main", 1, 0)]
    setup.say(ObservedTask(KEY, up(KEY)))
    assert second not in setup.orders(), "the first is still there; when it has ended the server orders again"
    setup.fleet.launch([order(second, "true", epoch=EPOCH)])
    assert second in setup.orders()


def test_old_and_repeated_reports_change_nothing(setup: Setup):
    setup.begin(maybe=(KEY,))
    setup.say()
    setup.say(ObservedTask(KEY, up(KEY), down=down(KEY)))
    before = list(setup.told)
    assert before == [up(KEY), down(KEY)]
    stale = AgentReport(node="n1", session=1, seq=1, is_full=True, tasks=(ObservedTask(KEY, up(KEY)),), epoch=EPOCH)
    assert not setup.fleet.report(stale).is_gone
    assert not setup.fleet.report(AgentReport(node="n1", session=0, seq=99, is_full=True, epoch=EPOCH)).is_gone
    assert setup.told == before


def test_what_an_agent_says_of_anothers_task_is_refused(setup: Setup):
    setup.fleet.expect(NodeSpec("n2"), False, [KEY])
    setup.begin()
    for lie in (ObservedTask(KEY, down=down(KEY)), ObservedTask(TaskKey("2/main", 1, 0), down=down(KEY))):
        with pytest.raises(NotYours, match="was not given"):
            setup.say(lie)
    assert setup.told == []


def test_a_server_that_was_replaced_is_reported_so(setup: Setup):
    setup.begin()
    with pytest.raises(StaleEpoch, match=f"epoch {EPOCH + 1}"):
        setup.say(epoch=EPOCH + 1)


def test_deadlines_travel_as_what_is_left_of_them(setup: Setup):
    setup.begin()
    setup.say()
    setup.say()
    setup.fleet.wall_ms = lambda: 1_000_000
    setup.fleet.launch([order(KEY, "true", epoch=EPOCH)])
    setup.fleet.warn(KEY, 1_030_000, "drain")
    setup.fleet.warn(KEY, 1_060_000, "later")
    found = setup.fleet.desired(DesiredAsk(node="n1", epoch=EPOCH, term=0, wait_ms=0))
    assert found is not None
    assert [(task.leave_in_ms, task.order is not None) for task in found.tasks] == [(30_000, True)]


def test_an_agent_that_falls_back_behind_an_epoch_it_has_known_is_refused(setup: Setup):
    """Its folder was copied from an old disk, or another machine has its credential."""
    setup.begin()
    setup.fleet.launch([order(KEY, "true", epoch=EPOCH)])
    setup.say(ObservedTask(KEY, up(KEY)))
    setup.say(ObservedTask(KEY, up(KEY)))
    before = list(setup.told)
    lie = setup.say(ObservedTask(KEY, up(KEY), down=down(KEY)), epoch=EPOCH - 1)
    assert "reports for epoch 6" in lie.refused
    assert (lie.epoch, lie.wants_full) == (EPOCH, True), "it learns the present epoch, and no more"
    assert (setup.lease.epoch, setup.lease.lease_ms) == (EPOCH, 0)
    assert setup.told == before
    assert setup.fleet.counts.old_reports == 1
    mended = setup.say(ObservedTask(KEY, up(KEY)))
    assert (mended.refused, setup.lease.lease_ms) == ("", 8_000)


def test_orders_that_an_agent_refuses_are_counted_once(setup: Setup):
    setup.begin()
    setup.say()
    assert "refused 2 late orders" in setup.say(refused=2).refused
    assert setup.say(refused=2).refused == ""
    assert "refused 1 late orders" in setup.say(refused=3).refused
    assert setup.fleet.counts.refused_orders == 3


def test_work_that_no_machine_can_run_is_known_beforehand(setup: Setup):
    image = Work(command=("true",), image="busybox")
    setup.begin()
    assert setup.fleet.cannot_run(image) == "", "no agent has reported yet"
    setup.say()
    setup.say(lacks={"images": "no container runtime answers", "memory": "cgroups are read-only"})
    why = setup.fleet.cannot_run(image)
    assert "no node can run one (n1: no container runtime answers)" in why
    assert setup.fleet.cannot_run(Work(command=("true",))) == ""
    assert setup.fleet.lacks("n1")["memory"] == "cgroups are read-only"
    assert setup.fleet.lacks("nowhere") == {}
    setup.say()
    assert setup.fleet.cannot_run(image) == "", "an engine was started there"
    assert "is not the name of an image" in setup.fleet.cannot_run(Work(command=("true",), image="dir:/etc"))


def test_an_attempt_that_is_held_back_and_evicted_is_over_once_its_node_has_spoken(setup: Setup):
    """It was dropped silently, and its gang waited for its end for ever."""
    setup.begin()
    second = TaskKey("1/main", 2, 0)
    setup.fleet.launch([order(second, "true", epoch=EPOCH)])
    setup.fleet.kill(second)
    assert setup.told == [], "the node may have it from an earlier server"
    setup.say()
    setup.say()
    assert [(each.key, each.exit_code) for each in setup.told if isinstance(each, TaskReport)] == [(second, 143)]
    assert setup.orders() == []


def test_an_attempt_that_gave_way_to_an_older_one_is_over_when_it_is_evicted(setup: Setup):
    setup.begin(maybe=(KEY,))
    second = TaskKey("1/main", 2, 0)
    setup.fleet.launch([order(second, "true", epoch=EPOCH)])
    setup.say(ObservedTask(KEY, up(KEY)), epoch=EPOCH - 1)
    setup.say(ObservedTask(KEY, up(KEY)))
    setup.fleet.warn(second, 1_000, "drain")
    assert [each.key for each in setup.told if isinstance(each, TaskReport)] == [KEY, second]
