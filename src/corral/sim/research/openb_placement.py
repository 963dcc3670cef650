"""The placement experiment of FGD (ATC'23) on the openb workloads, run through the engine.

Pods arrive one after another and stay. Each is submitted, a plan is made and committed, and a pod that is not
placed then is cancelled: it has failed. A GPU counts as 1000 MiB, so that thousandths of it are exact slices. Knows the
published settings of the experiment; does not know how a score is computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, Demand, Gpu, TaskDemand, amounts
from corral.core.cluster.topology import NodeSpec
from corral.core.commit import commit
from corral.core.engine import Policy, apply_all
from corral.core.events import Event
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.model import Gang, GangSpec, JobSpec, QueueSpec, Settings
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.policy.placement.scoring import Remembered, choices
from corral.policy.placement.seating import Scorer
from corral.sim.research.published import policy
from corral.sim.research.scorers import FragmentationDescent, PublishedBestFit, PublishedDotProduct, PublishedPacking
from corral.sim.run import Write, granted
from corral.sim.traces.text_rows import read_lines, read_rows
from corral.sim.traces.trace import Trace, TraceJob

WHOLE_MIB = 1000  # of every GPU
ARRIVED_PERCENT = 130  # of the cluster's GPUs, requested by all arrivals
TYPICAL_PERCENT = 95  # of the pods are typical, the most frequent kinds first
_QUEUE = "all"
_RECORDED = {"GpuPacking": "04-GpuPacking", "BestFit": "05-BestFit", "FGD": "06-FGD"}
_COLUMNS = ("decision", "used_gpu_milli", "arrived_gpu_milli", "used_nodes")


class Arrived(Struct, frozen=True, gc=False):
    """The result for one pod, and thousandths of GPUs in use and requested after it."""

    pod: str
    is_placed: bool
    used_gpu_milli: int
    asked_gpu_milli: int
    used_nodes: int


def replay(
    pods: Iterable[TraceJob],
    nodes: Sequence[NodeSpec],
    scorer: Scorer,
    write: Write = lambda _: None,
) -> Iterator[Arrived]:
    """Run arrivals in this order; of nodes with equal scores, the lowest-numbered one takes the pod."""
    state = State(Settings())
    fifo = policy("fifo", scorer=scorer)
    assert not isinstance(fifo, Refusal)

    def take(events: Sequence[Event]) -> None:
        write(apply_all(state, events, 0).events)

    for node in nodes:
        take(granted(commands.add_node(state, node, 0)))
    take(granted(commands.set_queue(state, QueueSpec(name=_QUEUE), 0)))
    used = asked = 0
    in_use: set[str] = set()
    for pod in pods:
        gang = _arrive(state, fifo, take, pod)
        asked += gpu_milli_of(pod)
        if gang is not None:
            used += gang.gpu_milli
            in_use.add(gang.seats[0].node)
        yield Arrived(pod.id, gang is not None, used, asked, len(in_use))


def _arrive(state: State, policy: Policy, take: Write, pod: TraceJob) -> Gang | None:
    """Submit, plan, and cancel the pod if it still waits. Returns the placed pod, or None."""
    spec = JobSpec(queue=_QUEUE, gangs=(GangSpec(Demand(task=task_of(pod))),))
    answer = commands.submit(state, pod.id, spec, "someone", 0)
    if isinstance(answer, Refusal):
        return None  # it does not fit even into the empty cluster
    take(answer)
    take(commit(state, policy(Snapshot(state, 0)), 0))
    gang = state.gangs[state.jobs[pod.id].gangs[0]]
    if gang.holds_seats:
        return gang
    take(granted(commands.cancel(state, pod.id, 0)))
    return None


# ---- the cluster and the pods --------------------------------------------------------------------------------------


def nodes_of(trace: Trace, order: Sequence[str]) -> list[NodeSpec]:
    """The nodes, named so that they are numbered in this order."""
    place = {name: at for at, name in enumerate(order)}
    return [
        NodeSpec(
            f"{place[name]}-{name}",
            tuple(Gpu(f"{name}-{i}", alike.model, WHOLE_MIB) for i in range(alike.gpus)),
            amounts({CPU_MILLI: alike.cpu_milli, MEMORY_MIB: alike.memory_mib}),
        )
        for alike in trace.nodes
        for name in alike.names
    ]


def task_of(pod: TraceJob) -> TaskDemand:
    others = amounts({CPU_MILLI: pod.cpu_milli, MEMORY_MIB: pod.memory_mib})
    if pod.gpus and pod.gpu_milli < WHOLE_MIB:
        return TaskDemand(slice_mib=pod.gpu_milli, models=pod.models, amounts=others)
    return TaskDemand(gpus=pod.gpus, models=pod.models if pod.gpus else (), amounts=others)


def gpu_milli_of(pod: TraceJob) -> int:
    return pod.gpus * pod.gpu_milli


def read_order(trace: Trace, path: Path) -> list[TraceJob]:
    """Pods in a recorded order of arrival; ``name-tuned-7`` is the eighth clone, a clone of the pod ``name``."""
    by_name = {pod.id: pod for pod in trace.jobs}
    names = (line.strip() for _, line in read_lines(path))
    return [replace(by_name[name.partition("-tuned-")[0]], id=name) for name in names]


def drawn(trace: Trace, random: Random) -> list[TraceJob]:
    """An order of arrival by the published rule: all pods shuffled, then clones of pods drawn at random.

    They end before the first pod that would raise requests above the limit; for a clone with several GPUs the published
    rule counts one GPU there.
    """
    pods = list(trace.jobs)
    random.shuffle(pods)
    limit = sum(alike.count * alike.gpus for alike in trace.nodes) * 10 * ARRIVED_PERCENT
    asked = sum(map(gpu_milli_of, pods))
    for number in range(1 << 30):
        clone = random.choice(trace.jobs)
        if asked + (clone.gpu_milli if clone.gpus else 0) > limit:
            break
        asked += gpu_milli_of(clone)
        pods.append(replace(clone, id=f"{clone.id}-tuned-{number}"))
    return pods


def typical_tasks(pods: Sequence[TraceJob]) -> list[tuple[TaskDemand, int]]:
    """The most frequent kinds of pods (CPU, share of GPU, GPUs, models) and how many there are of each."""
    kinds = Counter((pod.cpu_milli, pod.gpu_milli if pod.gpus else 0, pod.gpus, "|".join(pod.models)) for pod in pods)
    found: list[tuple[TaskDemand, int]] = []
    covered = 0
    for kind, count in sorted(kinds.items(), key=lambda item: (item[1], item[0]), reverse=True):
        if covered * 100 >= len(pods) * TYPICAL_PERCENT:
            break
        covered += count
        cpu_milli, gpu_milli, gpus, models = kind
        pod = TraceJob(
            id="", submit_ms=0, work_ms=0, gpus=gpus, gpu_milli=gpu_milli, models=tuple(filter(None, models.split("|")))
        )
        found.append((replace(task_of(pod), amounts=amounts({CPU_MILLI: cpu_milli})), count))
    return found


# ---- what was published --------------------------------------------------------------------------------------------

#: The policies of the publication that are scores of one node (its sixth, Clustering, depends on the pods of the node).
PUBLISHED = ("Random", "DotProd", "GpuPacking", "BestFit", "FGD")


def published(name: str, trace: Trace, seed: int = 0) -> Scorer:
    """The score of that name; ``seed`` is used by Random only."""
    match name:
        case "Random":
            return Anywhere(seed)
        case "DotProd":
            return Remembered(PublishedDotProduct())
        case "GpuPacking":
            return Remembered(PublishedPacking())
        case "BestFit":
            return Remembered(PublishedBestFit())
        case "FGD":
            return Remembered(FragmentationDescent(typical_tasks(trace.jobs)))
    raise ValueError(f"there is no published score {name!r}: {', '.join(PUBLISHED)}")


class Anywhere:
    """A random node with enough room, and a random GPU on it."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def __call__(self, capacity: Capacity, demand: Demand, node: int, usable: int) -> tuple[int, int]:
        return self._random.getrandbits(60), self._random.choice(list(choices(capacity, demand, node, usable)))


def recorded(trace: Trace, folder: Path, name: str, most: int | None = None) -> tuple[list[Arrived], list[Arrived]]:
    """The engine's results in the recorded order of the default workload (seed 42), and the recorded results."""
    stem = "openb_pod_list_default"
    nodes = [line.strip() for _, line in read_lines(folder / "orders" / f"{stem}.seed42.nodes.txt.gz")]
    pods = read_order(trace, folder / "orders" / f"{stem}.seed42.txt.gz")[:most]
    rows = read_rows(folder / "decisions" / f"{stem}.{_RECORDED[name]}.seed42.csv.gz", _COLUMNS)
    known = [
        Arrived(
            pod.id,
            row.word("decision") == "create",
            row.whole("used_gpu_milli"),
            row.whole("arrived_gpu_milli"),
            row.whole("used_nodes"),
        )
        for pod, row in zip(pods, rows, strict=most is None)
    ]
    return list(replay(pods, nodes_of(trace, nodes), published(name, trace))), known


def allocation(trace: Trace, name: str, seed: int) -> float:
    """Percent of all GPUs in use when all have arrived, in an order drawn with this seed.

    As published: the mean over the arrivals at which requests round to 130 % of the cluster.
    """
    random = Random(seed)
    order = [node for alike in trace.nodes for node in alike.names]
    random.shuffle(order)
    total = sum(alike.count * alike.gpus for alike in trace.nodes)
    arrived = replay(drawn(trace, random), nodes_of(trace, order), published(name, trace, seed))
    last = [
        at.used_gpu_milli / total / 10 for at in arrived if round(at.asked_gpu_milli / total / 10) == ARRIVED_PERCENT
    ]
    return sum(last) / len(last)
