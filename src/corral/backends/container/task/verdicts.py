"""What an engine's words mean: whose fault it is that an image is not there or a container does not start.

Tables of phrases from Podman, Docker, runc and crun. What they do not know is the machine's fault, which is tried again
elsewhere: better that than to blame the user for it. Knows words.
"""

from __future__ import annotations

from corral.backends.container.task.api import NO_ANSWER, EngineFault
from corral.backends.local.task.start import CANNOT_EXECUTE, NOT_FOUND, START_FAILED, USER_ERROR, StartFault

_WHY_MAX = 600
_NO_IMAGE = (
    "manifest unknown", "not found", "name unknown", "name_unknown", "no such image", "image not known", "denied",
    "unauthorized", "does not exist", "invalid reference", "did not resolve", "unsupported transport",
    "authentication required", "no matching manifest", "invalid status code from registry 404",
)  # fmt: skip
_NO_REGISTRY = (
    "connection refused", "no such host", "timeout", "dial tcp", "connection reset", "tls", "unexpected eof",
    "toomanyrequests", "too many requests", "500 internal", "502 bad", "503 service", "no space left",
)  # fmt: skip
_NO_INIT = ("container-init", "docker-init", "catatonit")
_NO_COMMAND = ("executable file not found", "executable file `", "command that was not found", "no such file or direc")
#: The small init of the engines says this on stderr when it cannot execute the command.
_INIT_WORDS = ((b"catatonit:", b"failed to exec pid1: "), (b"[FATAL tini", b"failed: "))


def no_image(image: str, why: str) -> StartFault:
    """The engine could not bring it."""
    said = why.lower()
    if any(phrase in said for phrase in _NO_REGISTRY):
        return StartFault(START_FAILED, f"the image {image!r} cannot be fetched now: {_short(why)}")
    if any(phrase in said for phrase in _NO_IMAGE):
        return StartFault(USER_ERROR, f"there is no image {image!r} that may be fetched from here: {_short(why)}")
    return StartFault(START_FAILED, f"the image {image!r} could not be fetched: {_short(why)}")


def no_container(image: str, command: str, fault: EngineFault) -> StartFault:
    """It was not made, or did not start."""
    said = fault.why.lower()
    if fault.status == NO_ANSWER:
        return StartFault(START_FAILED, fault.why)
    if any(phrase in said for phrase in _NO_INIT):
        why = "the container engine has no init to put into containers: install catatonit (Podman) or docker-init"
        return StartFault(START_FAILED, why)
    if "no such image" in said or "image not known" in said:
        return StartFault(USER_ERROR, f"there is no image {image!r} on this machine")
    if "workdir" in said or "chdir to cwd" in said:
        return StartFault(USER_ERROR, f"the working directory is not in the image {image!r}: {_short(fault.why)}")
    if any(phrase in said for phrase in _NO_COMMAND) and "exec" in said:
        return no_command(command, image)
    if "permission denied" in said and "exec" in said and "rlimit" not in said:
        return StartFault(USER_ERROR, f"{command!r} may not be executed in the image {image!r}", CANNOT_EXECUTE)
    if fault.status == 400 or "unable to find user" in said or "no matching entries in passwd" in said:
        return StartFault(USER_ERROR, f"the engine does not take it: {_short(fault.why)}")
    return StartFault(START_FAILED, f"the container could not be started: {_short(fault.why)}")


def no_command(command: str, image: str) -> StartFault:
    return StartFault(USER_ERROR, f"no such command: {command!r} in the image {image!r}", NOT_FOUND)


def from_init(last_words: bytes, command: str, image: str) -> StartFault | None:
    """Whether a container ended because its command could not be executed."""
    for mark, phrase in _INIT_WORDS:
        last = last_words.strip().rpartition(b"\n")[2]
        if mark in last and phrase in last:
            if b"No such file" in last:
                return no_command(command, image)
            words = last.rpartition(phrase)[2].decode("utf-8", "replace").lower()
            return StartFault(USER_ERROR, f"{command!r} could not be executed in the image {image!r}: {words}")
    return None


def _short(why: str) -> str:
    return " ".join(why.split())[:_WHY_MAX]
