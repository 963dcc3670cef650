"""Denies a task the GPUs that it was not given: its cgroup may not open their device nodes.

Version 1 has a controller for that; version 2 runs a small BPF program that is attached to the group. Both need root.
Knows the kernel's interface (Documentation/admin-guide/cgroup-v1/devices.rst, linux/bpf.h) and device numbers, not
GPUs.
"""

from __future__ import annotations

import ctypes
import os
import stat

from corral.runtime.local.task.cgroups import write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from corral.runtime.local.task.cgroups import Layout

    Number = tuple[int, int]  # major, minor

_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _PROG_ATTACH = 5, 8
_PROG_TYPE_CGROUP_DEVICE, _ATTACH_CGROUP_DEVICE = 15, 6
_TYPE_CHAR = 2
#: Opcodes: load a word, and, jump unless equal, move, exit. Registers: r0 is the verdict, r1 the request.
_LOAD = 0x61
_AND = 0x57
_JUMP_UNLESS = 0x55
_MOVE = 0xB7
_EXIT = 0x95
# offsets in struct bpf_cgroup_dev_ctx
_ASKED_TYPE = 0
_ASKED_MAJOR = 4
_ASKED_MINOR = 8


def deny(version: int, group: str, denied: Iterable[Number], given: Iterable[Number]) -> None:
    """From now on processes in this group can open none of ``denied``, and ``given`` as far as parent groups allow it.
    Replaces earlier rules. Raises OSError if it fails."""
    if version == 2:
        _attach(group, _program(denied))
        return
    for name, numbers in (("devices.allow", given), ("devices.deny", denied)):
        for major, minor in numbers:
            write(f"{group}/{name}", f"c {major}:{minor} rwm")


def numbers(nodes: Mapping[str, str]) -> dict[str, Number]:
    """The device numbers of those nodes that exist, by the same names."""
    found = {}
    for name, path in nodes.items():
        try:
            state = os.stat(path)
        except OSError:
            continue
        if stat.S_ISCHR(state.st_mode):
            found[name] = (os.major(state.st_rdev), os.minor(state.st_rdev))
    return found


def why_not(layout: Layout) -> str:
    """Why devices cannot be denied on this machine. Empty: they can."""
    if layout.version != 2:
        return "" if layout.devices else layout.no_devices or "no cgroups are mounted on this machine"
    if not layout.parents:
        return next(iter(layout.unenforced.values()), "there is no cgroup to use")
    try:
        os.close(_load(_program(())))
    except OSError as fault:
        return f"the kernel does not accept a BPF program for devices ({fault.strerror})"
    return ""


def _program(denied: Iterable[Number]) -> bytes:
    code = [
        _instruction(_LOAD, 2, 1, _ASKED_MAJOR),
        _instruction(_LOAD, 3, 1, _ASKED_MINOR),
        _instruction(_LOAD, 4, 1, _ASKED_TYPE),
        _instruction(_AND, 4, value=0xFFFF),
        _instruction(_JUMP_UNLESS, 4, offset=4 * len(denied := tuple(denied)), value=_TYPE_CHAR),
    ]
    for major, minor in denied:
        code += [
            _instruction(_JUMP_UNLESS, 2, offset=3, value=major),
            _instruction(_JUMP_UNLESS, 3, offset=2, value=minor),
            _instruction(_MOVE, 0, value=0),
            _instruction(_EXIT),
        ]
    return b"".join((*code, _instruction(_MOVE, 0, value=1), _instruction(_EXIT)))


def _instruction(code: int, to: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    head = bytes((code, source << 4 | to))
    return head + offset.to_bytes(2, "little", signed=True) + value.to_bytes(4, "little", signed=True)


def _attach(group: str, program: bytes) -> None:
    """Without flags, so it replaces the previous program of this group."""
    folder = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        loaded = _load(program)
        try:
            _bpf(_PROG_ATTACH, (ctypes.c_uint32 * 4)(folder, loaded, _ATTACH_CGROUP_DEVICE, 0))
        finally:
            os.close(loaded)
    finally:
        os.close(folder)


class _Load(ctypes.Structure):
    """The head of union bpf_attr for BPF_PROG_LOAD."""

    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("code", ctypes.c_uint64),
        ("license", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 8),
    )


def _load(program: bytes) -> int:
    code, license = ctypes.create_string_buffer(program), ctypes.create_string_buffer(b"Apache-2.0")
    asked = _Load(_PROG_TYPE_CGROUP_DEVICE, len(program) // 8, ctypes.addressof(code), ctypes.addressof(license))
    return _bpf(_PROG_LOAD, asked)


def _bpf(command: int, asked: ctypes.Structure | ctypes.Array[ctypes.c_uint32]) -> int:
    number = _SYS_BPF.get(os.uname().machine)
    if number is None:
        raise OSError(38, "Function not implemented")
    libc = ctypes.CDLL(None, use_errno=True)
    answer: int = libc.syscall(number, command, ctypes.byref(asked), ctypes.sizeof(asked))
    if answer < 0:
        fault = ctypes.get_errno()
        raise OSError(fault, os.strerror(fault))
    return answer
