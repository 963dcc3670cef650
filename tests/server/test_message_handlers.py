"""Messages of a broker: each is submitted as its own user, and has no more rights than that user."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.asgi import ask
from tests.server.test_rights import JOB, Place

HIDDEN = JOB | {"queue": "org/covert"}


async def hand_over(place: Place, *messages: dict[str, Any], actor: str = "administrator") -> list[Any]:
    answer = await ask(place.app, "POST", "/v1/intake", place.tokens[actor], {"messages": list(messages)})
    assert answer.status == 200, answer.json()
    outcomes: list[Any] = answer.json()["outcomes"]
    return outcomes


def message(id: str, document: Any = JOB, **about: str) -> dict[str, Any]:
    return {"id": id, "body": document if isinstance(document, str) else json.dumps(document), **about}


async def test_the_token_in_a_message_decides_and_not_the_user_that_it_names() -> None:
    place = await Place().fill()
    found = await hand_over(place, message("a", token=place.tokens["member"], user="administrator"))
    assert (found[0]["user"], found[0]["problem"]) == ("member", None)
    assert place.service.state.jobs[found[0]["jobs"][0]].user == "member"


@pytest.mark.parametrize(
    ("actor", "document", "code"),
    [
        ("viewer", JOB, "forbidden"),
        ("nobody", JOB, "no_such_queue"),
        ("member", HIDDEN, "no_such_queue"),
        ("stranger", JOB, "no_such_queue"),
        ("member", JOB | {"priority": 1}, "priority_too_high"),
    ],
)
async def test_a_message_is_refused_as_a_request_of_its_user_would_be(actor: str, document: Any, code: str) -> None:
    place = await Place().fill()
    by_token, by_name = await hand_over(
        place, message("a", document, token=place.tokens[actor]), message("b", document, user=actor)
    )
    direct = (await ask(place.app, "POST", "/v1/jobs", place.tokens[actor], document)).json()
    assert by_token["problem"] | {"request_id": ""} == direct | {"request_id": ""}
    assert by_name["problem"]["code"] == direct["code"]
    assert direct["code"] == code
    assert not by_token["retry_ms"]


async def test_one_id_is_one_job_for_each_user_and_another_body_is_refused() -> None:
    place = await Place().fill()
    one = message("same", token=place.tokens["member"])
    first = await hand_over(place, one, one)
    again = await hand_over(place, one)
    other = await hand_over(place, message("same", JOB | {"name": "x"}, token=place.tokens["member"]))
    theirs = await hand_over(place, message("same", token=place.tokens["peer"]))
    assert first[0]["jobs"] == first[1]["jobs"] == again[0]["jobs"] != theirs[0]["jobs"]
    assert other[0]["problem"]["code"] == "key_reused"


async def test_a_message_delivered_again_after_its_token_expired_has_its_first_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = await Place().fill()
    body = {"name": "short", "scope": ["jobs.submit"], "expires_in_ms": 60_000}
    made = await ask(place.app, "POST", "/v1/tokens", place.tokens["member"], body)
    token = made.json()["token"]
    first = await hand_over(place, message("early", token=token))
    later_ms = place.service.now_ms() + 120_000
    monkeypatch.setattr(place.service, "now_ms", lambda: later_ms)
    again = await hand_over(place, message("early", token=token), message("late", token=token))
    assert again[0]["jobs"] == first[0]["jobs"]
    assert again[1]["problem"]["code"] == "token_expired"


async def test_hostile_messages_are_judged_by_themselves() -> None:
    place = await Place().fill()
    token = place.tokens["member"]
    bodies = ["", "{", "[" * 50_000, "null", "[]", '"x"', '{"jobs": 1}', '{"jobs": []}', "\u0000", '{"a": 1, "a": 2}']
    messages = [message(f"h{n}", body, token=token) for n, body in enumerate(bodies)]
    messages += [message("", token=token), message("x" * 200, token=token), message("a\u00e9", token=token)]
    messages += [message("t", token="corral_x"), message("n"), message("good", token=token)]
    *bad, good = await hand_over(place, *messages)
    assert all(outcome["problem"] and not outcome["retry_ms"] for outcome in bad), bad
    assert good["jobs"]


async def test_too_many_messages_and_other_users_are_refused() -> None:
    place = await Place().fill()
    many = {"messages": [message(str(n)) for n in range(501)]}
    assert (await ask(place.app, "POST", "/v1/intake", place.tokens["administrator"], many)).status == 422
    body = {"messages": [message("a", user="administrator")]}
    for actor in ("operator", "lead", "member"):
        assert (await ask(place.app, "POST", "/v1/intake", place.tokens[actor], body)).status == 403


async def test_items_for_a_batching_queue_come_in_the_same_way() -> None:
    place = await Place().fill()
    items = {"items": ["a", "b"]}
    mine, theirs, bad = await hand_over(
        place,
        message("i", items, token=place.tokens["member"], batch="embed"),
        message("j", items, token=place.tokens["member"], batch="covert"),
        message("k", {"items": 3}, token=place.tokens["member"], batch="embed"),
    )
    assert mine["items"] == ["i-0", "i-1"], mine
    assert theirs["problem"]["code"] == "no_such_batching queue"
    assert bad["problem"]["status"] == 422
