"""Saves and restores the state of a training run, in all of its ranks.

Imports torch. `save` returns as soon as this rank has a copy of its part; a thread hashes and writes it while training
continues, and rank 0 commits when every rank has written. `restore` loads the newest checkpoint that is good: one that
is damaged is skipped, in all ranks, before anything is loaded from it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.stateful import Stateful

from .copying import newest_store
from .job_environment import origin, report_saved, run_name
from .keep_rules import KeepRules
from .manifest import Damaged, Manifest, Piece, decode
from .piece_writer import PieceWriter
from .rank_group import RankGroup
from .run_log import Fenced
from .run_store import NothingUsable, RunStore
from .save_schedule import SaveSchedule
from .staging import Staged, Staging
from .storage import Storage, open_storage
from .torch_format import PieceReader, metadata_of, tensors_of


class SaveFailed(Exception):
    """The checkpoint does not exist: a rank could not write its part, or the commit was refused."""


class Saver:
    """Call it in every rank, with the same arguments and in the same order.

    ``store``: a directory that all nodes see, or a URL (``s3://bucket/prefix``). ``run``: the name under which jobs
    continue each other's work; by default every gang has a run of its own. ``interval``: seconds between saves for
    `is_due`, or ``auto``: from the measured cost of a save and the failure rate of the nodes. ``threads``: that hash
    and write in each rank. ``keep_…``: which checkpoints are kept (`KeepRules`).
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Storage | None = None,
        run: str | None = None,
        *,
        interval: float | str | None = None,
        keep_last: int = 3,
        keep_every: int = 0,
        keep_best: int = 0,
        metric: str = "",
        highest: bool = False,
        threads: int | None = None,
        timeout_s: float = 1800.0,
    ) -> None:
        self._rules = KeepRules(keep_last, keep_every, keep_best, metric, highest)
        self._store = RunStore(_storage(store), run or run_name())
        self._threads = threads or _threads()
        self._main = RankGroup(timeout_s)
        self._behind = RankGroup(timeout_s)
        self._origin = origin()
        self._staging = Staging()
        self._pieces = PieceWriter(self._store, self._threads)
        self._plan: tuple[Any, Any, Any] | None = None  # what this rank planned last, its part of the plan, metadata
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._base = 0
        self._packs: dict[str, int] = {}
        self._schedule = SaveSchedule(interval, self._main.share)
        self.committed: int | None = None
        self.stall_s = 0.0
        self.save_s = 0.0
        self._writer = self._open()

    def _open(self) -> int:
        """The number of the writer, which rank 0 becomes."""
        self._own = None
        problem = ""
        if self._main.rank == 0:
            try:
                self._own = self._store.open(self._origin)
                self._store.clean(self._own.number)
            except Fenced as fault:
                problem = str(fault)
        number, problem = self._main.share((self._own.number if self._own else 0, problem))
        if problem:
            raise Fenced(problem)
        return int(number)

    # --- saving ------------------------------------------------------------------------------------------

    def is_due(self, step: int) -> bool:
        """Whether to save after this step, by the interval. Call it in every rank after every step."""
        return self._schedule.is_due(step)

    def save(self, step: int, state: Any, *, metrics: dict[str, float] | None = None, wait: bool = False) -> None:
        """Save the state after this step. ``wait``: until it is durable; then a failure is raised (`SaveFailed`).

        Otherwise a failure is printed, training continues with the checkpoint before it, and the next save tries again.
        """
        began = time.monotonic()
        self._join()
        if isinstance(self._failure, Fenced):
            raise self._failure
        planner = DefaultSavePlanner()
        items, metadata = self._agree_on_plan(planner, _state_dict(state))
        staged = self._staging.copy(items, planner)
        self.stall_s = time.monotonic() - began
        arguments = (step, staged, metadata, dict(metrics or {}), self.stall_s)
        self._thread = threading.Thread(target=self._write, args=arguments, name="checkpoint", daemon=True)
        self._thread.start()
        self._schedule.saved(step, self.stall_s, self.save_s)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until the save that is under way is durable; raises `SaveFailed` if it failed, `Fenced` if another
        attempt has taken over the run."""
        self._join()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Wait for the save that is under way, and release the process groups. Call it before the program ends."""
        try:
            self.wait()
        finally:
            self._main.close()
            self._behind.close()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _agree_on_plan(self, planner: Any, state: dict[str, Any]) -> tuple[list[Any], Any]:
        """Which pieces this rank writes. Planned again only if the state of any rank has another form than before."""
        planner.set_up_planner(state_dict=state, is_coordinator=self._main.rank == 0)
        local = planner.create_local_plan()
        is_same = self._plan is not None and self._plan[0] == (local.items, local.planner_data)
        if self._main.first_problem("" if is_same else "planned again"):
            plans = self._main.gather(local)
            central, metadata = planner.create_global_plan(plans) if plans else ([], None)
            self._plan = ((local.items, local.planner_data), self._main.scatter(central), metadata)
        assert self._plan is not None
        planner.finish_plan(self._plan[1])
        return self._plan[1].items, self._plan[2]

    def _write(self, step: int, staged: list[Staged], metadata: Any, metrics: dict[str, float], stall_s: float) -> None:
        """In the thread. Whatever fails in one rank ends the save in all of them."""
        began = time.monotonic()
        pieces: list[Piece] = []
        packs: dict[str, int] = {}
        problem = ""
        try:
            pieces, packs = self._pieces.write(self._writer, step, self._main.rank, list(staged))
        except Exception as fault:
            problem = f"{type(fault).__name__}: {fault}"
        try:
            parts = self._behind.gather((pieces, packs, problem))
            outcome = self._commit(step, parts, metadata, metrics, began, stall_s) if parts else None
            number, failure = self._behind.share(outcome)
        except Exception as fault:  # another rank has ended
            number, failure = 0, SaveFailed(f"{type(fault).__name__}: {fault}")
        self.save_s = time.monotonic() - began
        self._failure = failure
        self._base = number
        self._pieces.remember(() if failure else pieces)
        if failure is None:
            self.committed = step
        elif self._main.rank == 0:
            print(f"corral: step {step} was not saved: {failure}", file=sys.stderr, flush=True)

    def _commit(
        self, step: int, parts: list[Any], metadata: Any, metrics: dict[str, float], began: float, stall_s: float
    ) -> tuple[int, Exception | None]:
        """In rank 0: the number of the checkpoint, and why there is none."""
        assert self._own is not None
        problem = next((f"rank {rank}: {text}" for rank, (_, _, text) in enumerate(parts) if text), "")
        if problem:
            return 0, SaveFailed(problem)
        pieces = tuple(piece for own, _, _ in parts for piece in own)
        packs = {name: size for _, own, _ in parts for name, size in own.items()}
        earlier = {piece.pack for piece in pieces} - packs.keys()
        manifest = Manifest(
            run=self._store.run,
            step=step,
            world=self._main.world,
            saved_ms=time.time_ns() // 1_000_000,
            save_ms=round((time.monotonic() - began) * 1000),
            origin=self._origin,
            packs={**packs, **{name: self._packs[name] for name in earlier}},
            pieces=pieces,
            tensors=tensors_of(metadata),
            paths=dict(metadata.planner_data or {}),
            metrics=metrics,
            base=self._base if earlier else 0,
        )
        try:
            checkpoint = self._store.commit(self._own, manifest, round(stall_s * 1000))
        except Fenced as fault:
            return 0, fault
        except (Damaged, OSError) as fault:
            return 0, SaveFailed(str(fault))
        self._packs = manifest.packs
        place = f"{self._store.storage.url}/{self._store.run}"
        report_saved(step, place, time.monotonic() - began + stall_s, stall_s)
        try:
            self._store.prune(self._rules)
        except OSError as fault:
            print(f"corral: old checkpoints were not removed: {fault}", file=sys.stderr, flush=True)
        return checkpoint.number, None

    # --- restoring ---------------------------------------------------------------------------------------

    def restore(
        self,
        state: Any,
        *,
        step: int | None = None,
        start_from: str | None = None,
        copies: tuple[str, ...] | None = None,
    ) -> int:
        """Load the newest good checkpoint, or that of ``step``, and return its step; 0: there is none.

        ``copies``: other stores that hold copies of this run. One of them is used if its newest checkpoint is newer,
        or if all of this store are damaged or gone: a local disk that was lost with its node, for example. By default
        those of ``CORRAL_CHECKPOINT_COPIES``, with spaces between them.
        ``start_from``: a run of the same store to begin with if this one has no checkpoint. Raises `NothingUsable` if
        there are checkpoints and all are damaged: to begin again from the start is then a decision of the user.
        """
        urls = os.environ.get("CORRAL_CHECKPOINT_COPIES", "").split() if copies is None else copies
        stores = [self._store, *(RunStore(open_storage(url), self._store.run) for url in urls)]
        first = self._main.share(stores.index(newest_store(stores)) if self._main.rank == 0 else 0)
        stores = [stores[first], *stores[:first], *stores[first + 1 :]]
        if start_from:
            stores.append(RunStore(self._store.storage, start_from))
        refused = None
        for store in stores:
            try:
                found = self._restore_from(store, state, step)
            except NothingUsable as fault:
                refused = fault
                continue
            if found is not None:
                self._schedule.begin(found)
                return found
        if refused is not None:
            raise refused
        self._schedule.begin(0)
        return 0

    def _restore_from(self, store: RunStore, state: Any, step: int | None) -> int | None:
        refused = ""
        while True:
            number, chosen, content, reason = self._main.share(_offer(store, step) if self._main.rank == 0 else None)
            if number is None:
                if reason or refused:
                    raise NothingUsable(f"no checkpoint of run {store.run} can be used: {reason or refused}")
                return None
            manifest = decode(content, chosen)
            problem = self._load(store, manifest, state)
            if not problem:
                self._loaded(store, number, manifest)
                return manifest.step
            refused = f"step {manifest.step}: {problem}"
            if self._main.rank == 0:
                store.refuse(store.state().checkpoints[number], problem)

    def _load(self, store: RunStore, manifest: Manifest, state: Any) -> str:
        """Why the checkpoint is not good, the same in all ranks; then nothing was loaded."""
        target = _state_dict(state)
        planner = DefaultLoadPlanner()
        planner.set_up_planner(target, metadata_of(manifest), is_coordinator=self._main.rank == 0)
        plan = planner.create_local_plan()
        reader = PieceReader(store, manifest, self._threads)
        problem = ""
        try:
            reader.read(plan.items)
        except (Damaged, OSError) as fault:
            problem = str(fault)
        problem = self._main.first_problem(problem)
        if not problem:
            reader.load(plan.items, planner)
            _load_state(state, target)
        return problem

    def _loaded(self, store: RunStore, number: int, manifest: Manifest) -> None:
        if store is self._store:
            self._base = number
            self._packs = dict(manifest.packs)
            self._pieces.remember(manifest.pieces)
        self.committed = manifest.step
        if self._main.rank == 0:
            store.note_used(store.state().checkpoints[number], self._store.run, self._origin)


def _offer(store: RunStore, step: int | None) -> tuple[int | None, str, bytes, str]:
    """What rank 0 chooses for all: the number of a checkpoint, its checksum and manifest; or why there is none."""
    found, reason = store.choose(step)
    if found is None:
        return None, "", b"", reason
    return found.number, found.sha256, store.manifest_content(found), ""


def _state_dict(state: Any) -> dict[str, Any]:
    """As in torch.distributed.checkpoint: a state is an object with ``state_dict``, or a dict of such and of values."""
    if isinstance(state, dict):
        return {name: value.state_dict() if isinstance(value, Stateful) else value for name, value in state.items()}
    return dict(state.state_dict())


def _load_state(state: Any, loaded: dict[str, Any]) -> None:
    if not isinstance(state, dict):
        state.load_state_dict(loaded)
        return
    for name, value in loaded.items():
        if isinstance(state[name], Stateful):
            state[name].load_state_dict(value)
        else:
            state[name] = value


def _storage(store: str | os.PathLike[str] | Storage | None) -> Storage:
    if store is None:
        store = os.environ.get("CORRAL_CHECKPOINT_STORE")
        if not store:
            raise ValueError("give the directory or URL where checkpoints are stored")
    return open_storage(store) if isinstance(store, (str, os.PathLike)) else store


def _threads() -> int:
    """A share of the CPUs of this node for each of its ranks, and at most 8."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, min(8, len(os.sched_getaffinity(0)) // max(int(ranks) if ranks.isdecimal() else 1, 1)))
