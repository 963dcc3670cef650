"""Classifies error messages of a container runtime: is the user or the machine to blame for a missing image or a
container that does not start?

Tables of phrases from Podman, Docker, runc and crun. An unknown message counts as an error of the machine, so the task
is tried again elsewhere: that is better than to blame the user for it. Knows phrases.
"""

from __future__ import annotations

from corral.runtime.container.task.api import NO_ANSWER, ContainerRuntimeError
from corral.runtime.local.task.start import CANNOT_EXECUTE, NOT_FOUND, START_FAILED, USER_ERROR, StartFault

_WHY_MAX = 600
_NO_IMAGE = (
    "manifest unknown",
    "not found",
    "name unknown",
    "name_unknown",
    "no such image",
    "image not known",
    "denied",
    "unauthorized",
    "does not exist",
    "invalid reference",
    "did not resolve",
    "unsupported transport",
    "authentication required",
    "no matching manifest",
    "invalid status code from registry 404",
)
_NO_REGISTRY = (
    "connection refused",
    "no such host",
    "timeout",
    "dial tcp",
    "connection reset",
    "tls",
    "unexpected eof",
    "toomanyrequests",
    "too many requests",
    "500 internal",
    "502 bad",
    "503 service",
    "no space left",
)
_NO_INIT = ("container-init", "docker-init", "catatonit")
_NO_COMMAND = ("executable file not found", "executable file `", "command that was not found", "no such file or direc")
#: What the init process of the runtimes writes to stderr when it cannot execute the command.
_INIT_WORDS = ((b"catatonit:", b"failed to exec pid1: "), (b"[FATAL tini", b"failed: "))


def no_image(image: str, why: str) -> StartFault:
    """Why the image could not be pulled."""
    text = why.lower()
    if any(phrase in text for phrase in _NO_REGISTRY):
        return StartFault(START_FAILED, f"cannot pull the image {image!r} at present: {_short(why)}")
    if any(phrase in text for phrase in _NO_IMAGE):
        return StartFault(USER_ERROR, f"there is no image {image!r} to pull: {_short(why)}")
    return StartFault(START_FAILED, f"cannot pull the image {image!r}: {_short(why)}")


def no_container(image: str, command: str, fault: ContainerRuntimeError) -> StartFault:
    """Why the container was not created, or did not start."""
    text = fault.why.lower()
    if fault.status == NO_ANSWER:
        return StartFault(START_FAILED, fault.why)
    if any(phrase in text for phrase in _NO_INIT):
        why = "the container runtime has no init for containers: install catatonit (Podman) or docker-init (Docker)"
        return StartFault(START_FAILED, why)
    if "no such image" in text or "image not known" in text:
        return StartFault(USER_ERROR, f"there is no image {image!r} on this machine")
    if "workdir" in text or "chdir to cwd" in text:
        return StartFault(USER_ERROR, f"the working directory is not in the image {image!r}: {_short(fault.why)}")
    if any(phrase in text for phrase in _NO_COMMAND) and "exec" in text:
        return no_command(command, image)
    if "permission denied" in text and "exec" in text and "rlimit" not in text:
        return StartFault(USER_ERROR, f"{command!r} may not be executed in the image {image!r}", CANNOT_EXECUTE)
    if fault.status == 400 or "unable to find user" in text or "no matching entries in passwd" in text:
        return StartFault(USER_ERROR, f"the container runtime refuses the container: {_short(fault.why)}")
    return StartFault(START_FAILED, f"cannot start the container: {_short(fault.why)}")


def no_command(command: str, image: str) -> StartFault:
    return StartFault(USER_ERROR, f"{command}: not found in the image {image!r}", NOT_FOUND)


def from_init(last_words: bytes, command: str, image: str) -> StartFault | None:
    """The fault, if a container ended because its command could not be executed."""
    for mark, phrase in _INIT_WORDS:
        last = last_words.strip().rpartition(b"\n")[2]
        if mark in last and phrase in last:
            if b"No such file" in last:
                return no_command(command, image)
            words = last.rpartition(phrase)[2].decode("utf-8", "replace").lower()
            return StartFault(USER_ERROR, f"cannot execute {command!r} in the image {image!r}: {words}")
    return None


def _short(why: str) -> str:
    return " ".join(why.split())[:_WHY_MAX]
