"""Hostile and careless requests: a clear answer, bounded memory, and never a word of how the server is made."""

from __future__ import annotations

import asyncio
import json
import tracemalloc

import pytest

from corral.server.api.http.rate_limit import Buckets
from corral.server.api.http.settings import ApiSettings
from tests.server.asgi import ask

JOB = {"queue": "team", "command": "true"}

MALFORMED = {
    "not JSON": b"{",
    "nothing": b"",
    "NaN": b'{"command": NaN}',
    "infinity": b'{"gpus": 1e999}',
    "an endless number": b'{"gpus": ' + b"1" * 5000 + b"}",
    "not UTF-8": b'{"command": "\xff\xfe"}',
    "half a surrogate": b'{"command": "\\ud800"}',
    "nested deeply": b"[" * 100_000 + b"]" * 100_000,
    "objects nested deeply": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "a key twice": b'{"command": "true", "command": "false"}',
    "a key twice inside": b'{"command": "true", "env": {"A": "1", "A": "2"}}',
    "two documents": b'{"command": "true"} {"command": "false"}',
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/batch"])
async def test_malformed_documents_are_told_apart_from_faulty_ones(setup, body, path):
    sent = body if path == "/v1/jobs" else b'{"jobs": [' + body + b"]}"
    answer = await ask(setup.app, "POST", path, setup.member, sent)
    assert answer.status in (400, 422) if body == b"" else answer.status == 400, answer.body
    assert b"Traceback" not in answer.body


STRANGE: dict[str, object] = {
    "a list": [],
    "a text": "job",
    "null": None,
    "a huge number": {"command": "true", "gpus": 10**400},
    "a zero byte": {"command": "true\0false"},
    "a million variables": {"command": "true", "env": {f"V{n}": "" for n in range(60_000)}},
}


@pytest.mark.parametrize("body", STRANGE.values(), ids=STRANGE.keys())
async def test_strange_documents_are_refused(setup, body):
    answer = await ask(setup.app, "POST", "/v1/jobs", setup.member, json.dumps(body).encode())
    assert answer.status in (400, 413, 422), answer.body
    assert len(answer.body) < 20_000


async def test_a_million_variables_are_refused(setup):
    body = json.dumps({"command": "true", "env": {f"VARIABLE{n}": "" for n in range(1_000_000)}}).encode()
    for path, sent in (("/v1/jobs", body), ("/v1/jobs/batch", b'{"jobs": [' + body + b"]}")):
        assert (await ask(setup.app, "POST", path, setup.member, sent)).status in (413, 422)


async def gigabyte():
    part = b" " * (1 << 16)
    for _ in range(1 << 14):
        yield part, True
    yield b"", False


async def test_a_gigabyte_is_cut_off_with_bounded_memory(setup):
    tracemalloc.start()
    try:
        answer = await ask(setup.app, "POST", "/v1/jobs", setup.member, gigabyte())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (answer.status, answer.code) == (413, "body_too_long")
    assert answer.headers["connection"] == "close"
    assert peak < ApiSettings().body_bytes_max + (4 << 20)


async def test_a_stated_length_is_enough_to_refuse(setup):
    async def never():
        pytest.fail("the body was read")
        yield b"", False  # type: ignore[unreachable]

    answer = await ask(setup.app, "POST", "/v1/jobs", setup.member, never(), [("Content-Length", str(1 << 30))])
    assert answer.status == 413


class TestSlow:
    @pytest.fixture
    def settings(self):
        return ApiSettings(body_timeout_s=0.05, bodies_bytes_max=100_000)

    async def test_a_slow_body_is_given_up(self, setup):
        async def drops():
            yield b"{", True
            await asyncio.Event().wait()

        answer = await ask(setup.app, "POST", "/v1/jobs", setup.member, drops())
        assert (answer.status, answer.code) == (408, "body_too_slow")

    async def test_a_body_that_never_begins_is_given_up(self, setup):
        async def nothing():
            await asyncio.Event().wait()
            yield b"", False

        assert (await ask(setup.app, "POST", "/v1/jobs", setup.member, nothing())).status == 408

    async def test_all_bodies_together_are_bounded(self, setup):
        async def large():
            for _ in range(20):
                yield b" " * 10_000, True
                await asyncio.sleep(0)
            yield b"{}", False

        answers = await asyncio.gather(*(ask(setup.app, "POST", "/v1/jobs", setup.member, large()) for _ in range(5)))
        assert {answer.status for answer in answers} <= {503, 422}
        assert 503 in {answer.status for answer in answers}
        assert (await ask(setup.app, "POST", "/v1/jobs", setup.member, JOB)).status == 201


class TestOften:
    @pytest.fixture
    def settings(self):
        return ApiSettings(requests_per_s=0.001, requests_burst=3)

    async def test_who_asks_too_often_is_reported_when_to_come_back(self, setup):
        for _ in range(3):
            assert (await ask(setup.app, "GET", "/v1/whoami", setup.member)).status == 200
        answer = await ask(setup.app, "GET", "/v1/whoami", setup.member)
        assert (answer.status, answer.code) == (429, "too_many_requests")
        assert int(answer.headers["retry-after"]) >= 1
        assert (await ask(setup.app, "GET", "/v1/whoami", setup.root)).status == 200
        assert (await ask(setup.app, "GET", "/v1/health")).status == 200


def test_a_bucket_fills_again():
    buckets = Buckets(per_s=2.0, burst=2)
    assert [buckets.take("a", 0.0) for _ in range(3)] == [0.0, 0.0, 0.5]
    assert buckets.take("a", 0.5) == 0.0
    assert buckets.take("a", 100.0) == buckets.take("a", 100.0) == 0.0
    assert buckets.take("a", 100.0) > 0


HEADERS = {
    "long": ([("X-Long", "x" * 40_000)], 431),
    "many": ([(f"X-{n}", "1") for n in range(200)], 431),
    "another kind of body": ([("Content-Type", "text/yaml")], 415),
    "a packed body": ([("Content-Encoding", "gzip")], 415),
    "nothing we could answer": ([("Accept", "image/png")], 406),
    "JSON refused": ([("Accept", "application/json;q=0")], 406),
    "anything": ([("Accept", "text/html, */*;q=0.1")], 201),
    "any application": ([("Accept", "application/*")], 201),
    "with a character set": ([("Content-Type", "application/json; charset=utf-8")], 201),
    "a strange length": ([("Content-Length", "many")], 201),
}


@pytest.mark.parametrize(("headers", "status"), HEADERS.values(), ids=HEADERS.keys())
async def test_headers(setup, headers, status):
    assert (await ask(setup.app, "POST", "/v1/jobs", setup.member, JOB, headers)).status == status


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=x", "states=lost", "nothing=1", "limit=1&limit=2", "cursor=x", "labels=a",
     "since_ms=-1", "since_ms=" + "9" * 30, "name=%ff", "queue=" + "x" * 40_000,
     "&".join(f"a{n}=1" for n in range(200))],
)  # fmt: skip
async def test_parameters_are_checked(setup, query):
    answer = await ask(setup.app, "GET", f"/v1/jobs?{query}", setup.member)
    assert answer.status in (400, 414), answer.body


@pytest.mark.parametrize("given", ["mine-1.x", "bad id!", "x" * 65])
async def test_a_request_id_is_echoed_if_it_is_plain(setup, given):
    answer = await ask(setup.app, "GET", "/v1/whoami", setup.member, headers=[("X-Request-Id", given)])
    assert (answer.headers["x-request-id"] == given) is (given == "mine-1.x")


async def test_what_no_one_foresaw_says_nothing(setup, monkeypatch, capsys):
    def broken():
        raise RuntimeError("the password is swordfish")

    monkeypatch.setattr(setup.service.lookup, "job", lambda _: broken())
    answer = await ask(setup.app, "GET", "/v1/jobs/1", setup.member)
    assert (answer.status, answer.code) == (500, "internal")
    assert b"swordfish" not in answer.body
    assert answer.json()["request_id"] in capsys.readouterr().out


async def test_a_server_that_is_not_ready_says_so(setup):
    setup.service.is_ready = False
    assert (await ask(setup.app, "GET", "/v1/jobs", setup.member)).status == 503
    assert (await ask(setup.app, "GET", "/v1/health")).json()["status"] == "starting"
    setup.service.is_ready, setup.service.has_failed = True, True
    answer = await ask(setup.app, "POST", "/v1/jobs", setup.member, JOB)
    assert (answer.status, answer.code) == (503, "journal_failed")


async def test_a_journal_that_fails_meanwhile(setup):
    async def submit(*_):
        setup.service.has_failed = True
        raise OSError("disk full")

    setup.service.submit = submit
    assert (await ask(setup.app, "POST", "/v1/jobs", setup.member, JOB)).status == 503


@pytest.mark.parametrize("name", ["", "/", "a//b", "a b", "../x", "x" * 300, "ü", "a/"])
async def test_names_of_queues_are_plain(setup, name):
    answer = await ask(setup.app, "PUT", f"/v1/queues/{name}", setup.root, {})
    assert answer.status in (404, 422)


async def test_numbers_have_bounds(setup):
    answer = await ask(setup.app, "PUT", "/v1/queues/team", setup.root, {"limit": {"gpu_milli": 10**30}})
    assert answer.status == 422
    await ask(setup.app, "POST", "/v1/jobs", setup.member, JOB)
    assert (await ask(setup.app, "POST", "/v1/jobs/1/priority", setup.root, {"priority": 10**30})).status == 422
