"""Runs a command and sees that nothing of it is left: no process, no mount, no place of tasks. For `make test`.

    python -m tests.contained COMMAND ARGUMENT...

What the command starts, and what outlives the process that started it, becomes a child of this process (a subreaper),
so it can be found whatever session or group it has moved to. What is still there some time after the command has ended
is named, and makes the run fail; processes are ended. The command has a folder for temporary files of its own, so that
what others do on this machine is not taken for its doing; that folder is removed, whatever is in it. The exit status is
the command's own, or 1 if it was 0 and something was left.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 20.0
_TURN_S = 0.1


def main(command: list[str]) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    mounts = mounted()
    folder = Path(tempfile.mkdtemp(prefix="r-"))
    folder.chmod(0o1777)  # some tests are other accounts
    places = {"PYTEST_DEBUG_TEMPROOT": tempfile.gettempdir()} | os.environ | {"TMPDIR": str(folder)}
    child = subprocess.Popen(command, env=places)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(child.pid, number))
    status = _wait(child.pid)
    left = _left_behind()
    for line in left:
        print(f"left running: {line}", file=sys.stderr)
    still = sorted(mounted() - mounts)
    for place in still:
        print(f"left mounted: {place}", file=sys.stderr)  # it may belong to another program: the reader of this decides
    roots = sorted(folder.glob("corral-" + "[0-9a-f]" * 8))
    for root in roots:
        print(f"left of a server: {root.name} with {os.listdir(root)[:3]}", file=sys.stderr)
    empty = [root for root in roots if not os.listdir(root)]  # others: some test has killed the supervisor of a task
    shutil.rmtree(folder, ignore_errors=True)
    found = f"{len(left)} processes, {len(still)} mounts, {len(roots)} places of tasks"
    print(f"left after the run: {found}", file=sys.stderr)
    return status or (1 if left or still or empty else 0)


def _wait(pid: int) -> int:
    """The exit status of the command. Orphans that end meanwhile are waited for as well, as init would."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status) & 0xFF


def _left_behind() -> list[str]:
    """What still runs when there was time to end, each in a line; it is ended."""
    end = time.monotonic() + PATIENCE_S
    while (running := descendants(os.getpid())) and time.monotonic() < end:
        _reap()
        time.sleep(_TURN_S)
    told = [f"{pid} {_command(pid)}" for pid in running]
    while running:
        for pid in running:
            _kill(pid)
        _reap()
        time.sleep(_TURN_S)
        running = descendants(os.getpid())
    return told


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def descendants(root: int) -> list[int]:
    """All living processes below a process."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return sorted(found)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")[:200]
    except OSError:
        return "(gone)"


def mounted() -> set[str]:
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as lines:
        return {line.split(" ")[1] for line in lines}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
