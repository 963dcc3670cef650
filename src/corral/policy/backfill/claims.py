"""Claims: whether the claimed seats can still be used by their gang, whether they are vacant, and whether another gang
takes them over. See decision 0002."""

from __future__ import annotations

from corral.core.model import Blocker, Gang
from corral.core.plan import MakeRoom
from corral.core.snapshot import Draft
from corral.core.state import lasts


def is_tenable(draft: Draft, gang: Gang) -> bool:
    """Whether a gang can still use its claimed seats."""
    if gang.blockers & ~Blocker.BACKOFF or not lasts(draft.state, gang, gang.claim, draft.now_ms):
        return False
    capacity, number = draft.capacity, draft.state.topology.number
    numbers = [(number.get(seat.node), seat.gpus) for seat in gang.claim]
    return all(n is not None and capacity.open[n] and not gpus & ~capacity.up[n] for n, gpus in numbers)


def is_vacant(draft: Draft, gang: Gang) -> bool:
    """Whether the claimed seats of a gang are vacant."""
    capacity, number = draft.capacity, draft.state.topology.number
    tasks: dict[int, int] = {}
    for seat in gang.claim:
        n = number[seat.node]
        tasks[n] = tasks.get(n, 0) + 1
        if seat.gpus & capacity.used[n]:
            return False
    return all(
        (capacity.left[name][n] or 0) >= each * count for n, count in tasks.items() for name, each in gang.amounts
    )


class Takeovers:
    """Claims that are vacant, and that other gangs take over: the gang would be preempted as soon as it had started.

    A takeover is found when a gang searches for victims. The plan is then made again: the claim is dropped, and the
    gang that found it has the first turn. If it does not start that way, the claim is used after all.
    """

    def __init__(self, draft: Draft, known: Takeovers | None = None) -> None:
        self._draft = draft
        self._by_claimant: dict[str, str] = {} if known is None else known._by_claimant
        self._kept: set[str] = set() if known is None else known._kept  # claims that are used in any case
        self.found = False  # a takeover that was not known: this plan is not valid

    def are_of(self, gang: Gang) -> bool:
        """Whether the claim of a gang is taken over."""
        return gang.id in self._by_claimant

    def may_be_of(self, gang: Gang) -> bool:
        return gang.id not in self._kept

    def beneficiaries(self) -> list[Gang]:
        """The gangs that take over claims, in the order in which this was found."""
        return [self._draft.state.gangs[name] for name in dict.fromkeys(self._by_claimant.values())]

    def look(self, decision: MakeRoom) -> bool:
        """Whether some of the victims are about to start on their claims."""
        claimants = self._draft.state.claimants
        for victim in decision.victims:
            if victim.gang in claimants and victim.gang in self._draft.served:
                self._by_claimant[victim.gang] = decision.gang
                self.found = True
        return self.found

    def again(self) -> Takeovers | None:
        """With what to make the plan again; None: it is valid."""
        for claimant, beneficiary in list(self._by_claimant.items()):
            if not self.found and beneficiary not in self._draft.served:
                self._kept.add(claimant)
                del self._by_claimant[claimant]
                self.found = True
        return self if self.found else None
