"""What people ask for: every refusal by its code, never an exception, and what each accepted command does."""

import pytest

from corral.core import events as e
from corral.core import facts as f
from corral.core.cluster.resources import Demand, TaskDemand, amounts
from corral.core.cluster.topology import NodeSpec
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.model import (
    After,
    Budget,
    Dependency,
    FailureClass,
    GangSpec,
    GangState,
    JobSpec,
    QueueSpec,
    QuotaChange,
    RetryRule,
)
from tests.world import START_MS, World, demand_of, gpu_amounts, node_spec, state_of


def world() -> World:
    made = World().rack("a", 2, cpu_milli=8000).rack("b", 1, model="A100")
    made.queue("team").queue("small", limit=4, user_limit=2, max_jobs=2, max_jobs_per_user=1, priority_ceiling=3)
    made.queue("org", guarantee=8).queue("org/x", guarantee=5)
    return made.queue("tight", limit=amounts({"gpu_milli": 4000, "cpu_milli": 1000}))


def code(answer: object) -> str:
    """The code of a refusal, or what came of it instead."""
    if not isinstance(answer, Refusal):
        return f"accepted: {answer}"
    assert answer.why
    assert str(answer).startswith(answer.why)
    return answer.code


def slice_of(mib: int, **terms) -> Demand:
    return Demand(task=TaskDemand(slice_mib=mib), **terms)


# ---- what is wrong with a job in itself ---------------------------------------------------------------

BAD_DEMANDS = {
    "a gang of zero tasks": ("no_tasks", demand_of(tasks=0)),
    "a gang of minus one tasks": ("no_tasks", demand_of(tasks=-1)),
    "more tasks at least than at most": ("bad_range", demand_of(tasks=2, tasks_min=3)),
    "a negative least number of tasks": ("bad_range", demand_of(tasks=2, tasks_min=-1)),
    "a step of zero": ("bad_range", demand_of(tasks=4, tasks_min=2, step=0)),
    "a step that misses the fewest tasks": ("bad_range", demand_of(tasks=4, tasks_min=1, step=2)),
    "negative spares": ("negative_amount", demand_of(spares=-1)),
    "no task to each domain": ("bad_range", demand_of(spread="rack", spread_max=0)),
    "negative GPUs": ("negative_amount", demand_of(gpus=-1)),
    "a negative slice": ("negative_amount", slice_of(-5)),
    "negative VRAM": ("negative_amount", demand_of(vram_mib_min=-1)),
    "a negative amount": ("negative_amount", demand_of(amounts=amounts({"cpu_milli": -1}))),
    "whole GPUs and a slice": ("gpus_and_slice", demand_of(slice_mib=5)),
    "VRAM at most below at least": ("bad_range", demand_of(vram_mib_min=2, vram_mib_max=1)),
    "a task that takes nothing": ("asks_for_nothing", Demand(task=TaskDemand())),
    "tp of zero": ("bad_tp", demand_of(tp=0)),
    "tp for a slice": ("bad_tp", slice_of(5, tp=2)),
    "tp that does not divide the GPUs of a task": ("bad_tp", demand_of(gpus=8, tp=3)),
    "tp that no number of tasks makes up": ("bad_tp", demand_of(gpus=2, tasks=4, tp=3)),
    "a group of two tasks and three tasks": ("bad_tp", demand_of(gpus=2, tasks=3, tp=4)),
    "an elastic size that splits a group": ("bad_tp", demand_of(gpus=2, tasks=4, tasks_min=3, tp=4)),
    "tp without GPUs": ("bad_tp", Demand(task=TaskDemand(amounts=amounts({"cpu_milli": 1})), tp=2)),
    "a level that does not exist": ("no_such_level", demand_of(within="spine")),
    "a preferred level that does not exist": ("no_such_level", demand_of(prefer="spine")),
    "a spread over a level that does not exist": ("no_such_level", demand_of(spread="spine")),
    "a GPU that no node has": ("no_such_gpu_model", demand_of(models=("B200",))),
    "VRAM that no node has": ("no_such_vram", demand_of(vram_mib_min=90_000)),
    "less VRAM than any GPU has": ("no_such_vram", demand_of(vram_mib_max=40_000)),
    "a slice larger than any GPU": ("no_such_vram", slice_of(80_001)),
    "a task larger than any node": ("no_node_large_enough", demand_of(gpus=9)),
    "an amount no node speaks of": ("no_node_large_enough", demand_of(amounts=amounts({"licence": 1}))),
    "a rack larger than any": ("no_domain_large_enough", demand_of(gpus=8, tasks=3, within="rack")),
    "more tasks than the cluster": ("cluster_too_small", demand_of(gpus=8, tasks=4)),
    "spares beyond the cluster": ("cluster_too_small", demand_of(gpus=8, tasks=3, spares=1)),
    "more failure domains than there are": ("cluster_too_small", demand_of(tasks=3, spread="rack")),
    "GPUs of one model and CPUs only the others have": (
        "no_node_large_enough", demand_of(models=("A100",), amounts=amounts({"cpu_milli": 1})),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("expected", "demand"), BAD_DEMANDS.values(), ids=BAD_DEMANDS.keys())
def test_a_demand_is_refused(expected, demand):
    assert code(world().ask("j", demand=demand)) == expected


def test_an_elastic_gang_is_refused_only_if_its_smallest_size_can_never_fit():
    assert not isinstance(world().ask("j", demand=demand_of(gpus=8, tasks=9, tasks_min=3)), Refusal)


BAD_JOBS = {
    "an unknown queue": ("no_such_queue", dict(queue="nowhere")),
    "the cluster itself as queue": ("no_such_queue", dict(queue="")),
    "no gang": ("no_gangs", dict(gangs=())),
    "two gangs of one role": ("duplicate_role", dict(gangs=(GangSpec(demand_of()),) * 2)),
    "the same array index twice": ("bad_array", dict(array=(1, 1))),
    "a negative array index": ("bad_array", dict(array=(-1,))),
    "an array of which none may run": ("bad_array", dict(array=(1,), array_parallel=0)),
    "a singleton without a name": ("singleton_without_name", dict(singleton=True)),
    "a time limit of zero": ("bad_duration", dict(time_limit_ms=0)),
    "a negative estimate": ("bad_duration", dict(estimate_ms=-1)),
    "a negative grace": ("negative_amount", dict(grace_ms=-1)),
    "a negative minimum runtime": ("negative_amount", dict(min_runtime_ms=-1)),
    "a negative start timeout": ("negative_amount", dict(start_timeout_ms=-1)),
    "a negative restart cost": ("negative_amount", dict(restart_cost_ms=-1)),
    "a deadline before the begin time": (
        "deadline_before_begin", dict(begin_ms=3_000_000, deadline_ms=2_000_000),
    ),
    "a deadline that has passed": ("deadline_passed", dict(deadline_ms=START_MS)),
    "a dependency on a job that does not exist": ("no_such_job", dict(after=(Dependency("ghost"),))),
    "a dependency on itself": ("dependency_cycle", dict(after=(Dependency("j"),))),
    "a priority above the ceiling": ("priority_too_high", dict(queue="small", priority=4)),
    "more GPUs than the queue may ever have": (
        "over_queue_limit", dict(queue="small", demand=demand_of(gpus=5)),
    ),
    "more GPUs than the queue may ever have, spares included": (
        "over_queue_limit", dict(queue="tight", demand=demand_of(gpus=1, tasks=4, spares=1)),
    ),
    "more CPUs than the queue may ever have": (
        "over_queue_limit", dict(queue="tight", demand=demand_of(amounts=amounts({"cpu_milli": 2000}))),
    ),
    "negative retries": ("negative_amount", dict(retries=((FailureClass.USER_ERROR, RetryRule(-1)),))),
    "a negative backoff": (
        "negative_amount", dict(retries=((FailureClass.USER_ERROR, RetryRule(1, backoff_ms=-1)),)),
    ),
    "more GPUs than a user may ever have": ("over_user_limit", dict(queue="small", demand=demand_of(gpus=3))),
}  # fmt: skip


@pytest.mark.parametrize(("expected", "spec"), BAD_JOBS.values(), ids=BAD_JOBS.keys())
def test_a_job_is_refused(expected, spec):
    assert code(world().ask("j", **spec)) == expected


def test_a_refusal_states_amounts_in_the_units_of_users():
    refusal = world().ask("j", queue="small", demand=demand_of(gpus=5))
    assert isinstance(refusal, Refusal)
    assert refusal.why == "the job requests 5 GPUs; the limit of queue small is 4 GPUs"


def test_a_refusal_names_the_gang_and_the_field():
    refusal = world().ask("j", demand=demand_of(tp=0))
    assert isinstance(refusal, Refusal)
    assert refusal.field == "gangs.main.tp"


def test_a_second_job_of_the_same_name_is_refused():
    made = world()
    made.submit("j")
    assert code(made.ask("j")) == "job_exists"


def test_a_full_queue_refuses():
    made = world()
    made.submit("j1", "small", user="ann")
    assert code(made.ask("j2", "small", user="ann")) == "too_many_jobs"
    made.submit("j2", "small", user="bob")
    assert code(made.ask("j3", "small", user="eve")) == "queue_full"


def test_a_batch_counts_its_own_jobs_against_the_queue():
    made, spec = world(), JobSpec(queue="small", gangs=(GangSpec(demand_of()),))
    assert code(commands.submit_many(made.state, {"a": spec, "b": spec}, "ann", START_MS)) == "too_many_jobs"


def test_a_dependency_that_can_no_longer_be_met_is_refused():
    made = world()
    made.submit("first")
    made.take(commands.cancel(made.state, "first", made.now))
    assert code(made.ask("j", after=(Dependency("first", After.OK),))) == "dependency_failed"
    assert not isinstance(made.ask("j", after=(Dependency("first", After.NOT_OK),)), Refusal)
    assert not isinstance(made.ask("j", after=(Dependency("first", After.ANY),)), Refusal)


def batch(made: World, **after: str) -> object:
    specs = {
        job: JobSpec(queue="team", gangs=(GangSpec(demand_of()),), after=tuple(map(Dependency, others.split())))
        for job, others in after.items()
    }
    return commands.submit_many(made.state, specs, "ann", made.now)


def test_a_circle_of_dependencies_is_refused():
    assert code(batch(world(), a="c", b="a", c="b")) == "dependency_cycle"


def test_jobs_of_one_batch_are_submitted_after_those_they_wait_for():
    answer = batch(world(), c="a b", b="a", a="")
    assert isinstance(answer, list)
    assert [event.job for event in answer] == ["a", "b", "c"]


def test_a_scheduled_raise_of_the_limit_makes_a_large_gang_possible():
    made = world()
    raise_ = QuotaChange(2_000_000, 3_000_000, limit=gpu_amounts(4))
    made.queue("later", limit=4, changes=(raise_,))
    assert not isinstance(made.ask("j", "later", demand_of(gpus=8)), Refusal)


def test_work_that_no_window_of_its_budget_could_pay_for_is_refused():
    made = world()
    made.queue("poor", budget=Budget(gpu_ms=1_000_000, window_ms=3_600_000))
    assert not isinstance(made.ask("j", "poor", demand_of(gpus=4), time_limit_ms=250_000), Refusal)
    assert isinstance(made.ask("j", "poor", demand_of(gpus=4), time_limit_ms=250_001), Refusal)


# ---- commands on jobs ---------------------------------------------------------------------------------

JOB_COMMANDS = {
    "cancel": commands.cancel,
    "hold": commands.hold,
    "release": commands.release,
    "requeue": commands.requeue,
    "change priority": lambda state, job, now: commands.change_priority(state, job, 1, now),
}


@pytest.mark.parametrize("command", JOB_COMMANDS.values(), ids=JOB_COMMANDS.keys())
def test_a_command_on_an_unknown_job_is_refused(command):
    made = world()
    assert code(command(made.state, "ghost", made.now)) == "no_such_job"


AFTERWARDS = {
    "cancel": "job_over",
    "hold": "cannot_hold",
    "release": "not_held",
    "requeue": "not_running",
    "change priority": "job_over",
}


@pytest.mark.parametrize(("name", "expected"), AFTERWARDS.items(), ids=AFTERWARDS.keys())
def test_a_command_on_a_job_that_is_over_is_refused(name, expected):
    made = world()
    gang = made.run("j")
    made.down(gang)
    assert state_of(gang) is GangState.SUCCEEDED
    assert code(JOB_COMMANDS[name](made.state, "j", made.now)) == expected


def test_cancelling_twice_is_refused():
    made = world()
    made.run("j")
    made.take(commands.cancel(made.state, "j", made.now))
    assert code(commands.cancel(made.state, "j", made.now)) == "job_over"


def test_holding_what_is_held_and_releasing_what_is_not_are_refused():
    made = world()
    made.submit("j")
    assert code(commands.release(made.state, "j", made.now)) == "not_held"
    made.take(commands.hold(made.state, "j", made.now))
    assert code(commands.hold(made.state, "j", made.now)) == "cannot_hold"


def test_a_waiting_job_is_cancelled_at_once_and_a_running_one_with_grace():
    made = world()
    waiting, running = made.submit("w", demand=demand_of(gpus=8, tasks=3)), made.run("r", "org/x")
    made.take(commands.cancel(made.state, waiting.job, made.now))
    made.take(commands.cancel(made.state, running.job, made.now))
    assert state_of(waiting) is GangState.CANCELLED
    assert state_of(running) is GangState.STOPPING
    made.down(running, 0)
    assert state_of(running) is GangState.CANCELLED


def test_a_held_job_waits_out_of_line_until_it_is_released():
    made = world()
    gang = made.submit("j")
    made.take(commands.hold(made.state, "j", made.now))
    made.cycle()
    assert state_of(gang) is GangState.WAITING
    made.take(commands.release(made.state, "j", made.now))
    made.cycle()
    assert state_of(gang) is GangState.STARTING


def test_holding_a_running_job_lets_it_run_and_keeps_it_from_starting_again():
    made = world()
    gang = made.run("j")
    made.take(commands.hold(made.state, "j", made.now))
    assert state_of(gang) is GangState.RUNNING
    made.down(gang, 85)
    made.cycle()
    assert state_of(gang) is GangState.WAITING


def test_holding_a_job_that_claims_seats_gives_the_claim_back():
    made = world()
    made.run("low", demand=demand_of(gpus=8, tasks=3))
    gang = made.submit("high", demand=demand_of(gpus=8), priority=1)
    made.cycle()
    assert gang.claim
    made.take(commands.hold(made.state, "high", made.now))
    assert not gang.claim


def test_a_requeued_job_leaves_with_grace_and_waits_again():
    made = world()
    gang = made.run("j")
    made.take(commands.requeue(made.state, "j", made.now))
    made.down(gang, 143)
    assert state_of(gang) is GangState.WAITING


def test_requeueing_what_is_leaving_already_adds_nothing():
    made = world()
    made.run("j")
    made.take(commands.requeue(made.state, "j", made.now))
    assert commands.requeue(made.state, "j", made.now) == []


def test_a_changed_priority_moves_the_gang_to_another_bucket():
    made = world()
    gang = made.submit("j")
    made.take(commands.change_priority(made.state, "j", 7, made.now))
    assert gang.priority == 7
    assert made.state.backlog.entry(gang).priority == 7


def test_a_priority_above_the_ceiling_is_refused_later_too():
    made = world()
    made.submit("j", "small")
    assert code(commands.change_priority(made.state, "j", 4, made.now)) == "priority_too_high"


# ---- queues -------------------------------------------------------------------------------------------

BAD_QUEUES = {
    "an empty name": ("bad_name", "", {}),
    "an empty part": ("bad_name", "org//x", {}),
    "a parent that does not exist": ("no_such_queue", "nowhere/x", {}),
    "a negative guarantee": ("negative_amount", "q", dict(guarantee=gpu_amounts(-1))),
    "a negative limit": ("negative_amount", "q", dict(limit=gpu_amounts(-1))),
    "a negative lend": ("negative_amount", "q", dict(lend=gpu_amounts(-1))),
    "a negative limit per user": ("negative_amount", "q", dict(user_limit=gpu_amounts(-1))),
    "a weight of zero": ("bad_weight", "q", dict(weight=0)),
    "a negative budget": ("bad_budget", "q", dict(budget=Budget(-1, 1))),
    "a budget without window": ("bad_budget", "q", dict(budget=Budget(1, 0))),
    "a change that ends before it begins": ("bad_change", "q", dict(changes=(QuotaChange(2, 1),))),
    "a guarantee above the limit": (
        "guarantee_over_limit",
        "q",
        dict(guarantee=gpu_amounts(2), limit=gpu_amounts(1)),
    ),
    "more guaranteed than the parent has": (
        "guarantees_exceed_parent",
        "org/y",
        dict(guarantee=gpu_amounts(4)),
    ),
    "less than the children are guaranteed": (
        "guarantees_exceed_parent",
        "org",
        dict(guarantee=gpu_amounts(4)),
    ),
    "a negative number of jobs": ("negative_amount", "q", dict(max_jobs=-1)),
    "a negative number of jobs per user": ("negative_amount", "q", dict(max_jobs_per_user=-1)),
    "a negative time share": ("negative_amount", "q", dict(time_share=-1)),
}


@pytest.mark.parametrize(("expected", "name", "terms"), BAD_QUEUES.values(), ids=BAD_QUEUES.keys())
def test_a_queue_is_refused(expected, name, terms):
    made = world()
    spec = QueueSpec(name=name, **terms)
    assert code(commands.set_queue(made.state, spec, made.now)) == expected


def test_removing_queues():
    made = world()
    assert code(commands.remove_queue(made.state, "ghost", made.now)) == "no_such_queue"
    assert code(commands.remove_queue(made.state, "", made.now)) == "no_such_queue"
    assert code(commands.remove_queue(made.state, "org", made.now)) == "queue_not_empty"
    made.submit("j", "org/x")
    assert code(commands.remove_queue(made.state, "org/x", made.now)) == "queue_not_empty"
    made.take(commands.cancel(made.state, "j", made.now))
    made.take(commands.remove_queue(made.state, "org/x", made.now))
    made.take(commands.remove_queue(made.state, "org", made.now))
    assert "org" not in made.state.queues.queues


def test_a_queue_removed_after_its_jobs_ended_leaves_the_laws_intact_when_it_is_made_again():
    made = world()
    made.down(made.run("j", "org/x"))
    made.take(commands.remove_queue(made.state, "org/x", made.now))
    made.queue("org/x", guarantee=1)
    made.run("k", "org/x")


# ---- nodes --------------------------------------------------------------------------------------------

NODE_COMMANDS = (commands.remove_node, commands.drain, commands.undrain)


@pytest.mark.parametrize("command", NODE_COMMANDS, ids=["remove", "drain", "undrain"])
def test_a_command_on_an_unknown_node_is_refused(command):
    made = world()
    assert code(command(made.state, "ghost", made.now)) == "no_such_node"


def test_draining_twice_and_undraining_what_is_not_drained_are_refused():
    made = world()
    assert code(commands.undrain(made.state, "a0", made.now)) == "not_drained"
    made.take(commands.drain(made.state, "a0", made.now))
    assert code(commands.drain(made.state, "a0", made.now)) == "already_drained"


BAD_NODES = {
    "a path that is too short": ("bad_path", node_spec("n")),
    "a path that is too long": ("bad_path", node_spec("n", path=("z", "r"))),
    "a negative amount": ("negative_amount", node_spec("n", path=("a",), cpu_milli=-1)),
    "a GPU without VRAM": ("negative_amount", node_spec("n", path=("a",), vram_mib=0)),
    "an empty name": ("bad_name", node_spec("", path=("a",))),
}


@pytest.mark.parametrize(("expected", "spec"), BAD_NODES.values(), ids=BAD_NODES.keys())
def test_a_node_is_refused(expected, spec):
    made = world()
    assert code(commands.add_node(made.state, spec, made.now)) == expected


def test_a_gpu_is_in_one_machine_only():
    made = world()
    (first, *rest) = node_spec("c0", 2, ("c",)).gpus
    made.take(commands.add_node(made.state, NodeSpec("c0", (first, *rest), (), ("c",)), made.now))
    thief = NodeSpec("c1", (first,), (), ("c",))
    refusal = commands.add_node(made.state, thief, made.now)
    assert code(refusal) == "gpu_of_another_node"
    assert "corral node remove c0" in str(refusal)
    made.tell(f.NodeGone("c0"))
    made.take(commands.add_node(made.state, thief, made.now))
    made.tell(f.NodeBack("c0"))
    assert made.state.nodes["c0"].lost, "it comes back with a card that is elsewhere now"
    made.take(commands.remove_node(made.state, "c1", made.now))
    made.tell(f.NodeBack("c0"))
    assert not made.state.nodes["c0"].lost


def test_a_node_in_use_is_neither_changed_nor_removed():
    made = world()
    gang = made.run("j", demand=demand_of(gpus=8, models=("A100",)))
    assert gang.seats[0].node == "b0"
    changed = node_spec("b0", 4, ("b",), model="A100")
    assert code(commands.add_node(made.state, changed, made.now)) == "node_in_use"
    assert code(commands.remove_node(made.state, "b0", made.now)) == "node_in_use"
    made.down(gang)
    made.take(commands.add_node(made.state, changed, made.now))
    made.take(commands.remove_node(made.state, "b0", made.now))
    assert isinstance(made.journal[-1], e.NodeRemoved)


def test_a_claimed_node_is_neither_changed_nor_removed():
    made = world()
    made.run("low", demand=demand_of(gpus=8, models=("A100",)))
    high = made.submit("high", demand=demand_of(gpus=8, models=("A100",)), priority=1)
    made.cycle()
    assert high.claim
    assert code(commands.remove_node(made.state, "b0", made.now)) == "node_in_use"


def test_a_node_with_nothing_but_a_claim_on_it_is_not_changed():
    made = world()
    low = made.run("low", demand=demand_of(gpus=8, models=("A100",)))
    high = made.submit("high", demand=demand_of(gpus=8, models=("A100",)), priority=1)
    made.cycle()
    made.down(low, 0)
    assert high.claim
    changed = node_spec("b0", 4, ("b",), model="A100")
    assert code(commands.add_node(made.state, changed, made.now)) == "node_in_use"


def test_a_node_that_tells_the_same_again_changes_nothing_for_what_runs():
    made = world()
    gang = made.run("j")
    spec = made.state.nodes[gang.seats[0].node].spec
    made.take(commands.add_node(made.state, spec, made.now))
    assert state_of(gang) is GangState.RUNNING
