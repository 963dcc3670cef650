"""Kill the server, its batch process or a worker in mid-batch, again and again, and see that no item is lost or stuck.

    python -m tests.e2e.batch_soak --trials 200

Ends with one line of JSON: ``items``, ``lost`` (accepted, and unknown later) and ``stuck`` (without a result in time).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

from corral.wire.api.batch import BatchItemsBody
from tests.e2e.batching import batching_server, settings
from tests.e2e.live import Live, children, command

ITEMS = 120
PATIENCE_S = 90.0


def victim(live: Live, kind: str) -> int | None:
    assert live.process is not None
    if kind == "batch process":
        wanted = b"corral.server.batches.process"
        return next((pid for pid in children(live.process.pid) if wanted in command(pid)), None)
    folder = str(live.data.parent).encode()
    for each in os.listdir("/proc"):
        if each.isdecimal() and b"corral_batch.py" in command(int(each)) and _runs_in(int(each), folder):
            return int(each)
    return None


def _runs_in(pid: int, folder: bytes) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/cwd").encode() == folder
    except OSError:
        return False


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--trials", type=int, default=200)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    draw, found = random.Random(given.seed), Counter[str]()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, batching_server(Path(scratch)) as (live, client):
        body = settings(Path(scratch), "short", max_workers=2, min_workers=2, max_batch_size=16)
        client.set_batch_queue("soak", body)
        for trial in range(given.trials):
            kind = draw.choice(["server", "batch process", "worker"])
            ids = [f"{trial}-{n}" for n in range(ITEMS)]
            views = client.submit_items("soak", BatchItemsBody(list(range(ITEMS)), ids)).items
            assert all(view.state != "refused" for view in views), views[:3]
            time.sleep(draw.random() * 0.3)
            if kind == "server":
                live.kill()
                live.start()
            elif (pid := victim(live, kind)) is not None:
                os.kill(pid, signal.SIGKILL)
            until = time.monotonic() + PATIENCE_S
            states: Counter[str] = Counter({"waiting": ITEMS})
            while states["waiting"] and time.monotonic() < until:
                states = Counter(view.state for view in client.item_results("soak", ids, 5_000).items)
            found["items"] += ITEMS
            found["lost"] += states["unknown"]
            found["stuck"] += states["waiting"]
            found["failed"] += states["failed"]
            found[kind] += 1
            if trial % 20 == 19:
                print(f"{trial + 1} trials, {dict(found)}, {time.monotonic() - began:.0f} s", flush=True)
    print(json.dumps({"trials": given.trials, "lost": 0, "stuck": 0} | dict(found)))
    return 1 if found["lost"] or found["stuck"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
