"""What follows from each Xid: the driver's number for what went wrong on a GPU.

After NVIDIA's public catalogue (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), in our own
words and from a scheduler's point of view: an application's own fault is nobody's alarm; what needs a reset of the GPU
drains it; what means that it computes wrongly or not at all fails it. An Xid that is not here makes it suspect.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from corral.core.model import Health


class XidRule(Struct, frozen=True, gc=False):
    """``health`` HEALTHY: noted, and nothing follows."""

    health: Health
    means: str


_WELL, _SUSPECT, _DRAIN, _FAIL = Health.HEALTHY, Health.SUSPECT, Health.DRAINING, Health.FAILED

XIDS: Mapping[int, XidRule] = {
    # the application's own faults
    8: XidRule(_WELL, "the application's work on the GPU took too long"),
    11: XidRule(_WELL, "the application sent commands that make no sense"),
    13: XidRule(_WELL, "an exception in the application's kernel"),
    31: XidRule(_WELL, "the application touched memory that is not its own"),
    32: XidRule(_WELL, "the application sent commands that make no sense"),
    43: XidRule(_WELL, "the application's context was stopped after a fault of its own"),
    45: XidRule(_WELL, "the application was ended and its work removed from the GPU"),
    68: XidRule(_WELL, "an exception of the video decoder"),
    69: XidRule(_WELL, "the application asked for something that the GPU does not do"),
    137: XidRule(_WELL, "the application reached over NVLink to memory that is not shared with it"),
    # memory
    48: XidRule(_DRAIN, "a memory error that could not be corrected"),
    63: XidRule(_SUSPECT, "a bad row of memory was noted; the next reset puts a spare row in its place"),
    64: XidRule(_FAIL, "a bad row of memory could not be put out of use"),
    92: XidRule(_SUSPECT, "many memory errors that could be corrected"),
    94: XidRule(_DRAIN, "a memory error that could not be corrected; only the application that met it is hurt"),
    95: XidRule(_FAIL, "a memory error that could not be contained; what anybody computed on it is in doubt"),
    140: XidRule(_FAIL, "a memory error that was not recovered from"),
    # links
    74: XidRule(_DRAIN, "an error of an NVLink"),
    144: XidRule(_DRAIN, "an error of an NVLink"),
    145: XidRule(_DRAIN, "an error of an NVLink"),
    146: XidRule(_DRAIN, "an error of an NVLink"),
    147: XidRule(_DRAIN, "an error of an NVLink"),
    148: XidRule(_DRAIN, "an error of an NVLink"),
    149: XidRule(_DRAIN, "an error of an NVLink"),
    150: XidRule(_DRAIN, "an error of an NVLink"),
    121: XidRule(_SUSPECT, "an error of the link between CPU and GPU that was corrected"),
    # the GPU itself
    46: XidRule(_DRAIN, "the GPU stopped working on what it was given"),
    61: XidRule(_DRAIN, "a processor inside the GPU met a breakpoint or a warning"),
    62: XidRule(_FAIL, "a processor inside the GPU has halted"),
    79: XidRule(_FAIL, "the GPU has fallen off the bus and cannot be reached"),
    109: XidRule(_DRAIN, "the GPU did not switch from one application to the next"),
    110: XidRule(_FAIL, "a security fault"),
    119: XidRule(_FAIL, "the GPU's system processor does not answer"),
    120: XidRule(_FAIL, "the GPU's system processor met an error"),
    143: XidRule(_FAIL, "the GPU could not be initialised"),
    154: XidRule(_SUSPECT, "the driver says that the GPU needs a reset, or the machine a restart"),
    158: XidRule(_FAIL, "the GPU did not answer in time"),
}  # fmt: skip
UNKNOWN = XidRule(_SUSPECT, "an Xid that Corral has no rule for")


def rule_of(xid: int) -> XidRule:
    return XIDS.get(xid, UNKNOWN)
