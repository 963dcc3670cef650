"""Jobs as objects, and answers as tables: the same for both clients."""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import Any

import msgspec
import pytest

from corral.client import AsyncClient, Client, NotFound
from corral.client.handles.handle import AsyncJobHandle, AwaitedMethods, BlockingMethods, JobHandle, JobMethods
from corral.wire.api.html_table import ROWS_MAX, html_of, rows_html
from corral.wire.api.jobs import JobSummary, JobView, SubmitAnswer
from tests.client.fake import Fake, Reply, problem
from tests.client.test_client import SUBMITTED, job

WHY = {"job": "17", "state": "waiting", "at_ms": 1, "gangs_waiting": 1}
REASON = {"code": "no_capacity", "text": "needs 8 GPUs; 4 are free"}


@pytest.fixture(params=["blocking", "asynchronous"])
def run(request: pytest.FixtureRequest, fake: Fake) -> Any:
    """``run(method, *args)``: submits a job and calls a method of what is returned."""
    fake.on("POST", "/v1/jobs", Reply(SUBMITTED, 201))
    fake.on("GET", "/v1/events", Reply({"events": [], "next": 0, "head": 0}))

    def blocking(method: str, *args: Any, **named: Any) -> Any:
        with Client(fake.url, "secret") as client:
            return getattr(client.submit({"command": "true"}), method)(*args, **named)

    def awaited(method: str, *args: Any, **named: Any) -> Any:
        async def later() -> Any:
            async with AsyncClient(fake.url, "secret") as client:
                return await getattr(await client.submit({"command": "true"}), method)(*args, **named)

        return asyncio.run(later())

    return blocking if request.param == "blocking" else awaited


def test_a_submitted_job_can_be_cancelled_held_and_asked(fake: Fake, run: Any) -> None:
    for verb in ("cancel", "hold", "release", "requeue"):
        fake.on("POST", f"/v1/jobs/17/{verb}", Reply({"seq": 4}))
        assert run(verb).seq == 4
    fake.on("GET", "/v1/jobs/17/why", Reply(WHY | {"gangs": []}))
    assert run("why").state == "waiting"
    run("cancel", now=True)
    assert fake.seen[-1].query == {"now": "true"}


def part(text: bytes, **more: Any) -> bytes:
    head = {
        "gang": "main",
        "attempt": 1,
        "task": 0,
        "rank": 0,
        "stream": "stdout",
        "offset": 0,
        "size": len(text),
    } | more
    return json.dumps(head).encode() + b"\n" + text


OVER = json.dumps({"over": True}).encode() + b"\n"


def test_its_log_is_text(fake: Fake, run: Any) -> None:
    fake.on("GET", "/v1/jobs/17/output", lambda _: Reply(stream=iter([part(b"hell\xc3\n"), OVER])))
    assert run("logs", tail=5) == "hell\ufffd\n"
    assert fake.seen[-1].query["tail"] == "5"


def test_lines_of_several_processes_have_labels(fake: Fake, run: Any) -> None:
    parts = [part(b"a\nb\n", label="0"), part(b"c\n", label="1", task=1), OVER]
    fake.on("GET", "/v1/jobs/17/output", lambda _: Reply(stream=iter(parts)))
    assert run("logs") == "[0] a\n[0] b\n[1] c\n"


def test_waiting_says_what_it_does_each_time_that_changes(fake: Fake, run: Any) -> None:
    gangs = [{"gang": "17/main", "state": "waiting", "reasons": [REASON]}]
    fake.on("GET", "/v1/jobs/17/why", Reply(WHY | {"gangs": gangs}))
    states = ("waiting", "waiting", "running", "succeeded")
    fake.then("GET", "/v1/jobs/17", *(Reply(job(state=state)) for state in states))
    lines: list[str] = []
    assert run("wait", progress=lines.append).state == "succeeded"
    assert lines == ["job 17 is waiting: needs 8 GPUs; 4 are free", "job 17 is running", "job 17 succeeded"]


def test_progress_is_on_standard_error(fake: Fake, run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake.on("GET", "/v1/jobs/17", Reply(job(state="failed", why="exit 3")))
    run("wait", progress=True)
    assert capsys.readouterr().err == "job 17 failed: exit 3\n"


def test_a_job_that_was_asked_for_is_the_answer_and_has_the_methods(fake: Fake) -> None:
    fake.on("GET", "/v1/jobs/17", Reply(job(state="running")))
    with Client(fake.url, "secret") as client:
        found = client.job(17)
        assert isinstance(found, JobHandle)
        assert isinstance(found, JobView)
        assert found.refresh().state == "running"
        assert msgspec.json.decode(msgspec.json.encode(found), type=JobView).id == "17"


def test_jobs_that_were_submitted_together_have_the_methods_too(fake: Fake) -> None:
    fake.on("POST", "/v1/jobs/batch", Reply({"jobs": [SUBMITTED]}, 201))
    fake.on("POST", "/v1/jobs/17/cancel", Reply({"seq": 4}))
    with Client(fake.url, "secret") as client:
        assert [job.cancel().seq for job in client.submit_many([{"command": "true"}]).jobs] == [4]


async def test_an_asynchronous_one_too(fake: Fake) -> None:
    fake.on("GET", "/v1/jobs/17", Reply(job()))
    fake.on("GET", "/v1/jobs/18", problem(404, "no_such_job"))
    async with AsyncClient(fake.url, "secret") as client:
        found = await client.job(17)
        assert isinstance(found, AsyncJobHandle)
        assert (await found.refresh()).id == "17"
        with pytest.raises(NotFound):
            await client.job(18)


@pytest.mark.parametrize("name", [name for name in vars(JobMethods) if not name.startswith("_")])
def test_methods_have_signatures_and_help(name: str) -> None:
    blocking, awaited = getattr(BlockingMethods, name), getattr(AwaitedMethods, name)
    assert inspect.signature(blocking) == inspect.signature(awaited)
    assert "ApiCall" not in str(inspect.signature(blocking))
    assert blocking.__doc__
    assert inspect.iscoroutinefunction(awaited)


# ---- tables ----------------------------------------------------------------------------------------------------------

HOSTILE = "<script>alert('&\"')</script>"


def summary(**more: Any) -> JobSummary:
    return msgspec.convert(job(**more), JobSummary)


def test_a_notebook_shows_jobs_as_a_table_and_they_are_still_there(fake: Fake) -> None:
    fake.on("GET", "/v1/jobs", Reply({"jobs": [job("18", name="b"), job("17", why="")]}))
    with Client(fake.url, "secret") as client:
        jobs = client.jobs()
        shown = jobs._repr_html_()  # type: ignore[attr-defined]
        assert shown.count("<tr>") == 3
        assert "<th>submitted</th>" in shown
        assert "<th>why</th>" not in shown
        assert [each.id for each in jobs] == ["18", "17"]


def test_everything_is_escaped() -> None:
    hostile = summary(name=HOSTILE, labels={HOSTILE: HOSTILE})
    for shown in (rows_html([hostile]), html_of(hostile), hostile._repr_html_()):
        assert "<script" not in shown
        assert "&lt;script&gt;" in shown


def test_times_and_lists_are_for_people() -> None:
    shown = html_of(summary(submitted_ms=1_700_000_000_000, labels={"a": "1"}))
    assert "2023-11-14 22:13:20 UTC" in shown
    assert "a=1" in shown


def test_a_long_table_ends() -> None:
    shown = rows_html([summary(id=str(n)) for n in range(ROWS_MAX + 7)])
    assert shown.count("<tr>") == ROWS_MAX + 1
    assert "7 more rows" in shown
    assert "none" in rows_html([])


def test_an_answer_of_one_list_is_that_table(fake: Fake) -> None:
    fake.on(
        "GET",
        "/v1/users",
        Reply({"users": [{"name": "ada", "account": "", "disabled": False, "roles": [], "tokens": 2}]}),
    )
    with Client(fake.url, "secret") as client:
        shown = client.users()._repr_html_()
    assert "<th>name</th>" in shown
    assert "<td>ada</td>" in shown


def test_a_submitted_job_is_a_table_too() -> None:
    assert "<td>17</td>" in msgspec.convert(SUBMITTED, SubmitAnswer)._repr_html_()
