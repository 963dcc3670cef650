"""Failed authentication is slowed down per address, and never keeps a good token out."""

from __future__ import annotations

import pytest

from corral.server.api.http import throttle
from corral.server.api.http.settings import ApiSettings
from corral.server.api.http.throttle import HERE_FACTOR, WAIT_S_MAX, WAIT_S_MAX_HERE, FailedSignIns, network_of
from corral.server.auth import new_token
from tests.server.asgi import ask

WHO = "/v1/whoami"
FREE = ApiSettings().failures_max


async def fail(setup, token: str, client: str, times: int) -> list[int]:
    return [(await ask(setup.app, "GET", WHO, token, client=client)).status for _ in range(times)]


async def test_unknown_tokens_are_slowed_down_by_address(setup):
    assert await fail(setup, new_token().text, "10.1.1.1", FREE) == [401] * FREE
    statuses = [*await fail(setup, new_token().text, "10.1.1.1", 1), *await fail(setup, "nonsense", "10.1.1.1", 1)]
    assert statuses == [401, 429]
    answer = await ask(setup.app, "GET", WHO, new_token().text, client="10.1.1.1")
    assert (answer.status, answer.code) == (429, "too_many_failures")
    assert 1 <= int(answer.headers["retry-after"]) <= WAIT_S_MAX + 1
    assert await fail(setup, new_token().text, "10.1.1.2", 1) == [401]  # another address is another matter


async def test_a_good_token_is_let_in_from_an_address_that_has_to_wait(setup):
    await fail(setup, new_token().text, "10.1.1.1", 40)
    assert await fail(setup, setup.member, "10.1.1.1", 3) == [200] * 3


async def test_wrong_secrets_of_one_token_are_slowed_down_and_hurt_no_other_token(setup):
    guess = setup.member[:-4] + "AAAA"
    assert set(await fail(setup, guess, "10.1.1.1", FREE + 1)) == {401}
    assert await fail(setup, guess, "10.1.1.1", 1) == [429]
    assert await fail(setup, setup.root, "10.1.1.1", 1) == [200]
    assert await fail(setup, setup.member, "10.2.2.2", 1) == [200]


async def test_on_this_machine_it_is_gentle(setup):
    assert WAIT_S_MAX_HERE <= 5
    assert set(await fail(setup, new_token().text, "127.0.0.1", HERE_FACTOR * FREE)) == {401}


async def test_no_token_at_all_is_no_guess(setup):
    assert set(await fail(setup, "", "10.1.1.1", 50)) == {401}


def test_waits_double_and_end():
    failures, key, now_s = FailedSignIns(FREE), ("10.1.1.1", ""), 0.0
    waits = []
    for _ in range(FREE + 9):
        waits.append(failures.failed(key, now_s))
        now_s += waits[-1] + 0.1
        assert failures.wait_s(key, now_s) == 0
    assert waits == [0.0] * FREE + [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert failures.failed(key, now_s + 10_000) == 0  # it was quiet for long


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(throttle, "_KEPT", 100)
    failures = FailedSignIns(FREE)
    for n in range(1_000):
        failures.failed((f"10.0.{n // 256}.{n % 256}", ""), float(n))
    assert len(failures._failed) == 100


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8::1", "2001:db8::"),
        ("2001:db8::ffff:1", "2001:db8::"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("::1", "::1"),
        ("somewhere", "somewhere"),
    ],
)
def test_a_client_is_reported_by_its_network(host: str, network: str):
    assert network_of(host) == network
