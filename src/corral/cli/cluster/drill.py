"""From the options of ``corral node drill`` to what a GPU shall look like."""

from __future__ import annotations

import time
from typing import Any

from msgspec import structs

from corral.backends.health.drills import Drill, XidDrill
from corral.cli.complaint import Complaint


def drill_of(before: Drill | None, given: dict[str, Any]) -> Drill:
    """What was drilled before goes on."""
    drill = before or Drill()
    stated = {
        "temperature_c": given["temperature"],
        "throttle": given["throttle"],
        "uncorrected": given["uncorrected"],
        "corrected": given["corrected"],
        "remap_failed": given["remap_failed"] or None,
        "links_down": given["link_down"] or None,
        "pcie_width": given["pcie_width"],
        "vanished": given["vanish"] or None,
        "probe_fails": given["fail_probe"] or None,
    }
    changes = {name: value for name, value in stated.items() if value is not None}
    if given["xid"] is not None:
        changes["xids"] = (*drill.xids[-99:], XidDrill(given["xid"], time.time_ns() // 1_000_000))
    if not changes:
        raise Complaint("nothing is drilled", "say what shall be wrong, such as --xid 79, or --end")
    return structs.replace(drill, **changes)
