"""A process that supervises one task after another, so that not every small task pays for a fork of an interpreter.

It has one task at a time and belongs to nobody: when the spawner goes, it finishes what it has and ends. In a session
and cgroups of its own, which bound the number of processes of its task and weigh its share of the CPU. Knows nothing of
what supervising is.
"""

from __future__ import annotations

import marshal
import os

from corral.backends.local.task import records, scratch, system
from corral.backends.local.task.cgroups import TaskGroups, write
from corral.backends.local.task.request import Request
from corral.backends.local.task.supervisor import Supervisor

_LINK, _CONTROL = 3, 4
_MANY_FILES = 1 << 20
_TASKS_MAX = 500  # then a fresh one takes its place
_FREE = b"."


def work(link: int, parents: dict[str, str]) -> None:
    """Never returns."""
    code, root = 1, ""
    try:
        os.dup2(link, _LINK, inheritable=False)
        os.closerange(_LINK + 1, _MANY_FILES)
        os.setsid()
        system.take_name("corral-task")
        system.become_subreaper()
        system.refuse_new_privileges()
        groups = _enter_groups(parents)
        for left in reversed(range(_TASKS_MAX)):
            body = receive(_LINK)
            if body is None:
                break
            request = marshal.loads(body)
            root = os.path.dirname(request["scratch"])
            _supervise(request, groups)
            os.closerange(_CONTROL, _MANY_FILES)
            if left:  # the last time it says nothing, lest it be given another task while it goes
                os.write(_LINK, _FREE)
        code = 0
    except OSError:
        pass  # the spawner is gone
    finally:
        if root:
            scratch.remove(scratch.blank_in(root))
        os._exit(code)


def groups_of(pid: int, parents: dict[str, str]) -> dict[str, str]:
    """By limit."""
    return {limit: f"{parent}/worker-{pid}" for limit, parent in parents.items()}


def _enter_groups(parents: dict[str, str]) -> dict[str, str]:
    """Those that could be made."""
    entered = {}
    for limit, group in groups_of(os.getpid(), parents).items():
        try:
            os.makedirs(group, exist_ok=True)
            write(f"{group}/cgroup.procs", "0")
        except OSError:
            continue
        entered[limit] = group
    return entered


def _supervise(request: Request, own: dict[str, str]) -> None:
    control = os.open(f"{request['state']}/{records.CONTROL}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    groups = TaskGroups(request["cgroup_version"], own, True)
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
