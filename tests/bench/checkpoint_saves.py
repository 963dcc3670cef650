"""Saves of one training state, beside torch.save and torch.distributed.checkpoint; run by a Python that has torch.

    PYTHONPATH=src:. python -m tests.bench.checkpoint_saves --ranks 2 --mib 256 [--device cuda]

Every way saves the same state of a model with AdamW while it trains: how long the loop stands still, how long until it
is durable, and how much longer the steps around it take. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.nn.parallel import DistributedDataParallel

from corral.checkpoints.interval import advise
from corral.checkpoints.saver import Saver
from corral.checkpoints.train_state import TrainState

WIDTH = 1024
#: Mean time between failures at 1,024 GPUs, as published: 7.9 hours.
MTBF_S = 7.9 * 3600
RESTART_S = 60.0


class Training:
    """A stack of linear layers: 12 bytes of state a parameter."""

    def __init__(self, mib: int, device: str, batch: int) -> None:
        torch.manual_seed(0)
        width = WIDTH if device == "cpu" else 4 * WIDTH
        layers = max(1, (mib << 20) // (12 * width * width))
        net: Any = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)]).to(device)
        self.model = DistributedDataParallel(net) if dist.is_initialized() else net
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.state = TrainState(self.model, self.optimizer)
        self.input = torch.randn(batch, width, device=device)
        self.size = sum(parameter.numel() for parameter in net.parameters()) * 12
        self.is_cuda = device == "cuda"

    def step(self) -> None:
        self.model(self.input).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def wait(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()


def measure(
    training: Training, save: Callable[[int], None], finish: Callable[[], None], rounds: int
) -> dict[str, float]:
    """``save`` may return before it is durable; ``finish`` waits for that. The first save is apart: it allocates."""

    def one(step: int) -> tuple[float, float]:
        training.step()
        training.wait()
        began = time.monotonic()
        save(step)
        training.wait()
        stall_s = time.monotonic() - began
        finish()
        return stall_s, time.monotonic() - began

    first_stall_s, _ = one(1)
    both = [one(step) for step in range(2, 2 + rounds)]
    return {
        "first_stall_s": round(first_stall_s, 4),
        "stall_s": round(statistics.median(stall for stall, _ in both), 4),
        "save_s": round(statistics.median(saved for _, saved in both), 4),
    }


def cost_s(training: Training, save: Callable[[int], None], finish: Callable[[], None]) -> dict[str, float]:
    """What one save costs in all: the time of steps with a save among them, less that of the same steps without."""

    def steps(count: int, saves: bool) -> float:
        began = time.monotonic()
        for number in range(count):
            training.step()
            if saves and number == 0:
                save(1000)
        training.wait()
        return time.monotonic() - began

    training.wait()
    step_s = steps(10, saves=False) / 10
    began = time.monotonic()
    save(999)
    finish()
    save_s = time.monotonic() - began
    count = max(10, round(save_s / step_s) + 5)
    plain = [steps(count, saves=False), 0.0, steps(count, saves=False)]
    with_save = steps(count, saves=True)
    finish()
    return {"step_s": round(step_s, 4), "cost_s": round(max(0.0, with_save - (plain[0] + plain[2]) / 2), 4)}


class Ways:
    """The ways to save, each to a folder of its own, which keeps only the newest."""

    def __init__(self, folder: Path, training: Training) -> None:
        self.folder = folder
        self.training = training
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        self.pending: Any = None
        self.stager: Any = None

    def torch_save(self, step: int) -> None:
        state = self.training.state.state_dict()
        if self.rank == 0:
            path = self.folder / "plain.pt"
            with path.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
        self.barrier()

    def dcp_sync(self, step: int) -> None:
        dcp.save({"all": self.training.state}, checkpoint_id=str(self._place("sync")), process_group=self.group)

    def dcp_async(self, step: int) -> None:
        self.wait_async()
        if self.stager is None:
            self.stager = BlockingAsyncStager(cache_staged_state_dict=self.training.is_cuda)  # in pinned memory
        place = str(self._place("async"))
        self.pending = dcp.async_save(
            {"all": self.training.state}, checkpoint_id=place, process_group=self.group, async_stager=self.stager
        )

    def wait_async(self) -> None:
        if self.pending is not None:
            self.pending.result()
            self.pending = None

    def _place(self, name: str) -> Path:
        """Both overwrite: a second folder would need more space than small disks have."""
        place = self.folder / name
        if self.rank == 0:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
        self.barrier()
        return place

    def barrier(self) -> None:
        if self.group is not None:
            dist.barrier(group=self.group)

    def clear(self) -> None:
        self.stager = None
        self.barrier()
        if self.rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
        self.barrier()


def disk_bandwidth(folder: Path, mib: int = 64) -> float:
    """Bytes a second of one thread that writes and syncs."""
    chunk = os.urandom(1 << 20)
    path = folder / "raw"
    began = time.monotonic()
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    took_s = time.monotonic() - began
    path.unlink()
    return (mib << 20) / took_s


def run(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    training = Training(given.mib, given.device, given.batch)
    training.step()
    training.wait()
    ways = Ways(folder, training)
    ways.clear()
    found: dict[str, Any] = {"ranks": given.ranks, "device": given.device, "state_bytes": training.size}
    found["disk_bytes_s"] = round(disk_bandwidth(folder)) if ways.rank == 0 else 0
    ways.barrier()
    saver = Saver(folder / "store", "bench", keep_last=1)
    saves = lambda step: saver.save(step, training.state)  # noqa: E731
    found["corral_async"] = measure(training, saves, saver.wait, given.rounds)
    tell(found, "corral_async", ways.rank)
    found["corral_async"].update(cost_s(training, saves, saver.wait))
    found["corral_sync"] = measure(
        training, lambda step: saver.save(step, training.state, wait=True), lambda: None, given.rounds
    )
    tell(found, "corral_sync", ways.rank)
    began = time.monotonic()
    saver.restore(training.state)
    training.wait()
    found["restore_s"] = round(time.monotonic() - began, 4)
    saver.close()
    for name, save, finish in (
        ("dcp_async", ways.dcp_async, ways.wait_async),
        ("dcp_sync", ways.dcp_sync, lambda: None),
        ("torch_save", ways.torch_save, lambda: None),
    ):
        ways.clear()
        found[name] = measure(training, save, finish, given.rounds)
        tell(found, name, ways.rank)
    ways.clear()
    return {**found, **summary(found)}


def tell(found: dict[str, Any], name: str, rank: int) -> None:
    """Progress, so that a run that is cut off has shown something."""
    if rank == 0:
        print(name, json.dumps(found[name]), file=sys.stderr, flush=True)


def summary(found: dict[str, Any]) -> dict[str, Any]:
    mine = found["corral_async"]
    advice = advise(mine["stall_s"], mine["save_s"], MTBF_S, RESTART_S)
    return {
        "stall_ratio": round(mine["stall_s"] / found["corral_sync"]["save_s"], 4),
        "save_s": mine["save_s"],
        "bandwidth": round(found["state_bytes"] / mine["save_s"]),
        "advised_interval_s": round(advice.interval_s, 1),
        "overhead_at_advised": round(mine["cost_s"] / advice.interval_s, 5),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mib", type=int, default=256, help="size of the state")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="checkpoints-", dir=given.folder))
    try:
        print(json.dumps(in_ranks(folder, given)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def in_ranks(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """This process is rank 0; the others are forked before torch is used."""
    if given.ranks == 1:
        return run(folder / "here", given)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    os.environ["LOCAL_WORLD_SIZE"] = str(given.ranks)
    rank = 0
    children = []
    for number in range(1, given.ranks):
        pid = os.fork()
        if not pid:
            rank = number
            break
        children.append(pid)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=given.ranks)
    found = run(folder / "here", given)
    dist.destroy_process_group()
    if rank:
        os._exit(0)
    for pid in children:
        os.waitpid(pid, 0)
    return found


if __name__ == "__main__":
    main()
