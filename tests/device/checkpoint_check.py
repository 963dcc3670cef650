"""What do saves of several GB cost on a real GPU? A plain script for a machine that has one; prints a line of JSON.

    PYTHONPATH=src:. python tests/device/checkpoint_check.py

Needs Corral's sources and torch. Exit 0: the loop stands still for at most 10 % of a synchronous save, and saving at
the advised interval (at a mean time between failures of 7.9 hours) costs at most 2 % of the time.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.bench.checkpoint_saves import run


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="checkpoints-"))
    given = argparse.Namespace(ranks=1, mib=3 << 10, device="cuda", batch=16384, rounds=1)
    try:
        found = run(folder / "here", given)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found, indent=1), file=sys.stderr)
    print(json.dumps(found))
    return 0 if found["stall_ratio"] <= 0.1 and found["overhead_at_advised"] <= 0.02 else 1


if __name__ == "__main__":
    sys.exit(main())
