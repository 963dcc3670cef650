"""Tasks as processes of this machine: the seam of the server, kept by one watcher thread.

Every change goes through the watcher's inbox, so that the tasks have one owner and need no locks. What the watcher
tells is what it finds in the state directories; news from supervisors only say where to look first. Knows tasks, not
gangs.
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

from corral.backends.base import LogPart, PaceReport, Phase, Report, SavedReport, StaleEpoch, TaskKey, TaskOrder, Tell
from corral.backends.gpu_memory import MemoryReader, NvmlMemory
from corral.backends.inventory import inventory
from corral.backends.local import remains
from corral.backends.local.accounts import lacking, separation, why_not_as
from corral.backends.local.blanks import Blanks
from corral.backends.local.containers import Containers
from corral.backends.local.link import SpawnerLink
from corral.backends.local.logs import LogStore
from corral.backends.local.orders import NO_CONTAINERS, Site, request_of
from corral.backends.local.paces import read_paces
from corral.backends.local.quota import ScratchQuota
from corral.backends.local.settings import LocalSettings
from corral.backends.local.slices import SliceWatch
from corral.backends.local.state import ExitRecord, TaskState, boot_id, down_report, name_of, short, up_report
from corral.backends.local.task import records
from corral.backends.local.task.cgroups import detect
from corral.backends.local.task.lease import now_ms as boot_ms
from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass
from corral.core.work import Work

_log = logging.getLogger(__name__)
_WITH_IMAGE = Work(command=("true",), image="image")
_NEWS_MAX = 1 << 20
_WHY_MAX = 1_000
_F_SETPIPE_SZ = 1031


class LocalBackend:
    """``data``: the server's data directory. ``node``: this machine; None: as it is found (`inventory`).
    ``containers``: how orders with an image are carried out; None: they are refused. ``memory``: who uses how much of
    the GPUs; None: as NVML tells."""

    def __init__(
        self,
        data: Path,
        node: NodeSpec | None = None,
        settings: LocalSettings | None = None,
        containers: Containers | None = None,
        memory: MemoryReader | None = None,
    ) -> None:
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
        self._tell: Tell = _tell_nobody
        self._thread: threading.Thread | None = None
        self._quota: ScratchQuota | None = None
        self._not_separated = ""

    # --- the seam -----------------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[NodeSpec]:
        return (self._node,)

    def open(self, tell: Tell, epoch: int) -> None:
        for folder in (self._tasks_folder, self._run):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._take_over(epoch)
        identity = short(str(self._tasks_folder))
        scratch = remains.make_scratch_root(self._settings.scratch or tempfile.gettempdir(), identity)
        layout = detect(f"corral-{identity}")
        self._site = Site(str(self._tasks_folder), str(self._run), scratch, boot_id(), layout, self._settings)
        self._site.hidden, self._not_separated = separation(str(self._run.parent), self._settings.hidden)
        self._tell, self._runs = tell, True
        self._blanks = Blanks(str(self._blanks_folder))
        self._news = _open_news(self._run / records.NEWS)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._link = SpawnerLink(str(self._run), self._is_newest)  # from here on no earlier spawner makes tasks
        if self._containers is not None:
            self._containers.open(identity)
        self._adopt()
        if self._containers is not None:
            self._containers.keep_clean(self._is_live)
        self._thread = threading.Thread(target=self._watch, name="local-backend", daemon=True)
        self._thread.start()
        if self._settings.scratch_mib_max:
            self._quota = ScratchQuota(self._settings.scratch_mib_max << 20, self._folders, self._say_to, self._end)
            self._quota.begin()

    def launch(self, orders: Sequence[TaskOrder]) -> None:
        for order in orders:
            if order.epoch < self._epoch:
                raise StaleEpoch(order.epoch, self._epoch)
        for order in orders:
            task = self._tasks.get(order.key)
            if task is None:
                task = self._keep(_Task(order, self._site.state_folder(order.key)))
                self._ask(partial(self._send, task, order))
            else:
                self._ask(partial(self._tell_again, task))

    def warn(self, key: TaskKey, deadline_ms: int, why: str) -> None:
        until_ms = boot_ms() + max(deadline_ms - time.time_ns() // 1_000_000, 0)  # nobody can set that clock
        self._ask(partial(self._control, key, f"until {until_ms}\nwarn {deadline_ms} {_one_line(why)}"))

    def kill(self, key: TaskKey) -> None:
        self._ask(partial(self._control, key, "kill killed on request"))

    def _say_to(self, key: TaskKey, text: str) -> None:
        self._ask(partial(self._control, key, f"say {_one_line(text)}"))

    def _end(self, key: TaskKey, why: str) -> None:
        self._ask(partial(self._control, key, f"kill {_one_line(why)}"))

    def _folders(self) -> dict[TaskKey, str]:
        """The private directories of tasks that run."""
        running = [task for task in list(self._tasks.values()) if task.told is Phase.UP]
        return {task.key: f"{self._site.scratch}/{short(task.name)}" for task in running}

    def known(self) -> Sequence[TaskKey]:
        return list(self._tasks)

    def forget(self, key: TaskKey) -> None:
        self._ask(partial(self._forget, key))

    def read_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None:
        def is_over() -> bool:
            task = self._tasks.get(key)
            return task is None or task.told is Phase.DOWN

        return self._logs.read(name_of(key), stream, offset, limit, is_over, key in self._tasks)

    def cannot_run(self, work: Work) -> str:
        if self._containers is not None:
            return self._containers.cannot_run(work)
        return NO_CONTAINERS if work.image or work.mounts else ""

    def cannot_run_as(self, account: str) -> str:
        return why_not_as(account or self._settings.account)

    def lacks(self, node: str) -> Mapping[str, str]:
        del node  # there is but one
        limits = self._site.layout.unenforced if self._thread is not None else {}
        no_images = self.cannot_run(_WITH_IMAGE)
        return (
            limits | ({"images": no_images} if no_images else {}) | lacking(self._settings.account, self._not_separated)
        )

    def close(self) -> None:
        if self._thread is None:
            return
        if self._quota is not None:
            self._quota.stop()
        self._slices.close()
        self._memory.close()
        self._ask(self._stop)
        self._thread.join()
        self._thread = None
        self._link.close()
        self._clear_forgotten()
        os.close(self._news)
        os.close(self._wake)
        if self._containers is not None:
            self._containers.close()
        if self._is_newest():
            remains.tidy(self._site.layout, self._site.scratch)
        self._tasks, self._by_name = {}, {}

    # --- beginning ----------------------------------------------------------------------------------------------------

    def _take_over(self, epoch: int) -> None:
        highest = self._highest_epoch()
        if epoch < highest:
            raise StaleEpoch(epoch, highest)
        self._epoch = epoch
        records.write_whole(str(self._epoch_file), f"{epoch}\n".encode())
        records.make_durable(str(self._epoch_file))

    def _highest_epoch(self) -> int:
        try:
            return int(self._epoch_file.read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def _is_newest(self) -> bool:
        """Whether no later server has the tasks of this machine."""
        return self._highest_epoch() <= self._epoch

    def _adopt(self) -> None:
        """Whatever an earlier server left: told as it is now. What is left of no task is removed."""
        for name in sorted(os.listdir(self._tasks_folder)):
            state = TaskState(f"{self._tasks_folder}/{name}")
            record = state.record().order()
            if record is None:
                remains.remove_unreadable(state)
                continue
            task = self._keep(_Task(record.order, state.folder))
            task.is_launched = True
            self._look(task)
            self._check(task)
        running = {task.name for task in self._tasks.values() if task.told is not Phase.DOWN}
        remains.sweep(self._site.layout, self._site.scratch, running)

    def _is_live(self, name: str) -> bool:
        task = self._by_name.get(name)
        return task is not None and task.told is not Phase.DOWN

    def _keep(self, task: _Task) -> _Task:
        self._tasks[task.key] = self._by_name[task.name] = task
        self._slices.note(task.key, task.gpus, task.vram_mib)
        return task

    def _roots(self, key: TaskKey) -> Sequence[int]:
        """The processes that all others of a task descend from."""
        task = self._tasks.get(key)
        started = None if task is None else task.state.record().started()
        return () if started is None else (started.supervisor, *started.pids)

    # --- the watcher --------------------------------------------------------------------------------------------------

    def _ask(self, what: Callable[[], None]) -> None:
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
                _log.exception("the watcher of local tasks met a fault and goes on")
                time.sleep(0.1)

    def _turn(self, patience_s: float) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._news, select.POLLIN)
        link = self._link.socket.fileno()
        poll.register(link, select.POLLIN | (select.POLLOUT if self._link.wants_to_write else 0))
        ready = dict(poll.poll(patience_s * 1000))
        if self._wake in ready:
            os.eventfd_read(self._wake)
            while self._inbox:
                self._carry_out(self._inbox.popleft())
        if ready.get(link, 0) & select.POLLOUT:
            self._link.flush()
        if ready.get(link, 0) & ~select.POLLOUT:
            for answer in self._link.answers():
                self._on_answer(answer)
        if self._news in ready:
            for name in dict.fromkeys(os.read(self._news, _NEWS_MAX).decode("utf-8", "replace").split("\n")):
                if name in self._by_name:
                    self._look(self._by_name[name])

    def _carry_out(self, what: Callable[[], None]) -> None:
        """What goes wrong with one task stays with it."""
        try:
            what()
        except Exception:
            _log.exception("something asked of the local backend failed")

    def _look_at_paces(self) -> None:
        for task in list(self._tasks.values()):
            if task.told is Phase.UP:
                paces = read_paces(f"{self._site.scratch}/{short(task.name)}")
                if paces and paces != task.paces:
                    task.paces = paces
                    self._say(PaceReport(task.key, task.node, paces))

    def _scan(self) -> None:
        if time.monotonic() >= self._next_paces:
            self._next_paces = time.monotonic() + self._settings.pace_ms / 1000
            self._look_at_paces()
        for task in list(self._tasks.values()):
            if task.is_launched and task.told is not Phase.DOWN:
                self._look(task)
                self._check(task)
        self._clear_forgotten()
        self._logs.prune(self._settings.log_keep_ms, self._settings.log_total_mib << 20)

    def _send(self, task: _Task, order: TaskOrder) -> None:
        try:
            request = request_of(order, self._site, self._logs.folder(task.name), self._containers)
            self._link.send(request, self._blanks.take(), self._site.worker_parents)
        except (ValueError, TypeError) as fault:  # text that cannot be written down
            task.told = Phase.DOWN
            now_ms = time.time_ns() // 1_000_000
            ended = ExitRecord(now_ms, 126, 0, FailureClass.USER_ERROR, f"not a usable order: {fault}")
            self._say(down_report(task.key, task.node, task.gpus, ended))

    def _on_answer(self, answer: str) -> None:
        """A name: the task has a supervisor, or had one before: either way the directory is there. With ``!`` before
        it:
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
        self._look(task)

    def _control(self, key: TaskKey, line: str) -> None:
        task = self._tasks.get(key)
        if task is None or task.told is Phase.DOWN:
            return
        message = line.encode("utf-8", "replace") + b"\n"
        if not task.is_launched:
            task.pending.append(message)
        elif not task.state.control(message):
            self._check(task)

    def _look(self, task: _Task) -> None:
        """Tell what has not been told."""
        if task.told is Phase.DOWN or not task.is_launched:
            return
        record = task.state.record()
        ended = record.exit()
        if task.told is None:
            started = record.started()
            if started is not None:
                task.told = Phase.UP
                self._say(up_report(task.key, task.node, task.gpus, started))
        if task.told is not None:
            step = task.state.step()
            if step is not None and step != task.step:
                task.step = step
                self._say(SavedReport(task.key, step))
        if ended is not None:
            task.told = Phase.DOWN
            if why := self._slices.ended(task.key):
                ended = structs.replace(ended, failure=FailureClass.VRAM_EXCEEDED, why=why)
            self._say(down_report(task.key, task.node, task.gpus, ended))

    def _check(self, task: _Task) -> None:
        """A task without a supervisor and without an exit is lost: what is left of it is ended, and that is its
        exit."""
        if task.told is Phase.DOWN or task.state.is_supervised():
            return
        if task.state.record().exit() is None:
            self._bury(task)
        self._look(task)

    def _bury(self, task: _Task) -> None:
        try:
            remains.bury(task.state, self._site.boot, self._containers)
        except OSError:
            _log.exception("the exit of lost task %s cannot be recorded yet", task.name)

    def _tell_again(self, task: _Task) -> None:
        task.told, task.step = None, None
        self._look(task)

    def _forget(self, key: TaskKey) -> None:
        task = self._tasks.get(key)
        if task is None or task.told is not Phase.DOWN:
            return
        del self._tasks[key], self._by_name[task.name]
        if not remains.clear(task.state, self._blanks):
            self._forgotten.append(task.state)  # a moment later its directory can be used again

    def _clear_forgotten(self) -> None:
        forgotten, self._forgotten = self._forgotten, []
        for state in forgotten:
            self._carry_out(partial(self._clear, state))

    def _clear(self, state: TaskState) -> None:
        """A supervisor that is still there may have much to do, and does it; one that is killed meanwhile leaves it to
        the sweep of the next start."""
        if not remains.clear(state, self._blanks):
            state.remove()

    def _say(self, report: Report) -> None:
        try:
            self._tell(report)
        except Exception:
            _log.exception("a report of a local task could not be told: %r", report)


class _Task:
    """What the watcher knows of one task: what it has told, and what it could not yet pass on."""

    __slots__ = ("gpus", "is_launched", "key", "name", "node", "paces", "pending", "state", "step", "told", "vram_mib")

    def __init__(self, order: TaskOrder, folder: str) -> None:
        self.key, self.node, self.gpus, self.name = order.key, order.node, order.gpus, name_of(order.key)
        self.vram_mib = order.vram_mib
        self.state = TaskState(folder)
        self.is_launched = False
        self.told: Phase | None = None
        self.step: int | None = None
        self.paces: tuple[tuple[int, int], ...] = ()
        self.pending: list[bytes] = []


def _open_news(path: Path) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # then it has the usual 64 KiB
        fcntl.fcntl(fd, _F_SETPIPE_SZ, _NEWS_MAX)
    return fd


def _one_line(why: str) -> str:
    return " ".join(why.split())[:_WHY_MAX]


def _tell_nobody(_: Report) -> None:
    """Before `open`."""
