"""How much CPU commands take, interpreter included: ``python -m tests.bench.cli``. Starts a server of its own.

CPU rather than wall time, the least and the median of several runs, since other work on the machine only adds to it.
Ends with one line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

from tests.cli.typed import command, environment, free_port

RUNS = 15
LEAST = {
    "interpreter": [sys.executable, "-c", "pass"],
    "import http.client": [sys.executable, "-c", "import http.client"],
}
COMMANDS = ("--version", "version", "ps", "submit --parsable -- true", "queue", "node", "--help")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        variables = {"XDG_CONFIG_HOME": folder, "CORRAL_DATA": os.path.join(folder, "data")}
        for name in ("CORRAL_URL", "CORRAL_TOKEN"):
            os.environ.pop(name, None)
        env = environment(**variables)
        words = ("up", "--detach", "--listen", f"127.0.0.1:{free_port()}", "--fake-gpus", "8xH100")
        subprocess.run(command(*words), env=env, check=True, capture_output=True)
        try:
            told = cpu_ms(LEAST | {f"corral {line}": command(*line.split()) for line in COMMANDS}, env)
        finally:
            subprocess.run(command("down"), env=env, check=True, capture_output=True)
    for name, (least, median) in told.items():
        print(f"{name:<36} {least:4d} ms at least, {median:4d} ms in the middle")
    print(json.dumps({"ps_cpu_ms_min": told["corral ps"][0], "ps_cpu_ms_median": told["corral ps"][1]}))


def cpu_ms(commands: dict[str, list[str]], env: dict[str, str]) -> dict[str, tuple[int, int]]:
    """The least and the median of each. They take turns, so that a busy moment of the machine falls on all of them."""
    took: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(RUNS):
        for name, words in commands.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(words, env=env, check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took[name].append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return {name: (round(min(each) * 1000), round(statistics.median(each) * 1000)) for name, each in took.items()}


if __name__ == "__main__":
    main()
