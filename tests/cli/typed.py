"""Commands as people type them, run within the test process."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from corral.cli.main import main
from tests.architecture.repository import ROOT


class Typed(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> Typed:
    with pytest.raises(SystemExit) as left:
        main(words)
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return Typed(int(left.value.code or 0), told.out, told.err)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "corral", *words]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("CORRAL_TRACES", "COLUMNS")}
    return kept | {"PYTHONPATH": str(ROOT / "src")} | more


def spawned(*words: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command(*words), env=environment(**more), capture_output=True, timeout=60, check=False)


#: What no command loads that merely talks to a server.
HEAVY = (
    "numpy", "pydantic", "sqlalchemy", "msgspec", "ruamel", "starlette", "uvicorn", "corral.core",
    "corral.sim", "corral.server", "corral.store", "corral.runtime", "corral.wire.job",
)  # fmt: skip


def loaded_by(*words: str, **more: str) -> set[str]:
    """What is loaded once a command has been carried out."""
    show = (
        "import sys\nfrom corral.cli.main import main\n"
        f"try: main({words!r})\nexcept SystemExit: pass\nprint('loaded', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", show], env=environment(**more), capture_output=True, text=True)
    return set(done.stdout.splitlines()[-1].split())


def table(path: Path, rows: Sequence[Sequence[object]] = ()) -> str:
    """A workload as a file; its name as ``--trace`` takes it."""
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(("id", "submit_ms", "work_ms", "gpus", "team", "user"))
        for row in rows or TWELVE:
            writer.writerow(row)
    return f"csv:{path}"


#: Two teams, more work than eight GPUs can do at once.
TWELVE = [
    (f"j{n}", 1_000 + n * 600_000, 3_600_000 * (1 + n % 3), (1, 2, 4, 8)[n % 4], ("red", "blue")[n % 2], f"u{n % 3}")
    for n in range(12)
]
