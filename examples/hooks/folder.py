"""A cloud in a folder: the three commands of `corral fleet up --on command`, for a machine that plays the cloud.

    corral fleet up local --on command --nodes 0..4 --shape 8xH100 \
        --acquire "python examples/hooks/folder.py acquire /tmp/cloud" \
        --release "python examples/hooks/folder.py release /tmp/cloud" \
        --look    "python examples/hooks/folder.py look /tmp/cloud"

A pilot is a process of this machine with simulated GPUs. A real cloud would tag a machine with CORRAL_PILOT_ID and
start the same command on it. FOLDER_NODES: how many there are at once (4). FOLDER_AWAY: a file; while it is there,
no command answers.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

NOBODY_CAN_SAY = 75


def main(what: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "away").exists():
        sys.stderr.write("the cloud does not answer\n")
        sys.exit(NOBODY_CAN_SAY)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        {"acquire": acquire, "release": release, "look": look}[what](folder)
    if what == "acquire":
        with suppress(FileNotFoundError):
            (folder / "lose").unlink()  # of several at the same time one finds it
            sys.exit(NOBODY_CAN_SAY)


def acquire(folder: Path) -> None:
    """Tagged with the id of the pilot: a repeated call finds it."""
    place = folder / os.environ["CORRAL_PILOT_ID"]
    if not place.exists():
        place.mkdir(mode=0o700)
        kept = ("CORRAL_PILOT", "CORRAL_SERVER", "CORRAL_JOIN_TOKEN")
        write(place, {"phase": "waiting", "env": {name: os.environ[name] for name in kept}})
    start_waiting(folder)


def release(folder: Path) -> None:
    place = folder / os.environ["CORRAL_PILOT_ID"]
    if place.exists():
        told = read(place)
        if told["phase"] == "waiting":
            write(place, told | {"phase": "ended", "why": "released"})
        elif told["phase"] == "started" and is_alive(told["pid"]):
            os.kill(told["pid"], signal.SIGTERM)  # it leaves in order
    start_waiting(folder)


def look(folder: Path) -> None:
    start_waiting(folder)
    for name in sys.stdin.read().split():
        place = folder / f"{os.environ['CORRAL_CLUSTER']}-{name}"
        if place.exists():
            told = read(place)
            where = f"process {told['pid']}" if "pid" in told else ""
            print(name, told["phase"], where, "", told.get("why", ""), sep="\t")


def start_waiting(folder: Path) -> None:
    """As machines become free, waiting pilots get them."""
    places = sorted(
        (place for place in folder.iterdir() if (place / "told").exists()), key=lambda place: place.stat().st_ctime
    )
    alive = 0
    for place in places:
        told = read(place)
        if told["phase"] == "started" and not is_alive(told["pid"]):
            write(place, told | {"phase": "ended", "why": "its process is over"})
        alive += read(place)["phase"] == "started"
    for place in places:
        if read(place)["phase"] == "waiting" and alive < int(os.environ.get("FOLDER_NODES", "4")):
            start(place, read(place))
            alive += 1


def start(place: Path, told: dict[str, Any]) -> None:
    env = told["env"]
    servers = [word for url in env["CORRAL_SERVER"].split() for word in ("--server", url)]
    words = [sys.executable, "-m", "corral", "pilot", *servers, "--name", env["CORRAL_PILOT"], "--data", str(place)]
    words += ["--fake-gpus", os.environ.get("FOLDER_GPUS", "8xH100"), "--grace", "10s"]
    with (place / "pilot.log").open("ab") as log:
        process = subprocess.Popen(
            words, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    write(place, told | {"phase": "started", "pid": process.pid})


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


def read(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "told").read_text())
    return found


def write(place: Path, told: dict[str, Any]) -> None:
    (place / "told.new").write_text(json.dumps(told))
    (place / "told.new").chmod(0o600)
    (place / "told.new").replace(place / "told")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
