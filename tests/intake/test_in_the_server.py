"""An intake that the server runs: it ends and begins with the server, and needs only the address of the broker."""

from __future__ import annotations

from pathlib import Path

from corral.client.blocking import Client
from corral.wire.config import Config, parse_config, write_config
from tests.e2e.live import Live, children, command, is_alive
from tests.intake.brokers import PrivateRedis
from tests.intake.running import member, publish_surely, until
from tests.intake.test_through_a_broker import HELD


def intake_pid(live: Live) -> int | None:
    assert live.process is not None
    return next((pid for pid in children(live.process.pid) if b"\0intake\0" in command(pid)), None)


def metrics(live: Live) -> str:
    with live.connection() as connection:
        connection.request("GET", "/v1/metrics", headers={"Authorization": f"Bearer {live.token}"})
        return connection.getresponse().read().decode()


def test_a_server_takes_submissions_from_its_broker(tmp_path: Path, redis_server: PrivateRedis) -> None:
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text(redis_server.password + "\n")
    live = Live(tmp_path / "data")
    live.more = ["--intake", redis_server.plain_url, "--broker-password-file", str(password)]
    live.start()
    try:
        with Client(live.url, member(live)) as client:
            publish_surely(client, [{**HELD, "name": "in-the-server"}], ["in-the-server"], redis_server.url)
            until(lambda: len(live.jobs(name="in-the-server")) == 1, "the job")
            first = intake_pid(live)
            assert first is not None
            assert redis_server.password.encode() not in command(first)
            with Client(live.url, live.token) as admin:
                until(lambda: bool(admin.intakes().intakes), "a report")
                assert [view.broker for view in admin.intakes().intakes] == ["redis"]
                text = metrics(live)
                assert 'corral_intake_messages_total{kind="jobs",outcome="accepted"} 1.0' in text
                assert 'corral_intake_waiting{broker="redis"}' in text
            live.kill()
            until(lambda: not is_alive(first), "the end of the intake")
            publish_surely(client, [{**HELD, "name": "meanwhile"}], ["meanwhile"], redis_server.url)
            live.start()
            until(lambda: len(live.jobs(name="meanwhile")) == 1, "the job of the time without a server")
            tokens = live.ask("GET", "/v1/tokens")["tokens"]
            assert len([token for token in tokens if token["name"] == "intake of the server"]) == 1
            second = intake_pid(live)
            assert second is not None
        assert live.stop() == 0
        until(lambda: not is_alive(second), "the end of the second intake")
    finally:
        if live.process is not None:
            live.stop()


def test_the_configuration_names_a_broker_without_a_password() -> None:
    found = parse_config({"intake": {"broker": "amqps://corral@mq.example/corral", "password_file": "/etc/p"}})
    assert isinstance(found, Config)
    assert found.intake.password_file == "/etc/p"
    assert parse_config(write_config(found)) == found
    faults = parse_config({"intake": {"broker": "amqp://corral:secret@mq.example/corral"}})
    assert not isinstance(faults, Config)
    assert "password_file" in faults[0].hint
    assert "secret" not in faults[0].why
    missing = parse_config({"intake": {"prefetch": 10}})
    assert not isinstance(missing, Config)
    assert missing[0].path == ("intake", "broker")
