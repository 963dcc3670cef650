"""What can be asked about queues, nodes, usage and the server. Each method describes its request; see ``call``."""

from __future__ import annotations

from corral.client.call import Call, call, path
from corral.wire.api.cluster import DrainBody, NodeList, NodeView, QueueBody, QueueList, QueueView
from corral.wire.api.jobs import ChangeAnswer
from corral.wire.api.people import JoinTokenBody, TokenMade
from corral.wire.api.record import HealthView, UsageView


class ClusterCalls:
    """Queues, nodes, usage, health."""

    @call
    def queues(self) -> Call[QueueList]:
        """The tree of queues, each before those below it."""
        return Call("GET", path("queues"), QueueList)

    @call
    def queue(self, name: str) -> Call[QueueView]:
        """One queue: its terms and what it has."""
        return Call("GET", path("queues", name), QueueView)

    @call
    def set_queue(self, name: str, terms: QueueBody) -> Call[ChangeAnswer]:
        """Make a queue, or give it other terms."""
        return Call("PUT", path("queues", name), ChangeAnswer, body=terms)

    @call
    def remove_queue(self, name: str) -> Call[ChangeAnswer]:
        """Remove a queue that is empty."""
        return Call("DELETE", path("queues", name), ChangeAnswer)

    @call
    def nodes(self) -> Call[NodeList]:
        """The machines and their GPUs."""
        return Call("GET", path("nodes"), NodeList)

    @call
    def node(self, name: str) -> Call[NodeView]:
        """One machine."""
        return Call("GET", path("nodes", name), NodeView)

    @call
    def drain(self, node: str, why: str = "") -> Call[ChangeAnswer]:
        """Take nothing new and ask everybody on it to leave."""
        return Call("POST", path("nodes", node, "drain"), ChangeAnswer, body=DrainBody(why=why))

    @call
    def undrain(self, node: str) -> Call[ChangeAnswer]:
        """Take work again."""
        return Call("POST", path("nodes", node, "undrain"), ChangeAnswer)

    @call
    def remove_node(self, node: str) -> Call[ChangeAnswer]:
        """Remove a machine on which nothing runs, with its credential."""
        return Call("DELETE", path("nodes", node), ChangeAnswer)

    @call
    def make_join_token(self, node: str = "", expires_in_ms: int = 3_600_000) -> Call[TokenMade]:
        """A token with which one machine can join, once; as this node, if one is named."""
        body = JoinTokenBody(node=node, expires_in_ms=expires_in_ms)
        return Call("POST", path("join-tokens"), TokenMade, body=body, repeatable=False)

    @call
    def usage(
        self, *, queue: str | None = None, user: str | None = None, since: str | None = None, until: str | None = None
    ) -> Call[UsageView]:
        """GPU time by queue, user and day (UTC, YYYY-MM-DD; both ends included)."""
        return Call("GET", path("usage"), UsageView, {"queue": queue, "user": user, "since": since, "until": until})

    @call
    def health(self) -> Call[HealthView]:
        """Whether the server is in service."""
        return Call("GET", path("health"), HealthView)
