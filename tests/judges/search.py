"""``make search``: random scenarios, every plan judged; the last line is JSON.

``python -m tests.judges.search --cases 1000000 --runs 2000 --seed 1``: at least so many plans, and so many whole runs,
on as many processes as there are cores. What violates a promise is shrunk to the smallest scenario that still does and
printed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator
from time import perf_counter
from zlib import crc32

from tests.judges.generate import generate
from tests.judges.runs.search import search_runs
from tests.judges.shrink import shrink, tell
from tests.judges.trial import Found, try_out


def _try_seed(seed: str) -> Found:
    return try_out(generate(seed))


def seeds(seed: str) -> Iterator[str]:
    n = 0
    while True:
        n += 1
        yield f"{seed}.{n}"


def search(cases: int, seed: str, processes: int, shown: int) -> dict[str, object]:
    begin = perf_counter()
    plans = setups = 0
    violations, asked = Counter[str](), Counter[str]()
    first: dict[str, list[str]] = {}
    for found in _results(seed, processes):
        plans, setups = plans + found.plans, setups + 1
        asked.update(found.asked)
        for name in {violation.judge for _, violation in found.violations}:
            violations[name] += 1
            first.setdefault(name, []).append(found.seed)
        if plans >= cases:
            break
    for name, where in first.items():
        for each in where[:shown]:
            print(tell(shrink(generate(each), name), name), flush=True)
    seconds = perf_counter() - begin
    return {
        "cases": plans, "setups": setups, "runs": 0, "seconds": round(seconds, 1), "asked": dict(asked),
        "seed": seed, "violations": dict(violations), "seeds": {name: where[:3] for name, where in first.items()},
    }  # fmt: skip


def _results(seed: str, processes: int) -> Iterator[Found]:
    if processes == 1:
        yield from map(_try_seed, seeds(seed))
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        numbers = seeds(seed)
        while True:
            yield from pool.map(_try_seed, [next(numbers) for _ in range(processes * 50)], chunksize=10)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="plans to judge")
    parser.add_argument("--runs", type=int, default=0, help="whole runs to judge besides")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--show", type=int, default=1, help="scenarios to shrink and print for each judge")
    told = parser.parse_args()
    result = search(told.cases, told.seed, told.processes, told.show)
    if told.runs:
        runs = search_runs(told.runs, crc32(told.seed.encode()), told.processes, told.show)
        for name, value in runs.items():
            known = result.get(name)
            result[name] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    print(json.dumps(result))
    return 1 if result["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
