"""Counters of messages from agents: late, refused and invalid ones. Values only."""

from __future__ import annotations

from msgspec import Struct


class RemoteCounters(Struct):
    """Counted since this server became the leader."""

    reports: int = 0
    late_reports: int = 0  # repeated, overtaken by another, or of a lost node
    old_reports: int = 0  # of an earlier epoch, from an agent that already knew the present one
    refused_orders: int = 0  # by agents, because they were too old
    bad_reports: int = 0  # messages of nodes that were refused as a whole
    bad_items: int = 0  # parts of reports that were cut, corrected or dropped
    stray_tasks: int = 0  # tasks that a node reported but was never given
    connections: int = 0  # of agents, at present
    renewals: int = 0
    connections_refused: int = 0
    messages_busy: int = 0  # refused because the queue to the server was full
