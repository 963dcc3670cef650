"""Credentials of nodes and the first token expire, and are replaced long before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from corral.agent.agent_dir import AgentCredential, AgentDir
from corral.agent.renewal import CredentialRenewal, renew_at
from corral.agent.server_connection import NoAnswer
from corral.core.accounts import accounts as a
from corral.core.accounts import commands
from corral.core.accounts.accounts import Accounts, Role
from corral.core.intake.refusal import Refusal
from corral.remote.messages import JoinAnswer
from corral.server.auth import authenticate, new_token
from corral.server.gateway.roster import NodeCredentials, proved
from corral.server.main import write_private
from corral.server.vault.first_token import LIFE_MS, NAME, FirstToken
from tests.server.in_memory_service import START_MS, MemoryService

DAY_MS = 86_400_000
NODE = commands.node_user("n1")


class TestCredentialsOfNodes:
    def joined(self) -> tuple[Accounts, str]:
        accounts, ticket, token = Accounts(), new_token(), new_token()
        accounts.apply(a.UserSet(0, "root"))
        accounts.apply(a.TokenIssued(0, ticket.id, "root", ticket.digest, f"{commands.JOIN}n1"))
        self.take(accounts, commands.admit_node(accounts, "n1", ticket.id, token.id, token.digest, START_MS))
        return accounts, token.text

    def take(self, accounts: Accounts, events: object) -> None:
        assert isinstance(events, list)
        for event in events:
            accounts.apply(event)

    def renewed(self, accounts: Accounts, text: str, now_ms: int) -> str:
        drawn = new_token()
        self.take(accounts, commands.renew_node(accounts, text.split("_")[1], drawn.id, drawn.digest, now_ms))
        return drawn.text

    def is_good(self, accounts: Accounts, text: str, now_ms: int) -> bool:
        """For the interface and for the gateway alike."""
        by_http = not isinstance(authenticate(accounts, f"Bearer {text}", now_ms), Refusal)
        assert by_http == (proved(NodeCredentials(accounts).of("n1"), text, now_ms) is not None)
        return by_http

    def test_one_expires(self):
        accounts, first = self.joined()
        assert self.is_good(accounts, first, START_MS + 89 * DAY_MS)
        assert not self.is_good(accounts, first, START_MS + 90 * DAY_MS)

    def test_two_are_good_at_a_time_and_never_three(self):
        accounts, first = self.joined()
        second = self.renewed(accounts, first, START_MS + 45 * DAY_MS)
        assert self.is_good(accounts, first, START_MS + 46 * DAY_MS), "the machine may come back without the new one"
        assert self.is_good(accounts, second, START_MS + 100 * DAY_MS)
        lost = self.renewed(accounts, first, START_MS + 46 * DAY_MS)
        assert not self.is_good(accounts, second, START_MS + 47 * DAY_MS)
        third = self.renewed(accounts, lost, START_MS + 90 * DAY_MS)
        assert not self.is_good(accounts, first, START_MS + 47 * DAY_MS)
        assert self.is_good(accounts, third, START_MS + 179 * DAY_MS)
        assert len([each for each in accounts.tokens.values() if each.user == NODE]) == 2

    def test_one_of_an_older_server_that_never_expired_is_over_with_the_second_renewal(self):
        accounts, first = self.joined()
        token = accounts.tokens[first.split("_")[1]]
        accounts.tokens[token.id] = msgspec.structs.replace(token, expires_ms=None)
        second = self.renewed(accounts, first, START_MS)
        self.renewed(accounts, second, START_MS + 45 * DAY_MS)
        assert not self.is_good(accounts, first, START_MS + 45 * DAY_MS)


class TestAgent:
    def renewal(
        self, folder, renew_ms: int, answers: list[object], now: list[int]
    ) -> tuple[CredentialRenewal, list[str]]:
        place, used = AgentDir(folder), list[str]()
        credential = AgentCredential("n1", ("http://127.0.0.1:1",), "corral_1_old", renew_ms=renew_ms)
        place.keep_credential(credential)

        def exchange() -> JoinAnswer:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            assert isinstance(answer, JoinAnswer)
            return answer

        return CredentialRenewal(place, credential, exchange, used.append, lambda: now[0]), used

    def test_it_is_renewed_when_half_of_its_life_is_over(self, tmp_path):
        now = [1_000]
        answers: list[object] = [JoinAnswer("n1", "corral_2_new", 0, 1_000 + 2 * DAY_MS)]
        renewal, used = self.renewal(tmp_path, renew_at(1_000, 1_000 + 2 * DAY_MS), answers, now)
        assert not renewal.look()
        now[0] += DAY_MS
        assert renewal.look()
        kept = AgentDir(tmp_path).credential()
        assert (kept.token, used) == ("corral_2_new", ["corral_2_new"])
        assert kept.renew_ms == now[0] + DAY_MS // 2

    def test_that_no_one_answers_changes_nothing(self, tmp_path):
        renewal, used = self.renewal(tmp_path, 0, [NoAnswer("away"), JoinAnswer("n1", "corral_2_new")], [1])
        assert not renewal.look()
        assert AgentDir(tmp_path).credential().token == "corral_1_old"
        assert renewal.look()
        assert used == ["corral_2_new"]


class TestFirstToken:
    @pytest.fixture
    def service(self) -> MemoryService:
        made = MemoryService()
        made.do_accounts("root", [a.UserSet(START_MS, "admin"), a.RoleGranted(START_MS, "admin", Role.ADMINISTRATOR)])
        return made

    def issued(self, service: MemoryService, expires_ms: int | None, name: str = NAME) -> str:
        drawn = new_token()
        event = a.TokenIssued(START_MS, drawn.id, "admin", drawn.digest, name, (), expires_ms)
        service.do_accounts("root", [event])
        return drawn.text

    @pytest.mark.parametrize(
        ("expires_ms", "days", "is_replaced"),
        [(START_MS + LIFE_MS, 44, False), (START_MS + LIFE_MS, 46, True), (None, 0, True)],
        ids=["young", "half of its life over", "of an older server, without an end"],
    )
    async def test_it_is_replaced_where_the_command_line_finds_it(
        self, service, tmp_path, expires_ms, days, is_replaced
    ):
        text, path = self.issued(service, expires_ms), tmp_path / "credentials.json"
        path.write_bytes(msgspec.json.encode({"url": "http://x", "token": text}))
        service.time_ms += days * DAY_MS
        first = FirstToken(path, write_private)
        assert await first.look(service) is is_replaced
        kept = msgspec.json.decode(path.read_bytes())
        assert (kept["token"] != text, kept["url"]) == (is_replaced, "http://x")
        for each in (text, kept["token"]):
            assert not isinstance(authenticate(service.accounts, f"Bearer {each}", service.now_ms()), Refusal)
        if is_replaced:
            token = service.accounts.tokens[kept["token"].split("_")[1]]
            assert token.expires_ms == service.now_ms() + LIFE_MS

    @pytest.mark.parametrize("kept", [b"", b"{}", b"no json", b'{"token": "corral_1_2"}', b'{"token": 7}'])
    async def test_another_file_is_left_alone(self, service, tmp_path, kept):
        path = tmp_path / "credentials.json"
        path.write_bytes(kept)
        first = FirstToken(path, lambda where, value: pytest.fail("it was written"))
        assert not await first.look(service)

    async def test_that_it_cannot_be_kept_ends_nothing(self, service, tmp_path):
        path = tmp_path / "credentials.json"
        path.write_bytes(msgspec.json.encode({"token": self.issued(service, None)}))

        def fails(where: Path, value: object) -> None:
            raise RuntimeError("no such thing")

        running = asyncio.create_task(FirstToken(path, fails).run(service))
        await asyncio.sleep(0.05)
        assert not running.done()
        running.cancel()

    async def test_a_token_of_the_administrators_own_is_left_alone(self, service, tmp_path):
        path = tmp_path / "credentials.json"
        path.write_bytes(msgspec.json.encode({"token": self.issued(service, None, "laptop")}))
        first = FirstToken(path, lambda where, value: pytest.fail("it was written"))
        assert not await first.look(service)
