"""Finds the waiting jobs that make planning fail, by planning again without some of them, each time in a new process.

Used when a policy has raised an error, or has not returned. Knows how to try and bisect; the server decides what to do
with the jobs.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence

from msgspec import Struct

from corral.core.apply import apply
from corral.core.commit import commit
from corral.core.engine import Policy, apply_all
from corral.core.intake.commands import hold
from corral.core.intake.refusal import Refusal
from corral.core.model import GangState
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.server.planner.forked import TrialFailed, forked

CULPRITS_MAX = 8  # in one search; what is left is found by the next one
_FAULT_CHARS = 500

#: Plans without these jobs. Returns the error, or "" if there was none.
Trial = Callable[[Sequence[str]], str]


class Search(Struct, frozen=True, gc=False):
    """A search. ``patience_s``: a trial that takes longer has failed."""

    now_ms: int
    patience_s: float


class Culprit(Struct, frozen=True, gc=False):
    """A job that makes planning fail, and the error."""

    job: str
    fault: str


class BisectResult(Struct, frozen=True, gc=False):
    """``fault``: the error with all waiting jobs; empty: planning works now. No culprits: no job is the cause."""

    fault: str
    culprits: tuple[Culprit, ...] = ()


def search(state: State, policy: Policy, asked: Search) -> BisectResult:
    """Find the waiting jobs that make planning fail. Each one takes about log2 of their number in trials."""
    jobs = list(dict.fromkeys(g.job for g in state.gangs.values() if g.state is GangState.WAITING and not g.blockers))
    return find(jobs, lambda without: _outcome(state, policy, asked, without))


def find(jobs: Sequence[str], trial: Trial) -> BisectResult:
    """Bisect: find the shortest prefix of the jobs without which planning works; its last job is a culprit. Then search
    the jobs before it.

    If several jobs fail only together, the last of them is found.
    """
    first_fault = trial([])
    if not first_fault:
        return BisectResult("")
    found: list[Culprit] = []
    left, fault = list(jobs), first_fault
    while len(found) < CULPRITS_MAX and fault:
        known = [each.job for each in found]
        if not left or trial([*known, *left]):
            break  # also without all of them
        fails, works = 0, len(left)  # lengths of prefixes: planning fails without the first, works without the second
        while works - fails > 1:
            middle = (fails + works) // 2
            if trial([*known, *left[:middle]]):
                fails = middle
            else:
                works = middle
        found.append(Culprit(left[fails], fault))
        left = left[:fails]
        fault = trial([each.job for each in found])
    return BisectResult(first_fault, tuple(found))


def _outcome(state: State, policy: Policy, asked: Search, without: Sequence[str]) -> str:
    """The error of a trial, in a process of its own; empty: it worked."""
    try:
        fault = forked(lambda: _tried(state, policy, asked.now_ms, without).encode(), asked.patience_s)
    except TrialFailed as failed:
        return str(failed)
    return fault.decode()[:_FAULT_CHARS]


def _tried(state: State, policy: Policy, now_ms: int, without: Sequence[str]) -> str:
    try:
        for job in without:
            events = hold(state, job, now_ms)
            for event in () if isinstance(events, Refusal) else events:
                apply(state, event)
        apply_all(state, commit(state, policy(Snapshot(state, now_ms)), now_ms), now_ms)
    except Exception as fault:
        last = traceback.extract_tb(fault.__traceback__)[-1]
        return f"{type(fault).__name__}: {fault} ({os.path.basename(last.filename)}:{last.lineno})"
    return ""
