"""A few Linux calls that Python's standard library does not offer, through the C library.

Knows numbers of the kernel's interface (linux/prctl.h, linux/mount.h), not tasks.
"""

from __future__ import annotations

import ctypes
import os

SIGINT = 2
SIGABRT = 6
SIGKILL = 9
SIGPIPE = 13
SIGTERM = 15
STACKS_SIGNAL = 39  # SIGRTMIN + 5: as in `corral_training`
SIGXFSZ = 25
_SIG_DFL = 0
_AF_UNIX = 1
_SOCK_STREAM = 1
_SOCK_CLOEXEC = 0o2000000
_SIG_SETMASK = 2
_MS_RDONLY = 1
_MS_NOSUID = 2
_MS_NODEV = 4
_MS_NOEXEC = 8
_MS_REMOUNT = 32
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 0x40000
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446  # the same on all architectures
_LANDLOCK_VERSION = 1
_LANDLOCK_WITH_SCOPES = 6
_LANDLOCK_SCOPE_SIGNAL = 2
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NAME = 15
_PR_SET_NO_NEW_PRIVS = 38

_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_signal = _libc.signal
_signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
_signal.restype = ctypes.c_void_p


def socket_pair() -> tuple[int, int]:
    """Stream sockets as plain descriptors: importing the socket module would take too long."""
    pair = (ctypes.c_int * 2)()
    if _libc.socketpair(_AF_UNIX, _SOCK_STREAM | _SOCK_CLOEXEC, 0, pair) != 0:
        raise OSError(ctypes.get_errno(), "socketpair failed")
    return pair[0], pair[1]


def take_name(name: str) -> None:
    """The name in ps and top; at most 15 characters."""
    text = ctypes.create_string_buffer(name.encode())
    _call(_PR_SET_NAME, ctypes.addressof(text))


def become_subreaper() -> None:
    """Orphaned descendants become children of this process, even after setsid."""
    _call(_PR_SET_CHILD_SUBREAPER, 1)


def refuse_new_privileges() -> None:
    """From now on no set-user-ID program gives this process or its descendants more rights."""
    _call(_PR_SET_NO_NEW_PRIVS, 1)


def signal_when_parent_ends(number: int) -> None:
    """The kernel sends this signal to the calling process when the process that has created it ends."""
    _call(_PR_SET_PDEATHSIG, number)


def die_with_parent() -> None:
    _call(_PR_SET_PDEATHSIG, SIGKILL)


def bind(source: str, target: str) -> None:
    """Bind ``source`` to ``target``. Later mounts below either do not appear at the other."""
    _mount(source, target, None, _MS_BIND | _MS_REC)
    _mount(None, target, None, _MS_PRIVATE | _MS_REC)


def unshare_user_and_mounts() -> None:
    """Move this process to its own user namespace and mount namespace."""
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare failed: {os.strerror(number)}")


def make_private() -> None:
    """From now on mounts do not propagate to or from other namespaces."""
    _mount(None, "/", None, _MS_PRIVATE | _MS_REC)


def mount_empty(target: str, mode: int) -> None:
    """Cover a directory with an empty one."""
    _mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size=64k,mode={mode:o}")


def make_read_only(target: str) -> None:
    _mount(None, target, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind, data)]
    if _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]) != 0:
        raise OSError(ctypes.get_errno(), "mount failed", target)


def enter(namespace: int) -> None:
    """Enter a namespace of any kind. Only for a process with one thread."""
    if _libc.setns(namespace, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns failed: {os.strerror(number)}")


def scope_signals() -> None:
    """From now on this process and its descendants can signal only each other, by Landlock of Linux 6.12. Does nothing
    on kernels without it. Needs `refuse_new_privileges` before."""
    if not can_scope_signals():
        return
    rules = (ctypes.c_uint64 * 3)(0, 0, _LANDLOCK_SCOPE_SIGNAL)  # access to files and ports is not restricted
    ruleset = _libc.syscall(_LANDLOCK_CREATE, ctypes.byref(rules), ctypes.c_size_t(ctypes.sizeof(rules)), 0)
    if ruleset >= 0:
        _libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0)
        os.close(ruleset)


def can_scope_signals() -> bool:
    return bool(_libc.syscall(_LANDLOCK_CREATE, None, 0, _LANDLOCK_VERSION) >= _LANDLOCK_WITH_SCOPES)


def unbind(target: str) -> None:
    if _libc.umount2(target.encode(), _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
        raise OSError(ctypes.get_errno(), "umount failed", target)


def default_signals(numbers: tuple[int, ...]) -> None:
    for number in numbers:
        _signal(number, _SIG_DFL)


def unblock_signals() -> None:
    _libc.sigprocmask(_SIG_SETMASK, ctypes.create_string_buffer(128), None)


def _call(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}) failed")
