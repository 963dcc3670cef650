"""Finds the waiting jobs that make planning fail, by planning again without some of them, each time in a new process.

Used when a policy has raised an error, or has not returned. A trial is a fork of the planner: its changes of the state
are lost with it, and a trial that hangs is killed. Knows how to try and bisect; the server decides what to do with the
jobs.
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
from corral.core.commit import commit
from corral.core.engine import Policy, apply_all
from corral.core.intake.commands import hold
from corral.core.intake.refusal import Refusal
from corral.core.model import GangState
from corral.core.snapshot import Snapshot
from corral.core.state import State

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
    return find(jobs, lambda without: _forked(state, policy, asked, without))


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


def _forked(state: State, policy: Policy, asked: Search, without: Sequence[str]) -> str:
    """Plan and commit in a child process. It ends by itself shortly after its time, even if the parent has died."""
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
    """The answer of a trial. None: none in time. Empty: the process ended without an answer."""
    ready, _, _ = select.select([pipe], [], [], patience_s)
    return os.read(pipe, 4 * _FAULT_CHARS).decode(errors="replace") if ready else None


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
