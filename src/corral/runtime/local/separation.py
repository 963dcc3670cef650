"""Describes in words what separates a task from the server, from other tasks and from the GPUs of others.

Depends on the account of this process and on what the kernel offers. Each text starts with the means: account, user
namespace, mount namespace, Landlock, cgroup, device filter, container runtime, or nothing.
"""

from __future__ import annotations

import os

from corral.runtime.local.task import system
from corral.runtime.local.task.cgroups import LIMITS, Layout

NOTHING = "nothing"
_LIMITED = {"memory": "memory", "cpu": "CPU time", "pids": "number of processes"}


def separation(
    layout: Layout, no_namespaces: str, no_filter: str, has_gpus: bool, runtime: str, account: str
) -> dict[str, str]:
    """What is separated, and by what. ``no_namespaces``, ``no_filter``: why user namespaces and the device filter are
    not used; empty: they are. ``runtime``: of containers; empty: there is none. ``account``: of tasks without one."""
    found = _by_account(account) if os.geteuid() == 0 else _by_namespaces(no_namespaces)
    for limit in LIMITS:
        by = f"cgroup (version {layout.version})" if limit in layout.parents else ""
        found[_LIMITED[limit]] = by or f"{NOTHING}: {layout.unenforced.get(limit, 'there is no cgroup to use')}"
    if has_gpus:
        why = f"{NOTHING} but CUDA_VISIBLE_DEVICES, which a program can ignore: {no_filter}"
        found["GPUs of others"] = why if no_filter else f"device filter (cgroup version {layout.version})"
    if runtime:
        found["containers"] = f"container runtime ({runtime})"
    return found


def _by_account(default: str) -> dict[str, str]:
    if default == "root":
        why = f"{NOTHING}: tasks of users without an account run as root on this machine"
        return dict.fromkeys(("server's data", "tasks of other users", "signals"), why)
    return {
        "server's data": "account: the server runs as root (tasks that also run as root are not separated)",
        "tasks of other users": "account: users of one account are not separated",
        "signals": "account",
    }


def _by_namespaces(why_not: str) -> dict[str, str]:
    if why_not:
        return dict.fromkeys(("server's data", "tasks of other users", "signals"), f"{NOTHING}: {why_not}")
    can_scope = system.can_scope_signals()
    return {
        "server's data": "mount namespace",
        "tasks of other users": "user namespace (environment, memory) and mount namespace (files)",
        "signals": "Landlock" if can_scope else f"{NOTHING}: Linux 6.12 or newer with Landlock is needed",
    }
