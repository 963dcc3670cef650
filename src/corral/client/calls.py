"""All requests to a server, described once for both clients."""

from __future__ import annotations

from corral.client.cluster import ClusterCalls
from corral.client.fleets import FleetCalls
from corral.client.follow import FollowCalls
from corral.client.jobs import JobCalls
from corral.client.people import PeopleCalls


class Calls(JobCalls, FollowCalls, ClusterCalls, FleetCalls, PeopleCalls):
    """The methods of ``Client`` and ``AsyncClient``."""
