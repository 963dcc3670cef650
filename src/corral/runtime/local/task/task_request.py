"""The request of the server to the spawner for one task: plain values, serialized with marshal.

marshal, because both ends are the same interpreter, and it is built in and much faster to load than json. The request
holds secrets, so it goes through a socket into memory and nowhere else.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypedDict

    class Request(TypedDict):
        name: str  # of the task, unique, usable as a file name
        record: bytes  # the order as it is recorded, without secrets
        state: str  # the state directory to create
        logs: str  # the directory of its logs, created with the first byte
        scratch: str  # its private directory, created and removed with the task
        run: str  # the directory of the server's FIFO
        command: list[str]
        env: dict[str, str]  # with the secrets
        processes: list[dict[str, str]]  # none: the seat is held for job steps, until the task is ended
        script: str  # the text of a script; the command is then its name and arguments
        has_shims: bool  # the commands of Slurm come first in its PATH
        gpus: list[str]  # UUIDs
        seats: list[tuple[str, list[str], int, int]]  # of its gang, if it is the first: node, GPUs, CPUs, memory in MiB
        account: str
        directory: str
        hidden: list[str]  # what its processes must not see; empty: whatever its account sees
        kept: list[str]  # what it must not name either: as a mount, or as a file for its output
        output: str
        error: str
        umask: int  # of its processes and of the files for its output
        early: tuple[int, int, str] | None  # signal, milliseconds before the deadline, who gets it
        log_bytes_max: int
        user: str  # the owner of the log
        cgroup_version: int
        cgroups: dict[str, str]  # of its own, by limit; empty: it shares those of its supervisor
        denied: list[tuple[int, int]]  # GPUs that it must not open: major and minor numbers
        given: list[tuple[int, int]]  # its own GPUs
        holds_gpus: bool
        memory_mib: int | None
        cpu_milli: int | None
        has_quota: bool
        pids_max: int
        failure_rules: list[tuple[str, int | None, str, str]]  # of the site: text, exit code, failure class, why
        peer_grace_ms: int
        tasks: int  # of its gang: the ranks of all of them stop at the same step
        lease: str  # the file that says until when it may run; empty: no limit
        requeue_exit: int
        rerun_after_exit_0: bool
        hold_on_fail_ms: int
        stall_ms: int  # ended after this time without a step; 0: never
        unenforced: list[str]
        container: dict[str, Any] | None  # the request to the container runtime; None: plain processes
        refusal: str  # why it can never run; empty: it can
        failure: str  # why it cannot run here now; empty: it can
else:  # importing typing would take too long
    Request = dict
