"""Makes sure that the image of a task is on this machine before the start, by the pull policy.

Knows the three policies: ``missing`` (pull it if it is not there), ``always`` (pull it each time) and ``never``. It may
take long; the caller can cancel it at any time.
"""

from __future__ import annotations

import json

from corral.runtime.container.task import runtime_errors
from corral.runtime.container.task.api import ContainerRuntime, ContainerRuntimeError, ResponseStream, quoted
from corral.runtime.local.task.start import USER_ERROR, StartFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.runtime.container.task.api import Wait

ALWAYS = "always"
MISSING = "missing"
NEVER = "never"
_LOOK_MS = 1_000


def bring(engine: ContainerRuntime, image: str, policy: str, is_wanted: Wait) -> None:
    """``is_wanted`` waits for the runtime. Once it returns False, this returns, whether or not the image is there."""
    try:
        if policy != ALWAYS and _is_here(engine, image, is_wanted):
            return
        if policy == NEVER:
            why = f"the image {image!r} is not on this machine, and images are not pulled here (pull: never)"
            raise StartFault(USER_ERROR, why)
        _fetch(engine, image, is_wanted)
    except ContainerRuntimeError as fault:
        if not is_wanted(0, -1):
            return
        raise runtime_errors.no_image(image, fault.why) from fault


def _is_here(engine: ContainerRuntime, image: str, is_wanted: Wait) -> bool:
    try:
        engine.call("GET", f"/images/{quoted(image)}/json", wait=is_wanted)
    except ContainerRuntimeError as fault:
        if fault.status == 404:
            return False
        raise
    return True


def _fetch(engine: ContainerRuntime, image: str, is_wanted: Wait) -> None:
    stream = engine.stream("POST", f"/images/create?fromImage={quoted(_with_tag(image))}", wait=is_wanted)
    try:
        for line in _lines(stream, is_wanted):
            status = json.loads(line)
            if isinstance(status, dict) and status.get("error"):
                raise runtime_errors.no_image(image, str(status["error"]))
    except ValueError as fault:
        raise runtime_errors.no_image(image, f"cannot read the answer of the container runtime: {fault}") from fault
    finally:
        stream.close()


def _lines(stream: ResponseStream, is_wanted: Wait) -> list[bytes]:
    """All lines of a response. Empty when it is no longer wanted: the runtime is left to finish or give up."""
    data = b""
    while True:
        part = stream.read()
        if part == b"":
            return [line for line in data.split(b"\n") if line.strip()]
        data += part or b""
        if part is None and not is_wanted(_LOOK_MS, stream.fileno()):
            return []


def _with_tag(image: str) -> str:
    """Without a tag, Docker would pull every tag there is."""
    last = image.rpartition("/")[2]
    return image if ":" in last or "@" in last else f"{image}:latest"
