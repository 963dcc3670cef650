"""All requests to a server, described once for both clients."""

from __future__ import annotations

from corral.client.accounts import AccountCalls
from corral.client.batches.batch_calls import BatchCalls
from corral.client.cluster import ClusterCalls
from corral.client.fleets import FleetCalls
from corral.client.follow import FollowCalls
from corral.client.jobs import JobCalls
from corral.client.publishing.intake_calls import IntakeCalls


class Calls(JobCalls, FollowCalls, ClusterCalls, FleetCalls, BatchCalls, IntakeCalls, AccountCalls):
    """The methods of ``Client`` and ``AsyncClient``."""
