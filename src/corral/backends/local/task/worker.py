"""A process that supervises one task after another, so that not every small task pays for a fork of an interpreter.

It has one task at a time and belongs to nobody: when the spawner goes, it finishes what it has and ends. In a session
and a cgroup of its own, which bounds the number of processes of its task. Knows nothing of what supervising is.
"""

from __future__ import annotations

import marshal
import os

from corral.backends.local.task import records, system
from corral.backends.local.task.cgroups import TaskGroups, write
from corral.backends.local.task.request import Request
from corral.backends.local.task.supervisor import Supervisor

_LINK, _CONTROL = 3, 4
_MANY_FILES = 1 << 20
_TASKS_MAX = 500  # then a fresh one takes its place
_FREE = b"."


def work(link: int, parent_group: str) -> None:
    """Never returns."""
    code = 1
    try:
        os.dup2(link, _LINK, inheritable=False)
        os.closerange(_LINK + 1, _MANY_FILES)
        os.setsid()
        system.take_name("corral-task")
        system.become_subreaper()
        system.refuse_new_privileges()
        group = _enter_group(parent_group)
        for left in reversed(range(_TASKS_MAX)):
            body = receive(_LINK)
            if body is None:
                break
            _supervise(marshal.loads(body), group)
            os.closerange(_CONTROL, _MANY_FILES)
            if left:  # the last time it says nothing, lest it be given another task while it goes
                os.write(_LINK, _FREE)
        code = 0
    except OSError:
        pass  # the spawner is gone
    finally:
        os._exit(code)


def group_name(pid: int) -> str:
    return f"worker-{pid}"


def _enter_group(parent: str) -> str:
    if not parent:
        return ""
    group = f"{parent}/{group_name(os.getpid())}"
    try:
        os.makedirs(group, exist_ok=True)
        write(f"{group}/cgroup.procs", "0")
    except OSError:
        return ""
    return group


def _supervise(request: Request, group: str) -> None:
    control = os.open(f"{request['state']}/{records.CONTROL}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    groups = TaskGroups(request["cgroup_version"], {"pids": group} if group else {}, True)
    if request["container"] is None:
        Supervisor(request, control, groups).run()
    else:
        from corral.backends.container.task.supervisor import ContainerSupervisor  # only containers pay for it

        ContainerSupervisor(request, control, groups).run()


def send(fd: int, body: bytes) -> None:
    data = len(body).to_bytes(4, "big") + body
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int) -> bytes | None:
    """One message, or None when there will be no more."""
    head = _exactly(fd, 4)
    return _exactly(fd, int.from_bytes(head, "big")) if head else None


def _exactly(fd: int, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = os.read(fd, count - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
