"""Requests and answers, refusals, retries, and what takes several requests: the same for both clients."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from corral.client import Client, NotFound, Problem, Timeout, Unreachable
from tests.client.conftest import Both
from tests.client.fake import Fake, Reply, Request, problem

SUBMITTED = {"id": "17", "name": "a", "queue": "lab", "user": "ada", "seq": 5}


def job(id: str = "17", **more: Any) -> dict[str, Any]:
    known = {"id": id, "name": "a", "queue": "lab", "user": "ada", "priority": 0, "state": "running", "held": False}
    return known | {"submitted_ms": 1000} | more


def event(seq: int, type: str = "JobSubmitted") -> dict[str, Any]:
    return {"seq": seq, "at_ms": 1000 + seq, "actor": "ada", "type": type, "text": f"event {seq}"}


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(b"id: %d\ndata: %s\n\n" % (each["seq"], json.dumps(each).encode()) for each in events)


# ---- one request -----------------------------------------------------------------------------------------------------


def test_a_job_is_read_and_the_token_is_sent(fake: Fake, client: Both) -> None:
    fake.on("GET", "/v1/jobs/17", Reply(job(a_field_of_the_future=1)))
    assert client("job", "17").user == "ada"
    assert fake.seen[0].headers["authorization"] == "Bearer secret"


def test_names_are_parts_of_paths_and_those_of_queues_have_slashes(fake: Fake, client: Both) -> None:
    fake.on("DELETE", "/v1/queues/lab/vision", Reply({"seq": 3}))
    fake.on("GET", "/v1/jobs/1%2F2", problem(404, "no_such_job"))
    assert client("remove_queue", "lab/vision").seq == 3
    with pytest.raises(NotFound):
        client("job", "1/2")
    assert fake.seen[-1].path == "/v1/jobs/1%2F2"


def test_a_refusal_carries_all_that_was_reported(fake: Fake, client: Both) -> None:
    fault = {"path": ["gangs", 0, "gpus"], "code": "unknown_key", "why": "no such key", "hint": "gpus"}
    told = problem(422, "bad_document", hint="correct it", field="gpus", request_id="r1", faults=[fault])
    fake.on("POST", "/v1/jobs", told)
    with pytest.raises(Problem) as caught:
        client("submit", {"command": "true"})
    error = caught.value
    assert (error.status, error.code, error.detail, error.hint) == (422, "bad_document", "because", "correct it")
    assert (error.field, error.request_id, error.faults[0].path) == ("gpus", "r1", ("gangs", 0, "gpus"))


def test_what_is_not_there_has_an_exception_of_its_own(fake: Fake, client: Both) -> None:
    fake.on("GET", "/v1/jobs/99", problem(404, "no_such_job"))
    with pytest.raises(NotFound):
        client("job", "99")


def test_an_answer_of_another_user_is_recognised(fake: Fake, client: Both) -> None:
    fake.on("GET", "/v1/health", Reply(b"<html>proxy</html>", 502))
    with pytest.raises(Problem, match="does not come from Corral"):
        client("health")


def test_a_connection_is_kept(fake: Fake) -> None:
    fake.on("GET", "/v1/jobs/17", Reply(job()))
    with Client(fake.url, "secret") as client:
        for _ in range(5):
            client.job("17")
    assert fake.connections == 1


def test_a_client_serves_several_threads(fake: Fake) -> None:
    fake.on("GET", "/v1/jobs/17", Reply(job()))
    found: list[str] = []
    with Client(fake.url, "secret") as client:
        threads = [threading.Thread(target=lambda: found.append(client.job("17").id)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == ["17"] * 8


# ---- again -----------------------------------------------------------------------------------------------------------


def test_a_lost_answer_never_submits_twice(fake: Fake, client: Both) -> None:
    fake.then("POST", "/v1/jobs", Reply(drop=True), Reply(drop=True), Reply(SUBMITTED, 201))
    assert client("submit", {"command": "true"}).id == "17"
    keys = [request.headers["idempotency-key"] for request in fake.asked("POST", "/v1/jobs")]
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_two_submissions_have_two_keys_and_a_stated_one_is_used(fake: Fake, client: Both) -> None:
    fake.on("POST", "/v1/jobs", Reply(SUBMITTED, 201))
    client("submit", {"command": "true"})
    client("submit", {"command": "true"})
    client("submit", {"command": "true"}, key="mine")
    first, second, third = (request.headers["idempotency-key"] for request in fake.seen)
    assert first != second
    assert third == "mine"


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again(fake: Fake, client: Both, status: int) -> None:
    busy = problem(status, "too_busy")
    busy.headers["Retry-After"] = "0"
    fake.then("GET", "/v1/jobs/17", busy, busy, Reply(job()))
    assert client("job", "17").id == "17"
    assert len(fake.seen) == 3


def test_patience_ends(fake: Fake, client: Both) -> None:
    client.settings["patience_s"] = 0.2
    fake.on("GET", "/v1/jobs/17", problem(503, "too_busy"))
    with pytest.raises(Problem, match="because"):
        client("job", "17")
    fake.on("GET", "/v1/jobs/17", Reply(drop=True))
    with pytest.raises(Unreachable, match="was lost"):
        client("job", "17")


def test_what_must_not_be_done_twice_is_not_repeated(fake: Fake, client: Both) -> None:
    fake.on("POST", "/v1/tokens", Reply(drop=True))
    with pytest.raises(Unreachable):
        client("make_token", "laptop")
    assert len(fake.seen) == 1


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_no_one_there_is_reported_at_once_where_it_is_asked_for(kind: str) -> None:
    with pytest.raises(Unreachable, match="no server answers at") as caught:
        Both(kind, "http://127.0.0.1:1", first_patience_s=0)("health")
    assert "corral up" in caught.value.hint
    assert not caught.value.connected


# ---- several requests ------------------------------------------------------------------------------------------------


def test_jobs_come_page_by_page(fake: Fake, client: Both) -> None:
    pages = {"": (["3", "2"], "c1"), "c1": (["1"], None)}

    def page(request: Request) -> Reply:
        ids, cursor = pages[request.query.get("cursor", "")]
        return Reply({"jobs": [job(id) for id in ids], "cursor": cursor})

    fake.on("GET", "/v1/jobs", page)
    found = client.all("jobs", states=["waiting", "running"], labels={"project": "llm"}, user="ada")
    assert [each.id for each in found] == ["3", "2", "1"]
    assert fake.seen[0].query == {"states": "waiting,running", "labels": "project=llm", "user": "ada", "limit": "500"}


def test_no_more_pages_are_read_than_needed(fake: Fake, client: Both) -> None:
    fake.on("GET", "/v1/jobs", Reply({"jobs": [job("3"), job("2")], "cursor": "more"}))
    assert len(client.all("jobs", limit=2)) == 2
    assert len(fake.seen) == 1


def test_events_are_read_to_the_head(fake: Fake, client: Both) -> None:
    pages = [([event(1), event(2)], 2), ([event(3)], 3)]

    def page(request: Request) -> Reply:
        events, following = pages[0 if request.query["after"] == "0" else 1]
        return Reply({"events": events, "next": following, "head": 3})

    fake.on("GET", "/v1/events", page)
    assert [each.seq for each in client.all("events")] == [1, 2, 3]


def test_the_feed_goes_on_where_it_was_torn(fake: Fake, client: Both) -> None:
    parts = {
        "0": [b": hello\n\n", sse(event(1))[:10], sse(event(1))[10:], b""],
        "1": [sse(event(2), event(3))],  # ends in good order: the server restarts
        "3": [sse(event(4))],
    }
    fake.on("GET", "/v1/events", lambda request: Reply(stream=iter(parts.get(request.query["after"], []))))
    assert [each.seq for each in client.all("events", follow=True, most=4)] == [1, 2, 3, 4]
    assert fake.seen[0].headers["accept"] == "text/event-stream"


def test_waiting_ends_with_the_news(fake: Fake, client: Both) -> None:
    fake.then("GET", "/v1/jobs/17", Reply(job()), Reply(job(state="failed", exit_code=3)))

    def events(request: Request) -> Reply:
        if "follow" not in request.query:
            return Reply({"events": [], "next": 0, "head": 7})
        assert request.query == {"after": "7", "follow": "true", "job": "17", "types": "JobEnded"}
        return Reply(stream=iter([b": alive\n\n", sse(event(9, "JobEnded"))]))

    fake.on("GET", "/v1/events", events)
    assert client("wait", "17").exit_code == 3


def test_waiting_asks_now_and_then_where_there_is_no_feed(
    fake: Fake, client: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.client.follow.POLL_S", 0.01)
    fake.then("GET", "/v1/jobs/17", Reply(job()), Reply(job()), Reply(job(state="succeeded")))
    fake.on("GET", "/v1/events", lambda request: (
        problem(503, "too_many_streams") if "follow" in request.query else Reply({"events": [], "next": 0, "head": 7})
    ))  # fmt: skip
    assert client("wait", "17").state == "succeeded"


def test_waiting_has_an_end(fake: Fake, client: Both) -> None:
    silence = threading.Event()

    def silent() -> Any:
        yield b": alive\n\n"
        silence.wait(10)

    fake.on("GET", "/v1/jobs/17", Reply(job()))
    fake.on("GET", "/v1/events", lambda request: (
        Reply(stream=silent()) if "follow" in request.query else Reply({"events": [], "next": 0, "head": 7})
    ))  # fmt: skip
    with pytest.raises(Timeout, match=r"is still running after 0\.2 s"):
        client("wait", "17", timeout_s=0.2)
    silence.set()


# ---- logs ------------------------------------------------------------------------------------------------------------


class Log:
    """A log as the server has it, by attempt. ``hidden``: this many bytes at the end are written while followed."""

    def __init__(self, *attempts: bytes, hidden: int = 0, torn: bool = False) -> None:
        self.attempts, self.hidden, self.torn = list(attempts), hidden, torn

    def __call__(self, request: Request) -> Reply:
        attempt = int(request.query.get("attempt", 0)) or len(self.attempts)
        if not 0 < attempt <= len(self.attempts):
            return problem(404, "no_such_log")
        text = self.attempts[attempt - 1]
        if "tail" in request.query:
            begin = max(0, len(text) - int(request.query["tail"]))
        else:
            begin = int(request.query.get("offset", 0))
        if request.query.get("follow") == "true":
            return Reply(headers={"Corral-Log-Gang": "17/main"}, stream=self._stream(text, begin))
        data = text[: len(text) - self.hidden][begin : begin + 4]
        headers = {"Corral-Log-Offset": str(begin), "Corral-Log-Gang": "17/main", "Corral-Log-Attempt": str(attempt)}
        over = "true" if begin + len(data) == len(text) else "false"
        return Reply(data, headers=headers | {"Corral-Log-Next": str(begin + len(data)), "Corral-Log-Over": over})

    def _stream(self, text: bytes, begin: int) -> Iterator[bytes]:
        if self.torn:
            self.torn = False
            yield text[begin : begin + 3]
            yield b""
        self.hidden = 0
        yield text[begin:]


def text_of(parts: list[Any]) -> bytes:
    return b"".join(part.data for part in parts)


def test_a_log_is_read_in_parts(fake: Fake, client: Both) -> None:
    fake.on("GET", "/v1/jobs/17/logs", Log(b"hello, world\n"))
    assert text_of(client.all("logs", "17")) == b"hello, world\n"
    assert text_of(client.all("logs", "17", tail=6)) == b"world\n"
    assert text_of(client.all("logs", "17", offset=7)) == b"world\n"


def test_a_followed_log_goes_on_where_it_was_torn(fake: Fake, client: Both) -> None:
    log = Log(b"hello, world\n", hidden=9, torn=True)
    fake.on("GET", "/v1/jobs/17", Reply(job(state="succeeded")))
    fake.on("GET", "/v1/jobs/17/logs", log)
    parts = client.all("logs", "17", follow=True)
    assert text_of(parts) == b"hello, world\n"
    assert [part.offset for part in parts] == [0, 4, 7]


def frame(offset: int, text: str, rank: int = 0, **more: Any) -> bytes:
    head = {"gang": "17/main", "attempt": 1, "rank": rank, "task": rank, "stream": "stdout", "offset": offset}
    return json.dumps(head | {"size": len(text), "label": str(rank)} | more).encode() + b"\n" + text.encode()


def test_the_output_of_a_job_goes_on_where_the_connection_was_lost(fake: Fake, client: Both) -> None:
    whole = [frame(0, "a\n"), frame(0, "b\n", 1), frame(2, "c\n"), b'{"over": true}\n']
    lost, ended = [*whole[:2], whole[2][:-1], b""], [*whole[:2], b"{}\n"]
    fake.then("GET", "/v1/jobs/17/output", *(Reply(stream=iter(parts)) for parts in (lost, ended, whole)))
    parts = client.all("output", "17", follow=True)
    assert [(part.rank, part.data, part.label) for part in parts] == [
        (0, b"a\n", "0"),
        (1, b"b\n", "1"),
        (0, b"c\n", "0"),
    ]
    assert len(fake.asked("GET", "/v1/jobs/17/output")) == 3


def test_the_next_run_follows_the_first(fake: Fake, client: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.client.follow.NEXT_RUN_S", 0.01)
    log = Log()
    looks = 0

    def view(_: Request) -> Reply:
        nonlocal looks
        looks += 1
        if looks == 2:
            log.attempts.append(b"first\n")  # it has been started
        if looks == 5:
            log.attempts.append(b"second\n")  # it was preempted and runs again
        return Reply(job(state="succeeded" if looks >= 6 else "waiting" if looks == 1 else "running"))

    fake.on("GET", "/v1/jobs/17", view)
    fake.on("GET", "/v1/jobs/17/logs", log)
    parts = client.all("logs", "17", follow=True)
    assert text_of(parts) == b"first\nsecond\n"
    assert {part.attempt for part in parts} == {1, 2}
