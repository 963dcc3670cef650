"""The messages between the server and the `driver` in Ray's environment: requests, and answers that are checked.

Values only, as the server sees them; the driver may not import this module and uses plain dictionaries with the same
keys. Both are of one version, because the server starts the driver.
"""

from __future__ import annotations

from msgspec import Struct


class OpenRequest(Struct, frozen=True, gc=False):
    """Connect to Ray. The first message; answered with number 0."""

    address: str
    namespace: str


class NodesRequest(Struct, frozen=True, gc=False, tag_field="act", tag="nodes"):
    """List the nodes that are alive."""


class AskRequest(Struct, frozen=True, gc=False, kw_only=True, tag_field="act", tag="ask"):
    """Run the bytes that follow on a node, with ``words`` as the program. ``is_met``: create an actor if there is none,
    with ``first`` as its first request."""

    node: str
    within_s: float
    is_met: bool
    words: str
    python: str
    first: str


class Envelope(Struct, frozen=True, gc=False):
    """What every answer has. ``away``: there was no answer from Ray, so the outcome is unknown."""

    number: int
    away: str = ""


class NodeAnswer(Struct, frozen=True, gc=False):
    """A node, as Ray describes it."""

    id: str
    address: str
    host: str
    labels: dict[str, str]
    is_head: bool


class NodesAnswer(Struct, frozen=True, gc=False):
    nodes: tuple[NodeAnswer, ...]


class AskAnswer(Struct, frozen=True, gc=False):
    """``is_absent``: there is no actor, and none was to be created. ``caveat``: a warning about the node."""

    is_absent: bool = False
    output: str = ""
    caveat: str = ""
