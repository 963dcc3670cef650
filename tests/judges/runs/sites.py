"""Sites made from a seed: a few machines, a tree of queues, a day's jobs, and all features together."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from msgspec import structs

from corral.core import facts as f
from corral.core.model import Budget, Health, JobSpec, QueueSpec
from corral.sim.run import Arrival
from corral.sim.world import FREE, Costs
from tests.judges.runs.shares import entitlements
from tests.judges.runs.site import DAY, HOUR, MINUTE, SECOND, START_MS, Site, job, queue

FIRST_HOURS = 4 * HOUR  # of endless load, before its shares are judged


def tree(rng: random.Random, depth: int, gpus: int, guarantees: bool = True) -> list[QueueSpec]:
    """Queues of up to this depth. What is guaranteed below a queue is never more than what it is guaranteed."""
    found: list[QueueSpec] = []
    _grow(rng, "", depth, gpus, found, guarantees)
    return found


def _grow(rng: random.Random, parent: str, depth: int, gpus: int, found: list[QueueSpec], guarantees: bool) -> None:
    for letter in "abc"[: rng.randint(2, 3)]:
        name = f"{parent}/{letter}" if parent else letter
        own = rng.randint(0, gpus) if guarantees and rng.random() < 0.6 else 0
        gpus -= own
        terms: dict[str, object] = {"guarantee": own} if own else {}
        if own and rng.random() < 0.2:
            terms["lend"] = rng.randint(0, own)
        if rng.random() < 0.15:
            terms["limit"] = max(1, own + rng.randint(0, 4))
        if rng.random() < 0.1:
            terms["user_limit"] = rng.randint(1, 8)
        found.append(queue(name, weight=rng.choice((1, 1, 2, 5)), **terms))
        if depth > 1 and rng.random() < 0.5:
            _grow(rng, name, depth - 1, own, found, guarantees)


def leaves(queues: list[QueueSpec]) -> list[str]:
    return [each.name for each in queues if not any(other.name.startswith(f"{each.name}/") for other in queues)]


def busy_site(seed: int) -> Site:
    """Half a day of a contested cluster: guarantees, lending, limits, priorities, drains, pools, exact lengths."""
    rng = random.Random(seed)
    nodes, each = rng.randint(1, 3), rng.choice((2, 4, 8))
    pools = rng.choice((1, 1, 2))
    queues = tree(rng, rng.randint(1, 3), nodes * each * pools)
    names = leaves(queues) if rng.random() < 0.8 else [spec.name for spec in queues]
    jobs = [_job(rng, number, names, nodes, each, pools) for number in range(rng.randint(6, 40))]
    if rng.random() < 0.3:  # something short starts and ends all the time, here or elsewhere
        model = ("H100", "A100")[pools - 1]
        jobs += [job(f"s{i}", i * 20 * MINUTE, 10 * MINUTE, names[0], 1, models=(model,)) for i in range(24)]
    costs = rng.choice((FREE, FREE, Costs(save_ms=5 * SECOND, stop_ms=SECOND), Costs(save_ms=4 * MINUTE)))
    machines = f"{nodes}x{each}:H100" + (f"+{nodes}x{each}:A100" if pools > 1 else "")
    return Site(
        machines, tuple(queues), tuple(jobs), until_ms=2 * DAY, costs=costs,
        patience_ms=rng.choice((2 * HOUR, 6 * HOUR, DAY)), depth=rng.choice((1, 1, 1, 2, 4)),
        mishaps=_drains(rng, nodes) if nodes * pools > 1 and rng.random() < 0.3 else (),
    )  # fmt: skip


def _drains(rng: random.Random, nodes: int) -> tuple[tuple[int, f.Fact], ...]:
    """A node is drained and comes back, once or a few times."""
    found: list[tuple[int, f.Fact]] = []
    for _ in range(rng.randint(1, 3)):
        node, at_ms = f"n{rng.randrange(nodes)}", rng.randint(0, 8 * 3600) * SECOND
        found.append((at_ms, f.NodeObserved(node, Health.DRAINING)))
        found.append((at_ms + rng.randint(1, 120) * MINUTE, f.NodeObserved(node, Health.HEALTHY)))
    return tuple(found)


def _job(rng: random.Random, number: int, names: list[str], nodes: int, each: int, pools: int) -> Arrival:
    wide = rng.random() < 0.2 and nodes > 1
    tasks = rng.randint(2, nodes) if wide else 1
    terms: dict[str, Any] = {}
    if rng.random() < 0.15:
        tasks = rng.randint(2, 4)
        terms["tasks_min"] = 1
    if pools > 1 and rng.random() < 0.8:
        terms["models"] = (rng.choice(("H100", "A100")),)
    return job(
        f"j{number}", rng.randint(0, 6 * 60) * MINUTE, rng.choice((10, 30, 60, 120, 300)) * MINUTE, rng.choice(names),
        each if wide else rng.choice((1, 1, 1, 2, rng.randint(1, each))), tasks, rng.choice(("ann", "bob")),
        priority=rng.choice((0, 0, 0, 0, 5, 9)), grace_ms=rng.choice((0, 30 * SECOND, 5 * MINUTE)),
        checkpoints=rng.random() < 0.7, preemptible=rng.random() < 0.9, **terms,
    )  # fmt: skip


def equals_site(seed: int) -> Site:
    """A contested half day on which every job is submitted several times at once, mixed with others."""
    site, rng = busy_site(seed), random.Random(seed)
    copies = [(job, n) for job in site.jobs[:16] for n in range(rng.randint(1, 3))]
    rng.shuffle(copies)
    jobs = tuple(structs.replace(job, id=f"{job.id}-{n}") for job, n in copies)
    return replace(site, jobs=jobs)


def endless_site(seed: int) -> Site:
    """Every queue has more work than it can ever run, of sizes of its own; the backlog is soon older than patience. The
    first hours are over when the day begins: what starts is charged for an hour at once. No gang uses more than a
    hundredth of the day: else it depends on whether the day ends before or after its turn."""
    rng = random.Random(seed)
    each = rng.choice((4, 8, 8))
    nodes = rng.randint(1, 3)
    has_guarantees = rng.random() < 0.3  # then of one GPU each: larger gangs need not add up to a guarantee
    queues = _weighted(rng, rng.randint(1, 4), nodes * each if has_guarantees else 0)
    jobs, entitled = list[Arrival](), entitlements(queues, nodes * each)
    for name in leaves(queues):
        kinds = ((1,), (1, 2), (8,), (4,), (2, 4, 8), (1, 8), (1, 2, 3, 5))
        sizes = [1] if has_guarantees else [size for size in rng.choice(kinds) if size <= each]
        enough = min(1.2, 3 * entitled[name] + 0.3) * nodes * each * (FIRST_HOURS + DAY)
        jobs += _endless(rng, name, sizes or [each], enough, nodes * each * DAY // 100)
    patience_ms = rng.choice((2 * HOUR, 6 * HOUR, DAY))
    return Site(f"{nodes}x{each}", tuple(queues), tuple(jobs), until_ms=FIRST_HOURS + DAY, patience_ms=patience_ms)


def _weighted(rng: random.Random, depth: int, gpus: int) -> list[QueueSpec]:
    """A tree of weights with about a dozen leaves; ``gpus``: so many may be guaranteed, to leaves."""
    found: list[QueueSpec] = []
    above = [""]
    for level in range(depth):
        names = [
            f"{parent}/{letter}".lstrip("/") for parent in above for letter in "abc"[: rng.randint(2 - (level > 0), 3)]
        ]
        names = names[: 14 - len(found)]
        found += [queue(name, weight=rng.randint(1, 9)) for name in names]
        above = [name for name in names if rng.random() < 0.5]
    for name in leaves(found):
        own = rng.randint(0, gpus)
        gpus -= own
        at = next(n for n, spec in enumerate(found) if spec.name == name)
        if own:
            found[at] = queue(name, weight=found[at].weight, guarantee=own)
    return found


def _endless(rng: random.Random, name: str, sizes: list[int], gpu_ms: float, most_ms: int) -> list[Arrival]:
    """So much work, half of it there from the beginning, the rest coming in time. ``most_ms``: of one gang."""
    found, work_ms = list[Arrival](), 0
    while work_ms < gpu_ms:
        gpus = rng.choice(sizes)
        length = rng.choice([each for each in (10, 20, 30, 45) if gpus * each * MINUTE <= most_ms]) * MINUTE
        at_ms = 0 if 2 * work_ms < gpu_ms else int(DAY * (2 * work_ms / gpu_ms - 1) / 2)
        found.append(job(f"{name}-{len(found)}", at_ms, length, name, gpus, user=rng.choice(("ann", "bob"))))
        work_ms += gpus * length
    return found


# ---- one large gang behind endless small work --------------------------------------------------------------------


def flood_site(seed: int) -> Site:
    """A gang that is as large as its queue, its user or what is left of the cluster allows, behind endless small work
    of its own queue and of others. ``large`` can start as soon as enough of the small work has ended."""
    rng = random.Random(seed)
    nodes, each = rng.randint(1, 3), rng.choice((4, 8))
    drained = rng.randint(0, nodes - 1) if rng.random() < 0.4 else 0
    is_capped = rng.random() < 0.3
    left = (nodes - drained) * each - is_capped
    bound = rng.choice(("", "spent", "limit", "user_limit", "guarantee"))
    most = left if bound in ("", "spent") else rng.randint(2, left)
    size, tasks = _shape(rng, most if most <= each or not is_capped else most - each + 1, each)
    parent = rng.choice(("", "org", "org/lab"))
    own = f"{parent}/own".lstrip("/")
    queues = [queue(name) for name in ("org", "org/lab") if f"{parent}/".startswith(f"{name}/")]
    queues += [queue(own, **({bound: most} if bound not in ("", "spent") else {}))]
    queues += [queue("other")]
    jobs = [job("large", HOUR + MINUTE, HOUR, own, size, tasks)]
    if bound == "spent":  # its queue has had more than its share
        jobs.append(job("past", 0, HOUR, own, min(each, most)))
        jobs += _stream(rng, "other", left * 1.1, "eve")
    else:
        jobs += _stream(rng, own, left * 0.3 if not bound else most * 1.1, "ann")
        jobs += _stream(rng, "other", left * 0.8 if not bound else (left - most) * 1.1, "eve")
    if drained and rng.random() < 0.7:  # and somebody waits for what is drained
        jobs.append(job("drained", HOUR, HOUR, "other", each, nodes))
    if is_capped:  # or on a limit, for ever
        queues.append(queue("capped", limit=1))
        jobs += [job("hog", 0, 2 * DAY, "capped"), job("stuck", MINUTE, HOUR, "capped")]
    away = tuple((30 * MINUTE, f.NodeObserved(f"n{nodes - 1 - n}", Health.DRAINING)) for n in range(drained))
    return Site(f"{nodes}x{each}", tuple(queues), tuple(jobs), until_ms=8 * HOUR, patience_ms=2 * HOUR, mishaps=away)


def _shape(rng: random.Random, gpus: int, each: int) -> tuple[int, int]:
    """GPUs a task and tasks, no more than so many together."""
    if gpus <= each and rng.random() < 0.7:
        return gpus, 1
    size = rng.choice([size for size in (1, 2, 4, each) if size <= gpus])
    return size, gpus // size


def _stream(rng: random.Random, name: str, gpus: float, user: str) -> list[Arrival]:
    """Small jobs that would keep about so many GPUs busy."""
    found, at_ms = list[Arrival](), 0.0
    while gpus and at_ms < 8 * HOUR:
        size, length = rng.choice((1, 1, 2)), rng.choice((10, 20, 30)) * MINUTE
        found.append(job(f"{name}-{len(found)}", int(at_ms), length, name, min(size, max(1, int(gpus))), user=user))
        at_ms += size * length / gpus
    return found


# ---- lengths, budgets, turns, growth -----------------------------------------------------------------------------


def easy_site(seed: int, only_one: bool = False) -> Site:
    """Jobs that count: all GPUs in one node, or tasks of one GPU each on several. ``only_one``: in one node."""
    rng = random.Random(seed)
    gpus = rng.choice((4, 8, 16, 32))
    in_one, exact, jobs, at_ms = rng.random() < 0.5 or only_one, rng.random() < 0.5, list[Arrival](), 0
    for number in range(rng.randint(10, 60)):
        at_ms += rng.choice((0, 1, 5, 10)) * MINUTE + rng.randint(0, 59) * SECOND
        size, length = rng.choice((1, 1, 2, gpus // 2, gpus // 2 + 1, gpus, rng.randint(1, gpus))), rng.randint(1, 120)
        told_ms = length * MINUTE * (1 if exact else rng.choice((1, 1, 2, 5)))
        shape = (size, 1) if in_one else (1, size)
        jobs.append(job(f"j{number}", at_ms, length * MINUTE, "q", *shape, estimate_ms=told_ms))
    nodes = f"1x{gpus}" if in_one else f"{gpus // 4}x4"
    return Site(nodes, (queue("q"),), tuple(jobs), until_ms=100 * DAY, policy="easy")


def conservative_site(seed: int) -> Site:
    """All GPUs in one node: kept reservations do not move between nodes (decision 9)."""
    return replace(easy_site(seed, only_one=True), policy="conservative")


def promised_site(seed: int) -> Site:
    """Exact lengths, quota and preemption on, nothing elastic and nothing that takes time but work."""
    site = busy_site(seed)
    jobs = tuple(each for each in site.jobs if not each.spec.gangs[0].demand.tasks_min)
    return replace(site, jobs=jobs, costs=FREE, mishaps=())


def advised_site(seed: int) -> Site:
    """A contested morning, with gangs that ask for more than they need: of few nodes, of one model, of one node."""
    site = promised_site(seed)
    return replace(site, jobs=tuple(structs.replace(each, spec=_choosy(each.spec, seed)) for each in site.jobs[:24]))


def _choosy(spec: JobSpec, seed: int) -> JobSpec:
    rng = random.Random(f"{seed} {spec.estimate_ms} {spec.gangs}")
    demand = spec.gangs[0].demand
    if demand.tasks > 1 and rng.random() < 0.3:
        demand = structs.replace(demand, spread="node", spread_max=1)
    return structs.replace(spec, gangs=(structs.replace(spec.gangs[0], demand=demand),))


def budget_site(seed: int) -> Site:
    """Queues with budgets by the window, which take back what others have borrowed."""
    rng = random.Random(seed)
    window = rng.choice((2, 4, 12)) * HOUR
    each, queues, jobs = rng.choice((4, 8)), list[QueueSpec](), list[Arrival]()
    for name in ("a", "b", "org", "org/c"):
        budget = None
        if rng.random() < 0.6:
            budget = Budget(
                gpu_ms=rng.randint(2, 3 * each) * HOUR, window_ms=window, anchor_ms=START_MS - rng.choice((0, HOUR))
            )
        own = rng.randint(0, each // 2)
        queues.append(
            queue(name, budget=budget, **({"guarantee": own} if own and "/" not in name and name != "b" else {}))
        )
    for number in range(rng.randint(10, 40)):
        at_ms, length = rng.randint(0, 8 * 60) * MINUTE, rng.choice((20, 60, 120, 240)) * MINUTE
        name, size = rng.choice(("a", "b", "org", "org/c")), rng.choice((1, 1, 2, each // 2))
        jobs.append(job(f"j{number}", at_ms, length, name, size, checkpoints=True, priority=rng.choice((0, 0, 5))))
    return Site(f"1x{each}", tuple(queues), tuple(jobs))


def turns_site(seed: int) -> Site:
    """Gangs that share time, and use what they said a switch may cost."""
    rng = random.Random(seed)
    start, save = rng.randint(0, 120) * SECOND, rng.randint(0, 300) * SECOND
    jobs = [
        job(f"j{number}", rng.randint(0, 60) * MINUTE, rng.randint(1, 12) * HOUR, "q", rng.choice((2, 4, 8)),
            checkpoints=True, restart_cost_ms=start, grace_ms=save)
        for number in range(rng.randint(2, 6))
    ]  # fmt: skip
    costs = Costs(start_ms=start, restart_ms=start, save_ms=save)
    return Site("1x8", (queue("q", time_share=rng.randint(1, 20)),), tuple(jobs), costs=costs)


def growth_site(seed: int) -> Site:
    """Elastic gangs in one pool, where others come and go; somebody waits for ever in another pool."""
    rng = random.Random(seed)
    elastic, others = list[Arrival](), list[Arrival]()
    for number in range(rng.randint(1, 2)):
        least, size = rng.randint(1, 3), rng.choice((1, 1, 2))
        shape: dict[str, Any] = dict(tasks_min=least, models=("H100",), restart_cost_ms=SECOND)
        elastic.append(job(f"e{number}", MINUTE + number, 3 * DAY, "q", size, 8, **shape))
    for number in range(rng.randint(1, 8)):
        at_ms, length = rng.choice((0, 0, rng.randint(0, 4 * 60))) * MINUTE, rng.choice((20, 60, 120)) * MINUTE
        others.append(job(f"o{number}", at_ms, length, "q", rng.randint(1, 8), models=("H100",)))
    waiting = job("hold", 0, 4 * DAY, "q", 4, models=("A100",)), job("blocked", MINUTE, HOUR, "q", 4, models=("A100",))
    return Site("2x8:H100+1x4:A100", (queue("q"),), (*elastic, *others, *waiting), until_ms=DAY)
