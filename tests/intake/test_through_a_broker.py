"""Submissions through real brokers to a real server: whose they are, what is refused and why, what comes back."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from corral.client.blocking import Client
from corral.client.errors import ClientError, Unreachable
from corral.integrations.broker import StateChange
from corral.integrations.broker_kinds import broker_of
from corral.wire.brokers.broker_names import BATCH, CURSOR, EVENTS, JOBS, KEYS, PASSWORD_VARIABLE, SUBMIT, TOKEN, URGENT
from tests.e2e.live import ROOT, Live, environment
from tests.intake.brokers import PrivateBroker, PrivateRabbit, PrivateRedis
from tests.intake.running import IntakeProcess, dead_letters, intake_of, member, publish_surely, until

HELD = {"command": "true", "hold": True, "export": "NONE"}


@pytest.fixture(scope="module")
def intake(live: Live, broker: PrivateBroker) -> Iterator[IntakeProcess]:
    with intake_of(live, broker) as process:
        until(lambda: "events_" in process.log.read_text(), "the intake's start", 120)
        yield process
        assert live.token not in process.log.read_text()


@pytest.fixture(scope="module")
def ann(live: Live, intake: IntakeProcess) -> Iterator[Client]:
    with Client(live.url, member(live)) as client:
        yield client


def jobs_named(live: Live, name: str) -> list[Any]:
    return live.jobs(name=name)


def letter(broker: PrivateBroker, id: str) -> Any:
    """The dead letter of this message, as soon as it is there."""
    found: list[Any] = []

    def is_there() -> bool:
        found[:] = [each for each in asyncio.run(dead_letters(broker.url)) if each.id == id]
        return bool(found)

    until(is_there, f"the dead letter {id}")
    return found[-1]


def publish_raw(broker: PrivateBroker, body: bytes, lane: str = JOBS, **about: Any) -> None:
    """As a program without Corral's library would. ``about``: ``id``, ``token``, ``batch`` and properties."""
    headers: dict[str, Any] = {TOKEN: about.pop("token", ""), BATCH: about.pop("batch", "")}
    headers = {name: value for name, value in headers.items() if value} | about.pop("headers", {})
    id = about.pop("id", "")

    async def rabbit() -> None:
        import aio_pika

        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel()
            submit = await channel.get_exchange(SUBMIT)
            await submit.publish(aio_pika.Message(body, message_id=id, headers=headers, **about), KEYS[lane])

    async def redis() -> None:
        from redis.asyncio import Redis

        async with Redis.from_url(broker.url) as there:
            fields: dict[Any, Any] = {"id": id, "body": body, **headers}
            await there.xadd(lane, fields)

    asyncio.run(rabbit() if broker.kind == "rabbitmq" else redis())


def test_a_published_job_is_the_job_of_its_user(live: Live, broker: PrivateBroker, ann: Client) -> None:
    key = ann.publish({**HELD, "name": "first"}, key=f"first-{broker.kind}", broker=broker.url)
    assert key == f"first-{broker.kind}"
    until(lambda: bool(jobs_named(live, "first")), "the job")
    assert [job["user"] for job in jobs_named(live, "first")][:1] == ["ann"]


def test_a_message_that_is_delivered_again_is_the_same_job(live: Live, broker: PrivateBroker, ann: Client) -> None:
    name = f"again-{broker.kind}"
    for _ in range(3):
        publish_surely(ann, [{**HELD, "name": name}], [name], broker.url)
    publish_surely(ann, [{**HELD, "name": f"{name}-last"}], [f"{name}-last"], broker.url)
    until(lambda: bool(jobs_named(live, f"{name}-last")), "the job after it")
    assert len(jobs_named(live, name)) == 1
    publish_surely(ann, [{**HELD, "name": f"{name}-other"}], [name], broker.url)
    assert letter(broker, name).problem.code == "key_reused"
    assert not jobs_named(live, f"{name}-other")


def test_several_jobs_in_one_message_are_all_or_none(live: Live, broker: PrivateBroker, ann: Client) -> None:
    name = f"many-{broker.kind}"
    documents = {"jobs": [{**HELD, "name": name}, {**HELD, "name": name, "after": "#0"}]}
    publish_raw(broker, json.dumps(documents).encode(), id=name, token=ann._transport.token)
    until(lambda: len(jobs_named(live, name)) == 2, "both jobs")


@pytest.mark.parametrize(
    ("id", "body", "code"),
    [
        ("nojson", b"{", "bad_json"),
        ("nested", b"[" * 100_000, "bad_json"),
        ("key", b'{"command": "true", "gpu": 1}', "bad_job"),
        ("queue", b'{"command": "true", "queue": "others"}', "no_such_queue"),
        ("utf8", b"\xff\xfe", "bad_json"),
        ("large", b'"' + b"x" * (1 << 20) + b'"', "body_too_large"),
        ("a b", b'{"command": "true"}', "bad_key"),
        ("x" * 200, b'{"command": "true"}', "bad_key"),
    ],
)
def test_hostile_messages_are_buried_with_the_problem_of_the_api(
    live: Live, broker: PrivateBroker, ann: Client, id: str, body: bytes, code: str
) -> None:
    token = ann._transport.token
    publish_raw(broker, body, id=id, token=token)
    found = letter(broker, id)
    assert found.problem.code == code
    assert found.problem.detail


def test_a_message_without_an_id_is_refused(broker: PrivateBroker, ann: Client) -> None:
    """It could be delivered twice, and become two jobs."""
    if broker.kind == "rabbitmq":
        pytest.skip("the library that the test publishes with gives every message an id")
    publish_raw(broker, b'{"command": "true"}', token=ann._transport.token)
    assert letter(broker, "").problem.code == "no_message_id"


@pytest.mark.parametrize("token", ["", "corral_00_nothing", "x" * 5000, "corral_ffff_\u00fc"])
def test_a_message_without_a_valid_token_is_nobodys(broker: PrivateBroker, ann: Client, token: str) -> None:
    id = f"nobody-{len(token)}"
    publish_raw(broker, b'{"command": "true"}', id=id, token=token)
    assert letter(broker, id).problem.status == 401


def test_a_token_that_may_not_submit_gives_no_right_to_submit(live: Live, broker: PrivateBroker, ann: Client) -> None:
    publish_raw(broker, json.dumps(HELD).encode(), id="scope", token=member(live, "bob", scope=("jobs.read",)))
    assert letter(broker, "scope").problem.code == "out_of_scope"


def test_what_is_urgent_goes_before_what_waits(
    live: Live, broker: PrivateBroker, ann: Client, intake: IntakeProcess
) -> None:
    name = f"lane-{broker.kind}"
    intake.stop()
    names = [f"{name}-{n}" for n in range(20)]
    publish_surely(ann, [{**HELD, "name": each} for each in names], names, broker.url)
    ann.publish({**HELD, "name": f"{name}-urgent"}, broker=broker.url, is_urgent=True)
    intake.start()
    until(lambda: len(jobs_named(live, f"{name}*")) == 21, "all jobs")
    assert min(jobs_named(live, f"{name}*"), key=lambda job: int(job["id"]))["name"] == f"{name}-urgent"


def test_dead_letters_are_listed_retried_and_dropped(live: Live, broker: PrivateBroker, ann: Client) -> None:
    name = f"retry-{broker.kind}"
    with Client(live.url, live.token) as admin:
        publish_surely(ann, [{**HELD, "name": name, "queue": name}], [name], broker.url)
        assert letter(broker, name).problem.code == "no_such_queue"
        shown = corral(live, broker, "list", "--json")
        assert name in shown.stdout
        assert ann._transport.token not in shown.stdout
        assert corral(live, broker, "retry", name).returncode == 1
        from corral.wire.api.cluster import QueueBody

        admin.set_queue(name, QueueBody())
        admin.grant("ann", "member", name)
    again = corral(live, broker, "retry", name)
    assert again.returncode == 0, again.stderr
    assert [job["user"] for job in jobs_named(live, name)] == ["ann"]
    assert corral(live, broker, "drop", name).returncode == 5
    assert corral(live, broker, "drop", "--all").returncode == 0
    assert not asyncio.run(dead_letters(broker.url))


def corral(live: Live, broker: PrivateBroker, *words: str) -> subprocess.CompletedProcess[str]:
    env = environment() | {"CORRAL_URL": live.url, "CORRAL_TOKEN": live.token, PASSWORD_VARIABLE: broker.password}
    command = [sys.executable, "-m", "corral", "intake", "dead", *words, "--url", broker.plain_url]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_a_password_in_the_argument_list_is_refused(live: Live, broker: PrivateBroker) -> None:
    command = [sys.executable, "-m", "corral", "intake", "dead", "list", "--url", broker.url]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "--password-file" in done.stderr
    assert broker.password not in done.stderr


def test_state_changes_are_published_without_gaps(
    live: Live, broker: PrivateBroker, ann: Client, intake: IntakeProcess
) -> None:
    """Also those of the time when no intake ran."""
    name = f"event-{broker.kind}"
    ran = {"command": "echo secret-word", "name": name, "cpus": 1, "export": "NONE", "directory": "/tmp"}
    with Listener(broker, intake) as listening:
        ann.publish(ran, key=f"{name}-1", broker=broker.url)
        states = listening.until_state(live, name, "succeeded")
        assert states[0] == "submitted"
        assert states.index("running") < states.index("succeeded")
        intake.kill()
        id = live.submit({**ran, "name": f"{name}-2"})
        live.until_over([id])
        intake.start()
        assert listening.until_job(id, "succeeded")[0] == "submitted"
        assert b"secret-word" not in listening.everything


class Listener:
    """What is published, collected by polling."""

    def __init__(self, broker: PrivateBroker, intake: IntakeProcess) -> None:
        self._broker, self._intake = broker, intake
        self._loop = asyncio.new_event_loop()
        self.everything = b""
        self.seen: list[dict[str, Any]] = []

    def __enter__(self) -> Listener:
        self._loop.run_until_complete(self._open())
        return self

    async def _open(self) -> None:
        if self._broker.kind == "rabbitmq":
            import aio_pika

            self._connection = await aio_pika.connect(self._broker.url)
            channel = await self._connection.channel()
            self._queue = await channel.declare_queue(f"listener-{id(self)}", exclusive=True)
            await self._queue.bind(EVENTS, "*.*.default.#")
        else:
            from redis.asyncio import Redis

            self._redis = Redis.from_url(self._broker.url)
            newest: Any = await self._redis.xrevrange(EVENTS, count=1)
            self._last = f"({newest[0][0].decode()}" if newest else "-"  # jobs of earlier servers have the same numbers

    async def _poll(self) -> list[bytes]:
        if self._broker.kind == "rabbitmq":
            bodies = []
            while (message := await self._queue.get(fail=False)) is not None:
                await message.ack()
                bodies.append(message.body)
            return bodies
        rows: Any = await self._redis.xrange(EVENTS, min=self._last)
        if rows:
            self._last = f"({rows[-1][0].decode()}"
        return [fields[b"body"] for _, fields in rows]

    def poll(self) -> None:
        for body in self._loop.run_until_complete(self._poll()):
            self.everything += body
            self.seen.append(json.loads(body))

    def of_job(self, job: str) -> list[str]:
        numbered = {each["seq"]: each["state"] for each in self.seen if each.get("job") == job}
        return [numbered[seq] for seq in sorted(numbered)]

    def until_job(self, job: str, state: str) -> list[str]:
        def has_it() -> bool:
            self.poll()
            return state in self.of_job(job)

        def seen() -> str:
            return f"seen: {self.of_job(job)}\n{self._intake.log.read_text()[-3000:]}"

        until(has_it, f"{state} of job {job}", state=seen)
        return self.of_job(job)

    def until_state(self, live: Live, name: str, state: str) -> list[str]:
        until(lambda: bool(jobs_named(live, name)), "the job")
        return self.until_job(jobs_named(live, name)[0]["id"], state)

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            await (self._connection.close() if self._broker.kind == "rabbitmq" else self._redis.aclose())

        try:
            self._loop.run_until_complete(end())
        finally:
            self._loop.close()


async def test_the_cursor_is_where_it_was_stored_last(broker: PrivateBroker, intake: IntakeProcess) -> None:
    there = broker_of(broker.url)
    await there.open()
    try:
        first = await there.cursor()
        assert first is not None
        await there.publish([StateChange("1", "running.ann.default", b"{}")], first)
        assert await there.cursor() == first
        assert CURSOR
    finally:
        await there.close()


def test_publishing_without_a_broker_says_what_to_do(live: Live, ann: Client) -> None:
    with pytest.raises(Unreachable, match="did not confirm"):
        ann.publish(HELD, broker="amqp://guest:guest@127.0.0.1:1/")
    with pytest.raises(ClientError, match="no broker is named"):
        ann.publish(HELD)


# ---- what only RabbitMQ has ------------------------------------------------------------------------------------------


def test_the_user_that_the_broker_has_checked_is_the_sender(live: Live, rabbit: PrivateRabbit) -> None:
    """And no other: RabbitMQ refuses a message whose user-id is not that of its connection."""
    with intake_of(live, rabbit, "--no-events"):
        publish_raw(rabbit, b'{"command": "true"}', id="unknown-user", user_id="corral")
        assert letter(rabbit, "unknown-user").problem.code == "no_such_sender"
        member(live, "corral")
        name = "by-user-id"
        publish_raw(rabbit, json.dumps({**HELD, "name": name}).encode(), id=name, user_id="corral")
        until(lambda: bool(jobs_named(live, name)), "the job")
        assert jobs_named(live, name)[0]["user"] == "corral"
        with pytest.raises(Exception, match=r"user_id|PRECONDITION|channel"):
            publish_raw(rabbit, b'{"command": "true"}', id="forged", user_id="ann")


def test_headers_nested_as_deep_as_a_frame_allows_do_not_end_the_intake(live: Live, rabbit: PrivateRabbit) -> None:
    deep: dict[str, Any] = {}
    inner = deep
    for _ in range(8_000):
        inner["a"] = {}
        inner = inner["a"]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200_000)
    try:
        with intake_of(live, rabbit, "--no-events") as process:
            publish_raw(rabbit, b"{}", id="deep", headers={"deep": deep})
            assert letter(rabbit, "deep").problem.status == 401
            assert process.process is not None
            assert process.process.poll() is None
    finally:
        sys.setrecursionlimit(limit)


def test_a_queue_that_is_deleted_is_made_again(live: Live, rabbit: PrivateRabbit) -> None:
    async def delete() -> None:
        import aio_pika

        async with await aio_pika.connect(rabbit.url) as connection:
            channel = await connection.channel()
            for name in (JOBS, URGENT):
                await channel.queue_delete(name)

    with intake_of(live, rabbit, "--no-events") as process, Client(live.url, member(live)) as client:
        until(lambda: "broker_connected" in process.log.read_text(), "the connection", 120)
        asyncio.run(delete())
        until(lambda: process.log.read_text().count("broker_connected") > 1, "another connection")
        publish_surely(client, [{**HELD, "name": "after-delete"}], ["after-delete"], rabbit.url)
        until(lambda: bool(jobs_named(live, "after-delete")), "the job")


@pytest.fixture
def own_redis(redis_server: PrivateRedis) -> Iterator[PrivateRedis]:
    """To which no other intake of the tests writes how far it has published."""
    del redis_server  # or skipped: Redis is not here
    broker = PrivateRedis()
    yield broker
    broker.close()


def test_a_cursor_from_another_server_does_not_silence_the_events(live: Live, own_redis: PrivateRedis) -> None:
    """Its journal had more records: what happens from now on is published, not only what comes after as many."""

    async def leave_cursor() -> None:
        there = broker_of(own_redis.url)
        await there.open()
        try:
            await there.publish([], 1_000_000)
        finally:
            await there.close()

    asyncio.run(leave_cursor())
    with intake_of(live, own_redis) as process, Listener(own_redis, process) as listening:
        until(lambda: "events_begin" in process.log.read_text(), "a new beginning", 120, process.log.read_text)
        assert listening.until_job(live.submit(HELD), "submitted")[0] == "submitted"


def test_the_examples_of_the_page_work_as_printed(
    live: Live, rabbit: PrivateRabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "submit-through-a-broker.md").read_text()
    sdk, plain = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    token = member(live, "guide")
    monkeypatch.setenv("CORRAL_URL", live.url)
    monkeypatch.setenv("CORRAL_TOKEN", token)
    with intake_of(live, rabbit, "--no-events") as process:
        until(lambda: "broker_connected" in process.log.read_text(), "the connection", 120)
        exec(sdk.replace("amqp://ann@mq.example/corral", rabbit.url), {})

        async def publish_plainly() -> None:
            import aio_pika

            async with await aio_pika.connect(rabbit.url) as connection:
                about: dict[str, Any] = {"channel": await connection.channel(), "token": token, "aio_pika": aio_pika}
                body = "".join(f"    {line}\n" for line in plain.splitlines())
                exec(f"async def example():\n{body}", about)
                await about["example"]()

        asyncio.run(publish_plainly())
        until(lambda: len(live.jobs(user="guide")) == 2, "both jobs")
