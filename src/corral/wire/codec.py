"""Encoding of events: JSON, tagged with the name of the class, under a format number.

Knows the events and every format they were ever written in. Does not know records, files or what events mean.
The same event always gives the same bytes: fields in the order of their class, every field, no spaces.

When an event changes so that old bytes would be read wrongly or not at all: raise ``FORMAT``, add to ``UPCASTERS`` how
a record of the format before becomes one of the new format, and record a journal in tests/journals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from corral.core.accounts.accounts import AccountEvent
from corral.core.events import Event
from corral.core.fleets.fleets import FleetEvent

#: The events of a journal.
AnyEvent = Event | AccountEvent | FleetEvent
#: From the raw form of an event in one format to its raw form in the next.
Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

#: The format that ``encode`` writes.
FORMAT = 1
#: Format n: the function that turns it into format n + 1. Used for old records only.
UPCASTERS: Mapping[int, Upcaster] = {}


class Unreadable(ValueError):
    """These bytes are not an event that this version of Corral knows."""


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_raw_decoder: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])

encode: Callable[[AnyEvent], bytes] = _encoder.encode


def decode(format: int, body: bytes) -> AnyEvent:
    """The event in these bytes, which were written in this format."""
    try:
        if format == FORMAT:
            return _decoder.decode(body)
        return decode_old(format, body, FORMAT, UPCASTERS)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise Unreadable(f"format {format}: {_what_it_claims_to_be(body)}: {wrong}") from None


def decode_old(format: int, body: bytes, newest: int, upcasters: Mapping[int, Upcaster]) -> AnyEvent:
    """Raise the raw event from format to format, up to the newest, then read it."""
    if not 0 < format <= newest:
        raise Unreadable(
            f"format {format} is unknown: this version of Corral reads formats 1 to {newest}. "
            "A newer version wrote it; use that one, or a later one."
        )
    raw = _raw_decoder.decode(body)
    for number in range(format, newest):
        raw = upcasters[number](raw)
    event: AnyEvent = msgspec.convert(raw, AnyEvent)
    return event


def kind_of(body: bytes) -> str:
    """The name of the event's class, read off the front of the bytes without decoding them; "" if they begin otherwise.

    Correct for every format, since the tag has always been the first field.
    """
    if body[:9] != b'{"type":"':
        return ""
    return body[9 : body.find(b'"', 9)].decode("ascii", "replace")


def _what_it_claims_to_be(body: bytes) -> str:
    kind = kind_of(bytes(body))
    return f"an event that says it is {kind}" if kind else f"bytes that begin with {bytes(body[:24])!r}"
