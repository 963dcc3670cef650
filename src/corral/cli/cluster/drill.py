"""From the options of ``corral node drill`` to the faults that a GPU is to show."""

from __future__ import annotations

import time
from typing import Any

from msgspec import structs

from corral.cli.errors import Complaint
from corral.health.fault_injection import InjectedFault, InjectedXid


def drill_of(before: InjectedFault | None, given: dict[str, Any]) -> InjectedFault:
    """Faults that were simulated before stay."""
    drill = before or InjectedFault()
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
        changes["xids"] = (*drill.xids[-99:], InjectedXid(given["xid"], time.time_ns() // 1_000_000))
    if not changes:
        raise Complaint("no fault is given", "give the fault to simulate, for example --xid 79; or --end")
    return structs.replace(drill, **changes)
