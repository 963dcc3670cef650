"""An agent on a backend that only pretends, with a server whose every answer is written by hand."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from corral.agent.agent import Agent
from corral.agent.agent_dir import AgentCredential, AgentDir, BadAgentDir
from corral.agent.server_connection import NoAnswer
from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass
from corral.remote.messages import (
    AgentAnswer,
    AgentReport,
    DesiredAnswer,
    DesiredAsk,
    DesiredTask,
    LeaseAnswer,
    LogDelivery,
    LogReceipt,
    Renewal,
)
from corral.runtime.base import TaskKey
from corral.runtime.fake import FakeBackend, FakeScript
from corral.runtime.local.task import lease
from tests.runtime.reports import order, until

Answer = tuple[AgentAnswer, LeaseAnswer]
FIRST, SECOND = TaskKey("1/main", 1, 0), TaskKey("1/main", 2, 0)


class ScriptedLine:
    """Answers every report and renewal alike, and questions with what was put in."""

    def __init__(self, answer: Answer) -> None:
        self.answer_s = 1.0
        self.answer: Answer | None = answer
        self.renewed: list[Renewal] = []
        self.granted: Callable[[LeaseAnswer], None] = lambda _: None
        self.heard: list[AgentReport] = []
        self.desires: deque[DesiredAnswer] = deque()
        self._ended = threading.Event()

    def renew(self, asked: Renewal) -> LeaseAnswer:
        self.renewed.append(asked)
        if self.answer is None:
            raise NoAnswer("nobody")
        return structs.replace(self.answer[1], seq=asked.seq)

    def when_granted(self, tell: Callable[[LeaseAnswer], None]) -> None:
        self.granted = tell

    def report(self, said: AgentReport) -> AgentAnswer:
        self.heard.append(said)
        if self.answer is None:
            raise NoAnswer("nobody")
        return self.answer[0]

    def desired(self, ask: DesiredAsk) -> DesiredAnswer | None:
        if self.desires:
            return self.desires.popleft()
        self._ended.wait(0.01)
        return None

    def logs(self, delivery: LogDelivery) -> LogReceipt:
        return LogReceipt(())

    def hang_up(self) -> None:
        self._ended.set()


def granted(epoch: int, term: int = 0, lease_ms: int = 8_000, is_gone: bool = False, **rest: object) -> Answer:
    """What a report and a renewal are answered with."""
    answer = AgentAnswer(epoch=epoch, term=term, is_gone=is_gone, **rest)  # type: ignore[arg-type]
    return answer, LeaseAnswer(seq=0, epoch=epoch, term=term, lease_ms=lease_ms, heartbeat_ms=20, is_gone=is_gone)


def wanted(epoch: int, key: TaskKey, version: int = 1, term: int = 0, base: int = 0) -> DesiredAnswer:
    task = DesiredTask(key=key, order=order(key, "pretend", epoch=epoch))
    return DesiredAnswer(epoch=epoch, term=term, base=base, version=version, tasks=(task,))


class Harness:
    def __init__(self, data: Path, answer: Answer) -> None:
        self.place, self.line = AgentDir(data), ScriptedLine(answer)
        self.backend = FakeBackend([NodeSpec("n1")], lambda _: FakeScript())
        self.lease_file = data / "lease"
        data.mkdir(exist_ok=True)
        self.agent = Agent("n1", self.backend, self.line, self.place.fence(), self.lease_file, 1)
        self.agent.begin()
        until(lambda: len(self.line.heard) > 2)

    def refused(self) -> int:
        return self.line.heard[-1].refused


def test_orders_of_an_older_server_are_refused_for_ever(tmp_path: Path):
    harness = Harness(tmp_path, granted(5))
    harness.line.desires.append(wanted(4, FIRST))
    until(lambda: harness.refused() == 1)
    assert harness.backend.known() == []
    harness.agent.stop()
    again = Harness(tmp_path, granted(4))
    assert again.line.heard[0].epoch == 5, "it is remembered"
    again.line.desires.append(wanted(4, FIRST))
    until(lambda: again.refused() > 2)
    assert again.backend.known() == []
    assert again.agent.term == -1, "it has obeyed no server"
    again.agent.stop()


def test_orders_of_a_new_leader_wait_for_its_answer_and_are_no_alarm(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A takeover: the thread that asks reaches the new leader before the one that reports."""
    harness = Harness(tmp_path, granted(5))
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            harness.line.desires.append(wanted(6, FIRST))
        until(lambda: not harness.line.desires)
        heard = len(harness.line.heard)
        until(lambda: len(harness.line.heard) > heard + 1)
        assert harness.refused() == 0
        assert harness.backend.known() == []
        assert [record.message for record in caplog.records if "orders" in record.message] == []
    harness.line.answer = granted(6)
    until(lambda: harness.agent.fence.epoch == 6)
    harness.line.desires.append(wanted(6, FIRST))
    until(lambda: harness.backend.known() == [FIRST])
    harness.agent.stop()


def test_orders_that_are_too_old_are_reported_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    harness = Harness(tmp_path, granted(5))
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            harness.line.desires.append(wanted(4, FIRST))
        until(lambda: harness.refused() == 5)
    assert len([record for record in caplog.records if "too old" in record.message]) == 1
    harness.agent.stop()


def test_orders_from_before_the_node_was_given_up_are_refused(tmp_path: Path):
    harness = Harness(tmp_path, granted(5, term=1))
    harness.line.desires.append(wanted(5, FIRST, term=0))
    until(lambda: harness.refused() == 1)
    assert harness.backend.known() == []
    harness.agent.stop()


def test_nothing_begins_while_the_lease_is_over(tmp_path: Path):
    harness = Harness(tmp_path, granted(5, lease_ms=200))
    harness.line.answer = None
    until(lambda: lease.read(str(harness.lease_file)) < lease.now_ms())
    harness.line.desires.append(wanted(5, FIRST))
    until(lambda: not harness.line.desires)
    harness.line.answer = granted(5)
    until(lambda: harness.refused() == 1)
    assert harness.backend.known() == []
    harness.agent.stop()


def test_an_answer_that_comes_again_does_nothing_again(tmp_path: Path):
    harness = Harness(tmp_path, granted(5))
    harness.line.desires.append(wanted(5, FIRST))
    until(lambda: harness.backend.known() == [FIRST])
    kill = DesiredTask(key=FIRST, kill=True)
    forget = DesiredTask(key=FIRST, forget=True)
    harness.line.desires.append(DesiredAnswer(epoch=5, term=0, base=1, version=2, tasks=(kill,)))
    harness.line.desires.append(DesiredAnswer(epoch=5, term=0, base=2, version=3, tasks=(forget,)))
    until(lambda: harness.backend.known() == [])
    harness.line.desires.append(wanted(5, FIRST))
    until(lambda: not harness.line.desires)
    seen = len(harness.line.heard)
    until(lambda: len(harness.line.heard) > seen + 3)
    assert harness.backend.known() == [], "it is not begun a second time"
    harness.agent.stop()


def test_a_further_attempt_waits_for_the_end_of_the_one_before(tmp_path: Path):
    harness = Harness(tmp_path, granted(5))
    harness.line.desires.append(wanted(5, FIRST))
    until(lambda: harness.backend.known() == [FIRST])
    harness.line.desires.append(wanted(5, SECOND, version=2, base=1))
    until(lambda: SECOND in harness.backend.known())
    first = harness.agent.observed.of(FIRST)
    assert first is not None
    assert first.down is not None
    harness.agent.stop()


def test_a_node_that_was_given_up_ends_what_it_has_and_gets_no_lease(tmp_path: Path):
    harness = Harness(tmp_path, granted(5))
    harness.line.desires.append(wanted(5, FIRST))
    until(lambda: harness.backend.known() == [FIRST])
    before = lease.read(str(harness.lease_file))
    harness.line.answer = granted(5, term=1, lease_ms=0, is_gone=True, wants_full=True)
    until(lambda: harness.agent.observed.live() == [])
    assert lease.read(str(harness.lease_file)) - before < 1_000
    harness.agent.stop()


def test_the_credential_is_for_the_agent_alone(tmp_path: Path):
    place = AgentDir(tmp_path)
    path = place.keep_credential(AgentCredential("n1", ("https://corral.example",), "corral_1_secret"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert place.credential().node == "n1"
    assert "secret" not in repr(place.credential())
    path.chmod(0o644)
    with pytest.raises(BadAgentDir, match="other users can read"):
        place.credential()


@pytest.mark.parametrize("whose", ["another user's", "a link of another user", "writable by all users"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what belongs to others")
def test_an_agent_uses_no_folder_that_others_could_have_prepared(tmp_path: Path, whose: str):
    folder, mine = tmp_path / "agent", tmp_path / "mine"
    mine.mkdir(mode=0o700)
    if whose == "another user's":
        folder.mkdir(mode=0o700)
        os.chown(folder, 65534, 65534)
    elif whose == "a link of another user":
        folder.symlink_to(mine)
        os.chown(folder, 65534, 65534, follow_symlinks=False)
    else:
        folder.mkdir()
        folder.chmod(0o777)
    place = AgentDir(folder)
    for use in (place.credential, place.next_session, lambda: place.keep_credential(AgentCredential("n1", (), "x"))):
        with pytest.raises(BadAgentDir, match="belongs to another account, or others can write"):
            use()
    assert not list(mine.iterdir())


def test_every_start_is_a_new_session(tmp_path: Path):
    assert [AgentDir(tmp_path).next_session() for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("is_lent", [True, False])
def test_a_task_that_is_ended_with_its_machine_has_not_failed(tmp_path: Path, is_lent: bool):
    """An engine sends SIGTERM to all processes of a machine, to the task shortly before the agent."""
    harness = Harness(tmp_path, granted(5))
    harness.agent.is_lent = is_lent
    harness.line.desires.append(wanted(5, FIRST))
    until(lambda: harness.backend.known() == [FIRST])
    threading.Timer(0.05, harness.agent.expect_leave).start()
    harness.backend.finish(FIRST, 143)
    until(lambda: any(task.down for said in harness.line.heard for task in said.tasks))
    ended = [task.down for said in harness.line.heard for task in said.tasks if task.down is not None]
    assert ended[0].failure is (FailureClass.NODE_LOST if is_lent else None)
    harness.agent.stop()


def test_a_task_that_was_asked_to_leave_is_as_it_says(tmp_path: Path):
    harness = Harness(tmp_path, granted(5))
    harness.agent.is_lent = True
    harness.agent.expect_leave()
    harness.line.desires.append(wanted(5, FIRST))
    until(lambda: harness.backend.known() == [FIRST])
    leave = DesiredTask(key=FIRST, leave_in_ms=5_000)
    harness.line.desires.append(DesiredAnswer(epoch=5, term=0, base=1, version=2, tasks=(leave,)))
    until(lambda: any(task.down for said in harness.line.heard for task in said.tasks))
    ended = [task.down for said in harness.line.heard for task in said.tasks if task.down is not None]
    assert (ended[0].exit_code, ended[0].failure) == (143, None)
    harness.agent.stop()


def test_one_that_leaves_says_so_until_it_is_received_and_goes_when_nothing_runs_any_more(tmp_path: Path):
    harness = Harness(tmp_path, granted(5))
    harness.line.desires.append(wanted(5, FIRST))
    until(lambda: harness.backend.known() == [FIRST])
    leaving = threading.Thread(target=harness.agent.leave, args=(60_000,))
    leaving.start()
    until(lambda: harness.line.heard[-1].leaves_in_ms is not None)
    harness.line.answer = granted(5, is_leaving=True, version=1_000_000)
    leaving.join(0.5)
    assert leaving.is_alive(), "something runs"
    harness.backend.finish(FIRST, 0)
    leaving.join(20)
    assert not leaving.is_alive()
    assert 0 < (harness.line.heard[-1].leaves_in_ms or 0) < 60_000
    harness.agent.stop()


def test_one_that_no_one_hears_leaves_when_its_time_is_over(tmp_path: Path):
    harness = Harness(tmp_path, granted(5))
    harness.agent.leave(300)
    harness.agent.stop()
