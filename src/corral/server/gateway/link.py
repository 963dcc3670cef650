"""Messages between the server and its gateway over a pair of sockets.

A message is one byte of kind, the number of the connection that it is about, the name of the node, and a body. Knows
nothing about what is in a body; both ends trust each other. Messages of agents are forwarded unchanged.
"""

from __future__ import annotations

import struct
from typing import Final

from msgspec import Struct

from corral.remote.leases import LeaseStatus
from corral.remote.settings import RemoteSettings
from corral.server.gateway.roster import NodeCredential, Roster

#: To the gateway: the right to extend leases; all nodes; a new or changed node; a removed node; credentials of one
#: node; the last lease; a message for an agent.
DELEGATE = b"D"
MEMBERS = b"M"
ADMIT = b"A"
DROP = b"X"
CREDENTIALS = b"C"
FAREWELL = b"F"
TELL = b"T"
#: From the gateway: a lease expired; a message of an agent; a connection ended; the last leases were sent; counters.
GONE = b"G"
SAID = b"S"
LEFT = b"L"
TOLD = b"B"
FIGURES = b"Z"

HEAD: Final = struct.Struct("!ccIHI")  # kind, kind of the agent's message, connection, length of the name, of the body


class Setup(Struct, frozen=True, kw_only=True):
    """What the gateway gets at its start. ``authority_ms``: until when it may extend leases, by the boot clock."""

    epoch: int
    settings: RemoteSettings
    authority_ms: int = 0
    roster: Roster = Roster()
    tls_certificate: str = ""
    tls_key: str = ""
    connections_max: int = 8_000
    unknown_max: int = 2_048  # connections that have not identified themselves
    unknown_of_address_max: int = 1_024
    hello_s: float = 5.0


class Members(Struct, frozen=True):
    """All nodes and credentials, once the state is loaded. ``farewell_ms``: the last lease that an earlier server may
    have given."""

    standings: dict[str, LeaseStatus]
    credentials: dict[str, tuple[NodeCredential, ...]]
    farewell_ms: int = 0


class Figures(Struct, frozen=True, gc=False):
    """Counted since the gateway started, except ``connections``."""

    connections: int = 0
    renewals: int = 0
    refused: int = 0  # connections that were refused or closed
    busy: int = 0  # messages that found the queue to the server full


def message(kind: bytes, node: str = "", body: bytes = b"", connection: int = 0, about: bytes = b"-") -> bytes:
    name = node.encode()
    return HEAD.pack(kind, about, connection, len(name), len(body)) + name + body


class Message(Struct, frozen=True, gc=False):
    kind: bytes
    about: bytes  # the kind of the message from or to an agent
    connection: int
    node: str
    body: bytes


class Parting:
    """Splits a stream of bytes into messages."""

    def __init__(self) -> None:
        self._raw = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        raw = self._raw
        raw += data
        found: list[Message] = []
        at = 0
        while len(raw) - at >= HEAD.size:
            kind, about, connection, named, length = HEAD.unpack_from(raw, at)
            end = at + HEAD.size + named + length
            if len(raw) < end:
                break
            begin = at + HEAD.size
            node = bytes(raw[begin : begin + named]).decode()
            found.append(Message(kind, about, connection, node, bytes(raw[begin + named : end])))
            at = end
        del raw[:at]
        return found
