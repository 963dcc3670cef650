"""What the supervisor of a task prepares for job steps and scripts, before the task starts.

Knows the request of a task and its private directory; starts nothing.
"""

from __future__ import annotations

from corral.io.files import append
from corral.runtime.local.task import records
from corral.runtime.local.task.start import Account, Acting
from corral.runtime.steps.seat_host import StepHost

TYPE_CHECKING = False
if TYPE_CHECKING:
    import select
    from collections.abc import Callable

    from corral.runtime.local.task.processes import Processes
    from corral.runtime.local.task.scratch import Scratch
    from corral.runtime.local.task.task_request import Request


def open_steps(
    request: Request, poll: select.poll, runner: Processes, account: Account, notify: Callable[[], None]
) -> StepHost:
    """Let processes be started in this task while it runs. Raises OSError."""

    def record(line: bytes) -> None:
        try:
            append(f"{request['state']}/{records.JOB_STEPS}", line)
        except OSError:
            return  # a full disk: the step runs all the same
        notify()

    host = runner.steps = StepHost(request, poll, runner, record)
    host.open(account.uid, account.gid)
    request["env"] |= host.variables()
    return host


def put_files(request: Request, scratch: Scratch, account: Account) -> None:
    """The script is a file, because others can read the arguments of a process."""
    if not request["script"] and not request["has_shims"]:
        return
    with Acting(account):
        if request["script"]:
            request["command"] = scratch.put_script(request["script"], request["command"])
        if request["has_shims"]:
            shims, env = scratch.put_shims(), request["env"]
            env["CORRAL_SHIMS"] = shims
            env["PATH"] = f"{shims}:{env.get('PATH') or account.env()['PATH']}"
