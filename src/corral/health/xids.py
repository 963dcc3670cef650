"""What follows from each Xid: the driver's number for an error of a GPU.

After NVIDIA's public catalogue (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), in our own words
and from a scheduler's point of view: an error of the application raises no alarm; an error that needs a reset of the
GPU drains it; one after which it computes wrong results or none fails it. An unknown Xid makes it suspect.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from corral.core.model import Health


class XidRule(Struct, frozen=True, gc=False):
    """``health`` HEALTHY: it is only logged."""

    health: Health
    means: str


_WELL = Health.HEALTHY
_SUSPECT = Health.SUSPECT
_DRAIN = Health.DRAINING
_FAIL = Health.FAILED

XIDS: Mapping[int, XidRule] = {
    # errors of the application
    8: XidRule(_WELL, "the application's work on the GPU took too long"),
    11: XidRule(_WELL, "the application sent invalid commands"),
    13: XidRule(_WELL, "an exception in the application's kernel"),
    31: XidRule(_WELL, "the application accessed memory that is not its own"),
    32: XidRule(_WELL, "the application sent invalid commands"),
    43: XidRule(_WELL, "the application's context was stopped after an error of its own"),
    45: XidRule(_WELL, "the application was ended and its work removed from the GPU"),
    68: XidRule(_WELL, "an exception of the video decoder"),
    69: XidRule(_WELL, "the application requested something that the GPU does not support"),
    137: XidRule(_WELL, "the application reached over NVLink to memory that is not shared with it"),
    # memory
    48: XidRule(_DRAIN, "an uncorrectable memory error"),
    63: XidRule(_SUSPECT, "a bad row of memory was recorded; the next reset remaps it to a spare row"),
    64: XidRule(_FAIL, "a bad row of memory could not be retired"),
    92: XidRule(_SUSPECT, "many corrected memory errors"),
    94: XidRule(_DRAIN, "an uncorrectable memory error that affects only one application"),
    95: XidRule(_FAIL, "an uncorrectable memory error that was not contained; all results computed on it may be wrong"),
    140: XidRule(_FAIL, "a memory error without recovery"),
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
    46: XidRule(_DRAIN, "the GPU stopped processing its work"),
    61: XidRule(_DRAIN, "a processor inside the GPU reported a breakpoint or a warning"),
    62: XidRule(_FAIL, "a processor inside the GPU has halted"),
    79: XidRule(_FAIL, "the GPU has fallen off the bus and cannot be reached"),
    109: XidRule(_DRAIN, "the GPU did not switch from one application to the next"),
    110: XidRule(_FAIL, "a security fault"),
    119: XidRule(_FAIL, "the GPU's system processor does not answer"),
    120: XidRule(_FAIL, "the GPU's system processor reported an error"),
    143: XidRule(_FAIL, "the GPU could not be initialised"),
    154: XidRule(_SUSPECT, "the driver says that the GPU needs a reset, or the machine a restart"),
    158: XidRule(_FAIL, "the GPU did not answer in time"),
}  # fmt: skip
UNKNOWN = XidRule(_SUSPECT, "an Xid that Corral has no rule for")


def rule_of(xid: int) -> XidRule:
    return XIDS.get(xid, UNKNOWN)
