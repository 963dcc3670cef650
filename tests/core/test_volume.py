"""How much may come at once and how much may wait: counted in what it becomes, in every queue above, by user."""

import pytest

from corral.core.cluster.resources import Demand, TaskDemand
from corral.core.image import from_image, take_image
from corral.core.intake.commands import cancel, submit_many
from corral.core.intake.never_fits import _REMEMBERED_MAX, why_never
from corral.core.intake.refusal import Refusal
from corral.core.intake.site import SiteRules
from corral.core.laws import check
from corral.core.model import GangSpec, JobSpec
from tests.world import World

RULES = SiteRules(
    gangs_per_job=50, gangs_per_request=60, tasks_per_request=500, pending_per_user=100, pending_per_queue=150
)


def world(**terms: object) -> World:
    return World().rack("a", 4).queue("org", **terms).queue("org/a").queue("org/b")


def job(queue: str = "org/a", array: int = 0, gangs: int = 1, tasks: int = 1) -> JobSpec:
    demand = Demand(task=TaskDemand(gpus=1), tasks=tasks)
    roles = tuple(GangSpec(demand, f"r{n}") for n in range(gangs))
    return JobSpec(queue=queue, gangs=roles, array=tuple(range(array)))


def submitted(made: World, user: str, *specs: JobSpec, rules: SiteRules | None = RULES) -> str:
    """The code of the refusal, or nothing; then they are there."""
    first = made.state.next_job
    named = {str(first + n): spec for n, spec in enumerate(specs)}
    answer = submit_many(made.state, named, user, made.now, rules=rules)
    if isinstance(answer, Refusal):
        return answer.code
    made.take(answer)
    check(made.state)
    return ""


REQUESTS = {
    "an array within the bound": ((job(array=50),), ""),
    "an array beyond it": ((job(array=51),), "job_too_large"),
    "elements times gangs beyond it": ((job(array=17, gangs=3),), "job_too_large"),
    "jobs that are small each and too many together": ((job(array=31), job(array=30)), "request_too_large"),
    "tasks that are too many together": ((job(array=40, tasks=16),), "request_too_large"),
}


@pytest.mark.parametrize(("specs", "code"), REQUESTS.values(), ids=REQUESTS.keys())
def test_one_request_is_bounded_by_what_it_becomes(specs, code):
    made = world()
    assert submitted(made, "ann", *specs) == code
    assert (len(made.state.jobs) == 0) == bool(code)


def test_a_user_is_bounded_over_all_queues_and_others_go_on():
    made = world()
    assert submitted(made, "ann", job("org/a", 50)) == ""
    assert submitted(made, "ann", job("org/b", 50)) == ""
    assert submitted(made, "ann", job("org/a")) == "too_many_jobs"
    assert submitted(made, "bob", job("org/a")) == ""
    made.take(cancel(made.state, "1", made.now))
    check(made.state)
    assert submitted(made, "ann", job("org/a")) == ""


def test_a_queue_is_bounded_together_with_those_below_it():
    made = world()
    for user in ("ann", "bob"):
        assert submitted(made, user, job("org/a", 50)) == ""
    assert submitted(made, "cy", job("org/b", 50)) == ""
    assert submitted(made, "dan", job("org/b")) == "queue_full"


@pytest.mark.parametrize("field", ["max_jobs", "max_jobs_per_user"])
def test_max_jobs_counts_elements_and_holds_for_queues_below(field):
    made = world(**{field: 10})
    code = {"max_jobs": "queue_full", "max_jobs_per_user": "too_many_jobs"}[field]
    assert submitted(made, "ann", job("org/a", 11), rules=None) == code
    assert submitted(made, "ann", job("org/a", 6), rules=None) == ""
    assert submitted(made, "ann", job("org/b", 5), rules=None) == code
    assert submitted(made, "ann", *[job("org/b")] * 5, rules=None) == code
    assert submitted(made, "ann", *[job("org/b")] * 4, rules=None) == ""


def test_the_count_survives_an_image():
    made = world()
    submitted(made, "ann", job("org/a", 7, gangs=2), job("org/b"))
    again = from_image(take_image(made.state))
    assert again.queues.queues["org"].elements == 8
    assert again.queues.queues[""].user_elements == {"ann": 8}


def test_what_is_remembered_about_demands_is_bounded():
    made = world()
    for gpus in range(_REMEMBERED_MAX + 500):
        why_never(made.state, Demand(task=TaskDemand(gpus=100 + gpus)))
    assert len(made.state.never_fits) <= _REMEMBERED_MAX + 2
