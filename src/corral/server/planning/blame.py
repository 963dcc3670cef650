"""Which waiting jobs make planning fail: found by planning again without some of them, each time in its own process.

Used when a policy has raised, or has not returned, for the whole line. A trial is a fork of the planner: what it does
to the state is lost with it, and one that hangs is ended. Knows how to try and how to halve; what is done about the
jobs is decided by the server.
"""

from __future__ import annotations

import gc
import math
import os
import select
import signal
import traceback
from collections.abc import Callable, Sequence

from msgspec import Struct

from corral.core.apply import apply
from corral.core.engine import Engine, Policy
from corral.core.intake.commands import hold
from corral.core.intake.refusal import Refusal
from corral.core.model import GangState
from corral.core.state import State

CULPRITS_MAX = 8  # in one search; what is left is found by the next one
_FAULT_CHARS = 500

#: Plans without these jobs; what went wrong, or "" if nothing did.
Trial = Callable[[Sequence[str]], str]


class Search(Struct, frozen=True, gc=False):
    """``patience_s``: a trial that takes longer has failed."""

    now_ms: int
    patience_s: float


class Culprit(Struct, frozen=True, gc=False):
    """A job without which planning goes further, and what went wrong with it."""

    job: str
    fault: str


class Verdict(Struct, frozen=True, gc=False):
    """``fault``: what goes wrong with everybody in line; empty: nothing any more. No culprits: no job explains it."""

    fault: str
    culprits: tuple[Culprit, ...] = ()


def search(state: State, policy: Policy, asked: Search) -> Verdict:
    """Find the jobs in line that make planning fail. Needs about twice the logarithm of their number in trials."""
    jobs = list(dict.fromkeys(g.job for g in state.gangs.values() if g.state is GangState.WAITING and not g.blockers))
    return find(jobs, lambda without: _forked(state, policy, asked, without))


def find(jobs: Sequence[str], trial: Trial) -> Verdict:
    """The search itself: the first of the shortest row of jobs without which it works is one, then the next before it.

    Where several jobs fail only together, the last of them is found.
    """
    first_fault = trial([])
    if not first_fault:
        return Verdict("")
    found: list[Culprit] = []
    left, fault = list(jobs), first_fault
    while len(found) < CULPRITS_MAX and fault:
        known = [each.job for each in found]
        if not left or trial([*known, *left]):
            break  # also without all of them
        fails, works = 0, len(left)  # it fails without the first so many of them; it works without so many
        while works - fails > 1:
            middle = (fails + works) // 2
            if trial([*known, *left[:middle]]):
                fails = middle
            else:
                works = middle
        found.append(Culprit(left[fails], fault))
        left = left[:fails]
        fault = trial([each.job for each in found])
    return Verdict(first_fault, tuple(found))


def _forked(state: State, policy: Policy, asked: Search, without: Sequence[str]) -> str:
    """Plan and commit in a child. It ends by itself shortly after its time, also if nobody is left to end it."""
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(heard)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(math.ceil(asked.patience_s) + 1)
            gc.disable()
            os.write(said, (_tried(state, policy, asked.now_ms, without) or "works")[:_FAULT_CHARS].encode())
        finally:
            os._exit(0)
    os.close(said)
    try:
        answer = _heard(heard, asked.patience_s)
    finally:
        os.close(heard)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if answer is None:
        return f"no plan within {asked.patience_s:g} s"
    return ("" if answer == "works" else answer) if answer else f"planning ended with status {status}"


def _heard(pipe: int, patience_s: float) -> str | None:
    """None: nothing in time. Empty: it ended without a word."""
    ready, _, _ = select.select([pipe], [], [], patience_s)
    return os.read(pipe, 4 * _FAULT_CHARS).decode(errors="replace") if ready else None


def _tried(state: State, policy: Policy, now_ms: int, without: Sequence[str]) -> str:
    try:
        for job in without:
            events = hold(state, job, now_ms)
            for event in () if isinstance(events, Refusal) else events:
                apply(state, event)
        Engine(state, policy, lambda _events: None).cycle(now_ms)
    except Exception as fault:
        last = traceback.extract_tb(fault.__traceback__)[-1]
        return f"{type(fault).__name__}: {fault} ({os.path.basename(last.filename)}:{last.lineno})"
    return ""
