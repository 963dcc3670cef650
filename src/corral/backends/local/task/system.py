"""The few calls of Linux that Python's standard library does not offer, by way of the C library.

Knows numbers of the kernel's interface (linux/prctl.h); nothing of tasks.
"""

from __future__ import annotations

import ctypes

SIGINT, SIGKILL, SIGPIPE, SIGTERM, SIGXFSZ = 2, 9, 13, 15, 25
_SIG_DFL = 0
_AF_UNIX, _SOCK_STREAM, _SOCK_CLOEXEC = 1, 1, 0o2000000
_SIG_SETMASK = 2
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


def default_signals(numbers: tuple[int, ...]) -> None:
    for number in numbers:
        _signal(number, _SIG_DFL)


def unblock_signals() -> None:
    _libc.sigprocmask(_SIG_SETMASK, ctypes.create_string_buffer(128), None)


def _call(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}) failed")
