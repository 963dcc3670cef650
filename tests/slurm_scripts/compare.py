"""Every script of a folder goes to a private Slurm and to Corral; differences are listed, then counted in one line.

    python -m tests.slurm_scripts.compare FOLDER

Time limits and array ranges are shortened for both. A script counts as run by Slurm if it ended there in time. The same
means: the same exit code, and the same programs as often on as many GPUs of the same number of nodes. A false success
is a script that Corral reports as succeeded although its programs ran less often than under Slurm.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec
from msgspec import Struct

from corral.cli.errors import Complaint
from corral.cli.fleet.testbed_parts import Testbed
from corral.cli.jobs.submit import send
from corral.client.blocking import Client
from corral.client.errors import ClientError
from corral.wire.api.words import ENDED
from corral.wire.environment.export import with_environment
from corral.wire.job.sbatch import read_sbatch
from tests.providers.private_slurm import PrivateSlurm, why_not
from tests.slurm_scripts.stubs import write_stubs

NODES, GPUS, CPUS = 4, 8, 64
MINUTES = 1
PATIENCE_S = 900.0
_NOT_STARTED = "53"  # the signal that Slurm shows where a file for the output cannot be created


class Outcome(Struct):
    """How one script went. ``code``: None: it did not end in time. ``runs``: programs with node and GPUs."""

    refusal: str = ""
    job: str = ""
    code: int | None = None
    runs: Counter[tuple[str, str, str]] = msgspec.field(default_factory=Counter)

    def shape(self) -> tuple[int | None, list[tuple[str, str, int]], int]:
        """What must be equal: nodes have different names."""
        by = Counter((name, gpus) for (name, _, gpus), count in self.runs.items() for _ in range(count))
        return self.code, sorted((*key, count) for key, count in by.items()), len({node for _, node, _ in self.runs})


def options(text: str) -> list[str]:
    short = [f"--time={MINUTES}"]
    return [*short, "--array=1-2"] if re.search(r"^#SBATCH\s+(--array|-a)", text, re.MULTILINE) else short


def run_in_slurm(scripts: dict[str, str], folder: Path, stubs: dict[str, str]) -> dict[str, Outcome]:
    features = {
        each
        for text in scripts.values()
        for each in re.findall(r"#SBATCH\s+(?:-C|--constraint)[= ]\"?([\w&|,-]+)", text)
    }
    listed = ",".join(sorted({part for each in features for part in re.split(r"[&|,]", each)})) or "none"
    slurm = PrivateSlurm(
        NODES, gpus=GPUS, cpus=CPUS, kill_wait_s=2, settings={"MinJobAge": "3000", "EnforcePartLimits": "ALL"}
    )
    configure = slurm._configure

    def with_partitions() -> None:
        configure()
        conf = slurm.conf.read_text().replace("RealMemory=64000", f"RealMemory=512000 Feature={listed}")
        names = {
            each
            for text in scripts.values()
            for each in re.findall(r"#SBATCH\s+(?:-p|--partition)[= ]?([\w,@.-]+)", text)
        }
        known = {part for each in names for part in each.split(",")} - {"gpu", "urgent"}
        conf += "".join(f"PartitionName={name} PriorityTier=1\n" for name in sorted(known))
        slurm.conf.write_text(conf)

    slurm._configure = with_partitions  # type: ignore[method-assign]
    found: dict[str, Outcome] = {}
    slurm.start()
    try:
        for name, text in scripts.items():
            place = folder / "slurm" / name
            prepared(place, name, text)
            env = {**os.environ, **slurm.env, **stubs, "COMPAT_RECORD": str(place / "record"), "HOME": str(folder)}
            words = ["sbatch", "--parsable", *options(text), name]
            done = subprocess.run(words, cwd=place, env=env, capture_output=True, text=True, timeout=60, check=False)
            found[name] = Outcome(refusal=done.stderr.strip()[:300] if done.returncode else "", job=done.stdout.strip())
        _until_over(slurm, found)
        for name, outcome in found.items():
            outcome.runs = recorded(folder / "slurm" / name)
    finally:
        slurm.command("scancel", "--user=root")
        slurm.stop()
    return found


def _named(scripts: dict[str, str], pattern: str) -> set[str]:
    """What the directives of all scripts name."""
    return {each for text in scripts.values() for each in re.findall(rf"#SBATCH\s+{pattern}", text)}


def prepared(place: Path, name: str, text: str) -> None:
    """The script in a folder of its own, with the folders for its output, which Slurm does not create."""
    place.mkdir(parents=True)
    (place / name).write_text(text)
    for path in re.findall(r"#SBATCH\s+(?:-o|-e|--output|--error)[= ]?([\w./%-]+)/[^/\s]+", text):
        if not path.startswith(("/", "..")) and "%" not in path:
            (place / path).mkdir(parents=True, exist_ok=True)


def _until_over(slurm: PrivateSlurm, found: dict[str, Outcome]) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        lines = slurm.command("squeue", "-h", "-t", "all", "-o", "%F|%T|%r").splitlines()
        states: dict[str, set[str]] = {}
        for line in lines:
            job, state, reason = line.split("|")
            never = reason not in ("None", "Resources", "Priority", "NonZeroExitCode", "BeginTime", "JobArrayTaskLimit")
            states.setdefault(job, set()).add("STUCK" if state == "PENDING" and never else state)
        live = {job for job, each in states.items() if each & {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}}
        if not live:
            break
        time.sleep(2)
    for outcome in found.values():
        if outcome.job:
            outcome.code = _code(slurm, outcome.job)


def _code(slurm: PrivateSlurm, job: str) -> int | None:
    told = slurm.command("scontrol", "-o", "show", "job", job)
    codes = []
    for line in told.splitlines():
        state, code = re.search(r"JobState=(\w+)", line), re.search(r" ExitCode=(\d+):(\d+)", line)
        if state is None or code is None or state[1] not in ("COMPLETED", "FAILED"):
            return None
        if code[2] == _NOT_STARTED:
            return None
        codes.append(int(code[1]) or (128 + int(code[2]) if int(code[2]) else 0))
    return max(codes, default=None)


def run_in_corral(scripts: dict[str, str], folder: Path, stubs: dict[str, str]) -> dict[str, Outcome]:
    bed = Testbed(folder / "bed", nodes=NODES, gpus=f"{GPUS}xH100", lease_ms=60_000)
    bed.environment = {"CORRAL_ACCOUNT": "root"}
    found: dict[str, Outcome] = {}
    bed.start()
    try:
        place = folder / ".config" / "corral" / "credentials.json"  # the HOME of the scripts is on all nodes
        place.parent.mkdir(parents=True)
        place.write_bytes(bed.credentials_file.read_bytes())
        place.chmod(0o600)
        with bed.client() as client:
            for name, text in scripts.items():
                found[name] = _submitted(client, name, text, folder, stubs)
            end = time.monotonic() + PATIENCE_S
            for name, outcome in found.items():
                while outcome.job and outcome.code is None and time.monotonic() < end:
                    view = client.job(outcome.job)
                    if view.state in ENDED:
                        is_limit = view.failure == "time_limit"
                        ended = view.exit_code or (0 if view.state == "succeeded" else 1)
                        outcome.code = None if is_limit or view.state == "cancelled" else ended
                        break
                    time.sleep(0.1)
                outcome.runs = recorded(folder / "corral" / name)
    finally:
        bed.stop()
    return found


def _submitted(client: Client, name: str, text: str, folder: Path, stubs: dict[str, str]) -> Outcome:
    place = folder / "corral" / name
    prepared(place, name, text)
    env = {**stubs, "COMPAT_RECORD": str(place / "record"), "HOME": str(folder)}
    parsed = read_sbatch(
        text, name, options=options(text), defaults={"directory": str(place)}, now_ms=time.time_ns() // 1_000_000,
        exporter=lambda document: with_environment(document, env),
    )  # fmt: skip
    if parsed.faults:
        return Outcome(refusal="; ".join(str(fault) for fault in parsed.faults)[:300])
    parsed.document["env"] = {**parsed.document.get("env", {}), "HOME": str(folder)}  # as --export=ALL of Slurm
    try:
        return Outcome(job=send(client, [parsed])[0].id)
    except (ClientError, Complaint) as refused:
        return Outcome(refusal=str(refused)[:300])


def recorded(place: Path) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for path in place.glob("record.*"):
        for line in path.read_text(errors="replace").splitlines():
            name, node, gpus, *_ = (*line.split("|"), "", "")
            found[name, node, gpus] += 1
    return found


def main(folder: str) -> int:
    why = why_not()
    if why:
        print(f"compat-slurm: {why}")
        return 1
    paths = sorted(path for path in Path(folder).iterdir() if path.is_file())
    scripts = {path.name: path.read_text(errors="replace") for path in paths}
    work = Path(tempfile.mkdtemp(prefix="compat-slurm-"))
    stubs = write_stubs(work / "stubs")
    theirs = run_in_slurm(scripts, work, stubs)
    accepted = {name: text for name, text in scripts.items() if not theirs[name].refusal}
    ours = run_in_corral(accepted, work, stubs)
    figures = Counter(total=len(scripts), slurm_accepts=len(accepted))
    figures.update(accepted=0, slurm_runs=0, same=0, false_success=0)
    for name in accepted:
        left, right = theirs[name], ours[name]
        figures["accepted"] += not right.refusal
        if right.refusal:
            print(f"refused  {name}: {right.refusal}")
        if left.code is None:
            continue
        figures["slurm_runs"] += 1
        is_same = left.shape() == right.shape()
        figures["same"] += is_same
        is_false = right.code == 0 and sum(right.runs.values()) < sum(left.runs.values())
        figures["false_success"] += is_false
        if not is_same:
            print(f"{'FALSE SUCCESS' if is_false else 'differs'}  {name}:")
            print(f"   slurm  {left.shape()}\n   corral {right.shape()}")
    print(f"work folder: {work}")
    print(msgspec.json.encode(dict(figures)).decode())
    return 1 if figures["false_success"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
