"""What batching gives on a real GPU, with a real torch model of random weights. A plain script; prints a line of JSON.

    PYTHONPATH=src python tests/device/batching_check.py            # about five minutes on an H200

Needs Corral's sources, msgspec and torch with CUDA. One by one, fixed and adaptive batches at several arrival rates;
memory predicted against measured; 100,000 items of mixed sizes within a slice of the GPU, without running out of it;
two models that share the GPU in slices, each in a process of its own. Exit 0: at least five times the throughput of one
by one at a p95 that is no higher, never out of memory, memory predicted within 10 %.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import sys
import time
from collections import Counter
from typing import Any

from corral.batching.batcher import Batcher
from corral.batching.items import BatchItem, BatchQueueSpec, BatchWorker, DropItem

WIDTH, LAYERS, HEADS, WORDS = 768, 12, 12, 30_000
LENGTH = 128  # tokens of one item
TARGET_MS = 100
MIB = 1 << 20


class Encoder:
    """A transformer encoder; an item is a list of tokens, its result the mean of the last layer."""

    def __init__(self, share: float = 1.0, width: int = WIDTH) -> None:
        import torch  # type: ignore[import-not-found, unused-ignore]  # not in the environment of the tests

        self.torch = torch
        if share < 1:
            torch.cuda.set_per_process_memory_fraction(share)
        torch.manual_seed(1)
        layer = torch.nn.TransformerEncoderLayer(width, HEADS, 4 * width, batch_first=True, norm_first=False)
        self.embed = torch.nn.Embedding(WORDS, width).to("cuda", torch.float16).eval()
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS).to("cuda", torch.float16).eval()
        self.rows = torch.randint(0, WORDS, (4096, 512), device="cuda")
        torch.cuda.synchronize()

    def run(self, count: int, length: int = LENGTH) -> None:
        with self.torch.inference_mode():
            tokens = self.rows[:count, :length]
            self.layers(self.embed(tokens)).mean(dim=1).float().cpu()

    def peak_mib(self, count: int, length: int) -> float:
        """VRAM that a batch needs beside the model."""
        cuda = self.torch.cuda
        cuda.synchronize()
        before = cuda.memory_allocated()
        cuda.reset_peak_memory_stats()
        self.run(count, length)
        cuda.synchronize()
        return float(cuda.max_memory_allocated() - before) / MIB

    def model_mib(self) -> float:
        return float(self.torch.cuda.memory_allocated()) / MIB


def serve(model: Encoder, spec: BatchQueueSpec, rate: float, items: int, seed: int = 1) -> dict[str, float]:
    """Items that arrive at random at ``rate`` per second, each when it is due; all run on this GPU."""
    batcher, draw = Batcher(), random.Random(seed)
    batcher.set_queue(spec)
    batcher.add_worker(BatchWorker("gpu", 1 << 30))
    due_us, at = [], 0.0
    for _ in range(items):
        at += draw.expovariate(rate) * 1e6
        due_us.append(int(at))
    began, position, batches = time.perf_counter(), 0, 0
    latencies: list[int] = []

    def now() -> int:
        return int((time.perf_counter() - began) * 1e6)

    while len(latencies) < items:
        now_us = now()
        while position < items and due_us[position] <= now_us:
            batcher.submit(BatchItem(position, spec.name, due_us[position]), now_us)
            position += 1
        if position == items:
            batcher.flush(spec.name, now_us)
        decisions = batcher.decide(now_us)
        if not decisions:
            next_us = min(due_us[position] if position < items else now_us, batcher.wake_us() or 1 << 60)
            time.sleep(max(0.0, min(0.0005, (next_us - now_us) / 1e6)))
        for decision in decisions:
            assert not isinstance(decision, DropItem), decision
            start_us = now()
            model.run(len(decision.items))
            end_us = now()
            batches += 1
            batcher.finish("gpu", end_us, end_us - start_us)
            latencies += [end_us - item.arrived_us for item in decision.items]
    latencies.sort()
    return {
        "offered_per_s": round(rate),
        "items_per_s": round(items * 1e6 / now()),
        "p95_ms": round(latencies[int(len(latencies) * 0.95)] / 1000, 1),
        "batches": batches,
    }


def policies(size: int) -> dict[str, BatchQueueSpec]:
    bounds: dict[str, Any] = {"name": "embed", "max_waiting": 1 << 30, "max_batch_wait_us": 5_000}
    return {
        "one_by_one": BatchQueueSpec(**bounds | {"max_batch_size": 1}),
        "fixed": BatchQueueSpec(**bounds, max_batch_size=size),
        "adaptive": BatchQueueSpec(**bounds, max_batch_size=size, latency_target_us=TARGET_MS * 1000),
    }


def throughput(model: Encoder, seconds: float, size: int = 128) -> list[dict[str, Any]]:
    """All policies at arrival rates from well below to well above what one item at a time can do."""
    for count in (1, 2, 4, 8, 16, 32, 64, size):
        model.run(count)
    began = time.perf_counter()
    for _ in range(50):
        model.run(1)
    single = 50 / (time.perf_counter() - began)
    rows = []
    for part in (0.5, 0.9, 2.0, 5.0, 8.0):
        for name, spec in policies(size).items():
            items = int(min(single * part * seconds, 60_000))
            rows.append({"policy": name, "load": part} | serve(model, spec, single * part, items))
    return rows


def memory(model: Encoder) -> dict[str, Any]:
    """The size of an item from batches of 1 and 8; then larger batches as predicted and as measured."""
    length = 512
    model.run(8, length)
    one, eight = model.peak_mib(1, length), model.peak_mib(8, length)
    each = (eight - one) / 7
    fixed, worst, rows = one - each, 0.0, []
    for count in (4, 16, 32, 64, 128):
        model.run(count, length)
        measured, predicted = model.peak_mib(count, length), fixed + math.ceil(each) * count
        worst = max(worst, abs(predicted - measured) / measured)
        rows.append({"batch": count, "predicted_mib": round(predicted), "measured_mib": round(measured)})
    return {"item_mib": round(each, 2), "model_mib": round(model.model_mib()), "rows": rows, "error": round(worst, 3)}


def within_slice(items: int, share: float) -> dict[str, Any]:
    """Items of mixed lengths, in batches that only VRAM bounds, in a process that may take a part of the GPU."""
    model = Encoder(share)
    torch = model.torch
    limit_mib = int(torch.cuda.get_device_properties(0).total_memory * share / MIB)
    lengths = (64, 128, 256, 512)
    model.run(8, 512)
    sizes = {each: max(1, math.ceil((model.peak_mib(64, each) - model.peak_mib(8, each)) / 56)) for each in lengths}
    torch.cuda.empty_cache()
    draw, batcher = random.Random(1), Batcher()
    model_mib = int(model.model_mib()) + 64  # and room for what the allocator rounds up
    worker_mib = int(limit_mib * 0.8)  # fragments of the caching allocator are not for items
    batcher.set_queue(
        BatchQueueSpec(name="mixed", model_mib=model_mib, max_batch_size=4096, max_batch_wait_us=0, max_waiting=1 << 30)
    )
    batcher.add_worker(BatchWorker("gpu", worker_mib))
    chosen: dict[int, int] = {}
    done = failed = batches = largest = submitted = 0
    while done + failed < items:
        while submitted < items and submitted - done - failed < 8_000:
            chosen[submitted] = draw.choice(lengths)
            batcher.submit(BatchItem(submitted, "mixed", submitted, sizes[chosen[submitted]]), submitted)
            submitted += 1
        for decision in batcher.decide(submitted + 1):
            assert not isinstance(decision, DropItem), decision
            try:
                for length, count in sorted(Counter(chosen[item.number] for item in decision.items).items()):
                    model.run(count, length)
                done += len(decision.items)
            except torch.cuda.OutOfMemoryError:
                failed += len(decision.items)
                torch.cuda.empty_cache()
            batches += 1
            largest = max(largest, len(decision.items))
            batcher.finish("gpu", submitted + 1, 1_000)
    return {"items": items, "done": done, "out_of_memory": failed, "batches": batches, "largest_batch": largest}


def _sharing(share: float, rate: float, seconds: float, results: Any) -> None:
    model = Encoder(share)
    for count in (1, 8, 32, 128):
        model.run(count)
    results.put(serve(model, policies(128)["adaptive"], rate, int(rate * seconds)))


def two_models(rate: float, seconds: float) -> list[dict[str, float]]:
    """Two processes, each with a model of its own and half of the GPU's memory, at the same time."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    both = [context.Process(target=_sharing, args=(0.4, rate, seconds, results)) for _ in range(2)]
    for each in both:
        each.start()
    found = [results.get(timeout=180) for _ in both]
    for each in both:
        each.join(30)
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=6.0, help="of each run")
    options.add_argument("--items", type=int, default=100_000, help="in a slice of the GPU")
    given = options.parse_args()
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        sliced = pool.apply(within_slice, (given.items, 0.1))
    print(json.dumps({"within_slice": sliced}), flush=True)
    model = Encoder()
    rows = throughput(model, given.seconds)
    for row in rows:
        print(json.dumps(row), flush=True)
    remembered = memory(model)
    print(json.dumps({"memory": remembered}), flush=True)
    loaded = [row for row in rows if row["load"] == 8.0]
    by_policy = {row["policy"]: row for row in loaded}
    single = by_policy["one_by_one"]
    shared = two_models(single["items_per_s"] * 2.0, given.seconds)
    gain = max(by_policy[name]["items_per_s"] for name in ("fixed", "adaptive")) / single["items_per_s"]
    passed = (
        gain >= 5
        and by_policy["adaptive"]["p95_ms"] <= single["p95_ms"]
        and sliced["out_of_memory"] == 0
        and remembered["error"] <= 0.1
    )
    found = {"gain": round(gain, 1), "two_models": shared, "within_slice": sliced, "memory": remembered, "rows": rows}
    print(json.dumps({"check": "batching", "passed": passed} | found))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
