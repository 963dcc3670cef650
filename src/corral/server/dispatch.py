"""Effects become orders: which process runs where, with which environment. Reports become facts.

Knows gangs, seats and the variables that training code expects. Knows nothing about how a task is run, or about the
journal. An order may be given twice: everything in it follows from the state, so both are equal.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

from corral.core import facts as f
from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, amount_of
from corral.core.effects import Effect, KillGang, StartGang, WarnGang
from corral.core.model import STEP_MAX, FirstFailure, Gang, GangState, Job
from corral.core.state import State
from corral.core.work import Work
from corral.runtime.base import (
    ActivityReport,
    Backend,
    DetailsReport,
    HealthReport,
    NodePhase,
    NodeReport,
    PaceReport,
    Phase,
    Process,
    Report,
    SavedReport,
    SeatOfGang,
    StopReport,
    TaskKey,
    TaskOrder,
    TaskReport,
    Tell,
)
from corral.runtime.fence import earlier_attempts
from corral.runtime.last_words import plain_text
from corral.runtime.output_names import output_name
from corral.server.slurm_env import SlurmSeats, script_env, slurm_env

#: Ports for the rendezvous of ranks: below the ephemeral ports of operating systems.
_PORTS = range(20_000, 32_000)
_HERE = "127.0.0.1"
FIRST = "first"  # of ``launch``
SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_FROM_A_FILE = 'f=$(mktemp) && printf %s "$1" >"$f" && i=$2 && shift 2 && exec $i "$f" "$@"'

Reveal = Callable[[str, str], "str | None"]  # (queue, secret) -> its value


class Dispatch:
    """Executes effects through a backend. Remembers the backend's tasks by gang, and which have ended."""

    def __init__(self, state: State, backend: Backend, epoch: int, reveal: Reveal) -> None:
        self.state = state
        self.backend = backend
        self.epoch = epoch
        self.reveal = reveal
        self._there: dict[str, set[TaskKey]] = {}
        self._over: set[TaskKey] = set()
        self._executed: dict[str, Effect] = {}  # the last effect of each gang
        self._stops: dict[str, dict[TaskKey, int]] = {}  # gang -> at which step the ranks of its tasks can stop
        self._delayed: dict[str, int] = {}  # gang -> the attempt that waits for tasks of earlier attempts to end
        self.to_wall: Callable[[int], int] = lambda at_ms: at_ms  # from the server's clock to that of the machine
        self.judge_ms = 0  # after a failure: when the loss of another node would be known; 0: as the settings say
        self.tell: Tell = _ignore  # receives reports about tasks that no backend was given

    def execute(self, effect: Effect) -> None:
        """Execute an effect once. The engine repeats an effect with every task that starts or ends."""
        gang = self.state.gangs.get(effect.gang)
        if gang is None or gang.attempt != effect.attempt or not gang.holds_seats:
            return  # the attempt has ended
        if self._executed.get(gang.id) == effect:
            return
        self._executed[gang.id] = effect
        if isinstance(effect, StartGang):
            self._start(gang)
        elif self._delayed.get(gang.id) == gang.attempt:
            self._give_up_start(gang)
        elif isinstance(effect, WarnGang):
            for key in _live_tasks(gang):
                self.backend.warn(key, self.to_wall(effect.deadline_ms), str(effect.cause))
        elif isinstance(effect, KillGang):
            for key in _live_tasks(gang):
                self.backend.kill(key)

    def _start(self, gang: Gang) -> None:
        """Start the tasks once those of earlier attempts have ended (see `fence`); the last one triggers this again."""
        first = TaskKey(gang.id, gang.attempt, 0)
        for key in earlier_attempts(first, self._there.get(gang.id, ())):
            if key in self._over:  # a repaired gang starts a new attempt without stopping
                self._let_go(key)
            else:
                self.backend.kill(key)
        if earlier_attempts(first, self._there.get(gang.id, ())):
            self._delayed[gang.id] = gang.attempt
        else:
            self._delayed.pop(gang.id, None)
            orders = list(self.orders(gang))
            for order in orders:
                self._note(order.key)
            self.backend.launch(orders)

    def _give_up_start(self, gang: Gang) -> None:
        """The gang is stopped before its tasks were ordered, so no backend will report their end: report it here."""
        del self._delayed[gang.id]
        for key in _live_tasks(gang):
            node = gang.seats[key.task].node
            why = "stopped before it started"
            self.tell(TaskReport(key=key, phase=Phase.DOWN, at_ms=0, node=node, exit_code=143, why=why))

    def fact(self, report: Report) -> f.Fact | None:
        """The fact of a report; None if it is about an old attempt. A task of an old attempt is killed or forgotten."""
        if isinstance(report, DetailsReport | PaceReport | ActivityReport):
            return None
        if isinstance(report, HealthReport):
            if report.gpu is None:
                return f.NodeObserved(report.node, report.health, report.why)
            return f.GpuObserved(report.node, report.gpu, report.health, report.why)
        if isinstance(report, NodeReport):
            return _node_fact(report)
        key = report.key
        gang = self.state.gangs.get(key.gang)
        is_current = gang is not None and gang.attempt == key.attempt and gang.holds_seats
        if gang is not None and is_current and not 0 <= key.task < len(gang.seats):
            return None  # the gang has no task with this number
        if isinstance(report, StopReport):
            if gang is not None and is_current and 0 <= report.step <= STEP_MAX:
                earlier = self._stops.get(gang.id, {})
                self._stops[gang.id] = {k: v for k, v in earlier.items() if k.attempt == key.attempt} | {
                    key: report.step
                }
                self._agree_on_stop(gang)
            return None
        if isinstance(report, SavedReport):
            is_step = is_current and 0 <= report.step <= STEP_MAX
            if not is_step:
                return None
            return f.Saved(key.gang, key.attempt, report.step, report.path, report.save_ms, report.stall_ms)
        if not is_current:
            self._end_old(key, report, gang)
            return None
        self._note(key)
        if report.phase is Phase.UP:
            return f.TasksUp(key.gang, key.attempt, 1 << key.task)
        self._over.add(key)
        self._agree_on_stop(gang)
        if key.task == 0 and gang is not None and self._launch(gang) == FIRST:
            self._end_held_seats(gang)
        failure, first = report.failure, first_failure(report)
        return f.TasksDown(
            key.gang, key.attempt, 1 << key.task, report.exit_code, failure, report.node, self.judge_ms, first
        )

    def _agree_on_stop(self, gang: Gang | None) -> None:
        """Once every live task has reported at which step its ranks can stop, tell all of them the largest. They wait
        meanwhile, so it is the same step however often it is computed, also by a server that was restarted."""
        stops = {} if gang is None else self._stops.get(gang.id, {})
        if gang is None or not stops:
            return
        live = [key for key in _live_tasks(gang) if key not in self._over]
        if self._launch(gang) == FIRST:  # a held seat has ranks only while a job step runs there
            live = [key for key in live if key in stops]
        if all(key in stops for key in live):
            step = max(stops.values())  # also of tasks that have ended since
            for key in live:
                self.backend.stop_at(key, step)

    def _launch(self, gang: Gang) -> str:
        spec = self.state.jobs[gang.job].spec
        return next((each.work.launch for each in spec.gangs if each.role == gang.role and each.work is not None), "")

    def _end_held_seats(self, gang: Gang) -> None:
        """The command has ended, and with it its job steps: the other seats are not needed any more."""
        for key in _live_tasks(gang):
            if key.task:
                self.backend.kill(key)

    def _end_old(self, key: TaskKey, report: TaskReport, gang: Gang | None) -> None:
        if report.phase is Phase.UP:
            self._note(key)
            self.backend.kill(key)
            return
        self._let_go(key)
        if gang is not None and gang.state is GangState.STARTING:
            self._start(gang)

    def forget(self, gang: str, attempt: int) -> None:
        """All tasks of the attempt have ended, and the journal has it."""
        self._executed.pop(gang, None)
        self._delayed.pop(gang, None)
        self._stops.pop(gang, None)
        for key in [key for key in self._there.get(gang, ()) if key.attempt == attempt]:
            self._let_go(key)

    def _note(self, key: TaskKey) -> None:
        self._there.setdefault(key.gang, set()).add(key)

    def _let_go(self, key: TaskKey) -> None:
        self.backend.forget(key)
        self._over.discard(key)
        there = self._there.get(key.gang, set())
        there.discard(key)
        if not there:
            self._there.pop(key.gang, None)

    # ---- orders ------------------------------------------------------------------------------------------------

    def orders(self, gang: Gang) -> Iterator[TaskOrder]:
        """One order for each task of the attempt that has neither started nor ended."""
        job = self.state.jobs[gang.job]
        work = next(spec.work for spec in job.spec.gangs if spec.role == gang.role) or Work(command=("true",))
        common = self._environment(job, gang, work)
        secrets = tuple(self._secrets(job, work))
        begun, next_rank = gang.started | gang.ended, 0
        is_first = work.launch == FIRST
        slurm = SlurmSeats(gang, _ranks(gang, work)) if work.compat == "slurm" and not is_first else None
        seats = tuple(SeatOfGang(seat.node, self._uuids(seat.node, seat.gpus)) for seat in gang.seats)
        for task, seat in enumerate(gang.seats):
            ranks = process_count(work, seat.gpus.bit_count())
            is_held = is_first and task > 0
            first_rank, next_rank = next_rank, next_rank + ranks
            if begun >> task & 1:
                continue
            env = common | _task_environment(gang, work, task, ranks)
            if slurm is not None:
                env |= slurm.node_env(task, env)
            elif work.compat == "slurm":
                env |= script_env(job, gang, gang.index, task, dict(work.env))
            yield TaskOrder(
                key=TaskKey(gang.id, gang.attempt, task),
                epoch=self.epoch,
                node=seat.node,
                command=inline_script(work) if work.image and work.script else work.command,
                env=tuple(env.items()),
                secret_env=secrets,
                processes=()
                if is_held
                else tuple(_process(gang, work, slurm, task, first_rank, local) for local in range(ranks)),
                script="" if is_held or work.image else work.script,
                has_shims=work.compat == "slurm",
                seats=() if task else seats,
                gpus=seats[task].gpus,
                vram_mib=seat.slice_mib,
                cpu_milli=amount_of(gang.amounts, CPU_MILLI),
                memory_mib=amount_of(gang.amounts, MEMORY_MIB),
                directory=work.directory,
                account=job.account or "",
                image=work.image,
                mounts=work.mounts,
                output="" if is_held else output_name(work.output, job, gang, task, first_rank),
                error="" if is_held else output_name(work.error, job, gang, task, first_rank),
                umask=int(work.umask or "022", 8),
                early_signal=work.early_signal,
                requeue_exit=job.spec.requeue_exit,
                grace_ms=job.spec.grace_ms,
                tasks=len(gang.seats),
                rerun_after_exit_0=work.rerun_after_exit_0,
                hold_on_fail_ms=work.hold_on_fail_ms,
                stall_ms=work.stall_ms,
            )

    def _uuids(self, node: str, gpus: int) -> tuple[str, ...]:
        return tuple(gpu.uuid for n, gpu in enumerate(self.state.nodes[node].spec.gpus) if gpus >> n & 1)

    def _secrets(self, job: Job, work: Work) -> Iterator[tuple[str, str]]:
        for variable, secret in work.secrets:
            value = self.reveal(job.spec.queue, secret)
            if value is not None:
                yield variable, value

    def _environment(self, job: Job, gang: Gang, work: Work) -> dict[str, str]:
        """Variables that all tasks of the attempt share. The user's values win, except where ranks must agree."""
        defaults = {
            "OMP_NUM_THREADS": _threads(gang, work),
            "PYTHONUNBUFFERED": "1",
        }  # output is shown as it is written
        ours = {
            "CORRAL_JOB_ID": job.id,
            "CORRAL_JOB_NAME": job.spec.name,
            "CORRAL_GANG": gang.id,
            "CORRAL_ROLE": gang.role,
            "CORRAL_ATTEMPT": str(gang.attempt),
            "CORRAL_QUEUE": job.spec.queue,
            "CORRAL_USER": job.user,
            "CORRAL_REQUEUE_EXIT": str(job.spec.requeue_exit),
            "CORRAL_NODES": ",".join(dict.fromkeys(seat.node for seat in gang.seats)),
        }
        if _has_ranks(gang, work) or (work.launch == FIRST and work.compat != "slurm"):
            defaults |= {"MASTER_ADDR": self._address(gang), "MASTER_PORT": str(_port(gang))}
        if _has_ranks(gang, work):
            ours |= _world(gang, work)
        if gang.saved_step >= 0:
            ours |= {"CORRAL_RESUME_STEP": str(gang.saved_step), "CORRAL_RESUME_PATH": gang.saved_path}
        index = gang.index
        if index is not None:
            ours["CORRAL_ARRAY_INDEX"] = str(index)
        if work.compat == "slurm" and work.launch != FIRST:
            # defaults: the script's own directives are in its environment
            defaults |= slurm_env(job, gang, index, _ranks(gang, work))
        return {**defaults, **dict(work.env), **ours}

    def _address(self, gang: Gang) -> str:
        """The address at which all ranks reach the first one. A loopback address works only if all nodes have one: on
        one machine, or on one that simulates several nodes."""
        nodes = dict.fromkeys(seat.node for seat in gang.seats)
        if len(self.state.nodes) == 1 or len(gang.seats) == 1:
            return _HERE
        addresses = [self.state.nodes[name].spec.address for name in nodes]
        if not _is_local(addresses[0]) or all(map(_is_local, addresses)):
            return addresses[0] or next(iter(nodes))
        return next(iter(nodes))


def _ignore(_: Report) -> None:
    """Used before the server is ready for reports."""


def first_failure(report: TaskReport) -> FirstFailure | None:
    """The first failure in a task, if one of its processes failed by itself."""
    if not report.failed_ms:
        return None
    said = plain_text(report.why or report.said)
    return FirstFailure(report.node, report.key.task, report.failed_ms, report.exit_code, report.rank, said)


def _node_fact(report: NodeReport) -> f.Fact | None:
    """The fact of a report about a node. Joining is not a fact but a change, which may be refused."""
    if report.phase is NodePhase.GONE:
        return f.NodeGone(report.node)
    if report.phase is NodePhase.LEAVING:
        return f.NodeEnds(report.node, report.until_ms)
    return f.NodeBack(report.node) if report.phase is NodePhase.BACK else None


def _process(gang: Gang, work: Work, slurm: SlurmSeats | None, task: int, first_rank: int, local: int) -> Process:
    env = {"RANK": str(first_rank + local), "LOCAL_RANK": str(local)} if _has_ranks(gang, work) else {}
    if slurm is not None:
        env |= slurm.process_env(task, first_rank + local, local)
    return Process(tuple(env.items()))


def _task_environment(gang: Gang, work: Work, task: int, ranks: int) -> dict[str, str]:
    env = {"CORRAL_TASK": str(task), "CORRAL_NODE": gang.seats[task].node}
    if _has_ranks(gang, work):
        env |= {"LOCAL_WORLD_SIZE": str(ranks), "GROUP_RANK": str(task), "NODE_RANK": str(task)}
    return env


def inline_script(work: Work) -> tuple[str, ...]:
    """A script as a command, for a container, which does not see the private directory of the task."""
    interpreter = work.script.split("\n", 1)[0][2:].split() or ["/bin/sh"]
    if interpreter[-1].rpartition("/")[2] in SHELLS:
        return (*interpreter, "-c", work.script, *work.command)
    return ("sh", "-c", _FROM_A_FILE, work.command[0], work.script, " ".join(interpreter), *work.command[1:])


def _has_ranks(gang: Gang, work: Work) -> bool:
    """Whether the processes get ranks. A single process does not: libraries that see a rank expect other processes."""
    return work.launch != FIRST and (work.processes is not None or gang.demand.tasks > 1)


def _world(gang: Gang, work: Work) -> dict[str, str]:
    world = {"WORLD_SIZE": str(sum(_ranks(gang, work))), "GROUP_WORLD_SIZE": str(len(gang.seats))}
    if work.compat == "slurm":
        return world  # a library that sees both Slurm and torchrun variables uses the wrong ones
    return world | {
        "TORCHELASTIC_RESTART_COUNT": str(gang.attempt - 1),
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": f"{gang.id}-{gang.attempt}",
    }


def _is_local(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _live_tasks(gang: Gang) -> list[TaskKey]:
    return [TaskKey(gang.id, gang.attempt, task) for task in range(len(gang.seats)) if not gang.ended >> task & 1]


def process_count(work: Work, gpus: int) -> int:
    """The number of processes of a task: as requested, or one for each of its GPUs."""
    return 1 if work.processes is None else work.processes or max(1, gpus)


def _ranks(gang: Gang, work: Work) -> list[int]:
    """The number of processes of each task."""
    return [process_count(work, seat.gpus.bit_count()) for seat in gang.seats]


def _threads(gang: Gang, work: Work) -> str:
    cpu_milli = amount_of(gang.amounts, CPU_MILLI) or 1000
    return str(max(1, cpu_milli // 1000 // process_count(work, gang.demand.task.gpus)))


def _port(gang: Gang) -> int:
    """A different port for each attempt; the same one if the attempt is ordered again."""
    return _PORTS[zlib.crc32(f"{gang.id} {gang.attempt}".encode()) % len(_PORTS)]
