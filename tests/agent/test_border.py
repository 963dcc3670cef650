"""What a hostile node says: bounded and checked where it comes in, against what the node was given."""

from pathlib import Path

import pytest

from corral.core.cluster.resources import Gpu
from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass, Health
from corral.remote import border
from corral.remote.border import BadReport, Given, NotYours, checked_report, spec_fault
from corral.remote.messages import AgentReport, DesiredAsk, LogChunk, LogDelivery, LogReply, ObservedTask
from corral.runtime.base import HealthReport, LogPart, Phase, SavedReport, TaskKey, TaskReport
from corral.wire.details import NicDetails, NodeDetails
from tests.agent.test_remote_backend import EPOCH, KEY, Setup, down, up
from tests.runtime.reports import order

OTHERS = TaskKey("2/main", 1, 0)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    """A server with two nodes: n1 has `KEY` to do, n2 has a task of its own."""
    setup = Setup(tmp_path)
    setup.fleet.expect(NodeSpec("n2"), False, [OTHERS])
    setup.begin()
    setup.say()
    setup.say()
    setup.fleet.launch([order(KEY, "true", epoch=EPOCH)])
    return setup


def asked(setup: Setup) -> dict[TaskKey, tuple[bool, bool]]:
    """What the node is asked: key -> (kill, forget), orders left aside."""
    found = setup.fleet.desired(DesiredAsk(node="n1", epoch=EPOCH, term=setup.answer.term, wait_ms=0))
    return {} if found is None else {task.key: (task.kill, task.forget) for task in found.tasks if task.order is None}


def test_a_task_that_was_never_given_is_sent_away_and_no_one_hears_of_it(setup: Setup):
    stray = TaskKey("3/main", 1, 0)
    setup.say(ObservedTask(stray, up(stray)))
    assert setup.told == []
    assert stray not in setup.fleet.known() or asked(setup)[stray] == (True, False)
    setup.say(ObservedTask(stray, up(stray), down=down(stray)))
    assert asked(setup)[stray] == (False, True)
    assert setup.told == []
    assert setup.fleet.counts.stray_tasks == 2


def test_claiming_a_task_before_it_is_given_takes_nothing_from_it(setup: Setup):
    """A node claimed the attempt that the next job would begin with, and it never began."""
    coming = TaskKey("9/main", 1, 0)
    setup.say(ObservedTask(coming, up(coming), down=down(coming)))
    setup.fleet.launch([order(coming, "true", epoch=EPOCH)])
    assert coming in setup.orders()
    assert setup.told == []


@pytest.mark.parametrize("key", [TaskKey("1/main", 1, -1), TaskKey("1/main", 0, 0), TaskKey("1/main", 1, 2**64),
                                 TaskKey("x" * 10_000, 1, 0)])  # fmt: skip
def test_keys_that_cannot_be_are_refused(setup: Setup, key: TaskKey):
    with pytest.raises(BadReport):
        setup.say(ObservedTask(key, up(key)))
    assert setup.fleet.counts.bad_reports == 1
    assert setup.told == []


def test_sixty_thousand_invented_keys_push_no_one_out(setup: Setup):
    """They pushed out where tasks are, and then the node could speak of others' tasks, and those were never killed."""
    for part in range(3):
        keys = [TaskKey(f"{1000 + part}/x{n}", 1, 0) for n in range(20_000)]
        setup.say(*(ObservedTask(key) for key in keys))
    with pytest.raises(NotYours):
        setup.say(ObservedTask(OTHERS, down=down(OTHERS)))
    with pytest.raises(BadReport, match="too many"):
        setup.say(*(ObservedTask(TaskKey("1/x", 1, n)) for n in range(60_000)))
    setup.fleet.kill(KEY)
    found = setup.fleet.desired(DesiredAsk(node="n1", epoch=EPOCH, term=0, wait_ms=0))
    assert found is not None
    assert any(task.key == KEY and task.kill for task in found.tasks)
    assert len(found.tasks) < 2_000, "what is asked of a node stays bounded"
    chunk = LogChunk(OTHERS, "stdout", 0, b"forged", True)
    setup.fleet.take_logs(LogDelivery(node="n1", chunks=(chunk,)))
    assert setup.fleet._logs.read(OTHERS, "stdout", 0, 100) is None


def test_a_task_is_killed_however_many_were_ordered_after_it(setup: Setup):
    setup.say(ObservedTask(KEY, up(KEY)))
    for n in range(60):
        setup.fleet.launch([order(TaskKey(f"{n}/many", 1, task), "true", epoch=EPOCH) for task in range(1_000)])
    setup.fleet.kill(KEY)
    assert asked(setup)[KEY] == (True, False)


def test_what_a_node_says_of_its_own_task_is_bounded(setup: Setup):
    huge = TaskReport(
        key=KEY, phase=Phase.DOWN, at_ms=2**70, node="n1", exit_code=-7, signal=999, failure=FailureClass.PREEMPTED,
        why="x" * 20_000_000, unenforced=("y" * 1_000,) * 500, gpus=("z" * 1_000,),
    )  # fmt: skip
    setup.say(ObservedTask(KEY, up(KEY), step=2**63, down=huge, busy_ms=((-1, 5),)))
    began, ended = setup.told
    assert began == up(KEY)
    assert isinstance(ended, TaskReport)
    assert (ended.exit_code, ended.signal, ended.failure, ended.gpus) == (255, 0, None, None)
    assert len(ended.why) == border.TEXT_MAX
    assert len(ended.unenforced) == border.LACKS_MAX
    assert ended.at_ms < 2**53
    assert not any(isinstance(report, SavedReport) for report in setup.told)


def test_the_spec_of_another_machine_is_not_taken(setup: Setup):
    ghost = NodeSpec("ghost", tuple(Gpu(f"GPU-{n}", "H100", 80_000) for n in range(64)))
    answer = setup.say(spec=ghost)
    assert "but the node is 'n1'" in answer.complaint
    assert setup.lease.lease_ms, "what runs there goes on"
    assert setup.told == []
    assert setup.say().complaint == "", "and it may be used again once it says what it is"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (NodeSpec("n1", (Gpu("", "H100", 80_000),)), "UUID"),
        (NodeSpec("n1", (Gpu("GPU-1", "H100", -1),)), "memory"),
        (NodeSpec("n1", (Gpu("GPU-1", "H100", 1, 10**9),)), "island"),
        (NodeSpec("n1", (Gpu("GPU-1", "H100", 1), Gpu("GPU-1", "H100", 1))), "same UUID"),
        (NodeSpec("n1", tuple(Gpu(f"GPU-{n}", "H100", 1) for n in range(1_000))), "1000 GPUs"),
        (NodeSpec("n1", (), (("cpu_milli", -1),)), "cpu_milli"),
        (NodeSpec("n1", (), (("cpu_milli", 2**63),)), "cpu_milli"),
        (NodeSpec("n1", (), (("x" * 1_000, 1),)), "invalid amount"),
        (NodeSpec("n1", (), (), ("a",) * 100), "topology levels"),
    ],
)
def test_machines_that_cannot_be(spec: NodeSpec, why: str):
    assert why in spec_fault(spec, "n1")


def test_a_node_speaks_of_its_own_health_and_of_gpus_that_it_has():
    said = AgentReport(
        node="n1", session=1, seq=1, is_full=True, spec=NodeSpec("n1", (Gpu("GPU-1", "H100", 1),)),
        health=(
            HealthReport("n2", None, Health.FAILED, "of another"),
            HealthReport("n1", 1, Health.FAILED, "a GPU that it does not have"),
            HealthReport("n1", -1, Health.FAILED, "nor this"),
            HealthReport("n1", 0, Health.SUSPECT, "w" * 10_000),
        ),
        details=NodeDetails(system="s" * 10_000, nics=(NicDetails("eth0", 10**400),)),
        lacks={str(n): "w" * 10_000 for n in range(1_000)}, leaves_in_ms=-(10**30),
        separation={f"{n}" * 100: "w" * 10_000 for n in range(1_000)},
    )  # fmt: skip
    checked = checked_report(said, Given(), 0, 1_000)
    assert [(each.gpu, len(each.why)) for each in checked.report.health] == [(0, border.TEXT_MAX)]
    assert checked.report.details is None
    assert (len(checked.report.lacks), checked.report.leaves_in_ms) == (border.LACKS_MAX, 0)
    assert all(len(why) <= border.TEXT_MAX for why in checked.report.lacks.values())
    assert 0 < len(checked.report.separation) <= border.LACKS_MAX
    assert all(len(key) <= 64 and len(by) <= border.TEXT_MAX for key, by in checked.report.separation.items())


def test_a_node_that_changes_its_mind_all_the_time_fills_no_journal(setup: Setup):
    spec = NodeSpec("n1")
    for n in range(1_000):
        spec = NodeSpec("n1", (Gpu("GPU-1", "H100", 1_000 + n),))
        setup.say(spec=spec, health=(HealthReport("n1", None, Health.SUSPECT, f"reason {n}"),))
    assert len(setup.told) < 400
    for _ in range(4):
        setup.pass_ms(5_000)
        setup.say(spec=spec)
    texts = [each.why for each in setup.told if isinstance(each, HealthReport)]
    assert texts[-1] == "reason 999", "its last reason is shown in the end"


@pytest.mark.parametrize("number", [-1, 2**64])
def test_numbers_that_cannot_be_are_refused(setup: Setup, number: int):
    for name in ("session", "epoch", "term", "base", "version", "refused"):
        with pytest.raises(BadReport, match="negative or too large"):
            setup.say(**{name: number})
    with pytest.raises(BadReport):
        setup.fleet.desired(DesiredAsk(node="n1", epoch=EPOCH, term=0, version=number))


def test_parts_of_logs_lie_where_they_can_be_and_stay_small(setup: Setup):
    setup.say(ObservedTask(KEY, up(KEY)))
    for chunk in (LogChunk(KEY, "stdout", -5, b"x"), LogChunk(KEY, "stdout", 2**70, b"x")):
        with pytest.raises(BadReport):
            setup.fleet.take_logs(LogDelivery(node="n1", chunks=(chunk,)))
    for n in range(1_000):
        setup.fleet.take_logs(LogDelivery(node="n1", chunks=(LogChunk(KEY, "stdout", n * 1_000, b"x" * 100_000),)))
        setup.fleet.take_logs(LogDelivery(node="n1", chunks=(LogChunk(KEY, "stderr", n * 1_000_000, b"x"),)))
    folder = Path(setup.fleet._logs._store.folder("")).parent.parent
    files = [file for file in folder.rglob("std*") if file.is_file()]
    assert len(files) < 40
    assert sum(file.stat().st_size for file in files) < 20 << 20
    setup.fleet.take_logs(LogDelivery(node="n1", chunks=(LogChunk(KEY, "../../escape", 0, b"x"),)))
    assert not list(folder.rglob("*escape*"))


def test_a_reply_that_cannot_be_means_that_there_is_no_log():
    lie = LogReply(1, LogPart(5, b"abc", 10**30, False))
    (reply,) = border.checked_delivery(LogDelivery(node="n1", replies=(lie,))).replies
    assert reply == LogReply(1, None)


@pytest.mark.parametrize(
    "marks",
    [
        ((4, 1, 0),),
        ((8, 1, 0),),
        ((5, 1, 0), (5, 2, 0)),
        ((5, -1, 0),),
        ((5, 1, -1),),
        ((5, 1 << 60, 0),),
        ((5, 1, 0),) * 5_000,
    ],
)
def test_times_of_a_log_lie_within_it_and_are_in_order(marks: tuple[tuple[int, int, int], ...]):
    lie = LogReply(1, LogPart(5, b"abc", 8, False, marks))
    (reply,) = border.checked_delivery(LogDelivery(node="n1", replies=(lie,))).replies
    assert reply == LogReply(1, None)
    with pytest.raises(BadReport):
        border.checked_delivery(LogDelivery(node="n1", chunks=(LogChunk(KEY, "stdout", 5, b"abc", marks=marks),)))


def test_times_of_a_log_stay_small(setup: Setup):
    setup.say(ObservedTask(KEY, up(KEY)))
    for n in range(2_000):
        chunk = LogChunk(KEY, "stdout", n, b"x", marks=((n, n, n % 2),))
        setup.fleet.take_logs(LogDelivery(node="n1", chunks=(chunk,)))
    folder = Path(setup.fleet._logs._store.folder("")).parent.parent
    (times,) = folder.rglob("times.*")
    assert times.stat().st_size <= 4096 + 4 * 2_000
    part = setup.fleet._logs.read(KEY, "stdout", 0, 100)
    assert part is not None
    assert part.marks[:3] == ((0, 0, 0), (1, 1, 1), (2, 2, 0))


def test_last_words_of_a_task_are_bounded_and_escaped(setup: Setup):
    said = TaskReport(
        key=KEY, phase=Phase.DOWN, at_ms=1, node="n1", exit_code=1, failed_ms=-5, rank=-1, said="\x1b[2J" + "x" * 9_999
    )
    (task,) = checked_report(
        AgentReport(node="n1", session=1, seq=1, tasks=(ObservedTask(KEY, None, None, said),)), given_to("n1"), 0, 10
    ).report.tasks
    assert task.down is not None
    assert (task.down.failed_ms, task.down.rank, len(task.down.said)) == (0, None, 200)
    assert task.down.said.startswith("\\x1b[2J")


def given_to(node: str) -> Given:
    given = Given()
    given.give(KEY, node)
    return given
