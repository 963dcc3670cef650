"""The same rows for Slurm, beside ours, where it is installed.

`CORRAL_SLURM` names a folder with `up.sh` and `down.sh` that start and end a private Slurm on this machine and put
its configuration into `$R/etc/slurm.conf`. Without it there is one line that says so, and nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

IN_PARALLEL = 8
UP_S = 60  # to come up, or to answer a question


def measure(submits: int, trivial: int, pending: int) -> dict[str, Any]:
    scripts = os.environ.get("CORRAL_SLURM", "")
    if not scripts or not shutil.which("sbatch"):
        print("slurm: skipped (CORRAL_SLURM names no folder with up.sh, or sbatch is not installed)")
        return {}
    folder = Path(tempfile.mkdtemp(prefix="corral-slurm-"))
    env = {**os.environ, "R": str(folder), "NODES": "1", "SLURM_CONF": str(folder / "etc" / "slurm.conf")}
    try:
        subprocess.run(["bash", f"{scripts}/up.sh"], env=env, check=True, stdout=subprocess.DEVNULL, timeout=UP_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as wrong:
        print(f"slurm: skipped (it did not come up: {wrong})")
        subprocess.run(["bash", f"{scripts}/down.sh"], env=env, check=False, stdout=subprocess.DEVNULL, timeout=UP_S)
        shutil.rmtree(folder, ignore_errors=True)
        return {}
    slurm = Slurm(folder, env)
    try:
        return slurm.run(submits // 4, trivial // 4, pending)
    finally:
        slurm.cancel_all()
        subprocess.run(["bash", f"{scripts}/down.sh"], env=env, check=False, stdout=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)


class Slurm:
    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder, self.env, self.figures = folder, env, dict[str, Any]()
        self.script = folder / "job.sh"

    def run(self, submits: int, trivial: int, pending: int) -> dict[str, Any]:
        self.starts()
        self.say("slurm_jobs_per_s", self.trivial(trivial))
        self.submit(["--gres=gpu:8", "--wrap", "sleep 100000"])
        self.say("slurm_submits_per_s", self.submits(submits))
        self.array(pending)
        self.say("slurm_submits_per_s_with_pending", self.submits(submits))
        self.say("slurm_jobs_per_s_with_pending", self.trivial(trivial))
        return self.figures

    def cancel_all(self) -> None:
        """What still runs would outlive the daemons."""
        subprocess.run(["scancel", "--user", "root"], env=self.env, check=False, capture_output=True)
        end = time.monotonic() + 10
        while time.monotonic() < end and self.ask("squeue", "-h", "--states", "R,CG", "-o", "%i"):
            time.sleep(0.2)

    def say(self, name: str, value: float) -> None:
        self.figures[name] = round(value, 1)
        print(f"{name:32} {self.figures[name]}", flush=True)

    def starts(self) -> None:
        took = []
        for n in range(10):
            out, sent = self.folder / f"start-{n}", time.time()
            self.submit(["--output", str(out), "--wrap", "date +%s.%N"])
            while not out.exists() or not out.read_text():
                time.sleep(0.02)
            took.append((float(out.read_text()) - sent) * 1000)
        self.say("slurm_start_p50_ms", sorted(took)[len(took) // 2])

    def submits(self, count: int) -> float:
        began = time.monotonic()
        with ThreadPoolExecutor(IN_PARALLEL) as pool:
            list(pool.map(lambda _: self.submit(["--gres=gpu:1", "--wrap", "true"]), range(count)))
        return count / (time.monotonic() - began)

    def trivial(self, count: int) -> float:
        began = time.monotonic()
        with ThreadPoolExecutor(IN_PARALLEL) as pool:
            list(pool.map(lambda _: self.submit(["--job-name", "trivial", "--wrap", "true"]), range(count)))
        while self.ask("squeue", "-h", "--name", "trivial", "-o", "%i"):
            time.sleep(0.2)
        return count / (time.monotonic() - began)

    def array(self, pending: int) -> None:
        """Different sizes, so that they are not one entry for the scheduler."""
        for part in range(10):
            self.submit(
                ["--gres=gpu:1", f"--cpus-per-task={part % 4 + 1}", f"--array=1-{pending // 10}", "--wrap", "true"]
            )

    def submit(self, words: list[str]) -> None:
        output = [] if "--output" in words else ["--output", "/dev/null"]
        self.ask("sbatch", "--parsable", "--mem=10", "--chdir=/", *output, *words)

    def ask(self, *words: str) -> str:
        return subprocess.run(words, env=self.env, check=True, capture_output=True, text=True).stdout
