"""Kill the server again and again while people submit and jobs run, and see that nothing is lost, run twice or stuck.

`python -m tests.e2e.kill --kills 1000` ends with one line of JSON. The server gets SIGKILL at random moments and is
started again at once; now and then its planner, its spawner or the supervisor of a task is killed instead. What really
ran is recorded by the tasks themselves: each appends to a file of its own, named by the key that it was submitted with.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corral.core.laws import violations
from corral.server.recovery import load
from corral.store.sqlite.journal import SqliteJournal
from corral.store.verify import verify
from tests.e2e.live import Live, Refused, Unanswered, is_alive

#: Says when it begins and ends, in one write each, and whether an earlier run of the same task is still alive.
TASK = """\
file="$1/$KEY.${CORRAL_ARRAY_INDEX:-0}.$CORRAL_TASK"
if [ -e "$file" ]; then
    while read -r word job attempt pid; do
        if [ "$word" = begin ] && read -r _ _ state _ < "/proc/$pid/stat" && [ "$state" != Z ]; then
            echo "overlap $CORRAL_JOB_ID $CORRAL_ATTEMPT $$" >> "$file"
        fi
    done < "$file" 2>/dev/null
fi
echo "begin $CORRAL_JOB_ID $CORRAL_ATTEMPT $$" >> "$file"
case "$2" in
    until) while [ ! -e "$3" ]; do sleep 0.5; done ;;
    fail) exit 3 ;;
    0) ;;
    *) sleep "$2" ;;
esac
echo "end $CORRAL_JOB_ID $CORRAL_ATTEMPT $$" >> "$file"
"""
OVER = ("succeeded", "failed", "cancelled")
STUCK_S = 60.0


@dataclass
class Tally:
    """What was seen so far."""

    acknowledged: dict[str, str] = field(default_factory=dict)  # key -> job
    ends: dict[str, str] = field(default_factory=dict)  # key -> the state in which it should end
    killed: Counter[str] = field(default_factory=Counter)
    back_ms: list[float] = field(default_factory=list)
    unanswered: int = 0
    faults: list[str] = field(default_factory=list)


class Submitter(threading.Thread):
    """Submits without a pause; what was not answered is asked again under the same key until it is."""

    def __init__(self, live: Live, tally: Tally, script: Path, seed: int) -> None:
        super().__init__(name=f"submitter-{seed}", daemon=True)
        self.live, self.tally, self.script, self.seed = live, tally, script, seed
        self.random = random.Random(seed)
        self.ending = threading.Event()
        self.pause_s = 0.05

    def run(self) -> None:
        count = 0
        while not self.ending.is_set():
            count += 1
            key = f"{self.seed}-{count}"
            document, state = self.draw(key)
            try:
                self.submit(key, document, state)
            except Exception as fault:
                self.tally.faults.append(f"{key}: {fault!r}")
            time.sleep(self.pause_s)

    def draw(self, key: str) -> tuple[dict[str, Any], str]:
        return job(self.script, key, self.random)

    def submit(self, key: str, document: dict[str, Any], state: str) -> None:
        id = ask_until_answered(self.live, self.tally, key, document)
        if self.random.random() < 0.2:  # a client that never got the answer
            again = ask_until_answered(self.live, self.tally, key, document)
            if again != id:
                self.tally.faults.append(f"{key} is job {id}, and job {again} when asked again")
        self.tally.ends[key] = state
        self.tally.acknowledged[key] = id


def job(script: Path, key: str, chance: random.Random) -> tuple[dict[str, Any], str]:
    """A small job of some kind, and how it should end."""
    seconds = chance.choice(["0", "0", "0", "0.05", "0.2", "1", "2"])
    document: dict[str, Any] = {"env": {"KEY": key}, "name": f"kill-{key}"}
    kind, state = chance.random(), "succeeded"
    if kind < 0.5:
        document["gpus"] = chance.choice([1, 1, 2])
    elif kind < 0.6:
        document |= {"tasks": 2, "gpus": 1}
    elif kind < 0.7:
        document["array"] = "0-2"
    elif kind < 0.8:
        seconds, state = "fail", "failed"
    return document | {"command": ["sh", str(script), str(script.parent / "ran"), seconds]}, state


def ask_until_answered(live: Live, tally: Tally, key: str, document: dict[str, Any]) -> str:
    while True:
        try:
            return live.submit(document, key)
        except Unanswered:
            tally.unanswered += 1
        except Refused as refused:
            if refused.status != 503:  # it is starting, or going down
                raise
        time.sleep(0.05)


class Trial:
    """One data directory, killed over and over."""

    def __init__(self, folder: Path, kills: int, seed: int, submitters: int = 3) -> None:
        self.kills, self.random, self.tally = kills, random.Random(seed), Tally()
        self.live, self.script, self.stop_file = Live(folder / "data"), folder / "task.sh", folder / "stop"
        (folder / "ran").mkdir()
        self.script.write_text(TASK)
        self.submitters = [Submitter(self.live, self.tally, self.script, n) for n in range(submitters)]
        self.long_jobs: dict[str, str] = {}

    def run(self) -> dict[str, Any]:
        try:
            return self.try_it()
        finally:
            self.stop_file.touch()  # so that the long jobs end, however this ended
            if self.live.process is not None:
                self.live.kill()

    def try_it(self) -> dict[str, Any]:
        self.live.start()
        self.begin_long_jobs()
        for each in self.submitters:
            each.start()
        for n in range(self.kills):
            time.sleep(self.random.uniform(0.02, 0.6))
            self.wound()
            self.live.kill()
            self.tally.killed["server"] += 1
            self.live.start()
            self.tally.back_ms.append(self.live.ready_ms)
            if n % 50 == 49 and self.kills > 50:
                print(f"{n + 1} kills, {len(self.tally.acknowledged)} acknowledged", flush=True)
        for each in self.submitters:
            each.ending.set()
        for each in self.submitters:
            each.join(60)
        return self.judge()

    def begin_long_jobs(self) -> None:
        """They run from before the first kill until after the last, and must not notice any."""
        for n in range(2):
            key = f"long-{n}"
            command = ["sh", str(self.script), str(self.script.parent / "ran"), "until", str(self.stop_file)]
            document = {"command": command, "env": {"KEY": key}, "gpus": 1}
            self.long_jobs[key] = self.tally.acknowledged[key] = self.live.submit(document, key)
            self.tally.ends[key] = "succeeded"
        self.await_begin(list(self.long_jobs))
        self.long_pids = {key: self.lines(f"{key}.0.0")[0][3] for key in self.long_jobs}

    def await_begin(self, keys: list[str]) -> None:
        end = time.monotonic() + 30
        while not all((self.script.parent / "ran" / f"{key}.0.0").exists() for key in keys):
            assert time.monotonic() < end, "the long jobs do not begin"
            time.sleep(0.02)
        time.sleep(0.1)

    def wound(self) -> None:
        """Now and then something beside the server is killed, and its absence must be noticed."""
        die = self.random.random()
        if die < 0.1:
            self.kill_one("planner", self.live.planner())
        elif die < 0.2:
            self.kill_one("spawner", self.live.spawner())
        elif die < 0.35:
            self.kill_one("supervisor", self.short_supervisor())

    def short_supervisor(self) -> int | None:
        """Of some task that is not one of the long jobs; there may be none at this moment, so it looks again."""
        for _ in range(20):
            found = [pid for pid, gang in self.live.supervisors().items() if gang[:2] not in ("1/", "2/")]
            if found:
                return self.random.choice(found)
            time.sleep(0.02)
        return None

    def kill_one(self, what: str, pid: int | None) -> None:
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.tally.killed[what] += 1
            time.sleep(self.random.uniform(0, 0.2))

    # ---- judging -----------------------------------------------------------------------------------------------

    def judge(self) -> dict[str, Any]:
        disturbed = [key for key, pid in self.long_pids.items() if not is_alive(int(pid))]
        self.stop_file.touch()
        states = self.final_states()
        tally = self.tally
        lost = [key for key, id in tally.acknowledged.items() if id not in states]
        stuck = [key for key, id in tally.acknowledged.items() if id in states and states[id]["state"] not in OVER]
        twice = sorted(self.run_twice())
        wrong = [
            f"{key} (job {id}) ended {states[id]['state']} ({states[id]['why']}), expected {tally.ends[key]}"
            for key, id in tally.acknowledged.items()
            if id in states and states[id]["state"] in OVER and states[id]["state"] != tally.ends[key]
        ]
        disturbed += [key for key in self.long_jobs if len(self.lines(f"{key}.0.0")) != 2]
        surplus = len(states) - len(set(tally.acknowledged.values()))
        self.live.stop()
        return {
            "kills": tally.killed["server"],
            "killed": dict(tally.killed),
            "acknowledged": len(tally.acknowledged),
            "unanswered": tally.unanswered,
            "lost": len(lost),
            "run_twice": len(twice),
            "stuck": len(stuck),
            "disturbed": len(disturbed),
            "surplus": surplus,
            "wrong_ends": len(wrong),
            "back_in_service_ms_max": round(max(tally.back_ms)),
            "back_in_service_ms_p50": round(sorted(tally.back_ms)[len(tally.back_ms) // 2]),
            "findings": self.findings(),
            "faults": (tally.faults + lost + twice + stuck + wrong)[:20],
            "load_average": round(os.getloadavg()[0], 1),
        }

    def final_states(self) -> dict[str, Any]:
        """Of every job there is, once all are over or nothing has happened for long."""
        seen, since = "", time.monotonic()
        while True:
            states = {job["id"]: job for job in self.live.jobs()}
            left = sorted(id for id, job in states.items() if job["state"] not in OVER)
            now = f"{left}"
            if now != seen:
                seen, since = now, time.monotonic()
            if not left or time.monotonic() - since > STUCK_S:
                return states
            time.sleep(0.1)

    def run_twice(self) -> set[str]:
        """Tasks that were begun twice in one attempt, or beside an earlier run, or again although nothing killed their
        supervisor; and keys that were given to two jobs."""
        found, bereaved = set(), set()
        for file in (self.script.parent / "ran").iterdir():
            lines = self.lines(file.name)
            begun = [attempt for word, _, attempt, _ in lines if word == "begin"]
            jobs = {job for _, job, _, _ in lines}
            if len(set(begun)) != len(begun) or len(jobs) != 1 or any(line[0] == "overlap" for line in lines):
                found.add(file.name)
            if len(begun) > 1:
                bereaved |= jobs
                if not self.was_lost(jobs.pop(), int(file.name.split(".")[1]), int(begun[-1])):
                    found.add(file.name)
        return found if len(bereaved) <= self.tally.killed["supervisor"] else found | bereaved

    def was_lost(self, job: str, index: int, attempt: int) -> bool:
        """Whether every attempt of the gang before this one ended because its supervisor had gone."""
        history = [run for run in self.live.job(job)["history"] if run["index"] in (None, index)]
        return all(run["failure"] in ("node_lost", "start_failed") for run in history if run["attempt"] < attempt)

    def lines(self, name: str) -> list[list[str]]:
        return [line.split() for line in (self.script.parent / "ran" / name).read_text().splitlines()]

    def findings(self) -> list[str]:
        """What is wrong with the journal, or with the state that it gives."""
        found = [finding.text for finding in verify(self.live.data)]
        journal = SqliteJournal(self.live.data)
        try:
            known = load(journal)
        finally:
            journal.close()
        return found + list(violations(known.state))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder to work in, and to leave as it is")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="corral-kill-") as temporary:
        folder = asked.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=folder is not asked.keep)  # tasks of an earlier trial may still write there
        figures = Trial(folder, asked.kills, asked.seed).run()
    print(json.dumps(figures))
    return 0 if is_good(figures) else 1


def is_good(figures: dict[str, Any]) -> bool:
    counts = ("lost", "run_twice", "stuck", "disturbed", "surplus", "wrong_ends")
    return not any(figures[name] for name in counts) and not figures["findings"] and not figures["faults"]


if __name__ == "__main__":
    sys.exit(main())
