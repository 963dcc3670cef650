"""From what is owed to orders, and from reports to facts: what a task gets, and which reports count."""

from dataclasses import dataclass, field

import pytest

from corral.core import events as e
from corral.core import facts as f
from corral.core.apply import apply
from corral.core.cluster.resources import Demand, Seat, TaskDemand, amounts
from corral.core.cluster.topology import NodeSpec
from corral.core.effects import KillGang, StartGang, WarnGang
from corral.core.model import Cause, FailureClass, GangSpec, Health, JobSpec, QueueSpec, Settings
from corral.core.state import State
from corral.core.work import Work
from corral.remote.backend import RemoteBackend
from corral.remote.settings import LEASE_MS, SHARED_LEASE_MS, settings_for_lease
from corral.runtime.base import HealthReport, Phase, Report, SavedReport, TaskKey, TaskOrder, TaskReport
from corral.runtime.fake import FakeBackend
from corral.server.dispatch import Dispatch
from corral.server.recovery import load
from corral.server.server import Server
from corral.server.vault import secrets_of
from corral.store.memory import MemoryJournal
from corral.store.memory_lookup import MemoryLookup
from tests.server.servers import NODE, found
from tests.steps import growth, steps


@dataclass
class Setup:
    """A state with one gang that was just placed, and a dispatch that orders nothing but notes."""

    spec: JobSpec
    seats: tuple[Seat, ...]
    name: str = "7/main"
    backend: FakeBackend = field(default_factory=lambda: FakeBackend([NODE]))
    nodes: tuple[NodeSpec, ...] = ()  # beside the first

    def __post_init__(self) -> None:
        self.state = State(Settings())
        events: list[e.Event] = [
            *(e.NodeAdded(1, node) for node in (NODE, *self.nodes)),
            e.QueueSet(1, QueueSpec(name="default")),
            e.JobSubmitted(1, "7", self.spec, "ann", "ann-unix"),
            e.GangPlaced(2, self.name, 1, self.seats),
        ]
        for event in events:
            apply(self.state, event)
        secrets = {("default", "wandb"): "s3cret"}
        self.dispatch = Dispatch(self.state, self.backend, 3, lambda q, name: secrets.get((q, name)))
        self.backend.open(lambda report: None, 3)

    def orders(self) -> list[TaskOrder]:
        return list(self.dispatch.orders(self.state.gangs[self.name]))

    def asked(self, what: str) -> list[TaskKey]:
        return [key for verb, key in self.backend.asked if verb == what]


def spec(work: Work, gpus: int = 2, tasks: int = 2, **terms: object) -> JobSpec:
    task = TaskDemand(gpus=gpus, amounts=amounts({"cpu_milli": 8000, "memory_mib": 1000}))
    gangs = (GangSpec(Demand(task=task, tasks=tasks), "main", work),)
    return JobSpec(**{"queue": "default", "name": "train", "gangs": gangs} | terms)  # type: ignore[arg-type]


TWO = (Seat("here", 0b0011), Seat("here", 0b1100))


def test_each_task_gets_its_gpus_its_limits_and_its_account():
    first, second = Setup(spec(Work(command=("python", "train.py"))), TWO).orders()
    assert first.key == TaskKey("7/main", 1, 0)
    assert (first.gpus, second.gpus) == (("SIM-0", "SIM-1"), ("SIM-2", "SIM-3"))
    assert (first.cpu_milli, first.memory_mib, first.account, first.epoch) == (8000, 1000, "ann-unix", 3)


def test_ranks_run_through_all_tasks_when_there_is_a_process_for_each_gpu():
    first, second = Setup(spec(Work(command=("x",), processes=0)), TWO).orders()
    ranks = [dict(process.env) for order in (first, second) for process in order.processes]
    assert [rank["RANK"] for rank in ranks] == ["0", "1", "2", "3"]
    assert [rank["LOCAL_RANK"] for rank in ranks] == ["0", "1", "0", "1"]
    env = dict(second.env)
    assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["GROUP_RANK"], env["NODE_RANK"]) == ("4", "2", "1", "1")
    assert env["OMP_NUM_THREADS"] == "4"
    assert dict(first.env)["MASTER_PORT"] == env["MASTER_PORT"]
    assert "TORCHELASTIC_USE_AGENT_STORE" not in env


def test_what_the_user_sets_wins_except_where_ranks_must_agree():
    work = Work(command=("x",), env=(("OMP_NUM_THREADS", "1"), ("WORLD_SIZE", "99"), ("MINE", "yes")))
    env = dict(Setup(spec(work), TWO).orders()[0].env)
    assert (env["OMP_NUM_THREADS"], env["WORLD_SIZE"], env["MINE"]) == ("1", "2", "yes")


def test_secrets_travel_apart():
    order = Setup(spec(Work(command=("x",), secrets=(("WANDB_API_KEY", "wandb"), ("NO", "such")))), TWO).orders()[0]
    assert order.secret_env == (("WANDB_API_KEY", "s3cret"),)
    assert "s3cret" not in str(order.env)


def test_slurm_variables_come_on_request_only():
    plain = Setup(spec(Work(command=("x",))), TWO).orders()[0]
    assert not [name for name, _ in plain.env if name.startswith("SLURM_")]
    setup = Setup(spec(Work(command=("x",), compat="slurm"), array=(4, 6)), TWO, name="7[6]/main")
    order = setup.orders()[1]
    env = dict(order.env)
    assert (env["SLURM_JOB_ID"], env["SLURM_ARRAY_TASK_ID"], env["SLURM_ARRAY_TASK_STEP"]) == ("7", "6", "2")
    assert (env["SLURM_NTASKS"], env["SLURM_NNODES"], env["SLURM_MEM_PER_NODE"]) == ("2", "1", "2000")
    assert dict(order.processes[0].env)["SLURM_PROCID"] == "1"


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("out/%j.log", "out/7.log"),
        ("%A_%a-%x-%N-%u", "7_-train-here-ann"),
        ("%J %s", "7.0 0"),
        ("%t-%n", "1-0"),
        ("%04j_%3t", "0007_001"),
        ("%05x", "train"),
        ("%99j", "0000000007"),
        ("100%%j", "100%j"),
        ("\\%j.log", "%j.log"),
        ("%z %", "%z %"),
        ("plain", "plain"),
    ],
)
def test_names_of_output_files_have_the_patterns_of_sbatch(pattern, name):
    assert Setup(spec(Work(command=("x",), output=pattern)), TWO).orders()[1].output == name


def test_names_of_output_files_of_array_elements_have_their_index():
    setup = Setup(spec(Work(command=("x",), output="%A_%04a.%b %j"), array=(4, 16)), TWO, name="7[16]/main")
    assert setup.orders()[0].output == "7_0016.6 7_16"


@pytest.mark.parametrize(("stated", "value"), [((), "1"), ((("PYTHONUNBUFFERED", ""),), "")])
def test_python_does_not_buffer_its_output_unless_the_job_says_otherwise(stated, value):
    env = dict(Setup(spec(Work(command=("x",), env=stated)), TWO).orders()[0].env)
    assert env["PYTHONUNBUFFERED"] == value


def test_what_is_owed_is_asked_of_the_backend():
    setup = Setup(spec(Work(command=("x",))), TWO)
    setup.dispatch.execute(StartGang("7/main", 1, TWO))
    assert setup.asked("launch") == [TaskKey("7/main", 1, 0), TaskKey("7/main", 1, 1)]
    setup.dispatch.execute(WarnGang("7/main", 1, Cause.RECLAIM, 99))
    setup.dispatch.execute(KillGang("7/main", 1))
    assert len(setup.asked("warn")) == len(setup.asked("kill")) == 2


def test_what_is_owed_again_after_each_task_is_asked_once_and_by_the_next_server_again():
    setup = Setup(spec(Work(command=("x",))), TWO)
    start = StartGang(setup.name, 1, TWO)
    setup.dispatch.execute(start)
    apply(setup.state, e.TasksStarted(3, setup.name, 1, 0b01))
    setup.dispatch.execute(start)
    assert setup.asked("launch") == [TaskKey(setup.name, 1, 0), TaskKey(setup.name, 1, 1)]
    again = Dispatch(setup.state, setup.backend, 3, lambda queue, name: None)
    again.execute(start)
    assert setup.asked("launch")[2:] == [TaskKey(setup.name, 1, 1)]
    for deadline_ms in (9, 9, 8):
        setup.dispatch.execute(WarnGang(setup.name, 1, Cause.DRAIN, deadline_ms))
    assert setup.asked("warn") == [TaskKey(setup.name, 1, task) for task in (0, 1, 0, 1)]


def test_an_effect_that_came_too_late_does_nothing():
    setup = Setup(spec(Work(command=("x",))), TWO)
    setup.dispatch.execute(StartGang("7/main", 0, TWO))
    setup.dispatch.execute(KillGang("9/main", 1))
    assert setup.backend.asked == []


def report(attempt: int, phase: Phase, task: int = 0) -> TaskReport:
    return TaskReport(key=TaskKey("7/main", attempt, task), phase=phase, at_ms=5, node="here", exit_code=1)


def test_reports_of_the_attempt_under_way_are_facts():
    setup = Setup(spec(Work(command=("x",))), TWO)
    assert setup.dispatch.fact(report(1, Phase.UP, 1)) == f.TasksUp("7/main", 1, 0b10)
    assert setup.dispatch.fact(report(1, Phase.DOWN)) == f.TasksDown("7/main", 1, 1, 1, None, "here")
    assert setup.dispatch.fact(SavedReport(TaskKey("7/main", 1, 0), 40)) == f.Saved("7/main", 1, 40)


def test_a_task_of_an_old_attempt_is_ended_and_then_let_go():
    setup = Setup(spec(Work(command=("x",))), TWO)
    assert setup.dispatch.fact(report(0, Phase.UP)) is None
    assert setup.asked("kill") == [TaskKey("7/main", 0, 0)]
    assert setup.dispatch.fact(report(0, Phase.DOWN)) is None
    assert setup.asked("forget") == [TaskKey("7/main", 0, 0)]
    assert setup.dispatch.fact(SavedReport(TaskKey("7/main", 0, 0), 40)) is None


def test_an_attempt_begins_only_when_the_one_before_it_has_ended():
    setup = Setup(spec(Work(command=("x",))), TWO)
    setup.dispatch.fact(report(0, Phase.UP))
    setup.dispatch.execute(StartGang("7/main", 1, TWO))
    assert setup.asked("launch") == []
    setup.dispatch.fact(report(0, Phase.DOWN))
    assert setup.asked("launch") == [TaskKey("7/main", 1, 0), TaskKey("7/main", 1, 1)]


def test_a_repaired_gang_does_not_wait_for_tasks_that_are_gone_already():
    setup = Setup(spec(Work(command=("x",))), TWO)
    setup.dispatch.execute(StartGang("7/main", 1, TWO))
    for task in (0, 1):
        setup.dispatch.fact(report(1, Phase.UP, task))
    apply(setup.state, e.GangStarted(3, "7/main", 1))
    setup.dispatch.fact(report(1, Phase.DOWN, 0))
    apply(setup.state, e.TasksLost(4, "7/main", 1, 1, "here", FailureClass.NODE_LOST))
    apply(setup.state, e.GangRepaired(5, "7/main", 2, TWO))
    setup.dispatch.execute(StartGang("7/main", 2, TWO))
    assert setup.asked("forget") == [TaskKey("7/main", 1, 0)]
    assert setup.asked("kill") == [TaskKey("7/main", 1, 1)]
    setup.dispatch.fact(report(1, Phase.DOWN, 1))
    assert setup.asked("launch")[2:] == [TaskKey("7/main", 2, 0), TaskKey("7/main", 2, 1)]


def test_the_backend_may_forget_once_the_end_is_written_down():
    setup = Setup(spec(Work(command=("x",))), TWO)
    setup.dispatch.execute(StartGang("7/main", 1, TWO))
    setup.dispatch.forget("7/main", 1)
    assert sorted(setup.asked("forget")) == [TaskKey("7/main", 1, 0), TaskKey("7/main", 1, 1)]
    setup.dispatch.forget("7/main", 1)
    assert len(setup.asked("forget")) == 2


def test_what_is_said_about_health_is_reported_with_its_reason():
    setup = Setup(spec(Work(command=("true",))), TWO)
    said = HealthReport("here", 3, Health.FAILED, "Xid 79")
    assert setup.dispatch.fact(said) == f.GpuObserved("here", 3, Health.FAILED, "Xid 79")
    said = HealthReport("here", None, Health.SUSPECT, "the disk is full")
    assert setup.dispatch.fact(said) == f.NodeObserved("here", Health.SUSPECT, "the disk is full")


def test_an_attempt_that_is_evicted_while_it_waits_for_an_older_one_is_over():
    """It was never ordered, so that its end was never reported, and the gang held its seats for ever."""
    setup = Setup(spec(Work(command=("x",))), TWO)
    setup.dispatch.fact(report(1, Phase.UP))
    apply(setup.state, e.TasksLost(3, "7/main", 1, 0b10, "here", FailureClass.NODE_LOST))
    apply(setup.state, e.GangRepaired(4, "7/main", 2, TWO))
    setup.dispatch.execute(StartGang("7/main", 2, TWO))
    assert setup.asked("launch") == []
    told: list[Report] = []
    setup.dispatch.tell = told.append
    apply(setup.state, e.GangEvicted(5, "7/main", 2, Cause.DRAIN, 99))
    setup.dispatch.execute(WarnGang("7/main", 2, Cause.DRAIN, 99))
    facts = [setup.dispatch.fact(each) for each in told]
    assert facts == [f.TasksDown("7/main", 2, mask, 143, None, "here") for mask in (1, 2)]
    setup.dispatch.fact(report(1, Phase.DOWN))
    assert setup.asked("launch") == [], "and it does not begin after all"


def test_the_orders_of_a_gang_of_twice_as_many_tasks_are_twice_as_much_work():
    def measure(tasks: int) -> int:
        nothing = Work(command=("x",))
        setup = Setup(spec(nothing, gpus=0, tasks=tasks), tuple(Seat("here", 0) for _ in range(tasks)))
        return steps(lambda: setup.orders())

    assert growth(measure, 200) < 2.4


def test_ranks_go_on_from_task_to_task_also_where_some_have_begun():
    seats = (Seat("here", 0b0001), Seat("here", 0b0110), Seat("here", 0b1000))
    setup = Setup(spec(Work(command=("x",), processes=0), gpus=1, tasks=3), seats)
    apply(setup.state, e.TasksStarted(3, setup.name, 1, 0b010))
    ranks = [[dict(process.env)["RANK"] for process in order.processes] for order in setup.orders()]
    assert ranks == [["0"], ["3"]]


def test_a_secret_is_revealed_once_for_all_tasks_of_a_gang():
    setup = Setup(spec(Work(command=("x",), secrets=(("KEY", "wandb"),))), TWO)
    revealed: list[str] = []

    def reveal(queue: str, name: str) -> str:
        revealed.append(name)
        return "s3cret"

    setup.dispatch.reveal = reveal
    assert [order.secret_env for order in setup.orders()] == [(("KEY", "s3cret"),)] * 2
    assert revealed == ["wandb"]


# ---- ranks, and where they meet ------------------------------------------------------------------------------------

RANKS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def variables(setup: Setup, task: int = 0, process: int = 0) -> dict[str, str]:
    order = setup.orders()[task]
    return dict(order.env) | dict(order.processes[process].env)


def test_one_process_by_itself_is_reported_of_no_ranks():
    """Libraries that see a rank assume that another program starts the other processes."""
    found = variables(Setup(spec(Work(command=("x",)), gpus=4, tasks=1), (Seat("here", 0b1111),)))
    assert not [name for name in found if name in RANKS or name.startswith("TORCHELASTIC")]


@pytest.mark.parametrize("processes", [0, 1, 4])
def test_who_asks_for_processes_is_reported_of_their_ranks(processes: int):
    work = Work(command=("x",), processes=processes)
    found = variables(Setup(spec(work, gpus=4, tasks=1), (Seat("here", 0b1111),)))
    assert found["WORLD_SIZE"] == str(processes or 4)
    assert set(RANKS) <= set(found)
    assert "TORCHELASTIC_RUN_ID" in found


def test_a_job_for_slurm_sees_nothing_of_another_launcher():
    found = variables(Setup(spec(Work(command=("x",), processes=0, compat="slurm")), TWO))
    assert not [name for name in found if name.startswith("TORCHELASTIC")]


def test_two_tasks_on_one_node_are_counted_together_as_slurm_would():
    setup = Setup(spec(Work(command=("x",), processes=0, compat="slurm")), TWO)
    second = variables(setup, 1, 1)
    counts = {name: second[f"SLURM_{name}"] for name in (
        "NNODES", "NTASKS", "NTASKS_PER_NODE", "TASKS_PER_NODE", "GPUS_ON_NODE", "CPUS_ON_NODE", "CPUS_PER_TASK",
        "MEM_PER_NODE", "NODEID", "PROCID", "LOCALID",
    )}  # fmt: skip
    assert counts == {
        "NNODES": "1", "NTASKS": "4", "NTASKS_PER_NODE": "4", "TASKS_PER_NODE": "4", "GPUS_ON_NODE": "4",
        "CPUS_ON_NODE": "16", "CPUS_PER_TASK": "4", "MEM_PER_NODE": "2000", "NODEID": "0", "PROCID": "3",
        "LOCALID": "3",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("addresses", "found"),
    [
        (("10.0.0.1", "10.0.0.2"), "10.0.0.1"),
        (("", ""), "n1"),
        (("127.0.0.1", "127.0.0.1"), "127.0.0.1"),
        (("127.0.0.1", "10.0.0.2"), "n1"),
    ],
    ids=["reported", "an old agent", "one machine plays both", "the server's own machine beside another"],
)
def test_ranks_meet_at_an_address_that_all_of_them_reach(addresses: tuple[str, str], found: str):
    nodes = [NodeSpec(f"n{n}", NODE.gpus, NODE.amounts, address=said) for n, said in enumerate(addresses, 1)]
    setup = Setup(spec(Work(command=("x",))), (Seat("n1", 0b0011), Seat("n2", 0b0011)), nodes=tuple(nodes))
    assert variables(setup)["MASTER_ADDR"] == found


def test_the_user_may_say_where_ranks_meet():
    work = Work(command=("x",), env=(("MASTER_ADDR", "head.example"), ("MASTER_PORT", "4000")))
    found = variables(Setup(spec(work), TWO))
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("head.example", "4000")


@pytest.mark.parametrize(("lease_ms", "known_ms"), [(LEASE_MS, 11_000), (SHARED_LEASE_MS, 18_000), (2_000, 3_500)])
def test_a_failure_is_judged_when_the_loss_of_another_machine_would_be_known(tmp_path, lease_ms, known_ms):
    """A node may have renewed its lease right before it died: the lease, the margin and a look later it is lost."""
    journal = MemoryJournal()
    found(journal)
    fleet = RemoteBackend(tmp_path, settings_for_lease(lease_ms))
    server = Server(load(journal), journal, MemoryLookup(), fleet, secrets_of(tmp_path))
    state = Setup(spec(Work(command=("x",))), TWO).state
    server._dispatch.state = state
    fact = server._dispatch.fact(TaskReport(key=TaskKey("7/main", 1, 0), phase=Phase.DOWN, at_ms=3, node="here"))
    assert isinstance(fact, f.TasksDown)
    assert fact.judge_ms == known_ms
