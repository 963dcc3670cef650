"""The image of a task, brought to this machine before the start, as the site's policy has it.

Knows the three policies: ``missing`` (fetched when it is not there), ``always`` (asked for each time) and ``never``.
May take long; whoever waits can say at any time that it is not wanted any more.
"""

from __future__ import annotations

import json

from corral.backends.container.task import verdicts
from corral.backends.container.task.api import Engine, EngineFault, Stream, quoted
from corral.backends.local.task.start import USER_ERROR, StartFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.backends.container.task.api import Wait

ALWAYS, MISSING, NEVER = "always", "missing", "never"
_LOOK_MS = 1_000


def bring(engine: Engine, image: str, policy: str, is_wanted: Wait) -> None:
    """``is_wanted``: waits for the engine meanwhile; once it says no, nobody will ask whether the image is there."""
    try:
        if policy != ALWAYS and _is_here(engine, image, is_wanted):
            return
        if policy == NEVER:
            why = f"there is no image {image!r} on this machine, and images are not fetched here (pull: never)"
            raise StartFault(USER_ERROR, why)
        _fetch(engine, image, is_wanted)
    except EngineFault as fault:
        if not is_wanted(0, -1):
            return
        raise verdicts.no_image(image, fault.why) from fault


def _is_here(engine: Engine, image: str, is_wanted: Wait) -> bool:
    try:
        engine.call("GET", f"/images/{quoted(image)}/json", wait=is_wanted)
    except EngineFault as fault:
        if fault.status == 404:
            return False
        raise
    return True


def _fetch(engine: Engine, image: str, is_wanted: Wait) -> None:
    stream = engine.stream("POST", f"/images/create?fromImage={quoted(_with_tag(image))}", wait=is_wanted)
    try:
        for line in _lines(stream, is_wanted):
            said = json.loads(line)
            if isinstance(said, dict) and said.get("error"):
                raise verdicts.no_image(image, str(said["error"]))
    except ValueError as fault:
        raise verdicts.no_image(image, f"the engine's answer cannot be read: {fault}") from fault
    finally:
        stream.close()


def _lines(stream: Stream, is_wanted: Wait) -> list[bytes]:
    """All lines of an answer; none when it is not wanted any more: the engine is left to finish or give up."""
    data = b""
    while True:
        part = stream.read()
        if part == b"":
            return [line for line in data.split(b"\n") if line.strip()]
        data += part or b""
        if part is None and not is_wanted(_LOOK_MS, stream.fileno()):
            return []


def _with_tag(image: str) -> str:
    """Without one, Docker would fetch every tag there is."""
    last = image.rpartition("/")[2]
    return image if ":" in last or "@" in last else f"{image}:latest"
