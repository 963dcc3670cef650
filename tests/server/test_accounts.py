"""Users, roles, tokens and secrets over the API: no user gets more rights, an administrator always remains."""

from __future__ import annotations

import asyncio

import pytest

from corral.core.accounts import accounts as a
from corral.core.accounts.accounts import Role
from corral.server.auth import TABLE, Principal, Reach, Verb, authenticate, may_mint, new_token
from corral.server.vault import secrets_of
from tests.server.asgi import ask
from tests.server.in_memory_service import MemoryService


async def test_a_token_is_reported_once_and_works(setup):
    made = (await ask(setup.app, "POST", "/v1/tokens", setup.member, {"name": "ci", "expires_in_ms": 1000})).json()
    assert made["token"].startswith(f"corral_{made['id']}_")
    assert (await ask(setup.app, "GET", "/v1/whoami", made["token"])).json()["user"] == "member"
    listed = (await ask(setup.app, "GET", "/v1/tokens", setup.member)).body
    assert made["id"].encode() in listed
    assert made["token"].split("_", 2)[2].encode() not in listed
    setup.service.time_ms += 1000
    assert (await ask(setup.app, "GET", "/v1/whoami", made["token"])).status == 401


async def test_a_token_makes_no_wider_token(setup):
    narrow = setup.service.token("root", scope=("tokens.change", "jobs.read"), expires_ms=setup.service.now_ms() + 5000)
    for body, status in (
        ({"scope": ["jobs.read"]}, 201),
        ({}, 201),
        ({"scope": ["jobs.submit"]}, 403),
        ({"scope": ["jobs.read"], "expires_in_ms": 5001}, 403),
        ({"scope": ["jobs.fly"]}, 422),
        ({"user": "member", "scope": ["jobs.read"]}, 201),
    ):
        answer = await ask(setup.app, "POST", "/v1/tokens", narrow, body)
        assert answer.status == status, (body, answer.body)
        if status == 201:
            assert set(answer.json()["scope"]) <= {"tokens.change", "jobs.read"}
            assert answer.json()["expires_ms"] == setup.service.now_ms() + 5000


async def test_the_last_administrator_remains(setup):
    for method, path, body in (
        ("DELETE", "/v1/users/root", b""),
        ("PUT", "/v1/users/root", {"disabled": True}),
        ("DELETE", "/v1/users/root/roles?role=administrator", b""),
    ):
        answer = await ask(setup.app, method, path, setup.root, body)
        assert (answer.status, answer.code) == (409, "last_administrator")
    setup.service.user("second", (Role.ADMINISTRATOR, ""))
    assert (await ask(setup.app, "DELETE", "/v1/users/root", setup.root)).status == 200
    assert (await ask(setup.app, "GET", "/v1/whoami", setup.root)).status == 401


async def test_an_administrator_of_a_queue_is_not_one_of_the_cluster(setup):
    setup.service.queue("team/a")
    local = setup.service.user("local", (Role.ADMINISTRATOR, "team"))
    grant = "/v1/users/member/roles"
    for method, path, body, status in (
        ("PUT", grant, {"role": "administrator", "queue": "team/a"}, 200),
        ("PUT", grant, {"role": "administrator"}, 403),
        ("PUT", grant, {"role": "operator", "queue": "other"}, 403),
        ("PUT", "/v1/users/new", {}, 404),
        ("POST", "/v1/nodes/n0/drain", {}, 403),
        ("PUT", "/v1/queues/team", {"weight": 3}, 403),  # its share beside others is not its own to change
        ("PUT", "/v1/queues/team/a", {"weight": 3}, 200),
        ("PUT", "/v1/queues/other", {"weight": 3}, 404),
        ("POST", "/v1/tokens", {"user": "root"}, 404),
        ("GET", "/v1/metrics", b"", 403),
    ):
        answer = await ask(setup.app, method, path, local, body)
        assert answer.status == status, (path, body, answer.body)


async def test_values_of_secrets_are_nowhere(setup):
    lead = setup.service.user("lead", (Role.LEAD, "team"))
    assert (await ask(setup.app, "PUT", "/v1/secrets/key?queue=team", lead, {"value": "swordfish"})).status == 200
    assert setup.service.secrets.values["team", "key"] == "swordfish"
    for path in ("/v1/secrets", "/v1/events?limit=1000", "/v1/queues", "/v1/metrics"):
        assert b"swordfish" not in (await ask(setup.app, "GET", path, setup.root)).body
    assert not any(b"swordfish" in record.body for record in setup.service.journal.read(0, 1000))
    assert (await ask(setup.app, "DELETE", "/v1/secrets/key?queue=team", lead)).status == 200
    assert not setup.service.secrets.values


@pytest.mark.parametrize("value", ["x" * 70_000, "a\0b"])
async def test_secrets_have_bounds(setup, value):
    assert (await ask(setup.app, "PUT", "/v1/secrets/key", setup.root, {"value": value})).status == 422
    assert not setup.service.secrets.values


@pytest.mark.parametrize("name", ["..", "a b", "ü", "x" * 65])
async def test_names_are_plain(setup, name):
    assert (await ask(setup.app, "PUT", f"/v1/secrets/{name}", setup.root, {"value": "v"})).status in (404, 422)
    assert (await ask(setup.app, "PUT", f"/v1/users/{name}", setup.root, {})).status in (404, 422)


# ---- the table itself ------------------------------------------------------------------------------------


def test_every_verb_has_its_row_and_an_administrator_may_everything():
    assert set(TABLE) == set(Verb)
    of_machines = {Verb.NODE_JOIN, Verb.NODE_SYNC}  # these belong to no role
    assert all(TABLE[verb] == {} for verb in of_machines)
    assert TABLE[Verb.QUEUES_CHANGE][Role.ADMINISTRATOR] is Reach.BELOW  # all of them, for one of the cluster
    others = set(Verb) - of_machines - {Verb.QUEUES_CHANGE}
    assert all(TABLE[verb][Role.ADMINISTRATOR] is Reach.ANY for verb in others)


def test_viewers_change_nothing_of_others():
    changing = [verb for verb in Verb if not verb.endswith(".read")]
    assert {TABLE[verb].get(Role.VIEWER) for verb in changing} <= {None, Reach.OWN}


def test_secrets_of_tokens_are_long_and_different():
    drawn = [new_token() for _ in range(100)]
    assert len({token.id for token in drawn}) == len({token.text for token in drawn}) == 100
    assert all(len(token.text.split("_", 2)[2]) == 43 for token in drawn)
    assert not any(token.text.split("_", 2)[2] in token.digest for token in drawn)


def test_unknown_and_wrong_are_reported_alike():
    service = MemoryService()
    token = service.user("root", (Role.ADMINISTRATOR, ""))
    wrong = authenticate(service.accounts, f"Bearer {token[:-1]}x", service.now_ms())
    unknown = authenticate(service.accounts, f"Bearer {new_token().text}", service.now_ms())
    assert wrong == unknown
    service.do_accounts("root", [a.TokenRevoked(service.now_ms(), token.split("_")[1])])
    assert authenticate(service.accounts, f"Bearer {token}", service.now_ms()) == unknown


def test_minting():
    whole = Principal("u", "t")
    assert may_mint(whole, (), None) is None
    assert may_mint(Principal("u", "t", ("jobs.read",)), (), None) is not None
    assert may_mint(Principal("u", "t", (), 10), (), None) is not None
    assert may_mint(Principal("u", "t", (), 10), (), 10) is None


async def test_a_whole_token_in_an_address_is_refused_and_never_repeated(setup):
    secret = setup.member.split("_", 2)[2]
    for path in (f"/v1/tokens/{setup.member}", f"/v1/users/{setup.member}", f"/v1/jobs?name={setup.member}"):
        method = "DELETE" if "tokens" in path else "GET"
        answer = await ask(setup.app, method, path, setup.root)
        assert (answer.status, answer.code) == (400, "token_in_address")
        assert secret.encode() not in answer.body
    nowhere = await ask(setup.app, "GET", f"/v1/nothing/{setup.member}", setup.root)
    assert nowhere.status == 404
    assert secret.encode() not in nowhere.body
    assert (await ask(setup.app, "GET", "/v1/whoami", setup.member)).status == 200


async def test_a_token_in_a_body_is_not_repeated_either(setup):
    secret = setup.member.split("_", 2)[2]
    for method, path, body in (
        ("POST", "/v1/jobs", {"command": "true", "queue": setup.member}),
        ("POST", "/v1/jobs", {"command": "true", "name": f" {setup.member}"}),
        ("POST", "/v1/tokens", {"scope": [setup.member]}),
        ("POST", "/v1/tokens", {setup.member: 1}),
        ("PUT", "/v1/users/new", {"account": setup.member}),
    ):
        answer = await ask(setup.app, method, path, setup.root, body)
        assert 400 <= answer.status < 500, answer.body
        assert secret.encode() not in answer.body, (path, body)


@pytest.mark.parametrize("name", ["team/a/..", "team/.", "..", "team/../other", "team/.hidden", "team//a", "/team"])
async def test_no_part_of_a_queue_leads_elsewhere(setup, name):
    assert (await ask(setup.app, "PUT", f"/v1/queues/{name}", setup.root, {})).status == 422


@pytest.mark.parametrize("key", [{"name": "a/../../b"}, {"name": "a/.."}, {"labels": {"a/..": "x"}}, {"name": "a/./b"}])
async def test_no_part_of_a_name_leads_elsewhere(setup, key):
    job = {"command": "true", "queue": "team", "gpus": 1}
    assert (await ask(setup.app, "POST", "/v1/jobs", setup.member, job | {"name": "a/b.c/d"})).status == 201
    assert (await ask(setup.app, "POST", "/v1/jobs", setup.member, job | key)).status == 422


async def test_of_two_who_set_a_secret_at_once_the_last_that_is_acknowledged_is_kept(setup, monkeypatch):
    """The first value is kept quickly and recorded slowly, the second the other way round."""
    change, slow = setup.service.change_accounts, asyncio.Event()
    calls = 0

    async def change_accounts(actor, command):
        nonlocal calls
        calls += 1
        if calls == 1:
            await slow.wait()
        return await change(actor, command)

    monkeypatch.setattr(setup.service, "change_accounts", change_accounts)
    acknowledged = []

    async def put(value: str) -> None:
        assert (await ask(setup.app, "PUT", "/v1/secrets/key", setup.root, {"value": value})).status == 200
        acknowledged.append(value)

    first = asyncio.create_task(put("one"))
    while not calls:
        await asyncio.sleep(0.01)
    second = asyncio.create_task(put("two"))
    await asyncio.sleep(0.2)
    slow.set()
    await asyncio.gather(first, second)
    assert setup.service.secrets.values["", "key"] == acknowledged[-1]


async def test_a_secret_that_many_set_at_once_is_set_by_all_of_them(setup, tmp_path):
    setup.service.secrets = secrets_of(tmp_path, "")

    async def put(value: str) -> tuple[int, int]:
        answer = await ask(setup.app, "PUT", "/v1/secrets/key", setup.root, {"value": value})
        return answer.status, answer.json()["seq"]

    done = await asyncio.gather(*(put(f"value {n}") for n in range(40)))
    assert {status for status, _ in done} == {200}
    last = max(range(40), key=lambda n: done[n][1])
    assert setup.service.secrets.get("", "key") == f"value {last}"
