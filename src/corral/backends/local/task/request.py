"""What the server sends the spawner for one task: plain values, as marshal writes them.

marshal, because both ends are the same interpreter, it is built in and a hundred times lighter to load than json.
Holds secrets, so it travels through a socket into memory and nowhere else.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypedDict

    class Request(TypedDict):
        name: str  # of the task, unique, fit for a file name
        record: bytes  # the order as it is written down; no secrets
        state: str  # the state directory to make
        logs: str  # the folder of its logs, made with the first byte
        scratch: str  # its private directory, made and removed
        run: str  # where the server listens
        command: list[str]
        env: dict[str, str]  # with the secrets
        processes: list[dict[str, str]]
        account: str
        directory: str
        hidden: list[str]  # what its processes shall not see; empty: whatever its account sees
        output: str
        error: str
        early: tuple[int, int] | None  # signal, milliseconds before the deadline
        log_bytes_max: int
        cgroup_version: int
        cgroups: dict[str, str]  # of its own, by limit; empty: it shares those of its supervisor
        holds_gpus: bool
        memory_mib: int | None
        cpu_milli: int | None
        has_quota: bool
        pids_max: int
        peer_grace_ms: int
        lease: str  # the file that says until when it may run; empty: for as long as it likes
        requeue_exit: int
        hold_on_fail_ms: int
        unenforced: list[str]
        container: dict[str, Any] | None  # what a container engine is told; None: plain processes
        refusal: str  # why it cannot run at all; empty: it can
        failure: str  # why it cannot run here now; empty: it can
else:  # typing is not loaded just for this
    Request = dict
