"""The intake's own rules, with a broker in memory: what is acknowledged, buried, waited for and tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from corral.integrations.broker import Broker, delivery_of, problem
from corral.integrations.intake_loop import TRIES_MAX, IntakeLoop, RequestFailed, in_parts
from corral.wire.api.broker_intake import IntakeMessage, IntakeOutcome
from corral.wire.brokers.broker_names import BODY_BYTES_MAX, JOBS, routing_key, shown_broker, with_password
from tests.intake.fake import MemoryBroker, ScriptedServer


def accepted(messages: Sequence[IntakeMessage]) -> list[IntakeOutcome]:
    return [IntakeOutcome(id=each.id, jobs=("1",)) for each in messages]


async def run_until_empty(broker: MemoryBroker, server: ScriptedServer) -> IntakeLoop:
    intake, stop = IntakeLoop(broker, server, "test"), asyncio.Event()
    running = asyncio.create_task(intake.run(stop))
    async with asyncio.timeout(60):
        while not broker.opened or broker.stored:
            await asyncio.sleep(0.01)
    stop.set()
    await running
    return intake


async def test_accepted_messages_are_acknowledged_and_refused_ones_buried_with_the_reason() -> None:
    def judge(messages: Sequence[IntakeMessage]) -> list[IntakeOutcome]:
        bad = problem(422, "bad_job", "it has no command")
        return [IntakeOutcome(id=m.id, problem=bad if m.id == "b" else None) for m in messages]

    broker = MemoryBroker("a", "b", "c")
    intake = await run_until_empty(broker, ScriptedServer(judge))
    assert [(id, why.code) for id, why in broker.dead] == [("b", "bad_job")]
    assert (intake.accepted, intake.buried) == (2, 1)


async def test_nothing_is_buried_while_the_server_is_away() -> None:
    broker, server = MemoryBroker("a", "b"), ScriptedServer(accepted, away=3)
    await run_until_empty(broker, server)
    assert server.asked == [["a", "b"]] * 4
    assert not broker.dead


async def test_a_lost_broker_is_connected_to_again_and_delivers_again() -> None:
    broker = MemoryBroker("a")
    broker.loses = 2
    await run_until_empty(broker, ScriptedServer(accepted))
    assert broker.opened == 3


class SlowBroker(MemoryBroker):
    """Its connection is never open; what has been opened is never closed."""

    async def open(self) -> None:
        self.opened += 1
        await asyncio.sleep(1_000)

    async def close(self) -> None:
        await asyncio.sleep(1_000)


async def test_a_connection_that_does_not_open_or_close_does_not_keep_the_intake_from_ending() -> None:
    broker, stop = SlowBroker(), asyncio.Event()
    running = asyncio.create_task(IntakeLoop(broker, ScriptedServer(accepted), "test").run(stop))
    async with asyncio.timeout(20):
        while not broker.opened:
            await asyncio.sleep(0.01)
        stop.set()
        await running


class Stubborn:
    """Loses its first cancellation, as a library may."""

    lost = False

    async def run(self, broker: Broker) -> None:
        while True:
            try:
                await asyncio.sleep(1_000)
            except asyncio.CancelledError:
                if self.lost:
                    raise
                self.lost = True


async def test_a_lost_cancellation_does_not_keep_the_intake_from_ending() -> None:
    broker, stop, part = MemoryBroker(), asyncio.Event(), Stubborn()
    running = asyncio.create_task(IntakeLoop(broker, ScriptedServer(accepted), "test").run(stop, part))
    async with asyncio.timeout(20):
        while not broker.opened:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        stop.set()
        await running
    assert part.lost


async def test_a_message_that_must_wait_does_not_keep_the_others() -> None:
    seen = {"slow": 0}

    def judge(messages: Sequence[IntakeMessage]) -> list[IntakeOutcome]:
        found = []
        for message in messages:
            seen["slow"] += message.id == "slow"
            must_wait = message.id == "slow" and seen["slow"] < 3
            full = problem(429, "line_full", "the line is full") if must_wait else None
            found.append(IntakeOutcome(id=message.id, problem=full, retry_ms=20 if must_wait else 0))
        return found

    broker = MemoryBroker("slow", "quick")
    server = ScriptedServer(judge)
    await run_until_empty(broker, server)
    assert server.asked == [["slow", "quick"], ["slow"], ["slow"]]
    assert not broker.dead


async def test_the_message_that_fails_a_whole_request_is_found_and_buried() -> None:
    def judge(messages: Sequence[IntakeMessage]) -> list[IntakeOutcome]:
        if any(message.id == "poison" for message in messages):
            raise RequestFailed(problem(413, "body_too_large", "too much"))
        return accepted(messages)

    broker = MemoryBroker("a", "b", "poison", "c", "d")
    intake = await run_until_empty(broker, ScriptedServer(judge))
    assert [id for id, _ in broker.dead] == ["poison"]
    assert intake.accepted == 4


async def test_a_message_with_which_the_server_always_fails_is_buried_after_some_tries() -> None:
    tries = 0

    def judge(messages: Sequence[IntakeMessage]) -> list[IntakeOutcome]:
        nonlocal tries
        tries += 1
        return [IntakeOutcome(id=m.id, problem=problem(500, "internal", "a bug"), retry_ms=10) for m in messages]

    broker = MemoryBroker("a")
    await run_until_empty(broker, ScriptedServer(judge))
    assert tries == TRIES_MAX
    assert [why.code for _, why in broker.dead] == ["internal"]


@pytest.mark.parametrize(
    ("body", "encoding", "kind", "code"),
    [
        (b"x" * (BODY_BYTES_MAX + 1), "", "", "body_too_large"),
        (b"\xff\xfe", "", "", "bad_json"),
        (b"{}", "gzip", "", "encoded_body"),
        (b"{}", "", "application/x-python-pickle", "not_json"),
        (b"{}", "utf-8", "application/json; charset=utf-8", ""),
    ],
)
def test_what_no_server_need_see_is_refused_by_the_intake(body: bytes, encoding: str, kind: str, code: str) -> None:
    found = delivery_of(JOBS, 1, body, id="a", token=None, user=None, batch=None, encoding=encoding, kind=kind)
    assert (found.fault.code if found.fault else "") == code
    assert len(found.body) <= BODY_BYTES_MAX


def test_headers_that_are_not_short_texts_count_as_absent() -> None:
    found = delivery_of(
        JOBS, 1, b"{}", id=["a"], token={"a": 1}, user=b"\xff", batch="x" * 100_000, encoding="", kind=""
    )
    assert (found.id, found.token, found.user, found.batch) == ("", "", "", "")


def test_requests_are_bounded_in_bytes_and_messages() -> None:
    made = [
        delivery_of(JOBS, n, b"x" * 900_000, id=str(n), token="", user="", batch="", encoding="", kind="")
        for n in range(30)
    ]
    parts = in_parts(made)
    assert [each for part in parts for each in part] == made
    assert all(sum(len(each.body) for each in part) <= 8 << 20 for part in parts)


def test_a_routing_key_has_a_word_for_each_level_and_fits() -> None:
    assert routing_key("running", "ann", "lab/vision") == "running.ann.lab.vision"
    assert routing_key("failed", "a.b@c", "v1.2/x") == "failed.a%2Eb@c.v1%2E2.x"
    assert len(routing_key("running", "ann", "/".join(["q" * 60] * 8))) <= 255


def test_passwords_are_put_in_with_any_characters_and_never_shown() -> None:
    whole = with_password("amqp://corral@mq.example:5672/lab", "p@ss/w:rd")
    assert whole == "amqp://corral:p%40ss%2Fw%3Ard@mq.example:5672/lab"
    assert shown_broker(whole) == "amqp://mq.example:5672/lab"
