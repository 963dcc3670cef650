"""Configuration of health monitoring: intervals and thresholds.

Keys and defaults only. `corral.health` reads the values and knows what they mean.
"""

from __future__ import annotations

from msgspec import Struct

from corral.wire.document.key_table import Key, KeyTable, struct_kind
from corral.wire.document.kinds import FLAG, SIZE, SPAN, SPAN_OVER_ZERO, ValueKind, number
from corral.wire.job.program import PATH_TEXT

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class HealthSettings(Struct, frozen=True, kw_only=True, gc=False):
    """Thresholds and intervals. A threshold of 0: no such rule."""

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
    lemon_window_ms: int = 3 * DAY_MS
    straggler_percent_max: int = 150
    probes: bool = True
    probe_every_ms: int = DAY_MS
    probe_retry_ms: int = 10 * MINUTE_MS
    probe_limit_ms: int = 5 * MINUTE_MS
    probe_share_percent_min: int = 80
    site_check: str = ""
    site_check_every_ms: int = 5 * MINUTE_MS
    site_check_limit_ms: int = MINUTE_MS


_COUNT = number("a number; 0 turns the rule off", 0)
_PERCENT = number("a percentage", 0, 100_000)
_DEFAULT = HealthSettings()


def _key(name: str, kind: ValueKind, help: str, into: str, example: object = None) -> Key:
    """Its example is the default, unless another one is given."""
    value = kind.write(getattr(_DEFAULT, into))
    written = str(value).lower() if isinstance(value, bool) else str(value)
    return Key(name, kind, help, value if example is None else example, default=written, into=into)


HEALTH_KEYS = KeyTable(
    "health",
    [
        _key("watch", FLAG, "Monitor the GPUs and the machine.", "is_on"),
        _key("interval", SPAN_OVER_ZERO, "Interval between readings. Xid errors are noticed at once.", "interval_ms"),
        _key("quiet", SPAN, "How long a fault must be gone before it is cleared.", "quiet_ms"),
        _key("temperature", _COUNT, "GPU temperature limit in °C, if the GPU does not report its own.",
             "temperature_c_max"),
        _key("memory_temperature", _COUNT, "Memory temperature limit in °C, if the GPU does not report its own.",
             "memory_temperature_c_max"),
        _key("corrected_per_hour", _COUNT, "Maximum number of corrected memory errors of a GPU per hour.",
             "corrected_per_hour_max"),
        _key("link_errors_per_hour", _COUNT, "Maximum number of errors of an NVLink per hour.",
             "link_errors_per_hour_max"),
        _key("pcie_replays_per_hour", _COUNT, "Maximum number of PCIe replays of a GPU per hour.",
             "pcie_replays_per_hour_max"),
        _key("nic_errors_per_hour", _COUNT, "Maximum number of errors of a network card per hour.",
             "nic_errors_per_hour_max"),
        _key("disk_free", SIZE, "Free disk space below which the node gets no new jobs.", "disk_free_mib_min"),
        _key("disk_write", SPAN, "Time limit of a small write to a disk.", "disk_write_ms_max"),
        _key("memory_available", _PERCENT, "Available memory in percent below which the node gets no new jobs.",
             "memory_available_percent_min"),
        _key("load", _PERCENT, "Load limit in percent of the CPUs; 0: no limit.", "load_percent_max", 200),
        _key("clock_jump", SPAN, "Largest step of the clock that is not reported as a fault.", "clock_jump_ms_max"),
        _key("clock_sync", FLAG, "Require a synchronised clock.", "needs_clock_sync", True),
        _key("silence", SPAN_OVER_ZERO, "How long the GPU driver may take to answer.", "silence_ms_max"),
        _key("relapses",
             _COUNT, "Failures within `relapse_window` after which a GPU stays out until an operator clears it.",
             "relapses_max"),
        _key("relapse_window", SPAN_OVER_ZERO, "Period in which `relapses` are counted.", "relapse_window_ms"),
        _key("lemon_failures", _COUNT, "Failures of different gangs after which a node counts as bad (a lemon).",
             "lemon_failures"),
        _key("lemon_window", SPAN_OVER_ZERO, "Period in which `lemon_failures` are counted.", "lemon_window_ms"),
        _key("straggler",
             _PERCENT, "A rank is a straggler if its step time exceeds this percentage of its gang's median.",
             "straggler_percent_max"),
        _key("probes", FLAG, "Probe idle GPUs.", "probes"),
        _key("probe_every", SPAN, "Interval between probes of a healthy idle GPU; 0: never.",
             "probe_every_ms"),
        _key("probe_retry", SPAN_OVER_ZERO, "Retry interval after a failed probe.", "probe_retry_ms"),
        _key("probe_limit", SPAN_OVER_ZERO, "Time limit of a probe.", "probe_limit_ms"),
        _key("probe_share", _PERCENT, "Speed a GPU must reach, in percent of the best measured.",
             "probe_share_percent_min"),
        Key("site_check",
            PATH_TEXT, "Your own check program. Exit 0: healthy, 1: suspect, 2: drain; its first line is the reason.",
            "/etc/corral/check", into="site_check"),
        _key("site_check_every", SPAN_OVER_ZERO, "Interval between runs of the site check.", "site_check_every_ms"),
        _key("site_check_limit", SPAN_OVER_ZERO, "Time limit of the site check.", "site_check_limit_ms"),
    ],
)  # fmt: skip
HEALTH_TABLE = struct_kind(HEALTH_KEYS, "a mapping", HealthSettings)
