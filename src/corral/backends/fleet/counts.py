"""How often what was said or ordered came too late. Values only; whoever meets it counts it."""

from __future__ import annotations

from msgspec import Struct


class FleetCounts(Struct):
    """Since this server leads."""

    reports: int = 0
    late_reports: int = 0  # repeated, overtaken by another, or of a node that was given up
    old_reports: int = 0  # of an epoch that was over, from an agent that had heard of the present one
    refused_orders: int = 0  # by agents, because they were too old
    bad_reports: int = 0  # messages of nodes that were refused as a whole
    bad_items: int = 0  # parts of reports that were cut, put right or left out
    stray_tasks: int = 0  # tasks that a node said it has and was never given
    connections: int = 0  # of agents, at present
    renewals: int = 0
    connections_refused: int = 0
    messages_busy: int = 0  # that found no room on their way to the server
