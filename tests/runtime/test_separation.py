"""What is reported to separate tasks, by what the process is and what the kernel offers."""

from __future__ import annotations

import os

import pytest

from corral.runtime.local.separation import separation
from corral.runtime.local.task import system
from corral.runtime.local.task.cgroups import LIMITS, Layout


def layout(version: int) -> Layout:
    made = Layout()
    made.version = version
    if version:
        made.parents = dict.fromkeys(LIMITS, "/sys/fs/cgroup/corral")
    else:
        made.unenforced = dict.fromkeys(LIMITS, "no cgroups are mounted on this machine")
    return made


def told(uid: int, monkeypatch: pytest.MonkeyPatch, **terms: object) -> dict[str, str]:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    known = {"layout": layout(2), "no_namespaces": "", "no_filter": "", "has_gpus": True, "runtime": "", "account": ""}
    return separation(**(known | terms))  # type: ignore[arg-type]


def test_root_separates_by_accounts_cgroups_and_the_device_filter(monkeypatch: pytest.MonkeyPatch):
    found = told(0, monkeypatch, runtime="podman 5.0.0")
    assert {thing: by.split(":")[0].split(" (")[0] for thing, by in found.items()} == {
        "server's data": "account", "tasks of other users": "account", "signals": "account", "memory": "cgroup",
        "CPU time": "cgroup", "number of processes": "cgroup", "GPUs of others": "device filter",
        "containers": "container runtime",
    }  # fmt: skip


def test_root_as_the_default_account_separates_nothing(monkeypatch: pytest.MonkeyPatch):
    found = told(0, monkeypatch, account="root")
    assert all(found[thing].startswith("nothing: ") for thing in ("server's data", "tasks of other users", "signals"))


@pytest.mark.parametrize(("has_landlock", "signals"), [(True, "Landlock"), (False, "nothing")])
def test_any_other_user_separates_by_namespaces(monkeypatch: pytest.MonkeyPatch, has_landlock: bool, signals: str):
    monkeypatch.setattr(system, "can_scope_signals", lambda: has_landlock)
    found = told(1000, monkeypatch, layout=layout(0), no_filter="no right")
    assert found["server's data"] == "mount namespace"
    assert found["tasks of other users"].startswith("user namespace")
    assert found["signals"].split(":")[0] == signals
    assert found["memory"] == "nothing: no cgroups are mounted on this machine"
    assert found["GPUs of others"].startswith("nothing but CUDA_VISIBLE_DEVICES")


def test_without_namespaces_nothing_separates_tasks_of_one_account(monkeypatch: pytest.MonkeyPatch):
    found = told(1000, monkeypatch, no_namespaces="the kernel forbids them", has_gpus=False)
    assert found["server's data"] == found["signals"] == "nothing: the kernel forbids them"
    assert "GPUs of others" not in found
