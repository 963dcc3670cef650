"""From a supervisor to a running program: who it runs as, where, with what; and what went wrong, in words.

Knows accounts, directories and exec. What is done between fork and exec is done as late as possible by the child
itself, with the rights of the account, so that what the user may not see is not seen on the user's behalf.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import errno
import marshal
import os
import pwd
import resource

from corral.backends.local.task import system
from corral.backends.local.task.cgroups import TaskGroups, write
from corral.backends.local.task.isolation import Room

USER_ERROR, START_FAILED = "user_error", "start_failed"
#: As shells have it.
CANNOT_EXECUTE, NOT_FOUND = 126, 127
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_FILES_MAX = 1 << 20
_OOM_SCORE = "300"  # the kernel takes tasks before the server and the supervisors


class StartFault(Exception):
    """Why a task could not be started, whose fault that is, and the exit code to show."""

    def __init__(self, failure: str, why: str, code: int = CANNOT_EXECUTE) -> None:
        super().__init__(why)
        self.failure, self.why, self.code = failure, why, code


class Account:
    """Who the processes run as. ``name`` empty: as whoever runs the server."""

    def __init__(self, name: str) -> None:
        try:
            found = pwd.getpwnam(name) if name else pwd.getpwuid(os.geteuid())
        except KeyError:
            if name:
                why = f"this machine has no account {name!r}: create it, or map the user to another account"
                raise StartFault(START_FAILED, why) from None
            found = pwd.struct_passwd((str(os.geteuid()), "x", os.geteuid(), os.getegid(), "", "/", "/bin/sh"))
        self.name, self.uid, self.gid = found.pw_name, found.pw_uid, found.pw_gid
        self.home, self.shell = found.pw_dir, found.pw_shell or "/bin/sh"
        self.changes = self.uid != os.geteuid()
        if self.changes and os.geteuid() != 0:
            raise StartFault(START_FAILED, f"to run tasks as {name!r} the server must run as root")
        self.path = _PATH if self.changes else os.environ.get("PATH", _PATH)

    def env(self) -> dict[str, str]:
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell, "PATH": self.path}

    def groups(self) -> list[int]:
        return os.getgrouplist(self.name, self.gid)

    def drop(self) -> None:
        """For good."""
        if self.changes:
            os.setgroups(self.groups())
            os.setresgid(self.gid, self.gid, self.gid)
            os.setresuid(self.uid, self.uid, self.uid)


class Acting:
    """For a moment the supervisor has only the rights of the account; it cannot be signalled by it meanwhile, because
    its real user stays what it was."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def __enter__(self) -> None:
        if self._account.changes:
            self._groups, self._gid, self._uid = os.getgroups(), os.getegid(), os.geteuid()
            os.setgroups(self._account.groups())
            os.setegid(self._account.gid)
            os.seteuid(self._account.uid)

    def __exit__(self, *_: object) -> None:
        if self._account.changes:
            os.seteuid(self._uid)
            os.setegid(self._gid)
            os.setgroups(self._groups)


class Program:
    """One process of a task, about to be."""

    def __init__(
        self,
        command: list[str],
        env: dict[str, str],
        directory: str,
        account: Account,
        groups: TaskGroups,
        room: Room | None = None,
    ) -> None:
        """``room``: keeps from it what it shall not see; None: it sees whatever its account sees."""
        self.command, self.env, self.directory = command, env, directory
        self.account, self.groups = account, groups
        self.room = room


def start(program: Program, stdout: int, stderr: int, leader: int) -> tuple[int, int]:
    """Its pid, and a pipe that ends when the program runs, or says why it cannot (`fault_from`).

    ``leader``: the pid whose process group it joins; 0: it leads a new one.
    """
    verdict, tell = os.pipe()
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError as fault:
        os.close(verdict)
        os.close(tell)
        raise StartFault(START_FAILED, f"no process could be made: {fault.strerror}") from fault
    if pid:
        _join(pid, leader)
        os.close(tell)
        os.set_blocking(verdict, False)
        return pid, verdict
    step = ["start"]
    try:
        _become(program, stdout, stderr, leader, parent, step)
    except OSError as fault:
        os.write(tell, marshal.dumps((step[0], fault.errno or 0, fault.strerror or str(fault))))
    except BaseException as fault:
        os.write(tell, marshal.dumps((step[0], 0, repr(fault)[:1000])))
    os._exit(NOT_FOUND)


def _join(pid: int, leader: int) -> None:
    """Done by the child and by its parent, as shells do: the next process joins the group of the first, which is there
    when the parent has made it, though the first may not have run yet. Whoever comes second changes nothing."""
    try:
        os.setpgid(pid, leader)
    except (PermissionError, ProcessLookupError):
        pass  # it runs its program already, or it has ended


def _become(program: Program, stdout: int, stderr: int, leader: int, parent: int, step: list[str]) -> None:
    os.setpgid(0, leader)
    step[0] = "cgroup"
    program.groups.enter()
    _offer_to_the_oom_killer(os.getpid())
    step[0] = "account"
    program.account.drop()
    if program.room is not None:
        step[0] = "isolation"
        program.room.enter()
    system.die_with_parent()
    if os.getppid() != parent:
        os._exit(NOT_FOUND)  # the supervisor died before it could take us with it
    step[0] = "start"
    nothing = os.open("/dev/null", os.O_RDWR)
    for source, target in ((nothing, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target, inheritable=True)
    os.umask(0o022)
    _set_limits()
    system.default_signals((system.SIGPIPE, system.SIGXFSZ))
    step[0] = "directory"
    os.chdir(program.directory)
    step[0] = "command"
    # Not os.execvpe: it imports a module, and this account may not be able to read Python's.
    os.execve(_find(program.command[0], program.env.get("PATH", _PATH)), program.command, program.env)


def _offer_to_the_oom_killer(pid: int) -> None:
    try:
        write(f"/proc/{pid}/oom_score_adj", _OOM_SCORE)
    except OSError:
        pass  # it stays as likely as any other


def _set_limits() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, _FILES_MAX) if most > 0 else _FILES_MAX, most))


def spawn(program: Program, stdout: int, stderr: int, leader: int) -> int:
    """As `start`, for a program that needs no other account and no cgroup of its own: the child needs no copy of this
    process, which is most of what a fork costs. What posix_spawn cannot set, the child inherits from here; but not that
    it dies with its supervisor, so this is not for one that holds GPUs."""
    step = "directory"
    try:
        os.chdir(program.directory)
        step = "command"
        _set_limits()
        path = _find(program.command[0], program.env.get("PATH", _PATH))
        actions = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, stdout, 1), (os.POSIX_SPAWN_DUP2, stderr, 2)]  # type: ignore[list-item]
        os.umask(0o022)
        defaults = (system.SIGPIPE, system.SIGXFSZ)
        pid = os.posix_spawn(
            path, program.command, program.env, file_actions=actions, setpgroup=leader, setsigdef=defaults
        )
    except OSError as fault:
        raise _fault(step, fault.errno or 0, fault.strerror or str(fault), program) from fault
    finally:
        os.umask(0o077)
        os.chdir("/")
    _offer_to_the_oom_killer(pid)
    return pid


def _find(name: str, path: str) -> str:
    """As exec would; what may not be executed is passed over, and complained of when there is nothing else."""
    if "/" in name:
        return name
    found = [place for folder in path.split(":") if os.path.isfile(place := os.path.join(folder or ".", name))]
    if not found:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")
    return next((place for place in found if os.access(place, os.X_OK)), found[0])


def fault_from(verdict: bytes, program: Program) -> StartFault:
    """What a child that did not get to its program has to say."""
    step, number, text = marshal.loads(verdict)
    return _fault(step, number, text, program)


def _fault(step: str, number: int, text: str, program: Program) -> StartFault:
    name, place = program.command[0], program.directory
    if step == "directory":
        why = f"the working directory {place!r} cannot be entered by {program.account.name}: {text.lower()}"
        return StartFault(USER_ERROR, why)
    if step != "command":
        return StartFault(START_FAILED, f"the task could not be set up ({step}): {text}")
    if number == errno.ENOENT and ("/" not in name or not os.path.exists(os.path.join(place, name))):
        where = "" if "/" in name else f" in PATH={program.env.get('PATH', '')}"
        return StartFault(USER_ERROR, f"no such command: {name!r}{where}", NOT_FOUND)
    if number == errno.ENOENT:
        return StartFault(USER_ERROR, f"{name!r} names an interpreter that is not there (its first line)", NOT_FOUND)
    if number in (errno.EACCES, errno.EPERM):
        return StartFault(USER_ERROR, f"{name!r} may not be executed by {program.account.name}: {text.lower()}")
    if number == errno.ENOEXEC:
        return StartFault(USER_ERROR, f"{name!r} is not a program: a script must begin with #! and its interpreter")
    if number == errno.E2BIG:
        return StartFault(USER_ERROR, "the arguments and the environment are longer than this machine allows")
    if number in (errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.EIO):
        return StartFault(START_FAILED, f"{name!r} could not be started: {text}")
    return StartFault(USER_ERROR, f"{name!r} could not be executed: {text}")
