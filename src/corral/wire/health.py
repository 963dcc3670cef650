"""What an administrator can say about health: how often is looked, and from which number on it is bad.

Keys and defaults only. What is read, and what the numbers mean, is the matter of `corral.backends.health`.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from corral.wire.document.kinds import FLAG, SIZE, SPAN, SPAN_OVER_ZERO, Kind, number
from corral.wire.document.table import Key, Table, table_kind
from corral.wire.job.program import PATH_TEXT

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class HealthSettings(Struct, frozen=True, kw_only=True, gc=False):
    """Thresholds and spans. A threshold of 0 means: no such rule."""

    is_on: bool = True
    interval_ms: int = 10_000
    quiet_ms: int = 10 * MINUTE_MS
    temperature_c_max: int = 90
    memory_temperature_c_max: int = 105
    corrected_per_hour_max: int = 1_000
    link_errors_per_hour_max: int = 1_000
    pcie_replays_per_hour_max: int = 1_000
    nic_errors_per_hour_max: int = 1_000
    disk_free_mib_min: int = 512
    disk_write_ms_max: int = 10_000
    memory_available_percent_min: int = 2
    load_percent_max: int = 0
    clock_jump_ms_max: int = 5_000
    needs_clock_sync: bool = False
    silence_ms_max: int = 60_000
    relapses_max: int = 3
    relapse_window_ms: int = DAY_MS
    lemon_failures: int = 4
    lemon_window_ms: int = DAY_MS
    straggler_percent_max: int = 150
    probes: bool = True
    probe_every_ms: int = DAY_MS
    probe_retry_ms: int = 10 * MINUTE_MS
    probe_limit_ms: int = 5 * MINUTE_MS
    probe_share_percent_min: int = 80
    site_check: str = ""
    site_check_every_ms: int = 5 * MINUTE_MS
    site_check_limit_ms: int = MINUTE_MS


_COUNT = number("a number, 0 for no such rule", 0)
_PERCENT = number("a part of a hundred", 0, 100_000)
_DEFAULT = HealthSettings()


def _key(name: str, kind: Kind, help: str, into: str) -> Key:
    value = kind.write(getattr(_DEFAULT, into))
    written = str(value).lower() if isinstance(value, bool) else str(value)
    return Key(name, kind, help, value or 1, default=written, into=into)


HEALTH_KEYS = Table(
    "health",
    [
        _key("watch", FLAG, "Look at GPUs and machine at all.", "is_on"),
        _key("interval", SPAN_OVER_ZERO, "Between two looks. Xids are heard at once.", "interval_ms"),
        _key("quiet", SPAN, "What was wrong must be gone for so long before it counts as gone.", "quiet_ms"),
        _key("temperature", _COUNT, "In °C, for GPUs that do not tell where they slow down.", "temperature_c_max"),
        _key("memory_temperature", _COUNT, "In °C, for GPUs that do not tell their own.", "memory_temperature_c_max"),
        _key("corrected_per_hour", _COUNT, "Corrected memory errors of a GPU.", "corrected_per_hour_max"),
        _key("link_errors_per_hour", _COUNT, "Errors of an NVLink.", "link_errors_per_hour_max"),
        _key("pcie_replays_per_hour", _COUNT, "Transfers over PCIe that were repeated.", "pcie_replays_per_hour_max"),
        _key("nic_errors_per_hour", _COUNT, "Errors of a network card.", "nic_errors_per_hour_max"),
        _key("disk_free", SIZE, "Less than that, and the machine takes nothing new.", "disk_free_mib_min"),
        _key("disk_write", SPAN, "A small write may take so long.", "disk_write_ms_max"),
        _key("memory_available", _PERCENT, "Less than that many percent, and it takes nothing new.",
             "memory_available_percent_min"),
        _key("load", _PERCENT, "Load in percent of the CPUs; 0: any.", "load_percent_max"),
        _key("clock_jump", SPAN, "The clock may be set by so much.", "clock_jump_ms_max"),
        _key("clock_sync", FLAG, "Insist on a clock that is synchronised.", "needs_clock_sync"),
        _key("silence", SPAN_OVER_ZERO, "The driver may leave a question unanswered for so long.", "silence_ms_max"),
        _key("relapses", _COUNT, "After so many in the window a GPU stays out until an operator clears it.",
             "relapses_max"),
        _key("relapse_window", SPAN_OVER_ZERO, "That window.", "relapse_window_ms"),
        _key("lemon_failures", _COUNT, "Failures of so many different gangs make a lemon.", "lemon_failures"),
        _key("lemon_window", SPAN_OVER_ZERO, "Within so long.", "lemon_window_ms"),
        _key("straggler", _PERCENT, "Busy with a step for so many percent of the median of its gang, a rank is one.",
             "straggler_percent_max"),
        _key("probes", FLAG, "Try GPUs that are idle.", "probes"),
        _key("probe_every", SPAN, "A healthy GPU that is idle is tried again after so long; 0: never.",
             "probe_every_ms"),
        _key("probe_retry", SPAN_OVER_ZERO, "After a probe that failed.", "probe_retry_ms"),
        _key("probe_limit", SPAN_OVER_ZERO, "A probe may take so long.", "probe_limit_ms"),
        _key("probe_share", _PERCENT, "Of the best speed that was measured, a GPU must reach so many percent.",
             "probe_share_percent_min"),
        Key("site_check", PATH_TEXT, "A program of yours: 0 well, 1 suspect, 2 to be drained; its first line says why.",
            "/etc/corral/check", into="site_check"),
        _key("site_check_every", SPAN_OVER_ZERO, "How often it is run.", "site_check_every_ms"),
        _key("site_check_limit", SPAN_OVER_ZERO, "How long it may take.", "site_check_limit_ms"),
    ],
)  # fmt: skip


def _settings(found: dict[str, Any]) -> HealthSettings:
    return HealthSettings(**{key.into: found[key.name] for key in HEALTH_KEYS.keys if key.name in found})


HEALTH_TABLE = table_kind(HEALTH_KEYS, "a mapping", _settings)
