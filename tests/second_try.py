"""Runs pytest; a few tests that failed are run once more, alone, and named. For `make test`.

    python -m tests.second_try ARGUMENT_OF_PYTEST...

Some tests drive a browser, containers or many processes on whatever machine there is, and one of thousands may lose a
race with something else that runs there. A run is not worth throwing away for that, but nor may it go unseen: the first
failure stays in the output, and the last lines say which tests passed only at the second try. Each of them is a defect
to look into, of the test or of what it tests. A few: three, or one in a thousand of the tests there are, whichever is
more; a change that breaks something breaks it at both tries. ``ONE_TRY=1`` fails at the first failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

LIMIT_MIN = 3
ONE_IN = 1000
_FAILED = 1  # pytest's exit status for "some tests failed": anything else is not about single tests


def main(arguments: list[str], cache: Path = Path(".pytest_cache")) -> int:
    record = cache / "v" / "cache" / "lastfailed"
    tests = cache / "v" / "cache" / "nodeids"
    record.unlink(missing_ok=True)
    pytest = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache.resolve()}"]
    status = subprocess.call([*pytest, *arguments])
    if status != _FAILED or os.environ.get("ONE_TRY"):
        return status
    failed = sorted(json.loads(record.read_text(encoding="utf-8")))
    limit = max(LIMIT_MIN, len(json.loads(tests.read_text(encoding="utf-8"))) // ONE_IN if tests.exists() else 0)
    if not 0 < len(failed) <= limit:
        return status
    print(f"\nA second try, alone, of what failed: {', '.join(failed)}", flush=True)
    status = subprocess.call([*pytest, *failed])
    if status == 0:
        for name in failed:
            print(f"passed only at the second try: {name}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
