"""The part of ``make search`` for whole runs: sites from seeds, each lived through and judged.

``python -m tests.judges.runs.search --runs 2000``; the last line is JSON. What breaks a promise is shrunk and printed
as Python that can be pasted into a test.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

from tests.judges.runs.advice import judge_advice
from tests.judges.runs.budgets import judge_budgets
from tests.judges.runs.compare import judge_conservative, judge_easy
from tests.judges.runs.drains import judge_drains
from tests.judges.runs.equals import judge_equals
from tests.judges.runs.lives import lives
from tests.judges.runs.peace import at_one_moment, in_vain, left_out, ping_pong
from tests.judges.runs.reserved_starts import judge_moved_starts, judge_reserved_starts
from tests.judges.runs.shares import judge_shares
from tests.judges.runs.sharing import judge_idle, judge_turns
from tests.judges.runs.shrink import shrink, told
from tests.judges.runs.site import DAY, SECOND, Run, Site, live
from tests.judges.runs.sites import (
    FIRST_HOURS,
    advised_site,
    budget_site,
    busy_site,
    conservative_site,
    easy_site,
    endless_site,
    equals_site,
    flood_site,
    growth_site,
    promised_site,
    turns_site,
)
from tests.judges.runs.waits import judge_large, judge_pauses

Judge = Callable[[Run], list[str]]

STOP_MS = 2 * SECOND  # no site of these needs longer to stop


@dataclass(frozen=True)
class Kind:
    """Sites of one kind, how many of a hundred runs they are, and who judges them."""

    make: Callable[[int], Site]
    parts: int
    judges: dict[str, Judge]


KINDS = {
    "busy": Kind(
        busy_site,
        25,
        {
            "placed and evicted at one moment": lambda run: at_one_moment(lives(run)),
            "ping-pong": ping_pong,
            "the beneficiary starts": lambda run: in_vain(run, lives(run), STOP_MS),
            "a dropped claim": lambda run: left_out(run, lives(run)),
            "a drain ends": lambda run: judge_drains(run, STOP_MS),
        },
    ),
    "promised": Kind(promised_site, 15, {"promised starts": judge_reserved_starts, "moved starts": judge_moved_starts}),
    "endless": Kind(
        endless_site,
        10,
        {"shares": lambda run: judge_shares(run, FIRST_HOURS, FIRST_HOURS + DAY), "pauses": judge_pauses},
    ),
    "flood": Kind(flood_site, 15, {"bounded waits": judge_large, "pauses": judge_pauses}),
    "easy": Kind(easy_site, 10, {"EASY": judge_easy}),
    "conservative": Kind(conservative_site, 5, {"conservative": judge_conservative}),
    "advice": Kind(advised_site, 5, {"advice": judge_advice}),
    "budget": Kind(budget_site, 5, {"budgets": judge_budgets}),
    "turns": Kind(turns_site, 5, {"turns": judge_turns}),
    "growth": Kind(growth_site, 5, {"growth": judge_idle}),
    "equals": Kind(equals_site, 5, {"equals": judge_equals}),
}
_ROUND = [name for name, kind in KINDS.items() for _ in range(kind.parts)]


@dataclass
class Found:
    kind: str
    seed: int
    violations: dict[str, list[str]]  # by judge


def try_out(number: int) -> Found:
    """One run of the search, by its number."""
    kind = _ROUND[number * 37 % len(_ROUND)]
    return judged(kind, number)


def judged(kind: str, seed: int) -> Found:
    run = live(KINDS[kind].make(seed))
    found = {name: judge(run) for name, judge in KINDS[kind].judges.items()}
    return Found(kind, seed, {name: violations for name, violations in found.items() if violations})


def search_runs(runs: int, seed: int = 0, processes: int = 1, shown: int = 1) -> dict[str, object]:
    """So many runs from a seed on. Prints the smallest site for the first of each judge; says how many there were."""
    begin, count, tried = perf_counter(), Counter[str](), Counter[str]()
    first: dict[str, list[tuple[str, int]]] = {}
    for found in _results(range(seed, seed + runs), processes):
        tried[found.kind] += 1
        for name in found.violations:
            count[name] += 1
            first.setdefault(name, []).append((found.kind, found.seed))
    for name, where in first.items():
        for kind, each in where[:shown]:
            print(smallest(kind, name, each), flush=True)
    seconds = round(perf_counter() - begin, 1)
    asked = Counter[str]()
    for kind, times in tried.items():
        asked.update(dict.fromkeys(KINDS[kind].judges, times))
    where_found = {name: [f"{kind} {each}" for kind, each in where[:5]] for name, where in first.items()}
    return {
        "runs": runs, "kinds": dict(tried), "asked": dict(asked), "run_seconds": seconds,
        "violations": dict(count), "seeds": where_found,
    }  # fmt: skip


def smallest(kind: str, name: str, seed: int) -> str:
    """The smallest site of this seed that breaks the same promise, in words and as Python."""
    judge = KINDS[kind].judges[name]
    site = shrink(KINDS[kind].make(seed), lambda each: bool(judge(live(each))))
    return f"# {name} ({kind} {seed}): {judge(live(site))[0]}\n{told(site)}"


def _results(numbers: range, processes: int) -> Iterator[Found]:
    if processes == 1:
        yield from map(try_out, numbers)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(try_out, numbers, chunksize=10)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--show", type=int, default=1, help="sites to shrink and print for each judge")
    given = parser.parse_args()
    result = search_runs(given.runs, given.seed, given.processes, given.show)
    print(json.dumps(result))
    return 1 if result["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
