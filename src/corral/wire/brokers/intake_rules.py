"""Configuration of an intake that the server runs: which broker, and where its password is."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from corral.wire.brokers.broker_names import has_password
from corral.wire.document.errors import Path, Reading, Wrong
from corral.wire.document.key_table import Key, KeyTable, struct_kind
from corral.wire.document.kinds import FLAG, ValueKind, number, text
from corral.wire.job.program import PATH_TEXT


class IntakeRules(Struct, frozen=True, kw_only=True):
    """``broker`` empty: the server runs no intake."""

    broker: str = ""
    password_file: str = ""
    prefetch: int = 500
    events: bool = True


def _read_address(value: Any, path: Path, reading: Reading) -> str:
    if isinstance(value, str) and has_password(value):
        hint = "write it without, and put the password into a file that password_file names"
        raise Wrong("password", "the address has a password", hint)
    return str(_TEXT.read(value, path, reading))


_TEXT = text(
    "the address of a broker without a password",
    pattern=r"(amqps?|rediss?)://([^:@/\s]*@)?[^@\s]+",
    hint="write it like amqp://corral@mq.example/corral, and put the password into password_file",
)
_ADDRESS = ValueKind(_read_address, _TEXT.schema, "the address of a broker without a password")
INTAKE_KEYS = KeyTable(
    "intake",
    [
        Key("broker", _ADDRESS, "Address of the broker, without its password.",
            "amqps://corral@mq.example/corral", into="broker"),
        Key("password_file", PATH_TEXT, "File with the password of the broker, readable by its owner only.",
            "/etc/corral/broker.password", into="password_file"),
        Key("prefetch", number("a number of messages", 1, 10_000),
            "Messages that the broker delivers before the first of them is durable.", 500, default="500",
            into="prefetch"),
        Key("events", FLAG, "Publish state changes of jobs to corral.events.", True, default="true", into="events"),
    ],
)  # fmt: skip
INTAKE = struct_kind(INTAKE_KEYS, "a mapping", IntakeRules)
