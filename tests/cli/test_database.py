"""A server on PostgreSQL, and the journal moved there and back, as typed."""

from __future__ import annotations

import json

from tests.cli.test_server import Machine, machine
from tests.database import Database

__all__ = ["machine"]


def test_a_server_moves_from_a_file_to_a_database_and_is_backed_up(machine: Machine, database: Database) -> None:
    address = database.new()
    machine.up()
    machine("submit", "--wait", "--", "true")
    busy = machine("db", "copy", "--from", str(machine.data), "--to", address)
    assert busy.returncode == 1
    assert "stop the server with: corral down" in busy.stderr
    machine("down")
    copied = machine("db", "copy", "--from", str(machine.data), "--to", address)
    assert copied.returncode == 0, copied.stderr
    assert "0 secrets" in copied.stdout
    started = machine.up("--database", address)
    assert started.returncode == 0, started.stderr
    assert "succeeded" in machine("ps", "--over").stdout
    assert machine("submit", "--wait", "--", "true").returncode == 0
    told = json.loads(machine("db", "info", "--database", address, "--json").stdout)
    assert machine.address in told["leader"]
    backup = machine("db", "backup", "--database", address, str(machine.data / "all.jsonl.gz"))
    assert backup.returncode == 0, backup.stderr
    assert machine("db", "verify", "--database", address).stdout.endswith("is complete and valid\n")
    assert machine("db", "rebuild", "--database", address).returncode == 1, "a server leads"
    machine("down")
    assert machine("db", "rebuild", "--database", address).returncode == 0
    elsewhere = str(machine.data.parent / "restored")
    restored = machine("db", "restore", "--data", elsewhere, str(machine.data / "all.jsonl.gz"))
    assert restored.returncode == 0, restored.stderr
    assert machine("db", "verify", "--data", elsewhere).returncode == 0


def test_what_is_wrong_with_a_database_is_reported_without_its_password(machine: Machine) -> None:
    address = "postgresql://ann:s3cret@127.0.0.1:1/corral"
    up = ("up", "--detach", "--timeout", "8s", "--listen", machine.address)
    tellings = [machine(*words, "--database", address) for words in (("db", "info"), ("db", "verify"), up)]
    for told in tellings:
        assert told.returncode != 0
        assert "postgresql://ann@127.0.0.1:1/corral cannot be used" in told.stderr, told.stderr
        assert "s3cret" not in told.stderr + told.stdout
    assert "it waits for the database" in tellings[-1].stderr, "and can be stopped meanwhile"
    assert machine("down").returncode == 0
    assert "not the address" in machine("up", "--database", "mysql://x").stderr


def test_doctor_asks_every_server_that_is_named(machine: Machine, database: Database) -> None:
    assert machine.up("--database", database.new()).returncode == 0
    here, gone = f"http://{machine.address}", "http://127.0.0.1:1"
    machine.variables["CORRAL_URL"] = f"{here},{gone}"
    machine.variables["CORRAL_TOKEN"] = json.loads((machine.data.parent / "corral" / "credentials.json").read_bytes())[
        "token"
    ]
    told = [each for each in json.loads(machine("doctor", "--json").stdout) if each["about"] == "server"]
    assert [each["state"] for each in told] == ["ok", "ok", "bad"]
    assert f"{here} is the leader, for " in told[1]["what"]
    assert gone in told[2]["what"]
