"""Starts a program for a supervisor: as which account, in which directory, with what environment; and describes what
went wrong.

Knows accounts, directories and exec. Most happens in the child, after it has the rights of the account, so that nothing
is done on behalf of a user that the user may not do.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import pwd
import resource
import termios

from corral.runtime.local.task import system
from corral.runtime.local.task.cgroups import TaskGroups, write
from corral.runtime.local.task.isolation import Namespaces

USER_ERROR, START_FAILED = "user_error", "start_failed"
NODE_LOST = "node_lost"
#: Exit codes as in shells.
CANNOT_EXECUTE, NOT_FOUND = 126, 127
#: How the server writes a line for the shell (``wire.job.program``).
LINE_FOR_SHELL = ["bash", "-c"]
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_FILES_MAX = 1 << 20
_OOM_SCORE = "300"  # the kernel kills tasks before the server and the supervisors


class StartFault(Exception):
    """Why a task could not be started, whether the user or the machine is to blame, and the exit code to show.
    ``note``: what its log says, if that is more than ``why``."""

    def __init__(self, failure: str, why: str, code: int = CANNOT_EXECUTE, note: str = "") -> None:
        super().__init__(why)
        self.note = note
        self.failure = failure
        self.why = why
        self.code = code


class Account:
    """The account of the processes. Empty ``name``: the account of the server."""

    def __init__(self, name: str) -> None:
        try:
            found = pwd.getpwnam(name) if name else pwd.getpwuid(os.geteuid())
        except KeyError:
            if name:
                why = f"this machine has no account {name!r}: create it, or map the user to another account"
                raise StartFault(START_FAILED, why) from None
            found = pwd.struct_passwd((str(os.geteuid()), "x", os.geteuid(), os.getegid(), "", "/", "/bin/sh"))
        self.name = found.pw_name
        self.uid = found.pw_uid
        self.gid = found.pw_gid
        self.home = found.pw_dir
        self.shell = found.pw_shell or "/bin/sh"
        self.changes = self.uid != os.geteuid()
        if self.changes and os.geteuid() != 0:
            raise StartFault(START_FAILED, f"cannot run tasks as {name!r}: the server must run as root for that")

    def env(self) -> dict[str, str]:
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell, "PATH": _PATH}

    def groups(self) -> list[int]:
        return os.getgrouplist(self.name, self.gid)

    def drop(self) -> None:
        """Become this account for good."""
        if self.changes:
            os.setgroups(self.groups())
            os.setresgid(self.gid, self.gid, self.gid)
            os.setresuid(self.uid, self.uid, self.uid)


class Acting:
    """The supervisor has only the rights of the account within this block. The account cannot signal it meanwhile,
    because its real user id stays the same."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def __enter__(self) -> None:
        if self._account.changes:
            self._groups = os.getgroups()
            self._gid = os.getegid()
            self._uid = os.geteuid()
            os.setgroups(self._account.groups())
            os.setegid(self._account.gid)
            os.seteuid(self._account.uid)

    def __exit__(self, *_: object) -> None:
        if self._account.changes:
            os.seteuid(self._uid)
            os.setegid(self._gid)
            os.setgroups(self._groups)


class Program:
    """One process of a task, before it is started."""

    def __init__(
        self,
        command: list[str],
        env: dict[str, str],
        directory: str,
        account: Account,
        groups: TaskGroups,
        umask: int,
        namespaces: Namespaces | None = None,
        stdin: int = -1,
        terminal: bool = False,
    ) -> None:
        """``namespaces``: hides what it must not see; None: it sees whatever its account sees. ``stdin``: -1: there is
        nothing to read. ``terminal``: it leads a session, and its standard input is the terminal of that session."""
        self.command = command
        self.env = env
        self.directory = directory
        self.account = account
        self.groups = groups
        self.umask = umask
        self.namespaces = namespaces
        self.stdin = stdin
        self.terminal = terminal


def start(program: Program, stdout: int, stderr: int, leader: int) -> tuple[int, int]:
    """Its pid, and a pipe that is closed when the program runs, or says why it cannot (`fault_from`).

    ``leader``: the pid whose process group it joins; 0: it leads a new one.
    """
    verdict, sink = os.pipe()
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError as fault:
        os.close(verdict)
        os.close(sink)
        raise StartFault(START_FAILED, f"cannot create a process: {fault.strerror}") from fault
    if pid:
        if not program.terminal:
            _join(pid, leader)
        os.close(sink)
        os.set_blocking(verdict, False)
        return pid, verdict
    step = ["start"]
    try:
        _become(program, stdout, stderr, leader, parent, step)
    except OSError as fault:
        os.write(sink, marshal.dumps((step[0], fault.errno or 0, fault.strerror or str(fault))))
    except BaseException as fault:
        os.write(sink, marshal.dumps((step[0], 0, repr(fault)[:1000])))
    os._exit(NOT_FOUND)


def _join(pid: int, leader: int) -> None:
    """Called by the child and by its parent, as shells do: the next process can join the group of the first, even if
    the first one has not run yet. The second call changes nothing."""
    try:
        os.setpgid(pid, leader)
    except (PermissionError, ProcessLookupError):
        pass  # it already runs its program, or it has ended


def _become(program: Program, stdout: int, stderr: int, leader: int, parent: int, step: list[str]) -> None:
    if program.terminal:
        os.setsid()
    else:
        os.setpgid(0, leader)
    step[0] = "cgroup"
    program.groups.enter()
    _offer_to_the_oom_killer(os.getpid())
    step[0] = "account"
    program.account.drop()
    if program.namespaces is not None:
        step[0] = "isolation"
        program.namespaces.enter()
    system.die_with_parent()
    if os.getppid() != parent:
        os._exit(NOT_FOUND)  # the supervisor has died meanwhile
    step[0] = "start"
    stdin = program.stdin if program.stdin >= 0 else os.open("/dev/null", os.O_RDWR)
    for source, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target, inheritable=True)
    if program.terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.umask(program.umask)
    _set_limits()
    system.default_signals((system.SIGPIPE, system.SIGXFSZ))
    step[0] = "directory"
    os.chdir(program.directory)
    step[0] = "command"
    # Not os.execvpe: it imports a module, and this account may not be able to read Python's files.
    path, command = _executable(program)
    os.execve(path, command, program.env)


def _offer_to_the_oom_killer(pid: int) -> None:
    try:
        write(f"/proc/{pid}/oom_score_adj", _OOM_SCORE)
    except OSError:
        pass  # it keeps the default score


def _set_limits() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, _FILES_MAX) if most > 0 else _FILES_MAX, most))


def spawn(program: Program, stdout: int, stderr: int, leader: int) -> int:
    """Like `start`, for a program that needs no other account and no cgroup of its own. The child needs no copy of this
    process, which is most of the cost of a fork. It inherits what posix_spawn cannot set, except to die with its
    supervisor, so this is not for a program that holds GPUs."""
    step = "directory"
    umask = os.umask(program.umask)
    try:
        os.chdir(program.directory)
        step = "command"
        _set_limits()
        path, command = _executable(program)
        actions = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, stdout, 1), (os.POSIX_SPAWN_DUP2, stderr, 2)]  # type: ignore[list-item]
        defaults = (system.SIGPIPE, system.SIGXFSZ)
        pid = os.posix_spawn(path, command, program.env, file_actions=actions, setpgroup=leader, setsigdef=defaults)
    except OSError as fault:
        raise _fault(step, fault.errno or 0, fault.strerror or str(fault), program) from fault
    finally:
        os.umask(umask)
        os.chdir("/")
    _offer_to_the_oom_killer(pid)
    return pid


def _executable(program: Program) -> tuple[str, list[str]]:
    """The file to execute, and its arguments. A line for the shell runs with bash, or with sh if there is no bash; the
    shell is found whatever the PATH of the job is."""
    command, path = program.command, program.env.get("PATH", _PATH)
    if command[:2] != LINE_FOR_SHELL or len(command) != 3:
        return _find(command[0], path), command
    try:
        return _find(command[0], f"{path}:{_PATH}"), command
    except FileNotFoundError:
        return _find("sh", f"{path}:{_PATH}"), ["sh", *command[1:]]


def _find(name: str, path: str) -> str:
    """Like exec: a file that cannot be executed is skipped, and returned only if there is no other."""
    if "/" in name:
        return name
    found = [place for folder in path.split(":") if os.path.isfile(place := os.path.join(folder or ".", name))]
    if not found:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")
    return next((place for place in found if os.access(place, os.X_OK)), found[0])


def fault_from(verdict: bytes, program: Program) -> StartFault:
    """The fault that a child has reported instead of running its program."""
    step, number, text = marshal.loads(verdict)
    return _fault(step, number, text, program)


def _fault(step: str, number: int, text: str, program: Program) -> StartFault:
    name, place = program.command[0], program.directory
    if step == "directory":
        why = f"{program.account.name} cannot enter the working directory {place!r}: {text.lower()}"
        return StartFault(USER_ERROR, why)
    if step != "command":
        return StartFault(START_FAILED, f"cannot set up the task ({step}): {text}")
    if number == errno.ENOENT and ("/" not in name or not os.path.exists(os.path.join(place, name))):
        where = "" if "/" in name else f" in PATH={program.env.get('PATH', '')}"
        return StartFault(USER_ERROR, f"{name}: not found", NOT_FOUND, note=f"{name}: not found{where}")
    if number == errno.ENOENT:
        return StartFault(USER_ERROR, f"the interpreter in the first line of {name!r} does not exist", NOT_FOUND)
    if number in (errno.EACCES, errno.EPERM):
        return StartFault(USER_ERROR, f"{program.account.name} may not execute {name!r}: {text.lower()}")
    if number == errno.ENOEXEC:
        return StartFault(USER_ERROR, f"{name!r} is not a program: a script must start with #! and its interpreter")
    if number == errno.E2BIG:
        return StartFault(USER_ERROR, "the arguments and the environment are longer than this machine allows")
    if number in (errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.EIO):
        return StartFault(START_FAILED, f"cannot start {name!r}: {text}")
    return StartFault(USER_ERROR, f"cannot execute {name!r}: {text}")
