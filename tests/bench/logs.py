"""`corral logs` of a job of 100 ranks that write both streams, on a real server. The last line is JSON.

    PYTHONPATH=src:. python -m tests.bench.logs [--size 1024]

25 tasks of 4 processes each write ``size`` MiB together, in numbered lines of 100 bytes. Then the command is typed
(`corral logs JOB`) and all that it prints is read and checked: ``first_line_ms`` from its start to the first byte,
``lost`` and ``torn`` count lines, ``disordered`` those that came before an earlier one of the same rank and stream.
``rss_mib``: the largest memory of the command and of the server, and what the server had before.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.cli.typed import command, environment
from tests.e2e.live import Live

TASKS, PROCESSES = 25, 4
LINE = 100
WITHIN_S = 900.0
PROGRAM = """
import os, sys
rank, lines = int(os.environ["RANK"]), int(sys.argv[1])
for begin in range(0, lines, 200):
    for stream in (1, 2):
        text = "".join(f"{rank:03d} {stream} {n:010d} {'x' * 82}\\n" for n in range(begin, min(begin + 200, lines)))
        data = text.encode()
        while data:
            data = data[os.write(stream, data):]
"""
_LINE = re.compile(rb"\[(\d+)( err)?\] (\d{3}) ([12]) (\d{10}) x{82}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--size", type=int, default=1024, help="MiB of both streams of all ranks together")
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder:
        print(json.dumps(measure(Path(folder), parser.parse_args().size)))


def measure(folder: Path, size_mib: int) -> dict[str, Any]:
    live = Live(folder / "data")
    live.start()
    try:
        lines = (size_mib << 20) // (LINE * 2 * TASKS * PROCESSES)
        job = _written(live, folder, lines)
        before_mib = _resident_mib(live)
        return _read(live, job, lines) | {"server_before_mib": before_mib}
    finally:
        live.stop()


def _written(live: Live, folder: Path, lines: int) -> str:
    """The job that has written its logs."""
    (folder / "write.py").write_text(PROGRAM)
    began_s = time.monotonic()
    job = live.submit({
        "command": f"{sys.executable} write.py {lines}", "directory": str(folder), "tasks": TASKS,
        "processes": PROCESSES, "cpus": 0.01,
    })  # fmt: skip
    live.until_over([job], WITHIN_S)
    print(f"written in {time.monotonic() - began_s:.1f} s", flush=True)
    return job


def _read(live: Live, job: str, lines: int) -> dict[str, Any]:
    environ = environment(CORRAL_URL=live.url, CORRAL_TOKEN=live.token)
    check = _Check()
    began_s = time.monotonic()
    reader = subprocess.Popen(command("logs", job), stdout=subprocess.PIPE, env=environ)
    assert reader.stdout is not None
    output = reader.stdout.fileno()
    check.take(os.read(output, 1))
    first_s = time.monotonic() - began_s
    while data := os.read(output, 1 << 20):
        check.take(data)
    _, status, used = os.wait4(reader.pid, 0)
    reader.returncode = os.waitstatus_to_exitcode(status)
    assert reader.returncode == 0
    wanted = lines * 2 * TASKS * PROCESSES
    return {
        "first_line_ms": round(first_s * 1000),
        "all_s": round(time.monotonic() - began_s, 1),
        "rss_mib": {"cli": used.ru_maxrss >> 10, "server": _resident_mib(live, "VmHWM")},
        "lines": check.lines,
        "lost": wanted - check.lines,
        "torn": check.torn,
        "disordered": check.disordered,
    }


class _Check:
    """Counts lines, those that are not whole, and those that are out of order within their rank and stream."""

    def __init__(self) -> None:
        self.lines = self.torn = self.disordered = 0
        self._next: dict[tuple[bytes, bytes], int] = {}
        self._rest = b""

    def take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            found = _LINE.fullmatch(line)
            if found is None or int(found[1]) != int(found[3]) or (found[4] == b"2") != bool(found[2]):
                self.torn += 1
                continue
            self.lines += 1
            key, number = (found[3], found[4]), int(found[5])
            self.disordered += number != self._next.get(key, 0)
            self._next[key] = number + 1


def _resident_mib(live: Live, field: str = "VmRSS") -> int:
    assert live.process is not None
    status = Path(f"/proc/{live.process.pid}/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) >> 10


if __name__ == "__main__":
    main()
