"""Whether teams got what was theirs: shares received against shares entitled to, and finish times against those that a
cluster of one's own would have given.

Entitlement is max-min fair by weight: what one team does not want, the others share. Knows step functions and jobs;
knows nothing of the guarantees that a policy was told to keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush

from msgspec import Struct

from corral.sim.report.series import Series, even_bounds

#: The window is cut into so many pieces; within one a team may catch up on what it missed.
PIECES = 500


class TeamShare(Struct):
    """What a team received in the window. All but ``received_of_wanted`` are shares of the GPU time in service."""

    received: float
    entitled: float
    deficit: float
    received_of_wanted: float | None  # None: it wanted nothing


class Shares(Struct):
    """Shares in the window: how far all were from what they were entitled to, and how even satisfaction was."""

    deficit: float | None  # None: the window has no length or no GPUs
    deviation: float | None
    jain: float | None
    teams: dict[str, TeamShare]


def shares(run: Series, since: int, until: int, weights: Mapping[str, int]) -> Shares:
    """Compare what teams received with what they were entitled to, piece by piece of a window."""
    bounds = even_bounds(since, until, PIECES)
    capacity = run.capacity.pieces(bounds)
    whole = sum(capacity)
    if not whole:
        return Shares(None, None, None, {})
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
    return Shares(owed, owed + sum(excess.values()) / whole, jain(satisfied), teams)


def max_min(wants: Iterable[tuple[str, int, int]], room: int) -> dict[str, float]:
    """Divide room among (team, wanted, weight): nobody gets more than it wants, the others share the rest by weight."""
    waiting = sorted(wants, key=lambda want: (want[1] / want[2], want[0]))
    weight, left, found = sum(want[2] for want in waiting), float(room), {}
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
    """Completion times of (submitted, work, GPU-milli), in order of submission, on so many GPUs of one's own.

    First come, first served, and GPUs are all alike. A job that asks for more than there is runs on all of it for as
    much longer as it has fewer GPUs.
    """
    free, now, found = gpu_milli, 0, []
    ends: list[tuple[int, int]] = []  # a heap of (end, GPU-milli) of what runs
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
