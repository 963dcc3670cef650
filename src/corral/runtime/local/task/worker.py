"""A process that supervises one task after another, so that a small task does not pay for a fork of the interpreter.

It has one task at a time. When the spawner is gone, it finishes its task and ends. It has its own session and cgroups,
which limit the number of processes of its task and weigh its share of the CPU. Does not know how to supervise.
"""

from __future__ import annotations

import marshal
import os

from corral.runtime.local.task import records, scratch, system
from corral.runtime.local.task.cgroups import TaskGroups, write
from corral.runtime.local.task.processes import Processes
from corral.runtime.local.task.supervisor import Supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.runtime.local.task.supervisor import Runner
    from corral.runtime.local.task.task_request import Request

_LINK, _CONTROL = 3, 4
_MANY_FILES = 1 << 20
_TASKS_MAX = 500  # then it is replaced by a new process
_FREE = b"."


def work(link: int, parents: dict[str, str]) -> None:
    """Never returns."""
    code = 1
    root = ""
    is_alone = True
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
            if left:  # not after the last task, so that it does not get another one while it ends
                os.write(_LINK, _FREE)
        else:
            is_alone = False
        code = 0
    except OSError:
        pass  # the spawner is gone
    finally:
        if root:
            scratch.remove(scratch.blank_in(root))
            if is_alone:  # the spawner is gone, and with it the server, or soon will be
                scratch.remove_root(root)
        os._exit(code)


def groups_of(pid: int, parents: dict[str, str]) -> dict[str, str]:
    """The cgroups of a worker, by limit."""
    return {limit: f"{parent}/worker-{pid}" for limit, parent in parents.items()}


def _enter_groups(parents: dict[str, str]) -> dict[str, str]:
    """Create and enter the cgroups. Returns those that could be created."""
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
    Supervisor(request, control, _runner(request, TaskGroups(request["cgroup_version"], own, True))).run()


def _runner(request: Request, groups: TaskGroups) -> Runner:
    if request["container"] is None:
        return Processes(request, groups)
    from corral.runtime.container.task.container import Container  # only for containers

    return Container(request, groups)


def send(fd: int, body: bytes) -> None:
    data = len(body).to_bytes(4, "big") + body
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int) -> bytes | None:
    """One message. None: there will be no more."""
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
