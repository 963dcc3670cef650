"""The backend for tasks as processes of this machine, run by one watcher thread.

Every change goes through the watcher's inbox, so the tasks have one owner and need no locks. The watcher reports what
it finds in the state directories; the notices of supervisors only say where to look first. Knows tasks, not gangs.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import structs

from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass
from corral.core.work import Work
from corral.runtime.base import LogPart, PaceReport, Phase, Report, SavedReport, StopReport, TaskKey, TaskOrder, Tell
from corral.runtime.device_nodes import device_nodes
from corral.runtime.fence import Fence, refuse_stale
from corral.runtime.gpu_memory import MemoryReader, NvmlMemory
from corral.runtime.gpu_visibility import is_simulated
from corral.runtime.inventory import inventory
from corral.runtime.local import cleanup
from corral.runtime.local.activity.activity_reader import ActivityReader, RunningTask
from corral.runtime.local.activity.rank_files import read_paces
from corral.runtime.local.containers import Containers
from corral.runtime.local.dir_pool import DirPool
from corral.runtime.local.logs import LogStore
from corral.runtime.local.orders import NO_CONTAINERS, Site, request_of
from corral.runtime.local.scratch_quota import ScratchQuota
from corral.runtime.local.separation import separation
from corral.runtime.local.settings import LocalSettings
from corral.runtime.local.slices import SliceWatch
from corral.runtime.local.spawner_client import SpawnerClient
from corral.runtime.local.state_dir import (
    ExitRecord,
    SavedRecord,
    TaskState,
    boot_id,
    down_report,
    name_of,
    short,
    up_report,
)
from corral.runtime.local.task import device_access, records
from corral.runtime.local.task.cgroups import detect
from corral.runtime.local.task.lease import now_ms as boot_ms
from corral.runtime.local.unix_accounts import hidden, lacking, why_not_as

_log = logging.getLogger(__name__)
_WITH_IMAGE = Work(command=("true",), image="image")
_NEWS_MAX = 1 << 20
_WHY_MAX = 1_000
_PRUNE_S = 0.25  # between two parts of the stored logs: all of them in about a minute
_F_SETPIPE_SZ = 1031


class LocalBackend:
    """``data``: the server's data directory. ``node``: this machine; None: as it is found (`inventory`).
    ``containers``: executes orders with an image; None: they are refused. ``memory``: reads the memory use of GPUs;
    None: by NVML. ``device_nodes``: paths of the device nodes of GPUs, by UUID."""

    def __init__(
        self,
        data: Path,
        node: NodeSpec | None = None,
        settings: LocalSettings | None = None,
        containers: Containers | None = None,
        memory: MemoryReader | None = None,
        device_nodes: Callable[[], Mapping[str, str]] = device_nodes,
    ) -> None:
        self._device_nodes = device_nodes
        self._containers = containers
        self._node = node if node is not None else inventory()
        self._settings = settings or LocalSettings()
        data = data.absolute()
        self._tasks_folder, self._run = data / "tasks" / "state", data / "run"
        self._blanks_folder = data / "tasks" / "blank"
        self._epoch_file = data / "tasks" / "epoch"
        self._logs = LogStore(data / "tasks" / "logs")
        self._tasks: dict[TaskKey, _Task] = {}
        self._by_name: dict[str, _Task] = {}
        self._inbox: deque[Callable[[], None]] = deque()
        self._forgotten: list[TaskState] = []
        self._epoch = 0
        self._next_paces = 0.0
        self._memory = memory or NvmlMemory()
        self._slices = SliceWatch(self._memory.read, self._roots, self.warn, self.kill)
        self._tell: Tell = _drop
        self._thread: threading.Thread | None = None
        self._quota: ScratchQuota | None = None
        self._activity: ActivityReader | None = None
        self._not_separated = self._not_filtered = ""

    # --- the interface ------------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[NodeSpec]:
        return (self._node,)

    def open(self, tell: Tell, epoch: int) -> None:
        for folder in (self._tasks_folder, self._run):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._take_over(epoch)
        identity = short(str(self._tasks_folder))
        place = self._settings.scratch or tempfile.gettempdir()
        cleanup.remove_deserted(place)
        scratch = cleanup.make_scratch_root(place, identity)
        layout = detect(f"corral-{identity}")
        self._site = Site(str(self._tasks_folder), str(self._run), scratch, boot_id(), layout, self._settings)
        self._not_filtered = device_access.why_not(layout)
        if not self._not_filtered and not all(is_simulated(gpu.uuid) for gpu in self._node.gpus):
            self._site.devices = device_access.numbers(self._device_nodes())
        self._site.hidden, self._not_separated = hidden(str(self._run.parent), self._settings.hidden)
        self._tell, self._runs = tell, True
        self._blanks = DirPool(str(self._blanks_folder))
        self._news = _open_news(self._run / records.NEWS)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # from now on no earlier spawner can start tasks
        self._spawner = SpawnerClient(str(self._run), scratch, self._is_newest)
        if self._containers is not None:
            self._containers.open(identity)
        self._adopt()
        if self._containers is not None:
            self._containers.keep_clean(self._is_live)
        self._thread = threading.Thread(target=self._watch, name="local-backend", daemon=True)
        self._thread.start()
        self._stop_pruning = threading.Event()
        threading.Thread(target=self._prune_logs, args=(self._stop_pruning,), name="kept-logs", daemon=True).start()
        if self._settings.scratch_mib_max:
            self._quota = ScratchQuota(
                self._settings.scratch_mib_max << 20, self._folders, self._note_in_log, self._end
            )
            self._quota.begin()
        if self._settings.activity_ms:
            self._activity = ActivityReader(self._node.name, self._running, self._settings.activity_ms)
            self._activity.begin(self._report)

    def launch(self, orders: Sequence[TaskOrder]) -> None:
        refuse_stale(orders, self._epoch)
        for order in orders:
            task = self._tasks.get(order.key)
            if task is None:
                task = self._keep(_Task(order, self._site.state_folder(order.key)))
                self._post(partial(self._send, task, order))
            else:
                self._post(partial(self._report_again, task))

    def warn(self, key: TaskKey, deadline_ms: int, why: str) -> None:
        until_ms = boot_ms() + max(deadline_ms - time.time_ns() // 1_000_000, 0)  # on a clock that cannot be set
        self._post(partial(self._control, key, f"until {until_ms}\nwarn {deadline_ms} {_one_line(why)}"))

    def stop_at(self, key: TaskKey, step: int) -> None:
        self._post(partial(self._control, key, f"stop-at {step}"))

    def kill(self, key: TaskKey) -> None:
        self._post(partial(self._control, key, "kill killed on request"))

    def _note_in_log(self, key: TaskKey, text: str) -> None:
        self._post(partial(self._control, key, f"say {_one_line(text)}"))

    def _end(self, key: TaskKey, why: str) -> None:
        self._post(partial(self._control, key, f"kill {_one_line(why)}"))

    def _folders(self) -> dict[TaskKey, str]:
        """The private directories of running tasks."""
        return {task.key: task.folder for task in self._running()}

    def _running(self) -> list[RunningTask]:
        running = [task for task in list(self._tasks.values()) if task.reported is Phase.UP]
        return [RunningTask(task.key, task.state, f"{self._site.scratch}/{short(task.name)}") for task in running]

    def known(self) -> Sequence[TaskKey]:
        return list(self._tasks)

    def forget(self, key: TaskKey) -> None:
        self._post(partial(self._forget, key))

    def read_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None:
        def is_over() -> bool:
            task = self._tasks.get(key)
            return task is None or task.reported is Phase.DOWN

        return self._logs.read(name_of(key), stream, offset, limit, is_over, key in self._tasks)

    def step_socket(self, key: TaskKey) -> str:
        """Where the supervisor of a task listens for connections to it."""
        return f"{self._run}/steps/{short(name_of(key))}"

    def cannot_run(self, work: Work) -> str:
        if self._containers is not None:
            return self._containers.cannot_run(work)
        return NO_CONTAINERS if work.image or work.mounts else ""

    def cannot_run_as(self, account: str) -> str:
        return why_not_as(account or self._settings.account)

    def lacks(self, node: str) -> Mapping[str, str]:
        del node  # there is only one
        limits = self._site.layout.unenforced if self._thread is not None else {}
        no_images = self.cannot_run(_WITH_IMAGE)
        return (
            limits | ({"images": no_images} if no_images else {}) | lacking(self._settings.account, self._not_separated)
        )

    def separation(self, node: str) -> Mapping[str, str]:
        del node
        if self._thread is None:
            return {}
        has_gpus = any(not is_simulated(gpu.uuid) for gpu in self._node.gpus)
        runtime = self._containers.runtime() if self._containers is not None else ""
        account = self._settings.account
        return separation(self._site.layout, self._not_separated, self._not_filtered, has_gpus, runtime, account)

    def close(self) -> None:
        if self._thread is None:
            return
        self._stop_pruning.set()
        if self._quota is not None:
            self._quota.stop()
        if self._activity is not None:
            self._activity.stop()
        self._slices.close()
        self._memory.close()
        self._post(self._stop)
        self._thread.join()
        self._thread = None
        self._spawner.close()
        self._clear_forgotten()
        os.close(self._news)
        os.close(self._wake)
        if self._containers is not None:
            self._containers.close()
        if self._is_newest():
            cleanup.tidy(self._site.layout, self._site.scratch)
        self._tasks, self._by_name = {}, {}

    # --- opening ------------------------------------------------------------------------------------------------------

    def _take_over(self, epoch: int) -> None:
        self._fence = Fence(self._epoch_file)
        self._fence.pass_through(epoch)
        self._epoch = epoch

    def _is_newest(self) -> bool:
        """Whether no later server has taken over the tasks of this machine."""
        return self._fence.stored() <= self._epoch

    def _adopt(self) -> None:
        """Adopt and report the tasks of an earlier server. Leftovers that belong to no task are removed."""
        for name in sorted(os.listdir(self._tasks_folder)):
            state = TaskState(f"{self._tasks_folder}/{name}")
            record = state.record().order()
            if record is None:
                cleanup.remove_unreadable(state)
                continue
            task = self._keep(_Task(record.order, state.folder))
            task.is_launched = True
            self._report_changes(task)
            self._check(task)
        running = {task.name for task in self._tasks.values() if task.reported is not Phase.DOWN}
        cleanup.sweep(self._site.layout, self._site.scratch, running)

    def _is_live(self, name: str) -> bool:
        task = self._by_name.get(name)
        return task is not None and task.reported is not Phase.DOWN

    def _keep(self, task: _Task) -> _Task:
        self._tasks[task.key] = self._by_name[task.name] = task
        self._slices.note(task.key, task.gpus, task.vram_mib)
        return task

    def _roots(self, key: TaskKey) -> Sequence[int]:
        """The processes that all other processes of a task descend from."""
        task = self._tasks.get(key)
        started = None if task is None else task.state.record().started()
        return () if started is None else (started.supervisor, *started.pids)

    # --- the watcher --------------------------------------------------------------------------------------------------

    def _post(self, what: Callable[[], None]) -> None:
        self._inbox.append(what)
        os.eventfd_write(self._wake, 1)

    def _stop(self) -> None:
        self._runs = False

    def _watch(self) -> None:
        next_scan = time.monotonic() + self._settings.scan_ms / 1000
        while self._runs:
            try:
                self._turn(max(next_scan - time.monotonic(), 0))
                if time.monotonic() >= next_scan:
                    self._scan()
                    next_scan = time.monotonic() + self._settings.scan_ms / 1000
            except Exception:
                _log.exception("watcher of local tasks failed; retrying")
                time.sleep(0.1)

    def _turn(self, patience_s: float) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._news, select.POLLIN)
        spawner = self._spawner.socket.fileno()
        poll.register(spawner, select.POLLIN | (select.POLLOUT if self._spawner.wants_to_write else 0))
        ready = dict(poll.poll(patience_s * 1000))
        if self._wake in ready:
            os.eventfd_read(self._wake)
            while self._inbox:
                self._run_safely(self._inbox.popleft())
        if ready.get(spawner, 0) & select.POLLOUT:
            self._spawner.flush()
        if ready.get(spawner, 0) & ~select.POLLOUT:
            for answer in self._spawner.answers():
                self._on_answer(answer)
        if self._news in ready:
            for name in dict.fromkeys(os.read(self._news, _NEWS_MAX).decode("utf-8", "replace").split("\n")):
                if name in self._by_name:
                    self._report_changes(self._by_name[name])

    def _run_safely(self, what: Callable[[], None]) -> None:
        """An error with one task must not affect the others."""
        try:
            what()
        except Exception:
            _log.exception("a request to the local backend failed")

    def _report_paces(self) -> None:
        for task in list(self._tasks.values()):
            if task.reported is Phase.UP:
                paces = read_paces(f"{self._site.scratch}/{short(task.name)}")
                if paces and paces != task.paces:
                    task.paces = paces
                    self._report(PaceReport(task.key, task.node, paces))

    def _scan(self) -> None:
        if time.monotonic() >= self._next_paces:
            self._next_paces = time.monotonic() + self._settings.pace_ms / 1000
            self._report_paces()
        for task in list(self._tasks.values()):
            if task.is_launched and task.reported is not Phase.DOWN:
                self._report_changes(task)
                self._check(task)
        self._clear_forgotten()

    def _prune_logs(self, stop: threading.Event) -> None:
        """Runs in its own thread, because there may be millions of logs. Most of the time it waits."""
        rules, pause_s = self._settings, _PRUNE_S
        while not stop.wait(pause_s):
            began = time.monotonic()
            try:
                most, user_most = rules.log_total_mib << 20, rules.log_user_mib << 20
                limits = self._logs.prune(rules.log_keep_ms, most, user_most, self._is_live)
            except Exception:
                _log.exception("pruning stored logs failed; retrying in %g s", _PRUNE_S)
                continue
            for name, bytes_max in limits.items():
                task = self._by_name.get(name)
                if task is not None:
                    self._post(partial(self._control, task.key, f"limit-logs {bytes_max}"))
            pause_s = max(_PRUNE_S, 4 * (time.monotonic() - began))

    def _send(self, task: _Task, order: TaskOrder) -> None:
        try:
            request = request_of(order, self._site, self._logs.folder(task.name), self._containers)
            self._spawner.send(request, self._blanks.take(), self._site.worker_parents)
        except (ValueError, TypeError) as fault:  # text that cannot be encoded
            task.reported = Phase.DOWN
            now_ms = time.time_ns() // 1_000_000
            ended = ExitRecord(now_ms, 126, 0, FailureClass.USER_ERROR, f"invalid order: {fault}")
            self._report(down_report(task.key, task.node, task.gpus, ended))

    def _on_answer(self, answer: str) -> None:
        """The name of a task: its state directory exists, and it has or had a supervisor. With ``!`` before the name:
        its supervisor is gone."""
        task = self._by_name.get(answer.lstrip("!"))
        if task is None:
            return
        if answer.startswith("!"):
            self._check(task)
            return
        task.is_launched = True
        pending, task.pending = task.pending, []
        for line in pending:
            task.state.control(line)
        self._report_changes(task)

    def _control(self, key: TaskKey, line: str) -> None:
        task = self._tasks.get(key)
        if task is None or task.reported is Phase.DOWN:
            return
        message = line.encode("utf-8", "replace") + b"\n"
        if not task.is_launched:
            task.pending.append(message)
        elif not task.state.control(message):
            self._check(task)

    def _report_changes(self, task: _Task) -> None:
        """Report what has not been reported."""
        if task.reported is Phase.DOWN or not task.is_launched:
            return
        record = task.state.record()
        ended = record.exit()
        if task.reported is None:
            started = record.started()
            if started is not None:
                task.reported = Phase.UP
                self._report(up_report(task.key, task.node, task.gpus, started))
        if task.reported is not None:
            saved = task.state.saved()
            if saved is not None and saved != task.saved:
                task.saved = saved
                self._report(SavedReport(task.key, saved.step, saved.path, saved.save_ms, saved.stall_ms))
            stop = task.state.stop()
            if stop is not None and stop != task.stop:
                task.stop = stop
                self._report(StopReport(task.key, stop))
        if ended is not None:
            task.reported = Phase.DOWN
            if why := self._slices.ended(task.key):
                ended = structs.replace(ended, failure=FailureClass.VRAM_EXCEEDED, why=why)
            self._report(down_report(task.key, task.node, task.gpus, ended))

    def _check(self, task: _Task) -> None:
        """A task without a supervisor and without a recorded exit is lost: kill what is left of it, and record that."""
        if task.reported is Phase.DOWN or task.state.is_supervised():
            return
        if task.state.record().exit() is None:
            self._record_lost(task)
        self._report_changes(task)

    def _record_lost(self, task: _Task) -> None:
        try:
            cleanup.record_lost(task.state, self._site.boot, self._containers)
        except OSError:
            _log.exception("cannot record the exit of lost task %s yet", task.name)

    def _report_again(self, task: _Task) -> None:
        task.reported = task.saved = task.stop = None
        self._report_changes(task)

    def _forget(self, key: TaskKey) -> None:
        task = self._tasks.get(key)
        if task is None or task.reported is not Phase.DOWN:
            return
        del self._tasks[key], self._by_name[task.name]
        if not cleanup.clear(task.state, self._blanks):
            self._forgotten.append(task.state)  # later its directory can be reused

    def _clear_forgotten(self) -> None:
        forgotten, self._forgotten = self._forgotten, []
        for state in forgotten:
            self._run_safely(partial(self._clear, state))

    def _clear(self, state: TaskState) -> None:
        """A supervisor that still runs finishes its cleanup by itself; if it is killed meanwhile, the next start cleans
        up."""
        if not cleanup.clear(state, self._blanks):
            state.remove()

    def _report(self, report: Report) -> None:
        try:
            self._tell(report)
        except Exception:
            _log.exception("cannot pass on the report of a local task: %r", report)


class _Task:
    """What the watcher knows of one task: what it has reported, and what it could not yet send to the supervisor."""

    __slots__ = (
        "gpus",
        "is_launched",
        "key",
        "name",
        "node",
        "paces",
        "pending",
        "reported",
        "saved",
        "state",
        "stop",
        "vram_mib",
    )

    def __init__(self, order: TaskOrder, folder: str) -> None:
        self.key = order.key
        self.node = order.node
        self.gpus = order.gpus
        self.name = name_of(order.key)
        self.vram_mib = order.vram_mib
        self.state = TaskState(folder)
        self.is_launched = False
        self.reported: Phase | None = None
        self.saved: SavedRecord | None = None
        self.stop: int | None = None
        self.paces: tuple[tuple[int, int], ...] = ()
        self.pending: list[bytes] = []


def _open_news(path: Path) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # then it keeps the default of 64 KiB
        fcntl.fcntl(fd, _F_SETPIPE_SZ, _NEWS_MAX)
    return fd


def _one_line(why: str) -> str:
    return " ".join(why.split())[:_WHY_MAX]


def _drop(_: Report) -> None:
    """Reports before `open` are dropped."""
