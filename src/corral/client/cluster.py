"""Requests about queues, nodes, usage and the server. Each method describes its request; see ``call``."""

from __future__ import annotations

from corral.client.call import ApiCall, call, path
from corral.wire.api.accounts import JoinTokenBody, TokenMade
from corral.wire.api.activity import ClusterActivity
from corral.wire.api.cluster import DrainBody, NodeList, NodeView, QueueBody, QueueList, QueuePreview, QueueView
from corral.wire.api.figures import SeriesView
from corral.wire.api.jobs import ChangeAnswer
from corral.wire.api.live import LineView, LivePart, LiveView, SearchView, TopologyView
from corral.wire.api.record import HealthView, UsageParts, UsageView


class ClusterCalls:
    """Queues, nodes, usage, health."""

    @call
    def queues(self) -> ApiCall[QueueList]:
        """All queues, each before its children."""
        return ApiCall("GET", path("queues"), QueueList)

    @call
    def queue(self, name: str) -> ApiCall[QueueView]:
        """One queue: its settings and usage."""
        return ApiCall("GET", path("queues", name), QueueView)

    @call
    def set_queue(self, name: str, terms: QueueBody) -> ApiCall[ChangeAnswer]:
        """Create a queue, or change its settings."""
        return ApiCall("PUT", path("queues", name), ChangeAnswer, body=terms)

    @call
    def preview_queue(self, name: str, terms: QueueBody) -> ApiCall[QueuePreview]:
        """Which gangs would have to leave, and start, with these settings of a queue. Changes nothing."""
        return ApiCall("PUT", path("queues", name), QueuePreview, {"dry_run": True}, terms)

    @call
    def usage_parts(
        self, *, queue: str | None = None, user: str | None = None, since: str | None = None, until: str | None = None
    ) -> ApiCall[UsageParts]:
        """GPU time by model, with its cost, and lost work by cause."""
        about = {"queue": queue, "user": user, "since": since, "until": until}
        return ApiCall("GET", path("usage", "parts"), UsageParts, about)

    @call
    def remove_queue(self, name: str) -> ApiCall[ChangeAnswer]:
        """Remove an empty queue."""
        return ApiCall("DELETE", path("queues", name), ChangeAnswer)

    @call
    def nodes(self) -> ApiCall[NodeList]:
        """All nodes and their GPUs."""
        return ApiCall("GET", path("nodes"), NodeList)

    @call
    def activity(self, *, limit: int = 100) -> ApiCall[ClusterActivity]:
        """What nodes and running jobs do now. ``limit``: the most of each; totals are over all."""
        return ApiCall("GET", path("activity"), ClusterActivity, {"limit": limit})

    @call
    def live(self, *parts: LivePart) -> ApiCall[LiveView]:
        """The cluster at a glance; with ``"nodes"`` also the map, with ``"queues"`` also the queues."""
        return ApiCall("GET", path("live"), LiveView, {"parts": parts})

    @call
    def topology(self) -> ApiCall[TopologyView]:
        """All nodes where they are in the topology, with the state and figures of each GPU."""
        return ApiCall("GET", path("topology"), TopologyView)

    @call
    def series(self, *names: str, since_ms: int | None = None, until_ms: int | None = None) -> ApiCall[SeriesView]:
        """Figures over time, such as ``cluster/gpus_used`` or ``job/35/utilisation``; by default of the last hour."""
        return ApiCall("GET", path("series"), SeriesView, {"names": names, "since_ms": since_ms, "until_ms": until_ms})

    @call
    def line(self, *, queue: str | None = None, limit: int = 100) -> ApiCall[LineView]:
        """Waiting gangs in the order in which they are served."""
        return ApiCall("GET", path("line"), LineView, {"queue": queue, "limit": limit})

    @call
    def search(self, text: str, *, limit: int = 8) -> ApiCall[SearchView]:
        """Jobs, nodes, queues and users whose name has this text in it."""
        return ApiCall("GET", path("search"), SearchView, {"text": text, "limit": limit})

    @call
    def node(self, name: str) -> ApiCall[NodeView]:
        """One node."""
        return ApiCall("GET", path("nodes", name), NodeView)

    @call
    def drain(self, node: str, why: str = "") -> ApiCall[ChangeAnswer]:
        """Drain a node: start nothing new on it, and requeue its jobs after a warning."""
        return ApiCall("POST", path("nodes", node, "drain"), ChangeAnswer, body=DrainBody(why=why))

    @call
    def undrain(self, node: str) -> ApiCall[ChangeAnswer]:
        """Undrain a node: start jobs on it again."""
        return ApiCall("POST", path("nodes", node, "undrain"), ChangeAnswer)

    @call
    def cordon(self, node: str) -> ApiCall[ChangeAnswer]:
        """Cordon a node: start nothing new on it, and let its jobs finish."""
        return ApiCall("POST", path("nodes", node, "cordon"), ChangeAnswer)

    @call
    def uncordon(self, node: str) -> ApiCall[ChangeAnswer]:
        """Uncordon a node: start jobs on it again."""
        return ApiCall("POST", path("nodes", node, "uncordon"), ChangeAnswer)

    @call
    def remove_node(self, node: str) -> ApiCall[ChangeAnswer]:
        """Remove a node on which nothing runs, and revoke its credential."""
        return ApiCall("DELETE", path("nodes", node), ChangeAnswer)

    @call
    def make_join_token(self, node: str = "", expires_in_ms: int = 3_600_000) -> ApiCall[TokenMade]:
        """Create a token with which one node can join, once; with a name: only as this node."""
        body = JoinTokenBody(node=node, expires_in_ms=expires_in_ms)
        return ApiCall("POST", path("join-tokens"), TokenMade, body=body, repeatable=False)

    @call
    def usage(
        self, *, queue: str | None = None, user: str | None = None, since: str | None = None, until: str | None = None
    ) -> ApiCall[UsageView]:
        """GPU time by queue, user and day (UTC, YYYY-MM-DD; both ends included)."""
        return ApiCall("GET", path("usage"), UsageView, {"queue": queue, "user": user, "since": since, "until": until})

    @call
    def health(self) -> ApiCall[HealthView]:
        """The health of the server."""
        return ApiCall("GET", path("health"), HealthView)
