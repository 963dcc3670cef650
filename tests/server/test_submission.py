"""Submitting over the interface: one, many, tried out; and the same key, whatever happens, at most once."""

from __future__ import annotations

import asyncio

import pytest

from corral.core.accounts import accounts as a
from corral.core.events import JobSubmitted
from corral.server.api.app import make_app
from tests.server.asgi import ask

JOB = {"name": "train", "queue": "team", "command": "python train.py", "gpus": 1}
KEY = [("Idempotency-Key", "k-1")]


def submitted(service) -> list[JobSubmitted]:
    return [event for event in service.events() if isinstance(event, JobSubmitted)]


async def test_a_job_is_accepted_and_on_record(setup):
    answer = await ask(setup.app, "POST", "/v1/jobs", setup.member, JOB)
    assert answer.status == 201
    told = answer.json()
    assert (told["id"], told["user"], told["queue"], told["name"]) == ("1", "member", "team", "train")
    [record] = [record for record in setup.service.journal.read(0, 1000) if record.seq == told["seq"]]
    assert record.actor == "member"
    assert submitted(setup.service)[0].user == "member"


@pytest.mark.parametrize("key", ["user", "id", "submitted_ms", "account", "attempt", "tenant"])
async def test_what_the_server_sets_cannot_be_set(setup, key):
    answer = await ask(setup.app, "POST", "/v1/jobs", setup.member, JOB | {key: "root"})
    assert answer.status == 422
    assert answer.json()["faults"][0]["path"] == [key]
    assert not submitted(setup.service)


async def test_all_faults_are_reported_at_once(setup):
    answer = await ask(setup.app, "POST", "/v1/jobs", setup.member, {"comand": "x", "gpus": "many", "queue": "team"})
    assert (answer.status, answer.code) == (422, "bad_job")
    assert {tuple(fault["path"]) for fault in answer.json()["faults"]} >= {("comand",), ("command",)}


async def test_a_batch_is_accepted_whole(setup):
    jobs = [JOB | {"name": f"n{n}"} for n in range(250)]
    answer = await ask(setup.app, "POST", "/v1/jobs/batch", setup.member, {"jobs": jobs})
    assert answer.status == 201
    told = answer.json()["jobs"]
    assert [job["name"] for job in told] == [job["name"] for job in jobs]
    seqs = [job["seq"] for job in told]
    assert seqs == list(range(seqs[0], seqs[0] + 250))


async def test_a_batch_with_one_fault_is_refused_whole(setup):
    answer = await ask(setup.app, "POST", "/v1/jobs/batch", setup.member, {"jobs": [JOB, JOB | {"gpus": 9}]})
    assert answer.status == 422
    answer = await ask(setup.app, "POST", "/v1/jobs/batch", setup.member, {"jobs": [JOB, JOB | {"x": 1}]})
    assert answer.json()["faults"][0]["path"] == ["jobs", 1, "x"]
    assert not submitted(setup.service)


@pytest.mark.parametrize("body", [{"jobs": []}, {"jobs": [JOB] * 5001}, {}, {"jobs": [JOB], "more": 1}, [JOB]])
async def test_batches_have_bounds(setup, body):
    answer = await ask(setup.app, "POST", "/v1/jobs/batch", setup.member, body)
    assert answer.status in (400, 422)


async def test_trying_out_writes_nothing(setup):
    before = setup.service.journal.head
    answer = await ask(setup.app, "POST", "/v1/jobs?dry_run=true", setup.member, JOB)
    assert answer.status == 200
    assert answer.json()["quota"][0] == {
        "queue": "team", "name": "gpu_milli", "used": 0, "asked": 1000, "guarantee": None, "limit": None, "borrowed": 0
    }  # fmt: skip
    assert setup.service.journal.head == before


async def test_a_secret_must_be_there_for_the_queue(setup):
    job = JOB | {"secrets": {"KEY": "key"}}
    answer = await ask(setup.app, "POST", "/v1/jobs", setup.member, job)
    assert (answer.status, answer.code) == (422, "no_such_secret")
    setup.service.do_accounts("root", [a.SecretSet(setup.service.now_ms(), "key", "other")])
    assert (await ask(setup.app, "POST", "/v1/jobs", setup.member, job)).status == 422
    setup.service.do_accounts("root", [a.SecretSet(setup.service.now_ms(), "key", "")])
    assert (await ask(setup.app, "POST", "/v1/jobs", setup.member, job)).status == 201


# ---- the same key ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "body"), [("/v1/jobs", JOB), ("/v1/jobs/batch", {"jobs": [JOB, JOB]})])
async def test_the_same_key_and_body_get_the_same_answer(setup, path, body):
    first = await ask(setup.app, "POST", path, setup.member, body, KEY)
    count = len(submitted(setup.service))
    again = await ask(setup.app, "POST", path, setup.member, body, KEY)
    restarted = await ask(make_app(setup.service), "POST", path, setup.member, body, KEY)
    assert first.status == again.status == restarted.status == 201
    assert first.json() == again.json() == restarted.json()
    assert len(submitted(setup.service)) == count


async def test_the_same_key_for_something_else_is_a_conflict(setup):
    assert (await ask(setup.app, "POST", "/v1/jobs", setup.member, JOB, KEY)).status == 201
    answer = await ask(setup.app, "POST", "/v1/jobs", setup.member, JOB | {"gpus": 2}, KEY)
    assert (answer.status, answer.code) == (409, "key_reused")
    answer = await ask(setup.app, "POST", "/v1/jobs/batch", setup.member, {"jobs": [JOB]}, KEY)
    assert (answer.status, answer.code) == (409, "key_reused")
    assert len(submitted(setup.service)) == 1


async def test_keys_of_different_users_do_not_meet(setup):
    for token in (setup.root, setup.member):
        assert (await ask(setup.app, "POST", "/v1/jobs", token, JOB, KEY)).status == 201
    assert len(submitted(setup.service)) == 2


async def test_twins_at_the_same_time_are_one(setup):
    setup.service.delay = asyncio.Event()
    twins = [asyncio.create_task(ask(setup.app, "POST", "/v1/jobs", setup.member, JOB, KEY)) for _ in range(20)]
    other = asyncio.create_task(ask(setup.app, "POST", "/v1/jobs", setup.member, JOB | {"gpus": 2}, KEY))
    assert (await other).status == 409
    setup.service.delay.set()
    answers = await asyncio.gather(*twins)
    assert {answer.status for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(submitted(setup.service)) == 1


async def test_what_was_refused_leaves_no_trace_of_its_key(setup):
    answer = await ask(setup.app, "POST", "/v1/jobs", setup.member, JOB | {"queue": "none"}, KEY)
    assert answer.status == 422
    assert (await ask(setup.app, "POST", "/v1/jobs", setup.member, JOB, KEY)).status == 201


@pytest.mark.parametrize("key", ["with space", "x" * 256, "ünicode"])
async def test_keys_are_plain(setup, key):
    answer = await ask(setup.app, "POST", "/v1/jobs", setup.member, JOB, [("Idempotency-Key", key)])
    assert (answer.status, answer.code) == (400, "bad_key")


BIG = {"command": "true", "gpus": 1, "queue": "team", "array": "0-9999"}
SHORT_AND_LARGE = {
    "one array of 10,000 elements is allowed": ("/v1/jobs", BIG, 201, ""),
    "an array of jobs with two gangs each": (
        "/v1/jobs", BIG | {"gangs": [{"role": "a", "gpus": 1}, {"role": "b", "gpus": 1}]}, 422, "job_too_large",
    ),
    "46 arrays in 4 kB": ("/v1/jobs/batch", {"jobs": [BIG] * 46}, 422, "request_too_large"),
    "the same, tried": ("/v1/jobs/batch?dry_run=true", {"jobs": [BIG] * 46}, 422, "request_too_large"),
}  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "code"), SHORT_AND_LARGE.values(), ids=SHORT_AND_LARGE.keys())
async def test_a_short_request_cannot_ask_for_any_number_of_gangs(setup, path, body, status, code):
    if "gangs" in body:
        body = {key: value for key, value in body.items() if key != "gpus"}
    answer = await ask(setup.app, "POST", path, setup.member, body)
    assert (answer.status, answer.json().get("code", "")) == (status, code)
    assert len(setup.service.state.gangs) == (10_000 if status == 201 else 0)
