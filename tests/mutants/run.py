"""Plants the bugs of mutants.py one by one in a copy of the repository and sees that the named tests fail.

Knows how to copy, change and test; the list knows which bugs there are. The repository itself is not touched.
Exit status 1 if a bug survives, if its text is not found exactly once, or if a test fails without a bug.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.mutants.mutants import MUTANTS, Mutant  # noqa: E402

TIMEOUT_S = 180
TESTS_FAILED = 1  # what pytest answers; anything above means that it could not test at all
IGNORED = shutil.ignore_patterns("__pycache__", ".*cache")


def copy_to(folder: Path) -> Path:
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=IGNORED)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def run_tests(folder: Path, tests: Sequence[str]) -> tuple[int, str]:
    """The exit status of pytest (a hang counts as a failed test) and the end of what it said."""
    # no bytecode: a changed file of the same size and second must not be taken for the old one
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return TESTS_FAILED, "ran too long"
    return done.returncode, done.stdout[-2000:] + done.stderr[-1000:]


def verdict_on(mutant: Mutant, folder: Path) -> str:
    path = folder / mutant.file
    source = path.read_text(encoding="utf-8")
    if source.count(mutant.old) != 1:
        return f"text found {source.count(mutant.old)} times"
    path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        status, said = run_tests(folder, mutant.killers)
    finally:
        path.write_text(source, encoding="utf-8")
    if status == TESTS_FAILED:
        return "killed"
    return "survived" if status == 0 else f"could not be tested: {said.strip().splitlines()[-1]}"


def verdicts(mutants: Sequence[Mutant], jobs: int) -> dict[str, str]:
    """Each job has a copy of its own to plant bugs in."""
    with tempfile.TemporaryDirectory() as scratch:
        copies: queue.Queue[Path] = queue.Queue()
        for job in range(jobs):
            copies.put(copy_to(Path(scratch) / str(job)))
        status, said = run_tests(Path(scratch) / "0", sorted({test for m in mutants for test in m.killers}))
        if status:
            print(said)
            sys.exit("the named tests do not pass without a bug")

        def judge(mutant: Mutant) -> str:
            folder, began = copies.get(), time.monotonic()
            try:
                found = verdict_on(mutant, folder)
            finally:
                copies.put(folder)
            print(f"{mutant.name:34} {found:10} {time.monotonic() - began:5.1f} s  {mutant.bug}", flush=True)
            return found

        with ThreadPoolExecutor(jobs) as pool:
            return dict(zip((m.name for m in mutants), pool.map(judge, mutants), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="plant one bug")
    parser.add_argument("--jobs", type=int, default=2, help="bugs tried side by side")
    arguments = parser.parse_args()
    mutants = [mutant for mutant in MUTANTS if arguments.only in (None, mutant.name)]
    if not mutants:
        parser.error(f"there is no mutant {arguments.only!r}")
    found = verdicts(mutants, arguments.jobs)
    survived = sorted(name for name, verdict in found.items() if verdict != "killed")
    print(json.dumps({"mutants": len(found), "killed": len(found) - len(survived), "survived": survived}))
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
