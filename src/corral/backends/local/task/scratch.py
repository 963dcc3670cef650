"""The private directory of a task: its TMPDIR, and the two files through which it and its supervisor talk.

The directory belongs to the account, which may put anything in it: links to elsewhere, FIFOs, nothing at all. So what
is done here with the rights of the supervisor never follows a link and never waits.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import os
import stat
import time

from corral.backends.local.task.lease import now_ms as boot_ms
from corral.backends.local.task.records import to_json, write_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CHECKPOINT, WARNING, TEMPORARY = "checkpoint", "warning.json", "tmp"
_READ_MAX = 1 << 16  # of the end of the checkpoint file: hundreds of lines
_LINES_MAX = 100  # that are tried, from the end
STEP_MAX = (1 << 53) - 1  # as the server's: what every database and every reader of JSON can hold
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Scratch:
    def __init__(self, path: str, uid: int, gid: int) -> None:
        self.path, self._uid, self._gid = path, uid, gid
        self._is_ours = uid == os.geteuid()
        self._seen: tuple[int, int, int] | None = None
        self._has_complained = False

    def make(self) -> None:
        self._make_root()
        remove(self.path)  # left by an earlier task of the same name, which is over
        if self._is_ours and self._took_blank():
            return
        for path in (self.path, f"{self.path}/{TEMPORARY}"):
            os.mkdir(path, 0o700)
            if not self._is_ours:
                os.chown(path, self._uid, self._gid, follow_symlinks=False)

    def _took_blank(self) -> bool:
        """Whether the directory of the task before serves this one: if there was one, and no cleaner was at it."""
        try:
            os.rename(blank_in(os.path.dirname(self.path)), self.path)
            if self._is_blank():
                return True
        except OSError:
            pass
        remove(self.path)
        return False

    def _make_root(self) -> None:
        """It lies where everyone may write, and cleaners of such places may have removed it."""
        root = os.path.dirname(self.path)
        try:
            state = os.lstat(root)
        except FileNotFoundError:
            os.mkdir(root, 0o711)
            os.chmod(root, 0o711)
            return
        if state.st_uid != os.geteuid() or not stat.S_ISDIR(state.st_mode):
            raise PermissionError(1, "belongs to someone else", root)

    def env(self) -> dict[str, str]:
        return {
            "TMPDIR": f"{self.path}/{TEMPORARY}",
            "CORRAL_CHECKPOINT_FILE": f"{self.path}/{CHECKPOINT}",
            "CORRAL_WARNING_FILE": f"{self.path}/{WARNING}",
        }

    def put_away(self) -> None:
        """For the next task of this supervisor, if nothing was put there, as nearly always; or removed."""
        try:
            if self._is_ours and self._is_blank():
                os.rename(self.path, blank_in(os.path.dirname(self.path)))
                return
        except OSError:
            pass
        remove(self.path)

    def _is_blank(self) -> bool:
        for path, names in ((self.path, [TEMPORARY]), (f"{self.path}/{TEMPORARY}", [])):
            state = os.lstat(path)
            is_as_made = state.st_mode == stat.S_IFDIR | 0o700 and state.st_uid == os.geteuid()
            if not is_as_made or os.listdir(path) != names:
                return False
        return True

    def warn(self, left_ms: int, why: str) -> None:
        """Put the warning where the task looks for it. To be called with the rights of the account. The deadline is
        told by the wall clock, and by CLOCK_BOOTTIME, which nobody can set."""
        wall_ms = time.time_ns() // 1_000_000 + left_ms
        record = to_json({"deadline_ms": wall_ms, "boot_ms": boot_ms() + left_ms, "why": why})
        try:
            write_whole(f"{self.path}/{WARNING}", record)
        except OSError:
            pass  # the task removed its directory; it still gets the signal

    def saved_step(self, complain: Callable[[str], None]) -> int | None:
        """The last step in the checkpoint file, when the file has changed since the last look. What the file is and
        holds is up to the task; where that is of no use, ``complain`` is told so, once."""
        path = f"{self.path}/{CHECKPOINT}"
        try:
            state = os.lstat(path)
            mark = (state.st_ino, state.st_size, state.st_mtime_ns)
            if not stat.S_ISREG(state.st_mode):
                self._complain(complain, "the checkpoint file is not a plain file and is not read")
                return None
            if mark == self._seen:
                return None
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            self._seen = mark
            state = os.fstat(fd)  # it may have been another file a moment ago
            if not stat.S_ISREG(state.st_mode):
                return None
            text = os.pread(fd, _READ_MAX, max(state.st_size - _READ_MAX, 0))
            step = last_step(text)
            if step is None and b"\n" in text:
                self._complain(complain, 'the checkpoint file says no step that can be used; a line is {"step": 1200}')
            return step
        except OSError:
            return None
        finally:
            os.close(fd)

    def _complain(self, complain: Callable[[str], None], what: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            complain(what)


def blank_in(root: str) -> str:
    """Where this process keeps the directory of its last task: to make and remove one for each costs more than most
    small tasks."""
    return f"{root}/blank-{os.getpid()}"


def last_step(text: bytes) -> int | None:
    """Of the last whole line that says one: ``{"step": 3}``. A last line without an end may still be being written."""
    end = text.rfind(b"\n") + 1
    for line in reversed(text[:end].rsplit(b"\n", _LINES_MAX + 1)[-_LINES_MAX - 1 :]):
        step = _step_in(line) if b"step" in line else None
        if step is not None:
            return step
    return None


def _step_in(line: bytes) -> int | None:
    import json  # only a task that saves pays for it

    try:
        record = json.loads(line)
    except (ValueError, RecursionError, MemoryError):
        return None
    step = record.get("step") if isinstance(record, dict) else None
    return step if type(step) is int and 0 <= step <= STEP_MAX else None


def remove(path: str) -> None:
    """All of it, whoever owns it, never leaving it by a link."""
    try:
        os.rmdir(f"{path}/{TEMPORARY}")
        os.rmdir(path)
        return  # nothing was put there, as nearly always
    except OSError:
        if not os.path.lexists(path):
            return
    for _ in range(2):
        try:
            _empty(path)
            os.rmdir(path)
            return
        except FileNotFoundError:
            return
        except OSError:
            continue  # a mount, or a right that was taken away: the server tries again later


def _empty(path: str) -> None:
    """Down and up again with one open folder and no recursion: a hostile task may nest folders deeper than calls or
    open
    files can go. Nobody else is alive in there, so that ``..`` leads where one came from."""
    here = os.open(path, _FOLDER)
    try:
        pending = [_folders_left(here)]  # at each level, what is still to be removed; its last one is where we are
        while pending:
            if pending[-1]:
                below = _open_below(pending[-1][-1], here)
                os.close(here)
                here = below
                pending.append(_folders_left(here))
            else:
                pending.pop()
                if pending:
                    above = os.open("..", _FOLDER, dir_fd=here)
                    os.close(here)
                    here = above
                    os.rmdir(pending[-1].pop(), dir_fd=here)
    finally:
        os.close(here)


def _open_below(name: str, folder: int) -> int:
    os.chmod(name, 0o700, dir_fd=folder)
    return os.open(name, _FOLDER, dir_fd=folder)


def _folders_left(folder: int) -> list[str]:
    """Once everything else in it is gone."""
    os.fchmod(folder, 0o700)
    left = []
    for name in os.listdir(folder):
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            left.append(name)
    return left
