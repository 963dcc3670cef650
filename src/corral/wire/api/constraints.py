"""Which names and numbers requests may have, as types for the description of the API.

Only described here: the server checks them where they are used, and answers with a code of its own for each. A test
compares both. Must not import the core: the command line loads this.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

AMOUNT_MAX = 1 << 53
USER = r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}"
NODE = SECRET = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
ACCOUNT = r"[a-z_][a-z0-9_.-]{0,31}"
QUEUE = r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*"
FLEET = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,46}[A-Za-z0-9])?"
QUEUE_CHARS = 256


def _text(pattern: str, *, empty: bool = True) -> Meta:
    """``empty``: no name at all is allowed too, and means what the field says."""
    return Meta(extra_json_schema={"pattern": f"^({pattern})?$" if empty else f"^{pattern}$"})


def _number(least: int, most: int) -> Meta:
    return Meta(extra_json_schema={"minimum": least, "maximum": most})


UserName = Annotated[str, _text(USER)]
AccountName = Annotated[str, _text(ACCOUNT)]
NodeName = Annotated[str, _text(NODE)]
QueueName = Annotated[str, Meta(extra_json_schema={"pattern": f"^({QUEUE})?$", "maxLength": QUEUE_CHARS})]
TokenName = Annotated[str, Meta(extra_json_schema={"maxLength": 100})]
Priority = Annotated[int, _number(-1_000_000, 1_000_000)]
TokenMs = Annotated[int, _number(1, 10 * 366 * 86_400_000)]
JoinMs = Annotated[int, _number(1, 30 * 86_400_000)]
Amount = Annotated[int, _number(-AMOUNT_MAX, AMOUNT_MAX)]
Nodes = Annotated[int, _number(0, 10_000)]
IdleMs = Annotated[int, _number(1_000, 30 * 86_400_000)]
LastsMs = Annotated[int, _number(60_000, AMOUNT_MAX)]
Cost = Annotated[int, _number(0, AMOUNT_MAX)]

#: Names in paths, by the parameter. ``token`` is an id, which the server made.
IN_PATHS = {"user": USER, "secret": SECRET, "node": NODE, "queue": QUEUE, "fleet": FLEET}
