"""What the server and its gateway say to each other over a pair of sockets.

A message is one byte of kind, the number of the connection that it is about, the name of the node, and a body. Knows
nothing of what is in a body; both ends trust each other. What an agent says is passed on as it came.
"""

from __future__ import annotations

import struct
from typing import Final

from msgspec import Struct

from corral.backends.fleet.leases import Standing
from corral.backends.fleet.settings import FleetSettings
from corral.server.gateway.roster import Credential, Roster

#: To the gateway: the right to extend leases; all nodes; one node; a node less; credentials of one node; the last
#: lease; what an agent is to be told.
DELEGATE, MEMBERS, ADMIT, DROP = b"D", b"M", b"A", b"X"
CREDENTIALS, FAREWELL, TELL = b"C", b"F", b"T"
#: From the gateway: a lease is over; what an agent said; a connection is over; that all were told farewell; figures.
GONE, SAID, LEFT, TOLD, FIGURES = b"G", b"S", b"L", b"B", b"Z"

HEAD: Final = struct.Struct("!ccIHI")  # kind, kind of the agent's message, connection, length of the name, of the body


class Setup(Struct, frozen=True, kw_only=True):
    """What the gateway is told when it begins. ``authority_ms``: until when it may extend leases, by the clock of the
    boot."""

    epoch: int
    settings: FleetSettings
    authority_ms: int = 0
    roster: Roster = Roster()
    tls_certificate: str = ""
    tls_key: str = ""
    connections_max: int = 8_000
    unknown_max: int = 2_048  # connections that have not proved who they are, in all
    unknown_of_address_max: int = 1_024
    hello_s: float = 5.0


class Members(Struct, frozen=True):
    """The state is loaded: these nodes there are, and these credentials. ``farewell_ms``: the lease that an earlier
    server may have left behind."""

    standings: dict[str, Standing]
    credentials: dict[str, tuple[Credential, ...]]
    farewell_ms: int = 0


class Figures(Struct, frozen=True, gc=False):
    """Counted since the gateway began, but for ``connections``."""

    connections: int = 0
    renewals: int = 0
    refused: int = 0  # connections that were not let in, or put out
    busy: int = 0  # messages that found no room on their way to the server


def message(kind: bytes, node: str = "", body: bytes = b"", connection: int = 0, about: bytes = b"-") -> bytes:
    name = node.encode()
    return HEAD.pack(kind, about, connection, len(name), len(body)) + name + body


class Message(Struct, frozen=True, gc=False):
    kind: bytes
    about: bytes  # the kind of an agent's message, or of what it is told
    connection: int
    node: str
    body: bytes


class Parting:
    """Takes a stream of bytes apart into messages."""

    def __init__(self) -> None:
        self._raw = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        raw, found, at = self._raw, list[Message](), 0
        raw += data
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
