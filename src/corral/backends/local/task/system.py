"""The few calls of Linux that Python's standard library does not offer, by way of the C library.

Knows numbers of the kernel's interface (linux/prctl.h, linux/mount.h); nothing of tasks.
"""

from __future__ import annotations

import ctypes
import os

SIGINT, SIGKILL, SIGPIPE, SIGTERM, SIGXFSZ = 2, 9, 13, 15, 25
_SIG_DFL = 0
_AF_UNIX, _SOCK_STREAM, _SOCK_CLOEXEC = 1, 1, 0o2000000
_SIG_SETMASK = 2
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446  # the same on all architectures
_LANDLOCK_VERSION, _LANDLOCK_WITH_SCOPES, _LANDLOCK_SCOPE_SIGNAL = 1, 6, 2
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
    """Of stream sockets, as plain descriptors: the module socket is not loaded just for this."""
    pair = (ctypes.c_int * 2)()
    if _libc.socketpair(_AF_UNIX, _SOCK_STREAM | _SOCK_CLOEXEC, 0, pair) != 0:
        raise OSError(ctypes.get_errno(), "socketpair failed")
    return pair[0], pair[1]


def take_name(name: str) -> None:
    """What ps and top show; at most 15 letters."""
    text = ctypes.create_string_buffer(name.encode())
    _call(_PR_SET_NAME, ctypes.addressof(text))


def become_subreaper() -> None:
    """Orphans among the descendants become children of this process, however often they call setsid."""
    _call(_PR_SET_CHILD_SUBREAPER, 1)


def refuse_new_privileges() -> None:
    """From here on no set-user-ID program gives this process or its descendants anything."""
    _call(_PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent() -> None:
    _call(_PR_SET_PDEATHSIG, SIGKILL)


def bind(source: str, target: str) -> None:
    """What is at ``source`` is also at ``target``; nothing that comes to lie below either shows at the other."""
    _mount(source, target, None, _MS_BIND | _MS_REC)
    _mount(None, target, None, _MS_PRIVATE | _MS_REC)


def unshare_user_and_mounts() -> None:
    """A user namespace and a mount namespace of one's own; all other processes keep theirs."""
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare failed: {os.strerror(number)}")


def make_private() -> None:
    """Nothing that is mounted from here on shows elsewhere, nor the other way round."""
    _mount(None, "/", None, _MS_PRIVATE | _MS_REC)


def mount_empty(target: str, mode: int) -> None:
    """An empty folder in the place of this one."""
    _mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size=64k,mode={mode:o}")


def make_read_only(target: str) -> None:
    _mount(None, target, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind, data)]
    if _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]) != 0:
        raise OSError(ctypes.get_errno(), "mount failed", target)


def enter(namespace: int) -> None:
    """Be in this namespace, of whatever kind it is. Only for a process of one thread."""
    if _libc.setns(namespace, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns failed: {os.strerror(number)}")


def scope_signals() -> None:
    """From here on this process and its descendants can signal one another, and nobody else: Landlock of Linux 6.12. An
    older kernel, or one without it, changes nothing. Needs `refuse_new_privileges` before."""
    if _libc.syscall(_LANDLOCK_CREATE, None, 0, _LANDLOCK_VERSION) < _LANDLOCK_WITH_SCOPES:
        return
    rules = (ctypes.c_uint64 * 3)(0, 0, _LANDLOCK_SCOPE_SIGNAL)  # no access to files or ports is handled
    ruleset = _libc.syscall(_LANDLOCK_CREATE, ctypes.byref(rules), ctypes.c_size_t(ctypes.sizeof(rules)), 0)
    if ruleset >= 0:
        _libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0)
        os.close(ruleset)


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
