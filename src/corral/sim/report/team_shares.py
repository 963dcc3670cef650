"""Fairness between teams: received shares compared with entitled shares, and finish times compared with those in a
cluster of the team alone.

Entitlement is max-min fair by weight: what one team does not want, the others share. Knows step functions and jobs;
does not know the guarantees that a policy must keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush

from msgspec import Struct

from corral.sim.report.series import Series, even_bounds

#: Number of pieces of the window; within one piece a team may catch up on what it missed.
PIECES = 500


class TeamShare(Struct):
    """What a team received in the window. All except ``received_of_wanted`` are shares of the GPU time in service."""

    received: float
    entitled: float
    deficit: float
    received_of_wanted: float | None  # None: it wanted nothing


class ShareReport(Struct):
    """Shares in the window: distance from entitlement, and how evenly demand was satisfied."""

    deficit: float | None  # None: the window has no length or no GPUs
    deviation: float | None
    jain: float | None
    teams: dict[str, TeamShare]


def shares(run: Series, since: int, until: int, weights: Mapping[str, int]) -> ShareReport:
    """Compare what teams received with what they were entitled to, piece by piece of a window."""
    bounds = even_bounds(since, until, PIECES)
    capacity = run.capacity.pieces(bounds)
    whole = sum(capacity)
    if not whole:
        return ShareReport(None, None, None, {})
    received = {team: steps.held.pieces(bounds) for team, steps in run.teams.items()}
    wanted = {
        team: [had + more for had, more in zip(received[team], steps.in_line.pieces(bounds), strict=True)]
        for team, steps in run.teams.items()
    }
    entitled, deficit, excess = (dict.fromkeys(run.teams, 0.0) for _ in range(3))
    for piece, room in enumerate(capacity):
        wants = [(team, wanted[team][piece], weights.get(team, 1)) for team in run.teams if wanted[team][piece]]
        for team, due in max_min(wants, room).items():
            short = due - received[team][piece]
            entitled[team] += due
            deficit[team] += max(0.0, short)
            excess[team] += max(0.0, -short)
    teams = {}
    for team in run.teams:
        had, wish = sum(received[team]), sum(wanted[team])
        teams[team] = TeamShare(
            had / whole, entitled[team] / whole, deficit[team] / whole, had / wish if wish else None
        )
    owed = sum(deficit.values()) / whole
    satisfied = [share.received_of_wanted for share in teams.values() if share.received_of_wanted is not None]
    return ShareReport(owed, owed + sum(excess.values()) / whole, jain(satisfied), teams)


def max_min(wants: Iterable[tuple[str, int, int]], room: int) -> dict[str, float]:
    """Divide capacity among (team, wanted, weight): no team gets more than it wants, the rest is shared."""
    waiting = sorted(wants, key=lambda want: (want[1] / want[2], want[0]))
    weight = sum(want[2] for want in waiting)
    left = float(room)
    found = {}
    for team, wanted, own in waiting:
        found[team] = min(float(wanted), left * own / weight)
        left -= found[team]
        weight -= own
    return found


def jain(values: Sequence[float]) -> float | None:
    """Jain's index: 1 if all are equal, 1/n if one has everything. None if there is nothing to compare."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None


def completion_alone(jobs: Sequence[tuple[int, int, int]], gpu_milli: int) -> list[int]:
    """Completion times of (submitted, work, GPU-milli), in order of submission, on a cluster of this many GPUs.

    First come, first served; all GPUs are equal. A job that requests more than there is runs on all of it,
    proportionally longer.
    """
    free = gpu_milli
    now = 0
    found = []
    ends: list[tuple[int, int]] = []  # a heap of (end, GPU-milli) of running jobs
    for submitted, work, asked in jobs:
        now = max(now, submitted)
        taken = min(asked, gpu_milli)
        while ends and (ends[0][0] <= now or free < taken):
            end, freed = heappop(ends)
            now, free = max(now, end), free + freed
        lasts = work * asked // taken if taken else work
        free -= taken
        heappush(ends, (now + lasts, taken))
        found.append(now + lasts - submitted)
    return found
