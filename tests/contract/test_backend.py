"""What every backend must do, however it runs tasks. Each way of running tasks brings a `Stage` that says how a
task with a given part to play is ordered there."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from msgspec import structs

from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass
from corral.health.monitor import Monitor
from corral.health.watched import WatchedBackend
from corral.kubernetes.pod_backend import PodBackend
from corral.runtime.base import Backend, Phase, StaleEpoch, TaskKey, TaskOrder, TaskReport
from corral.runtime.container.container_host import ContainerHost
from corral.runtime.container.settings import ContainerSettings
from corral.runtime.fake import FakeBackend, FakeScript
from corral.runtime.local.backend import LocalBackend
from corral.runtime.local.settings import LocalSettings
from corral.wire.health import HealthSettings
from tests.accounts import OWN
from tests.agent.connections import DirectLine
from tests.agent.one_agent import FleetServer, make_agent
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.pods import NODE, on_node, pods_namespace, settings_for
from tests.runtime.podman import IMAGE, Podman
from tests.runtime.reports import Collector, now_ms, order, until

KEY = TaskKey("17[3]/main", 1, 0)
FAR_MS = 600_000


class Stage(Protocol):
    def backend(self) -> Backend:
        """A backend on the same ground each time: a second one is the restart of a server."""
        ...

    def exits(self, key: TaskKey, code: int) -> TaskOrder: ...

    def prints(self, key: TaskKey, text: str) -> TaskOrder: ...

    def runs(self, key: TaskKey) -> TaskOrder:
        """Runs until it is stopped, and then dies of SIGTERM."""
        ...

    def saves(self, key: TaskKey, step: int) -> TaskOrder:
        """When warned, saves this step and leaves with 85."""
        ...

    def is_stubborn(self, key: TaskKey) -> TaskOrder: ...

    def cannot_start(self, key: TaskKey) -> TaskOrder: ...

    def is_ready(self, backend: Backend, key: TaskKey) -> bool:
        """It is not only up, but prepared for what `saves` or `is_stubborn` have said of it."""
        ...


class FakeStage:
    def __init__(self) -> None:
        self._scripts: dict[TaskKey, FakeScript] = {}
        self._backend = FakeBackend([NodeSpec("n1")], lambda order: self._scripts[order.key])

    def backend(self) -> Backend:
        return self._backend

    def exits(self, key: TaskKey, code: int) -> TaskOrder:
        return self._order(key, FakeScript(runs_ms=0, exit_code=code))

    def prints(self, key: TaskKey, text: str) -> TaskOrder:
        return self._order(key, FakeScript(runs_ms=0, stdout=text.encode()))

    def runs(self, key: TaskKey) -> TaskOrder:
        return self._order(key, FakeScript())

    def saves(self, key: TaskKey, step: int) -> TaskOrder:
        return self._order(key, FakeScript(saves=step))

    def is_stubborn(self, key: TaskKey) -> TaskOrder:
        return self._order(key, FakeScript(is_stubborn=True))

    def cannot_start(self, key: TaskKey) -> TaskOrder:
        return self._order(key, FakeScript(starts=False, failure=FailureClass.USER_ERROR, why="nothing: not found"))

    def is_ready(self, backend: Backend, key: TaskKey) -> bool:
        return True

    def _order(self, key: TaskKey, script: FakeScript) -> TaskOrder:
        self._scripts[key] = script
        return order(key, "pretend")


class LocalStage:
    def __init__(self, data: Path) -> None:
        self._data = data

    def backend(self) -> Backend:
        return LocalBackend(self._data, NodeSpec("n1"), LocalSettings(account=OWN, scan_ms=100))

    def exits(self, key: TaskKey, code: int) -> TaskOrder:
        return self._order(key, f"exit {code}")

    def prints(self, key: TaskKey, text: str) -> TaskOrder:
        return order(key, "printf", "%s", text)

    def runs(self, key: TaskKey) -> TaskOrder:
        return order(key, "sleep", "600")

    def saves(self, key: TaskKey, step: int) -> TaskOrder:
        save = f'echo "{{\\"step\\": {step}}}" >> $CORRAL_CHECKPOINT_FILE'
        return self._order(key, f"trap '{save}; exit 85' TERM; echo ready; while :; do sleep 0.02; done")

    def is_stubborn(self, key: TaskKey) -> TaskOrder:
        return self._order(key, "trap '' TERM; echo ready; while :; do sleep 0.05; done")

    def cannot_start(self, key: TaskKey) -> TaskOrder:
        return order(key, "no-such-program-anywhere")

    def is_ready(self, backend: Backend, key: TaskKey) -> bool:
        part = backend.read_log(key, "stdout", 0, 100)
        return part is not None and part.data == b"ready\n"

    def _order(self, key: TaskKey, script: str) -> TaskOrder:
        return order(key, "sh", "-c", script)


class ContainerStage(LocalStage):
    """The same programs, in a container each."""

    def __init__(self, data: Path, engine: Podman) -> None:
        super().__init__(data)
        self._engine = engine

    def backend(self) -> Backend:
        settings = LocalSettings(account=OWN, scan_ms=100)
        containers = ContainerHost(ContainerSettings(pull="never"), settings, facts=self._engine.facts)
        return LocalBackend(self._data, NodeSpec("n1"), settings, containers)

    def prints(self, key: TaskKey, text: str) -> TaskOrder:
        return structs.replace(super().prints(key, text), image=IMAGE)

    def runs(self, key: TaskKey) -> TaskOrder:
        return structs.replace(super().runs(key), image=IMAGE)

    def cannot_start(self, key: TaskKey) -> TaskOrder:
        return structs.replace(super().cannot_start(key), image=IMAGE)

    def _order(self, key: TaskKey, script: str) -> TaskOrder:
        return structs.replace(super()._order(key, script), image=IMAGE)


class FleetStage(LocalStage):
    """The machine with its agent stays; a backend is a server that comes and goes."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.line = DirectLine()
        self.agent = make_agent(data / "agent", self.line)
        self.agent.begin()

    def backend(self) -> Backend:
        return FleetServer(self._data / "server", self.line)

    def close(self) -> None:
        self.agent.stop()


class PodStage(LocalStage):
    """The same programs as pods, on a real control plane; a backend is a server that comes and goes."""

    node = NODE

    def __init__(self, data: Path, plane: ControlPlane) -> None:
        super().__init__(data)
        self._namespace = pods_namespace(plane)
        self._settings = settings_for(plane, self._namespace.__enter__(), data)

    def backend(self) -> Backend:
        return PodBackend(self._data / "server", self._settings)

    def prints(self, key: TaskKey, text: str) -> TaskOrder:
        return on_node(super().prints(key, text))

    def runs(self, key: TaskKey) -> TaskOrder:
        return on_node(super().runs(key))

    def cannot_start(self, key: TaskKey) -> TaskOrder:
        return on_node(super().cannot_start(key))

    def _order(self, key: TaskKey, script: str) -> TaskOrder:
        return on_node(super()._order(key, script))

    def close(self) -> None:
        self._namespace.__exit__(None, None, None)


class WatchedStage(LocalStage):
    """The same, with a watch over the machine."""

    def backend(self) -> Backend:
        settings = HealthSettings(interval_ms=50, clock_jump_ms_max=0)
        return WatchedBackend(super().backend(), Monitor(NodeSpec("n1"), self._data, settings))


STAGES: dict[str, Callable[[Path, pytest.FixtureRequest], Stage]] = {
    "fake": lambda _, __: FakeStage(),
    "local": lambda data, _: LocalStage(data),
    "watched": lambda data, _: WatchedStage(data),
    "container": lambda data, request: ContainerStage(data, request.getfixturevalue("podman")),
    "fleet": lambda data, _: FleetStage(data),
    "pods": lambda data, request: PodStage(data, request.getfixturevalue("control_plane")),
}


@pytest.fixture(params=STAGES)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    stage = STAGES[request.param](tmp_path, request)
    yield stage
    if isinstance(stage, FleetStage | PodStage):
        stage.close()


@pytest.fixture
def collector() -> Collector:
    return Collector()


@pytest.fixture
def backend(stage: Stage, collector: Collector) -> Iterator[Backend]:
    backend = stage.backend()
    backend.open(collector, 1)
    yield backend
    for key in backend.known():
        backend.kill(key)
    for key in backend.known():
        collector.down(key)
    backend.close()


def test_it_has_at_least_one_machine(backend: Backend):
    assert all(node.name for node in backend.nodes())
    assert len(backend.nodes()) >= 1


@pytest.mark.parametrize("code", [0, 3, 85])
def test_a_task_is_reported_up_then_down_with_its_exit_code(
    backend: Backend, stage: Stage, collector: Collector, code: int
):
    before_ms = now_ms()
    backend.launch([stage.exits(KEY, code)])
    down = collector.down(KEY)
    up = collector.up(KEY)
    assert (down.exit_code, down.signal, down.failure, down.node) == (code, 0, None, getattr(stage, "node", "n1"))
    assert before_ms <= up.at_ms <= down.at_ms <= now_ms()
    assert [r.phase for r in collector.of(KEY) if isinstance(r, TaskReport)] == [Phase.UP, Phase.DOWN]


def test_many_tasks_at_once_are_each_reported_once(backend: Backend, stage: Stage, collector: Collector):
    keys = [TaskKey(f"{n}/main", 1, task) for n in range(10) for task in range(2)]
    backend.launch([stage.exits(key, key.task) for key in keys])
    assert [collector.down(key).exit_code for key in keys] == [key.task for key in keys]
    assert sum(isinstance(report, TaskReport) for report in collector.heard) == 2 * len(keys)


def test_the_same_key_is_reported_again_and_not_run_again(backend: Backend, stage: Stage, collector: Collector):
    order = stage.prints(KEY, "once\n")
    backend.launch([order])
    first = collector.down(KEY)
    backend.launch([order])
    assert collector.down(KEY, 2) == first
    part = backend.read_log(KEY, "stdout", 0, 100)
    assert part is not None
    assert part.data == b"once\n"


def test_a_task_that_cannot_start_is_reported_down_and_why(backend: Backend, stage: Stage, collector: Collector):
    backend.launch([stage.cannot_start(KEY)])
    down = collector.down(KEY)
    assert down.failure is FailureClass.USER_ERROR
    assert down.exit_code != 0
    assert "not found" in down.why


def test_a_killed_task_dies_of_sigkill(backend: Backend, stage: Stage, collector: Collector):
    backend.launch([stage.is_stubborn(KEY)])
    collector.up(KEY)
    until(lambda: stage.is_ready(backend, KEY))
    backend.kill(KEY)
    down = collector.down(KEY)
    assert (down.exit_code, down.signal) == (137, 9)


def test_a_task_may_be_killed_right_after_the_order(backend: Backend, stage: Stage, collector: Collector):
    backend.launch([stage.runs(KEY)])
    backend.kill(KEY)
    assert collector.down(KEY).signal == 9


def test_a_warned_task_dies_of_sigterm_when_it_does_not_care(backend: Backend, stage: Stage, collector: Collector):
    """Before the deadline; while there is time it may still read the file."""
    backend.launch([stage.runs(KEY)])
    collector.up(KEY)
    backend.warn(KEY, now_ms() + 6_000, "drain")
    down = collector.down(KEY)
    assert (down.exit_code, down.signal) == (143, 15)


def test_a_warned_task_saves_and_leaves(backend: Backend, stage: Stage, collector: Collector):
    backend.launch([stage.saves(KEY, 7)])
    collector.up(KEY)
    until(lambda: stage.is_ready(backend, KEY))
    backend.warn(KEY, now_ms() + FAR_MS, "drain")
    down = collector.down(KEY)
    collector.step(KEY, 7)
    assert (down.exit_code, down.failure) == (85, None)
    assert collector.heard[-1] is down, "what was saved is reported before the end"


def test_a_stubborn_task_is_killed_at_the_deadline(backend: Backend, stage: Stage, collector: Collector):
    backend.launch([stage.is_stubborn(KEY)])
    collector.up(KEY)
    until(lambda: stage.is_ready(backend, KEY))
    deadline_ms = now_ms() + 300
    backend.warn(KEY, deadline_ms, "drain")
    down = collector.down(KEY)
    assert (down.exit_code, down.signal) == (137, 9)
    assert down.at_ms >= deadline_ms - 50, "monotonic and wall clock differ a little, no more"


def test_running_and_ended_tasks_are_reported_again_after_a_restart(
    backend: Backend, stage: Stage, collector: Collector
):
    runs, ended = TaskKey("1/main", 1, 0), TaskKey("2/main", 1, 0)
    backend.launch([stage.runs(runs), stage.exits(ended, 3)])
    up, down = collector.up(runs), collector.down(ended)
    backend.close()
    again, ear2 = stage.backend(), Collector()
    again.open(ear2, 2)
    assert ear2.up(runs) == up
    assert ear2.down(ended) == down
    assert sorted(again.known()) == sorted([runs, ended])
    again.kill(runs)
    assert ear2.down(runs).signal == 9
    again.close()
    backend.open(collector, 2)


def test_an_end_without_a_server_is_reported_to_the_next(backend: Backend, stage: Stage, collector: Collector):
    backend.launch([stage.saves(KEY, 5)])
    collector.up(KEY)
    until(lambda: stage.is_ready(backend, KEY))
    backend.warn(KEY, now_ms() + FAR_MS, "drain")
    backend.close()
    again, ear2 = stage.backend(), Collector()
    again.open(ear2, 2)
    assert ear2.down(KEY).exit_code == 85
    ear2.step(KEY, 5)
    again.close()
    backend.open(collector, 2)


def test_an_earlier_server_is_refused(backend: Backend, stage: Stage, collector: Collector):
    backend.close()
    again, ear2 = stage.backend(), Collector()
    again.open(ear2, 5)
    with pytest.raises(StaleEpoch, match="epoch 1 has ended"):
        again.launch([stage.exits(KEY, 0)])
    assert again.known() == []
    again.close()
    with pytest.raises(StaleEpoch):
        stage.backend().open(collector, 4)
    backend.open(collector, 5)


def test_forgetting_drops_what_is_over_and_keeps_its_log(backend: Backend, stage: Stage, collector: Collector):
    backend.launch([stage.prints(KEY, "hello\n")])
    collector.down(KEY)
    backend.forget(KEY)
    until(lambda: backend.known() == [])
    part = backend.read_log(KEY, "stdout", 0, 100)
    assert part is not None
    assert (part.data, part.is_over) == (b"hello\n", True)


def test_what_runs_is_not_forgotten(backend: Backend, stage: Stage, collector: Collector):
    backend.launch([stage.runs(KEY)])
    collector.up(KEY)
    backend.forget(KEY)
    backend.kill(KEY)
    collector.down(KEY)
    assert backend.known() == [KEY]


@pytest.mark.parametrize(
    ("offset", "limit", "start", "data", "is_over"),
    [
        (0, 100, 0, b"0123456789", True),
        (3, 4, 3, b"3456", False),
        (-4, 100, 6, b"6789", True),
        (-40, 100, 0, b"0123456789", True),
        (10, 100, 10, b"", True),
        (99, 100, 10, b"", True),
    ],
)
def test_parts_of_a_log(
    backend: Backend,
    stage: Stage,
    collector: Collector,
    offset: int,
    limit: int,
    start: int,
    data: bytes,
    is_over: bool,
):
    backend.launch([stage.prints(KEY, "0123456789")])
    collector.down(KEY)
    part = backend.read_log(KEY, "stdout", offset, limit)
    assert part is not None
    assert (part.offset, part.data, part.next_offset, part.is_over) == (start, data, start + len(data), is_over)


def test_the_log_of_a_running_task_is_not_over(backend: Backend, stage: Stage, collector: Collector):
    backend.launch([stage.runs(KEY)])
    collector.up(KEY)
    part = backend.read_log(KEY, "stderr", 0, 100)
    assert part is not None
    assert (part.data, part.is_over) == (b"", False)


def test_there_is_no_log_of_what_never_was(backend: Backend, stage: Stage, collector: Collector):
    assert backend.read_log(KEY, "stdout", 0, 100) is None
    backend.launch([stage.exits(KEY, 0)])
    collector.down(KEY)
    assert backend.read_log(KEY, "no such stream", 0, 100) is None


def test_asking_about_unknown_tasks_does_no_harm(backend: Backend):
    backend.kill(KEY)
    backend.warn(KEY, now_ms(), "drain")
    backend.forget(KEY)
    assert backend.known() == []
