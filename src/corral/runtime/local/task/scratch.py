"""The private directory of a task: its TMPDIR, the files that it shares with its supervisor, and the modules that
training scripts import.

The directory belongs to the account, which may put anything in it: links, FIFOs, nothing at all. So what the supervisor
does here with its own rights never follows a link and never blocks.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import os
import stat
import time

from corral.io.files import write_file
from corral.runtime.job_modules import MODULES
from corral.runtime.local.task.lease import now_ms as boot_ms
from corral.runtime.local.task.records import Record, to_json
from corral.runtime.slurm_shims import write_shims

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CHECKPOINT = "checkpoint"
WARNING = "warning.json"
FINISHED = "finished"
REQUEUE = "requeue"  # written by the `scontrol` of the task
TEMPORARY = "tmp"
SCRIPT = "slurm_script"  # the name that scripts for Slurm know
SHIMS = "slurm"
_SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
#: Before the second line of a script for a login shell, whose profile may have replaced PATH. Lines keep their numbers.
_KEEP_SHIMS = 'PATH="${CORRAL_SHIMS:+$CORRAL_SHIMS:}$PATH";'
_READ_MAX = 1 << 16  # of the end of the checkpoint file: hundreds of lines
_LINES_MAX = 100  # that are tried, from the end
_PATH_MAX = 1_000
_SAVE_MS_MAX = 7 * 86_400_000
STEP_MAX = (1 << 53) - 1  # as in the server: what every database and JSON reader can hold
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Scratch:
    def __init__(self, path: str, uid: int, gid: int) -> None:
        self.path = path
        self._uid = uid
        self._gid = gid
        self._is_ours = uid == os.geteuid()
        self._seen: tuple[int, int, int] | None = None
        self._has_complained = False
        self._warning: Record = {}

    def make(self) -> None:
        try:
            self._make()
        except FileNotFoundError:  # the parent was removed meanwhile, because it was empty
            self._make()

    def _make(self) -> None:
        self._make_root()
        remove(self.path)  # left by an earlier task of the same name, which has ended
        if self._is_ours and self._reuse_blank():
            return
        for path in (self.path, f"{self.path}/{TEMPORARY}"):
            os.mkdir(path, 0o700)
        _write_modules(self.path)
        if not self._is_ours:  # last: from then on the account may change it
            for path in (f"{self.path}/{TEMPORARY}", self.path):
                os.chown(path, self._uid, self._gid, follow_symlinks=False)

    def _reuse_blank(self) -> bool:
        """Reuse the directory of the previous task, if there is one and it is still as it was made."""
        try:
            os.rename(blank_in(os.path.dirname(self.path)), self.path)
            if self._is_blank():
                return True
        except OSError:
            pass
        remove(self.path)
        return False

    def _make_root(self) -> None:
        """It is in a directory that everyone may write to, where cleanup jobs may have removed it."""
        root = os.path.dirname(self.path)
        try:
            state = os.lstat(root)
        except FileNotFoundError:
            os.mkdir(root, 0o711)
            os.chmod(root, 0o711)
            return
        if state.st_uid != os.geteuid() or not stat.S_ISDIR(state.st_mode):
            raise PermissionError(1, "belongs to another account", root)

    def put_away(self) -> None:
        """Keep it for the next task of this supervisor if nothing was put there, which is the usual case; else remove
        it."""
        try:
            if self._is_ours and self._is_blank():
                os.rename(self.path, blank_in(os.path.dirname(self.path)))
                return
        except OSError:
            pass
        remove(self.path)

    def _is_blank(self) -> bool:
        for path, names in ((self.path, {TEMPORARY, *MODULES}), (f"{self.path}/{TEMPORARY}", set())):
            state = os.lstat(path)
            is_as_made = state.st_mode == stat.S_IFDIR | 0o700 and state.st_uid == os.geteuid()
            if not is_as_made or set(os.listdir(path)) != names:
                return False
        return all(_is_as_written(f"{self.path}/{name}", content) for name, content in MODULES.items())

    def put_script(self, text: str, command: list[str]) -> list[str]:
        """Write the script of the task. Returns the command that runs it: the interpreter in its first line, the file,
        and its arguments. Must be called with the rights of the account."""
        path = f"{self.path}/{SCRIPT}"
        first, newline, rest = text.partition("\n")
        interpreter = first[2:].split() if first.startswith("#!") else ["/bin/sh"]
        if _is_login_shell(interpreter):
            text = f"{first}{newline}{_KEEP_SHIMS}{rest}"
        _write(path, text.encode("utf-8", "surrogateescape"), 0o700)
        return [*interpreter, path, *command[1:]]

    def put_shims(self) -> str:
        """Write the commands of Slurm into a directory of their own, and return it. Must be called with the rights of
        the account."""
        folder = f"{self.path}/{SHIMS}"
        os.mkdir(folder, 0o700)
        write_shims(folder)
        return folder

    def warn(self, left_ms: int, why: str) -> None:
        """Write the warning file. Must be called with the rights of the account. The deadline is given by the wall
        clock, and by CLOCK_BOOTTIME, which cannot be set. ``is_agreed``: ranks wait for the step to stop at."""
        wall_ms = time.time_ns() // 1_000_000 + left_ms
        self._warning |= {"deadline_ms": wall_ms, "boot_ms": boot_ms() + left_ms, "why": why, "is_agreed": True}
        self._write_warning()

    def stop_at(self, step: int) -> None:
        """Add to the warning the step at which all ranks stop. Must be called with the rights of the account."""
        self._warning |= {"stop_at": step, "agreed_boot_ms": boot_ms()}
        self._write_warning()

    def _write_warning(self) -> None:
        try:
            write_file(f"{self.path}/{WARNING}", to_json(self._warning), durable=False)
        except OSError:
            pass  # the task removed its directory; it still gets the signal

    def saved(self, complain: Callable[[str], None]) -> Record | None:
        """The last checkpoint in the file for them, if the file has changed since the last call. The task may put
        anything there: if it cannot be used, ``complain`` is called, once."""
        path = f"{self.path}/{CHECKPOINT}"
        try:
            state = os.lstat(path)
            mark = (state.st_ino, state.st_size, state.st_mtime_ns)
            if not stat.S_ISREG(state.st_mode):
                self._complain(complain, "the checkpoint file is not a regular file, so it is ignored")
                return None
            if mark == self._seen:
                return None
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            self._seen = mark
            state = os.fstat(fd)  # it may have been replaced
            if not stat.S_ISREG(state.st_mode):
                return None
            text = os.pread(fd, _READ_MAX, max(state.st_size - _READ_MAX, 0))
            saved = last_saved(text)
            if saved is None and b"\n" in text:
                self._complain(complain, 'the checkpoint file names no valid step; write lines such as {"step": 1200}')
            return saved
        except OSError:
            return None
        finally:
            os.close(fd)

    def is_finished(self) -> bool:
        """Whether the task has reported that its work is complete."""
        return self._has(FINISHED)

    def wants_requeue(self) -> bool:
        """Whether the task has asked to be ended and run again."""
        return self._has(REQUEUE)

    def has_saved_before_requeue(self) -> bool:
        """Whether the program itself has asked so, which then has nothing to save any more."""
        try:
            return os.stat(f"{self.path}/{REQUEUE}", follow_symlinks=False).st_size > 0
        except OSError:
            return False

    def _has(self, name: str) -> bool:
        try:
            return stat.S_ISREG(os.lstat(f"{self.path}/{name}").st_mode)
        except OSError:
            return False

    def _complain(self, complain: Callable[[str], None], what: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            complain(what)


def _is_login_shell(interpreter: list[str]) -> bool:
    words = [word for word in interpreter[1:] if word.startswith("-")]
    name = os.path.basename(interpreter[0])
    return name in _SHELLS and any(word == "--login" or (word[1:2] != "-" and "l" in word) for word in words)


def files_in(path: str) -> dict[str, str]:
    """The variables by which a task finds the files in the private directory at this path."""
    return {
        "CORRAL_CHECKPOINT_FILE": f"{path}/{CHECKPOINT}",
        "CORRAL_WARNING_FILE": f"{path}/{WARNING}",
        "CORRAL_PYTHONPATH": path,
    }


def _write_modules(folder: str) -> None:
    """Called while the folder belongs to this process alone."""
    for name, content in MODULES.items():
        _write(f"{folder}/{name}", content, 0o644)


def _write(path: str, content: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.fchmod(fd, mode)
        while content:
            content = content[os.write(fd, content) :]
    finally:
        os.close(fd)


def _is_as_written(path: str, content: bytes) -> bool:
    """Whether a module is as it was written. The last task may belong to another user, who could have changed it."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        state = os.fstat(fd)
        is_plain = state.st_mode == stat.S_IFREG | 0o644 and state.st_nlink == 1 and state.st_uid == os.geteuid()
        return is_plain and state.st_size == len(content) and os.read(fd, len(content) + 1) == content
    finally:
        os.close(fd)


def blank_in(root: str) -> str:
    """Where this process keeps the directory of its last task: creating and removing one each time would cost more than
    most small tasks."""
    return f"{root}/blank-{os.getpid()}"


def remove_root(root: str) -> None:
    """Remove the parent of private directories if it is empty. It is created again when it is needed."""
    try:
        os.rmdir(root)
    except OSError:
        pass


def last_saved(text: bytes) -> Record | None:
    """The last complete line that has a step: ``{"step": 3}``, with ``path`` and times if they are valid. An
    incomplete line may still be written."""
    end = text.rfind(b"\n") + 1
    for line in reversed(text[:end].rsplit(b"\n", _LINES_MAX + 1)[-_LINES_MAX - 1 :]):
        saved = _saved_in(line) if b"step" in line else None
        if saved is not None:
            return saved
    return None


def _saved_in(line: bytes) -> Record | None:
    import json  # only for tasks that save

    try:
        record = json.loads(line)
    except (ValueError, RecursionError, MemoryError):
        return None
    step = record.get("step") if isinstance(record, dict) else None
    if type(step) is not int or not 0 <= step <= STEP_MAX:
        return None
    path = record.get("path")
    is_path = isinstance(path, str) and len(path) <= _PATH_MAX and path.isprintable()
    times = {name: _ms_in(record.get(name)) for name in ("save_ms", "stall_ms")}
    return {"step": step, "path": path if is_path else "", **times}


def _ms_in(value: object) -> int:
    return value if isinstance(value, int) and type(value) is int and 0 <= value <= _SAVE_MS_MAX else 0


def remove(path: str) -> None:
    """Remove all of it, also files of other accounts, without following links."""
    try:
        os.rmdir(f"{path}/{TEMPORARY}")
        for name in MODULES:
            os.unlink(f"{path}/{name}")
        os.rmdir(path)
        return  # nothing was put there, which is the usual case
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
            continue  # a mount, or missing permissions: the server tries again later


def _empty(path: str) -> None:
    """Goes down and up with one open directory and no recursion: a hostile task may nest directories deeper than the
    call stack or the number of open files allows. No process of the task is left, so ``..`` leads back."""
    here = os.open(path, _FOLDER)
    try:
        pending = [_folders_left(here)]  # at each level, what is still to be removed; the last one is where we are
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
    """The directories in it, after everything else in it is removed."""
    os.fchmod(folder, 0o700)
    left = []
    for name in os.listdir(folder):
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            left.append(name)
    return left
