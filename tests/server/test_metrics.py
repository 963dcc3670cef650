"""Metrics: the counters are what the journal says, the gauges what the state says, and names are as they should be."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from corral.core import events as e
from corral.core import facts as f
from corral.core.accounts.accounts import AccessRefused
from corral.core.engine import react
from corral.core.gang_id import job_of
from corral.remote.counters import RemoteCounters
from corral.server.api.app import make_app
from corral.server.api.http.settings import ApiSettings
from corral.server.metrics import Metrics
from corral.server.totals import fold
from tests.server.asgi import ask

JOB = {"queue": "team", "command": "true", "gpus": 2}


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    """By name and values of labels, which are listed in the order of their names."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found[sample.name, *sample.labels.values()] = sample.value
    return found


async def live(setup) -> None:
    """A small day: two jobs run, one fails and one ends well; one waits, one is cancelled, two are refused."""
    service = setup.service
    for job in (JOB, JOB, JOB | {"gpus": 8}, JOB, JOB | {"gpus": 9}, JOB | {"queue": "nowhere"}):
        await ask(setup.app, "POST", "/v1/jobs", setup.member, job)
    assert (await ask(setup.app, "POST", "/v1/jobs/4/cancel", setup.member)).status == 200
    service.time_ms += 50
    service.plan()
    for gang, exit_code in (("1/main", 0), ("2/main", 1)):
        for fact in (f.TasksUp(gang, 1, 1), f.TasksDown(gang, 1, 1, exit_code, None, "n0")):
            service.do("world", react(service.state, fact, service.now_ms()))
    service.plan()


@pytest.fixture
def watched(setup):
    """The same setup with metrics that see every event from now on."""
    metrics = Metrics(setup.service.state)
    setup.app.close()
    setup.app = make_app(setup.service, ApiSettings(metrics_open=True), metrics)
    setup.before = len(setup.service.events())
    return setup


async def test_counters_are_reconciled_with_the_journal(watched):
    await live(watched)
    events = watched.service.events()
    for event in events[watched.before :]:
        watched.app.metrics.take(event)
    told = samples(watched.app.metrics.text(watched.service.now_ms()))
    totals = fold(events)
    assert told["corral_jobs_submitted_total", "team"] == totals.submitted["team"] == 4
    for (queue, outcome), count in totals.ended.items():
        assert told["corral_jobs_ended_total", outcome, queue] == count
    assert dict(totals.ended) == {("team", "succeeded"): 1, ("team", "failed"): 1, ("team", "cancelled"): 1}
    assert told["corral_attempts_started_total", "team"] == totals.started["team"] == 2
    assert told["corral_attempts_ended_total", "user_error", "team"] == totals.stopped["team", "user_error"] == 1
    assert told["corral_attempts_ended_total", "none", "team"] == 1
    assert told["corral_start_latency_seconds_count",] == 2
    assert told["corral_start_latency_seconds_bucket", "0.05"] == 2
    assert told["corral_start_latency_seconds_bucket", "0.025"] == 0
    assert told["corral_start_latency_seconds_sum",] == totals.latency_sum_ms / 1000 == 0.1
    assert told["corral_journal_records_total",] == len(events) - watched.before


async def test_jobs_that_never_entered_a_queue_are_counted(watched):
    """Trap 21."""
    await live(watched)
    told = samples(watched.app.metrics.text(watched.service.now_ms()))
    assert told["corral_jobs_refused_total", "no_node_large_enough"] == 1
    assert told["corral_jobs_refused_total", "no_such_queue"] == 1


async def test_gauges_are_as_the_state(watched):
    await live(watched)
    told = samples(watched.app.metrics.text(watched.service.now_ms()))
    assert told["corral_gpus", "H100", "used"] == 8
    assert told["corral_gangs", "team", "starting"] == 1
    assert told["corral_jobs_unfinished", "team"] == 1
    assert told["corral_queue_used_gpus", "team"] == 8
    assert told["corral_nodes", "healthy"] == 1
    await ask(watched.app, "POST", "/v1/nodes/n0/drain", watched.root, {})
    await ask(watched.app, "PUT", "/v1/queues/team", watched.root, {"limit": {"gpu_milli": 4000}})
    told = samples(watched.app.metrics.text(watched.service.now_ms()))
    assert told["corral_nodes", "drained"] == 1
    assert told["corral_queue_limit_gpus", "team"] == 4


async def test_what_came_too_late_and_who_was_refused_is_counted(watched):
    metrics = watched.app.metrics
    assert "corral_agent_reports" not in metrics.text(0).decode(), "there are no agents"
    metrics.fleet = RemoteCounters(reports=9, late_reports=3, old_reports=2, refused_orders=1)
    for event in (e.NodeLost(1, "n0"), AccessRefused(1, "node:n1", "tried to speak for node n2")):
        metrics.take(event)
    told = samples(metrics.text(0))
    assert told["corral_agent_reports_total",] == 9
    assert told["corral_agent_reports_late_total",] == 3
    assert told["corral_agent_reports_refused_total",] == 2
    assert told["corral_agent_orders_refused_total",] == 1
    assert (told["corral_nodes_lost_total",], told["corral_access_refused_total",]) == (1, 1)


async def test_requests_are_counted_by_route_and_status(watched):
    for _ in range(3):
        await ask(watched.app, "GET", "/v1/jobs/17", watched.member)
    await ask(watched.app, "GET", "/anything/else")
    told = samples(watched.app.metrics.text(0))
    assert told["corral_http_requests_total", "get_jobs_job", "404"] == 3
    assert told["corral_http_requests_total", "none", "404"] == 1
    assert told["corral_http_request_duration_seconds_count", "get_jobs_job"] == 3


async def test_names_are_as_prometheus_wants_them(watched):
    await live(watched)
    watched.app.metrics.planned(0.01, 3, 1)
    watched.app.metrics.appended(0.001)
    names = [family.name for family in text_string_to_metric_families(watched.app.metrics.text(0).decode())]
    assert names
    assert all(re.fullmatch(r"corral_[a-z]+(_[a-z]+)*", name) for name in names), names
    text = watched.app.metrics.text(0).decode()
    assert "member" not in text
    assert not re.search(r'="\d+/main"', text)


@pytest.mark.parametrize(("client", "status"), [("127.0.0.1", 200), ("10.0.0.1", 401)])
async def test_metrics_may_be_open_on_this_machine(watched, client, status):
    assert (await ask(watched.app, "GET", "/v1/metrics", client=client)).status == status


async def test_metrics_go_on_from_a_state(watched):
    """A fold that begins in the middle knows the queues of jobs that were there before."""
    await live(watched)
    service, metrics = watched.service, Metrics(watched.service.state)
    before = len(service.events())
    assert (await ask(watched.app, "POST", "/v1/jobs/3/cancel", watched.member)).status == 200
    for fact in (f.TasksUp("3/main", 1, 1), f.TasksDown("3/main", 1, 1, 143, None, "n0")):
        service.do("world", react(service.state, fact, service.now_ms()))
    for event in service.events()[before:]:
        metrics.take(event)
    assert metrics.fold.totals.ended == {("team", "cancelled"): 1}


def test_the_job_of_a_gang():
    assert [job_of(gang) for gang in ("17/main", "17[3]/main", "17")] == ["17"] * 3
