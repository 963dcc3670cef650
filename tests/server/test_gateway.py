"""The gateway as agents see it: a real process, with a server's end that is busy, slow, gone or not there yet."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import threading
import time
from pathlib import Path

import msgspec
import pytest

from corral.agent.server_connection import NoAnswer
from corral.core.cluster.topology import NodeSpec
from corral.remote import frames
from corral.remote.leases import LeaseStatus
from corral.remote.messages import AgentAnswer, AgentReport, LeaseAnswer, Renewal
from corral.remote.settings import RemoteSettings
from corral.runtime.base import NodePhase, NodeReport
from corral.server.gateway.listener import PORT_FILE, PortTaken, bound_for_agents
from corral.server.gateway.process import boot_ms
from corral.server.gateway.roster import ROSTER, read_roster
from tests.bench.light import LightAgent
from tests.server.real_gateway import EPOCH, GatewayHarness, credential_of, token_of, until

pytestmark = pytest.mark.timeout(180)


def report(node: str = "n1", seq: int = 1, **rest: object) -> AgentReport:
    said = {"session": 1, "is_full": True, "spec": NodeSpec(node), "epoch": EPOCH, **rest}
    return AgentReport(node=node, seq=seq, **said)  # type: ignore[arg-type]


class Stuck:
    """A fleet that never comes to an end with a report, until it is let go."""

    def __init__(self, harness: GatewayHarness) -> None:
        self.free, self.entered, self._fleet = threading.Event(), threading.Event(), harness.fleet

    def report(self, said: AgentReport) -> AgentAnswer:
        self.entered.set()
        self.free.wait(60)
        return self._fleet.report(said)

    def __getattr__(self, name: str) -> object:
        return getattr(self._fleet, name)


# ---- leases depend on nothing ------------------------------------------------------------------------------


def test_a_server_that_is_stuck_delays_reports_and_no_lease(tmp_path: Path):
    with GatewayHarness(tmp_path) as harness:
        stuck = Stuck(harness)
        harness.open(stuck)
        line, other = harness.line("n1"), harness.line("n2")
        told: list[AgentAnswer] = []
        waits = threading.Thread(target=lambda: told.append(line.report(report())), daemon=True)
        waits.start()
        assert stuck.entered.wait(30)
        end = boot_ms() + 2 * 4_000
        seq = 0
        while boot_ms() < end:
            seq += 1
            for each in (line, other):
                assert each.renew(Renewal(seq=seq, epoch=EPOCH)).lease_ms == 4_000
            time.sleep(0.2)
        assert not told
        assert harness.told == [], "no node was given up"
        stuck.free.set()
        waits.join(30)
        assert told[0].epoch == EPOCH
        for each in (line, other):
            each.hang_up()


def test_before_the_state_is_loaded_running_leases_are_kept_and_everything_else_waits(tmp_path: Path):
    with GatewayHarness(tmp_path, nodes=3, gone=("n3",)) as harness:
        line = harness.line()
        early = line.renew(Renewal(seq=1, epoch=EPOCH - 1, term=2, left_ms=500))
        assert (early.lease_ms, early.epoch, early.term) == (4_000, EPOCH, 0)
        with pytest.raises(NoAnswer, match="busy"):
            line.report(report())
        assert harness.line("n2").renew(Renewal(seq=1, epoch=EPOCH - 1)).lease_ms == 0, "its lease had run out"
        assert harness.line("n3").renew(Renewal(seq=1, epoch=EPOCH - 1, left_ms=500)).lease_ms == 0, "it was given up"
        for node, token in (("stranger", "corral_x_y"), ("n1", "corral_n1_wrong")):
            unknown = harness.raw()
            assert b"not_ready" in unknown.hello(node, token)[1], (
                "no agent is refused for good before the state is known"
            )
        harness.open()
        assert harness.line("n2").renew(Renewal(seq=2, epoch=EPOCH)).lease_ms == 4_000
        assert harness.line("n3").renew(Renewal(seq=2, epoch=EPOCH)).is_gone
        assert b"bad_token" in harness.raw().hello("stranger", "corral_x_y")[1]


def test_a_silent_node_is_given_up_and_comes_back_by_the_server_alone(tmp_path: Path):
    with GatewayHarness(tmp_path, nodes=1) as harness:
        harness.open()
        line = harness.line()
        line.renew(Renewal(seq=1, epoch=EPOCH))
        until(lambda: harness.told == [NodeReport("n1", NodePhase.GONE)])
        gone = line.renew(Renewal(seq=2, epoch=EPOCH))
        until(lambda: line.renew(Renewal(seq=3, epoch=EPOCH)).is_gone)
        assert gone.lease_ms == 0
        answer = line.report(report(term=1, seq=9))
        assert not answer.is_gone
        until(lambda: line.renew(Renewal(seq=4, epoch=EPOCH, term=1)).lease_ms == 4_000)
        assert harness.told[1:] == [NodeReport("n1", NodePhase.BACK)]
        line.hang_up()


def test_when_the_right_that_was_lent_is_over_nothing_is_extended(tmp_path: Path):
    with GatewayHarness(tmp_path) as harness:
        harness.open()
        agent = harness.raw()
        agent.hello()
        assert agent.renew().lease_ms == 4_000
        fixed = boot_ms()
        harness.until_ms = lambda: fixed
        until(lambda: agent.renew().lease_ms == 0)
        harness.until_ms = lambda: boot_ms() + 60_000
        until(lambda: agent.renew().lease_ms == 4_000)
        assert harness.told == []


def test_an_agent_that_knows_a_newer_leader_is_sent_away(tmp_path: Path):
    with GatewayHarness(tmp_path) as harness:
        harness.open()
        agent = harness.raw()
        agent.hello()
        agent.say(frames.RENEW, Renewal(seq=1, epoch=EPOCH + 1))
        assert agent.why_out() == "not_leader"


def test_a_stop_leaves_every_agent_a_farewell_lease_counted_from_its_last_renewal(tmp_path: Path):
    with GatewayHarness(tmp_path) as harness:
        harness.open()
        line, heard = harness.line(), list[LeaseAnswer]()
        line.when_granted(heard.append)
        line.renew(Renewal(seq=41, epoch=EPOCH))
        assert harness.gateway.say_farewell(60_000)
        until(lambda: bool(heard))
        assert (heard[0].seq, heard[0].lease_ms) == (41, 60_000)
        assert line.renew(Renewal(seq=42, epoch=EPOCH)).lease_ms == 0, "nothing after it"
        line.hang_up()


def test_a_gateway_that_dies_is_started_again_where_it_was(tmp_path: Path):
    with GatewayHarness(tmp_path) as harness:
        harness.open()
        line = harness.line()
        assert line.renew(Renewal(seq=1, epoch=EPOCH)).lease_ms == 4_000
        os.kill(harness.gateway._process.pid, signal.SIGKILL)

        def is_renewed() -> bool:
            try:
                return line.renew(Renewal(seq=2, epoch=EPOCH)).lease_ms == 4_000
            except NoAnswer:
                return False

        until(is_renewed)
        assert line.report(report()).epoch == EPOCH
        assert harness.told == [NodeReport("n1", NodePhase.JOINED, NodeSpec("n1"))] or harness.told == []
        line.hang_up()


def test_it_ends_with_its_server(tmp_path: Path):
    harness = GatewayHarness(tmp_path)
    process = harness.gateway._process
    harness.gateway.close()
    assert process.poll() is not None


# ---- which agents are let in ----------------------------------------------------------------------------------------


def test_a_credential_that_is_revoked_puts_its_agent_out_at_once(tmp_path: Path):
    with GatewayHarness(tmp_path) as harness:
        harness.open()
        agent = harness.raw()
        agent.hello()
        agent.renew()
        began = time.monotonic()
        harness.gateway.set_credentials("n1", ())
        assert agent.why_out() == "bad_token"
        assert time.monotonic() - began < 5
        assert b"bad_token" in harness.raw().hello()[1]
        harness.gateway.set_credentials("n1", (credential_of("n1"),))
        until(lambda: harness.raw().hello()[0] == frames.WELCOME)
        until(lambda: set(read_roster(tmp_path).credentials) == {"n1", "n2"})
        assert (tmp_path / ROSTER).stat().st_mode & 0o777 == 0o600


def test_an_agent_speaks_for_its_own_node_and_no_other(tmp_path: Path):
    with GatewayHarness(tmp_path) as harness:
        harness.open()
        agent = harness.raw()
        assert b"bad_token" in agent.hello("n2", token_of("n1"))[1]
        agent = harness.raw()
        agent.hello()
        agent.say(frames.REPORT, report("n2"))
        assert agent.why_out() == "not_your_node"
        assert harness.refused == [("n1", "node n1 sent a message for node 'n2'")]
        assert not harness.fleet.is_heard("n2")


def test_the_newest_connection_of_a_node_counts(tmp_path: Path):
    with GatewayHarness(tmp_path) as harness:
        harness.open()
        first, second = harness.raw(), harness.raw()
        first.hello()
        second.hello()
        assert first.why_out() == "replaced"
        assert second.renew().lease_ms == 4_000


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00" * 64,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"H\x7f\xff\xff\xff" + b"x" * 100,
        b"R\x00\x00\x00\x02{}",
        b"H\x00\x00\x00\x02[]",
        b"H\x00\x00\x00\x03\xff\xfe{",
    ],
)
def test_garbage_is_put_out_and_harms_no_one(tmp_path: Path, garbage: bytes):
    with GatewayHarness(tmp_path) as harness:
        harness.open()
        good = harness.raw()
        good.hello("n2")
        bad = harness.raw()
        bad.send(garbage)
        assert bad.why_out() == "bad_message"
        assert good.renew().lease_ms == 4_000


def test_who_is_known_is_put_out_for_messages_that_are_none(tmp_path: Path):
    with GatewayHarness(tmp_path) as harness:
        harness.open()
        whole = b"".join(frames.pieces(frames.REPORT, b"x" * (9 << 20)))
        for garbage in (b"N\x00\x00\x00\x02[]", b"?\x00\x00\x00\x00", whole, b"N\x00\x00\x00\x00" * 2_000):
            bad = harness.raw()
            bad.hello()
            try:
                bad.send(garbage)
            except ConnectionError:
                continue
            assert bad.why_out() in ("bad_message", "")
        agent = harness.raw()
        agent.hello()
        agent.say(frames.REPORT, {"node": 1})
        assert agent.why_out() == "bad_report"
        agent = harness.raw()
        agent.hello()
        assert agent.renew().lease_ms == 4_000


def test_one_report_at_a_time(tmp_path: Path):
    with GatewayHarness(tmp_path) as harness:
        stuck = Stuck(harness)
        harness.open(stuck)
        agent = harness.raw()
        agent.hello()
        agent.say(frames.REPORT, report())
        assert stuck.entered.wait(30)
        agent.say(frames.REPORT, report(seq=2))
        assert agent.why_out() == "bad_message"
        again = harness.raw()
        again.hello()
        again.say(frames.REPORT, report(seq=3))
        assert again.next() == (frames.BUSY, frames.REPORT), "the first has not come to an end yet"
        stuck.free.set()


def test_half_a_word_and_silence_is_given_up(tmp_path: Path):
    with GatewayHarness(tmp_path, hello_s=0.5) as harness:
        harness.open()
        silent, half = harness.raw(), harness.raw()
        half.send(b"H\x00\x00\x00\x20{")
        for each in (silent, half):
            assert each.why_out() == "too_slow"


def test_a_flood_of_silent_connections_keeps_no_agent_out(tmp_path: Path):
    with GatewayHarness(tmp_path, hello_s=60.0, unknown_max=100, unknown_of_address_max=50) as harness:
        harness.open()
        before = harness.raw()
        before.hello("n2")
        flood = [harness.raw() for _ in range(300)]
        agent = harness.raw()
        assert agent.hello()[0] == frames.WELCOME
        assert agent.renew().lease_ms == 4_000
        assert before.renew().lease_ms == 4_000
        for each in flood:
            each.close()


def test_no_more_agents_are_let_in_than_there_is_room_for(tmp_path: Path):
    with GatewayHarness(tmp_path, nodes=3, connections_max=2) as harness:
        harness.open()
        agents = [harness.raw() for _ in range(3)]
        assert [agent.hello(f"n{n}")[0] for n, agent in enumerate(agents, 1)] == [
            frames.WELCOME, frames.WELCOME, frames.REFUSED,
        ]  # fmt: skip
        assert agents[0].renew().lease_ms == 4_000


# ---- many ----------------------------------------------------------------------------------------------------


def test_two_thousand_agents_keep_their_leases_on_one_gateway(tmp_path: Path):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    settings = RemoteSettings(lease_ms=60_000, heartbeat_ms=5_000, margin_ms=2_000)
    with GatewayHarness(tmp_path, nodes=2_000, settings=settings) as harness:
        harness.open()
        agents = [LightAgent(node, harness.port, token_of(node)) for node in harness.nodes]

        async def live() -> None:
            tasks = [asyncio.create_task(agent.run(5.0 * n / len(agents))) for n, agent in enumerate(agents)]
            end = time.monotonic() + 120
            while min(agent.renewals for agent in agents) < 3:
                assert time.monotonic() < end, sum(agent.renewals for agent in agents)
                await asyncio.sleep(0.2)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(live())
        assert not [each for each in harness.told if isinstance(each, NodeReport) and each.phase is NodePhase.GONE]
        assert max(agent.gap_ms for agent in agents) < settings.lease_ms


# ---- where it listens ----------------------------------------------------------------------------------------


def test_the_port_is_the_same_at_every_start(tmp_path: Path):
    with bound_for_agents("127.0.0.1", 0, 0, tmp_path) as first:
        port = first.getsockname()[1]
    with bound_for_agents("127.0.0.1", 0, 0, tmp_path) as again:
        assert again.getsockname()[1] == port
    with bound_for_agents("127.0.0.1", None, 1, tmp_path) as again:
        assert again.getsockname()[1] == port, "also where none is stated"


def test_a_default_that_is_taken_is_left_for_another_and_a_stated_one_is_not(tmp_path: Path):
    with bound_for_agents("127.0.0.1", 0, 0, tmp_path / "..") as taken:
        port = taken.getsockname()[1]
        with bound_for_agents("127.0.0.1", None, port, tmp_path) as other:
            assert other.getsockname()[1] != port
            assert int((tmp_path / PORT_FILE).read_text()) == other.getsockname()[1]
        with pytest.raises(PortTaken, match="in use"):
            bound_for_agents("127.0.0.1", port, 0, tmp_path)


def test_standings_travel_as_they_are():
    assert msgspec.json.decode(msgspec.json.encode(LeaseStatus(3, True)), type=LeaseStatus) == LeaseStatus(3, True)
