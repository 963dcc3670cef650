"""Batching queues as metrics for Prometheus, from what the batch process last reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from corral.server.batches.scaler import BatchQueueStatus

_GAUGES = {
    "waiting": ("corral_batch_items_waiting", "Items that wait in batching queues"),
    "running": ("corral_batch_items_running", "Items in batches that run"),
    "workers": ("corral_batch_workers", "Workers that are connected"),
    "mean_size": ("corral_batch_size_mean", "Items per batch, of the last thousand batches"),
    "fill": ("corral_batch_fill", "Mean size of batches as a part of max_batch_size"),
    "vram_predicted_mib": ("corral_batch_vram_predicted_mib", "VRAM that the last batch was expected to need"),
    "vram_measured_mib": ("corral_batch_vram_measured_mib", "VRAM that the last batch needed"),
}
_SECONDS = {
    "wait_p95_ms": ("corral_batch_wait_p95_seconds", "Wait of the last thousand items, p95"),
    "latency_p95_ms": ("corral_batch_latency_p95_seconds", "Time from arrival to result, p95"),
    "service_mean_ms": ("corral_batch_service_mean_seconds", "Mean time of a batch"),
}
_COUNTERS = {
    "done": ("corral_batch_items_done", "Items with a result"),
    "failed": ("corral_batch_items_failed", "Items that failed or were dropped"),
    "batches": ("corral_batches", "Batches that have ended"),
}


def batch_metrics(statuses: Mapping[str, BatchQueueStatus]) -> Iterator[Metric]:
    found = sorted(statuses.items())
    for field, (name, about) in (_GAUGES | _SECONDS).items():
        gauge = GaugeMetricFamily(name, about, labels=["batch"])
        for queue, status in found:
            gauge.add_metric([queue], getattr(status.stats, field) / (1000 if field in _SECONDS else 1))
        yield gauge
    for field, (name, about) in _COUNTERS.items():
        counter = CounterMetricFamily(name, about, labels=["batch"])
        for queue, status in found:
            counter.add_metric([queue], getattr(status.stats, field))
        yield counter
    refused = CounterMetricFamily("corral_batch_items_refused", "Items not accepted", labels=["batch", "reason"])
    busy = CounterMetricFamily(
        "corral_batch_busy_seconds", "Time of workers, by the user of the items", labels=["batch", "queue", "user"]
    )
    for queue, status in found:
        for reason, many in sorted(status.stats.refused.items()):
            refused.add_metric([queue, reason], many)
        for user, busy_ms in sorted(status.stats.busy_ms_by_user.items()):
            busy.add_metric([queue, status.body.queue, user], busy_ms / 1000)
    yield refused
    yield busy
