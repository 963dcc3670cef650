"""Real ranks (torch, gloo) that save and restore; run by the Python that has torch. Prints one JSON line.

    PYTHONPATH=src:. .venv-torch/bin/python -m tests.checkpoints.torch_ranks FOLDER

torch is imported once; every phase forks its ranks, which form a world of their own and report through pipes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from corral.checkpoints.run_log import Fenced
from corral.checkpoints.saver import SaveFailed, Saver
from corral.checkpoints.storage import DirectoryStorage
from corral.checkpoints.train_state import TrainState

Phase = Callable[[int], Any]


def in_ranks(world: int, phase: Phase, **env: str) -> list[Any]:
    """What ``phase`` returns in each rank of a new world."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    readers = []
    for rank in range(world):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(reader)
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_WORLD_SIZE=str(world), **env)
            _be_rank(rank, world, phase, writer)
        os.close(writer)
        readers.append(reader)
    answers = []
    for reader in readers:
        with os.fdopen(reader, encoding="utf-8") as file:
            answers.append(json.loads(file.read() or '"died"'))
    for _ in range(world):
        os.wait()
    return answers


def _be_rank(rank: int, world: int, phase: Phase, writer: int) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", rank=rank, world_size=world)
        answer = phase(rank)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        answer = traceback.format_exc()
    with os.fdopen(writer, "w", encoding="utf-8") as file:
        file.write(json.dumps(answer))
    sys.stderr.flush()
    os._exit(0)


class Training:
    def __init__(self, layout: str) -> None:
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(33, 64), nn.ReLU(), nn.BatchNorm1d(64), nn.Linear(64, 17))
        if layout == "fsdp":
            self.model: Any = fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        else:
            self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.scheduler = scheduler
        self.state = TrainState(self.model, self.optimizer, scheduler=scheduler, epoch=0)

    def step(self) -> None:
        self.model(torch.randn(8, 33)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()

    def digest(self) -> str:
        """Of the gathered state, in rank 0."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model, optimizer = get_state_dict(self.model, self.optimizer, options=options)
        if dist.get_rank():
            return ""
        digest = hashlib.sha256()
        moments = {f"{name}/{key}": held for name, all_ in optimizer["state"].items() for key, held in all_.items()}
        for name, tensor in sorted({**model, **moments}.items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        return digest.hexdigest()


def continued(folder: Path, layout: str, steps: int = 2, **options: Any) -> Phase:
    """Restore, train, save: step and digest after restoring, and after the last save."""

    def phase(_: int) -> Any:
        training = Training(layout)
        saver = Saver(folder, "r", **options)
        began = step = saver.restore(training.state)
        restored = training.digest() if began else ""
        rate = training.optimizer.param_groups[0]["lr"]
        for _ in range(steps):
            training.step()
            step += 1
            training.state.epoch = step
            saver.save(step, training.state)
        saved = training.digest()
        training.step()  # while the last save is written
        saver.close()
        return {"began": began, "restored": restored, "saved": saved, "epoch": training.state.epoch, "rate": rate}

    return phase


def resized(folder: Path) -> list[Any]:
    worlds = [("ddp", 4), ("fsdp", 3), ("ddp", 4), ("fsdp", 2), ("fsdp", 4), ("ddp", 1)]
    return [in_ranks(world, continued(folder, layout))[0] for layout, world in worlds]


def damaged(folder: Path, harm: Callable[[list[Path]], None]) -> Any:
    """Two checkpoints, harm to the packs of the newer, and what is restored then."""
    saved = in_ranks(2, continued(folder, "ddp", steps=1))[0]["saved"]
    in_ranks(2, continued(folder, "ddp", steps=1))
    harm(sorted((folder / "r" / "packs").glob("*-0000000000000002-*")))
    found = in_ranks(2, continued(folder, "ddp", steps=0))
    return {"began": [each["began"] for each in found], "is_first": found[0]["restored"] == saved}


def flip(packs: list[Path]) -> None:
    held = bytearray(packs[0].read_bytes())
    held[len(held) // 2] ^= 1
    packs[0].write_bytes(held)


def truncate(packs: list[Path]) -> None:
    packs[-1].write_bytes(packs[-1].read_bytes()[:-1])


def delete(packs: list[Path]) -> None:
    packs[0].unlink()


def lost_disk(folder: Path) -> Any:
    """The local disk is lost, and a copy is in another store."""
    from corral.checkpoints.copying import copy_new
    from corral.checkpoints.run_store import RunStore

    local, durable = folder / "local", folder / "durable"
    saved = in_ranks(2, continued(local, "ddp"))[0]["saved"]
    copy_new(_store(local), RunStore(DirectoryStorage(durable), "r"))
    shutil.rmtree(local)

    def phase(_: int) -> Any:
        training = Training("ddp")
        saver = Saver(local, "r")
        began = saver.restore(training.state, copies=(str(durable),))
        digest = training.digest()
        saver.close()
        return began, digest

    found = in_ranks(2, phase)
    return {"began": [each[0] for each in found], "is_same": found[0][1] == saved}


class FullDisk(DirectoryStorage):
    def write(self, name: str, chunks: Iterable[memoryview | bytes]) -> int:
        for _ in chunks:
            break
        raise OSError(28, "No space left on device")


def disk_full(folder: Path) -> Any:
    """Rank 1 cannot write: no rank has a checkpoint, training continues, and a later save succeeds."""

    def phase(rank: int) -> Any:
        training = Training("ddp")
        saver = Saver(folder, "r")
        saver.save(1, training.state, wait=True)
        good, own = saver._store.storage, saver._store
        own.storage = FullDisk(folder) if rank else good
        training.step()
        saver.save(2, training.state)
        try:
            saver.wait()
            failure = ""
        except SaveFailed as fault:
            failure = str(fault)
        own.storage = good
        saver.save(3, training.state, wait=True)
        saver.close()
        return failure, saver.committed

    answers = in_ranks(2, phase)
    steps = [each.step for each in _store(folder).state().usable()]
    return {"answers": answers, "steps": steps, "packs": len(list((folder / "r" / "packs").iterdir()))}


def two_attempts(folder: Path) -> Any:
    """Attempt 1 goes on after attempt 2 has begun."""

    def phase(_: int) -> Any:
        training = Training("ddp")
        saver = Saver(folder, "r")
        saver.save(1, training.state, wait=True)
        if dist.get_rank() == 0:
            os.environ["CORRAL_ATTEMPT"] = "2"
            _open_as_successor(folder)
        dist.barrier()
        saver.save(2, training.state)
        try:
            saver.wait()
        except Fenced as fault:
            return str(fault)
        return "committed"

    answers = in_ranks(2, phase, CORRAL_JOB_ID="5", CORRAL_ATTEMPT="1")
    return {"answers": answers, "steps": [each.step for each in _store(folder).state().usable()]}


def _open_as_successor(folder: Path) -> None:
    from corral.checkpoints.job_environment import origin

    _store(folder).open(origin())


def _store(folder: Path) -> Any:
    from corral.checkpoints.run_store import RunStore

    return RunStore(DirectoryStorage(folder), "r")


def main() -> None:
    folder = Path(sys.argv[1])
    print(
        json.dumps(
            {
                "resized": resized(folder / "resized"),
                "flipped": damaged(folder / "flipped", flip),
                "truncated": damaged(folder / "truncated", truncate),
                "deleted": damaged(folder / "deleted", delete),
                "disk_full": disk_full(folder / "full"),
                "lost_disk": lost_disk(folder / "lost"),
                "two_attempts": two_attempts(folder / "attempts"),
            }
        )
    )


if __name__ == "__main__":
    main()
