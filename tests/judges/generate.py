"""Small random scenarios that reach all features together. The seed is the scenario.

Each scenario has some of the features, so that simple ones and mixed ones are both tried. Knows nothing of what is
judged.
"""

from __future__ import annotations

import random

from msgspec.structs import replace

from tests.judges.facts import GPU
from tests.judges.scenario import HOUR_MS, MINUTE_MS, Machine, Scenario, Step, Terms, Work

FEATURES = (
    "models", "amounts", "slices", "elastic", "spares", "priority", "limits", "user_limits", "lend", "budget",
    "changes", "weights", "users", "topology", "lengths", "fixed", "time_share", "failures", "drain", "terms",
    "cancel", "model_limits", "narrow", "bursts", "amount_terms",
)  # fmt: skip
CPU, MEMORY = "cpu_milli", "memory_mib"
WAITS_MS = (1_000, 1_000, 10_000, 30_000, MINUTE_MS, 10 * MINUTE_MS, HOUR_MS, 3 * HOUR_MS)


def generate(seed: str, rounds: int = 30) -> Scenario:
    return _Maker(random.Random(seed)).scenario(seed, rounds)


class _Maker:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        wanted = rng.choice((0.1, 0.25, 0.5))
        self.has = {feature for feature in FEATURES if rng.random() < wanted}
        self.nodes = self._nodes()
        self.milli = sum(node.gpus for node in self.nodes) * 1000
        self.amounts = {
            name: sum(node.has.get(name, 0) for node in self.nodes)
            for name in (CPU, MEMORY)
            if "amount_terms" in self.has and all(name in node.has for node in self.nodes)
        }
        self.queues = self._queues()
        self.leaves = [queue.name for queue in self.queues]
        self.count = 0

    def scenario(self, seed: str, rounds: int) -> Scenario:
        steps: list[Step] = []
        for _ in range(rounds):
            steps += self._round()
        rng = self.rng
        return Scenario(
            nodes=self.nodes,
            queues=self.queues,
            steps=steps,
            half_life_ms=rng.choice((HOUR_MS, 24 * HOUR_MS)),
            patience_ms=rng.choice((2 * HOUR_MS, 24 * HOUR_MS, 24 * HOUR_MS)),
            depth=rng.choice((1, 1, 1, 2)),
            seed=seed,
        )

    # ---- the cluster -------------------------------------------------------------------------------------------

    def _nodes(self) -> list[Machine]:
        rng, has = self.rng, self.has
        count, size = rng.choice((1, 1, 2, 2, 3, 4, 6)), rng.choice((1, 2, 4, 4, 8))
        nodes = []
        for n in range(count):
            model = "A100" if "models" in has and n % 2 else "H100"
            amounts = {CPU: rng.choice((4, 8, 16)) * 1000} if has & {"amounts", "amount_terms"} else {}
            if amounts and ("amount_terms" in has or rng.random() < 0.5):
                amounts[MEMORY] = 64_000
            nodes.append(
                Machine(
                    name=f"n{n}",
                    gpus=size if rng.random() < 0.8 else rng.choice((1, 2, 4)),
                    model=model,
                    vram_mib=80_000 if model == "H100" else 40_000,
                    rack=f"r{n // 2}" if "topology" in has else "r0",
                    islands=2 if "topology" in has and size >= 4 and rng.random() < 0.3 else 1,
                    has=amounts,
                )
            )
        return nodes

    def _queues(self) -> list[Terms]:
        found: list[Terms] = []
        self._branch("", {GPU: self.milli, **self.amounts}, self.rng.choice((1, 2, 2, 3, 4)), found)
        return found

    def _branch(self, parent: str, left: dict[str, int], depth: int, found: list[Terms]) -> None:
        """Some queues below a queue that may promise this much in all."""
        rng = self.rng
        for letter in "abc"[: rng.randint(1 if parent else 2, 3)]:
            name = f"{parent}/{letter}" if parent else letter
            promised = {each: self._part(amount) if rng.random() < 0.6 else 0 for each, amount in left.items()}
            left = {each: amount - promised[each] for each, amount in left.items()}
            found.append(self._terms(name, promised))
            if depth > 1 and rng.random() < 0.6:
                self._branch(name, promised, depth - 1, found)

    def _part(self, amount: int) -> int:
        """Up to all of it, in thousands."""
        return self.rng.randint(0, amount // 1000) * 1000

    def _terms(self, name: str, guarantee: dict[str, int]) -> Terms:
        rng, has = self.rng, self.has
        total, promised = self.milli // 1000, guarantee[GPU] // 1000
        limit: dict[str, int] = {}
        for each, amount in self.amounts.items():
            if "limits" in has and rng.random() < 0.4:
                limit[each] = max(guarantee[each], 1000 + self._part(amount - 1000))
        if "limits" in has and rng.random() < 0.4:
            limit[GPU] = rng.randint(max(1, promised), total) * 1000
        if "model_limits" in has and rng.random() < 0.4:
            limit[f"{GPU}:{rng.choice(self.nodes).model}"] = rng.randint(0, total) * 1000
        budget = HOUR_MS * rng.randint(1, 2 * total) if "budget" in has and rng.random() < 0.4 else 0
        changes = []
        if "changes" in has and rng.random() < 0.4:
            begin = rng.choice((0, HOUR_MS, 5 * HOUR_MS))
            more = rng.choice((-1000, 1000, 2000))
            changes.append((begin, begin + rng.choice((HOUR_MS, 6 * HOUR_MS)), more, abs(more)))
        return Terms(
            name=name,
            guarantee={each: amount for each, amount in guarantee.items() if amount},
            limit=limit,
            lend={
                each: self._part(amount)
                for each, amount in guarantee.items()
                if "lend" in has and amount and rng.random() < 0.5
            },
            user_limit={GPU: rng.randint(1, total) * 1000} if "user_limits" in has and rng.random() < 0.4 else {},
            weight=rng.randint(1, 4) if "weights" in has else 1,
            time_share=rng.choice((0, 3)) if "time_share" in has else 0,
            budget_gpu_ms=budget,
            budget_window_ms=rng.choice((HOUR_MS, 12 * HOUR_MS)) if budget else 0,
            changes=changes,
        )

    # ---- what happens ------------------------------------------------------------------------------------------

    def _round(self) -> list[Step]:
        rng, has = self.rng, self.has
        steps = [self._submit() for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 4)))]
        if "bursts" in has and steps and rng.random() < 0.1:
            steps += self._burst(steps[0])
        if rng.random() < 0.15:
            steps.append(self._news())
        steps.append(Step("plan"))
        if rng.random() < 0.3 and "lengths" not in has:
            steps.append(Step("wait", number=24 * HOUR_MS // rng.choice((1, 8))))
        else:
            steps.append(Step("wait", number=rng.choice(WAITS_MS)))
        return steps

    def _news(self) -> Step:
        rng, has = self.rng, self.has
        node, job = rng.choice(self.nodes), f"j{rng.randint(1, max(1, self.count))}"
        kinds = ["save"]
        if "failures" in has:
            kinds += ["fail", "lose", "back", "back", "gpu"]
        if "drain" in has:
            kinds += ["drain", "undrain", "undrain"]
        if "terms" in has:
            kinds.append("terms")
        if "cancel" in has:
            kinds += ["cancel", "hold", "release", "priority"]
        kind = rng.choice(kinds)
        if kind in ("lose", "back", "drain", "undrain"):
            return Step(kind, what=node.name)
        if kind == "gpu":
            health = rng.choice(("healthy", "healthy", "suspect", "draining", "failed"))
            return Step(kind, what=node.name, number=rng.randrange(node.gpus), health=health)
        if kind == "terms":
            old = rng.choice(self.queues)
            promised = {each: self._part(old.guarantee.get(each, 0)) for each in (GPU, *self.amounts)}
            return Step(kind, terms=self._terms(old.name, promised))
        return Step(kind, what=job, number=rng.choice((0, 5)) if kind == "priority" else 0)

    def _submit(self) -> Step:
        rng, has = self.rng, self.has
        self.count += 1
        node = rng.choice(self.nodes)
        most = self.milli // 1000
        gpus = rng.choice([g for g in (1, 1, 1, 2, 4, 8) if g <= node.gpus] if "narrow" not in has else [1])
        tasks = rng.choice([t for t in (1, 1, 1, 1, 2, 3, 4) if t * gpus <= most])
        work: dict[str, object] = {"tasks": tasks, "gpus": gpus}
        if "slices" in has and rng.random() < 0.4:
            work |= {"gpus": 0, "slice_mib": rng.choice((10_000, 20_000, 30_000))}
        if "models" in has and rng.random() < 0.4:
            work["models"] = [node.model]
        if has & {"amounts", "amount_terms"} and rng.random() < 0.7:
            work["amounts"] = {CPU: rng.choice((1, 2, 4)) * 1000}
            if MEMORY in self.amounts and rng.random() < 0.5:
                work["amounts"] = {CPU: 1000, MEMORY: rng.choice((8, 16, 32)) * 1000}
            if rng.random() < (0.5 if self.amounts else 0.1) and not work.get("slice_mib"):
                work["gpus"] = 0
        if "elastic" in has and tasks > 1 and rng.random() < 0.5:
            work["tasks_min"] = rng.randint(1, tasks - 1)
        if "spares" in has and rng.random() < 0.3:
            work["spares"] = 1
        if "topology" in has:
            work |= self._topology(gpus)
        return Step("submit", work=self._work(work))

    def _burst(self, first: Step) -> list[Step]:
        """Many like the first, as small as can be."""
        assert first.work is not None
        found = []
        for _ in range(self.rng.choice((8, 30))):
            self.count += 1
            found.append(Step("submit", work=replace(first.work, name=f"j{self.count}", tasks=1, tasks_min=0, gpus=1)))
        return found

    def _topology(self, gpus: int) -> dict[str, object]:
        rng = self.rng
        kind = rng.random()
        if kind < 0.2:
            return {"within": rng.choice(("rack", "node"))}
        if kind < 0.3:
            return {"spread": rng.choice(("rack", "node")), "spread_max": rng.randint(1, 2)}
        if kind < 0.4:
            return {"prefer": "rack", "prefer_wait_ms": 10 * MINUTE_MS}
        return {"tp": gpus} if kind < 0.5 and gpus > 1 else {}

    def _work(self, shape: dict[str, object]) -> Work:
        rng, has = self.rng, self.has
        length = rng.choice((10 * MINUTE_MS, HOUR_MS, 3 * HOUR_MS, 10 * HOUR_MS))
        says = rng.choice((None, length, length, 2 * length)) if "lengths" in has else length
        return Work(
            name=f"j{self.count}",
            queue=rng.choice(self.leaves),
            user=rng.choice(("ann", "bob")) if "users" in has or "user_limits" in has else "ann",
            priority=rng.choice((0, 0, 1, 5)) if "priority" in has else 0,
            limit_ms=says,
            estimate_ms=length // 2 if says and rng.random() < 0.1 else None,
            runs_ms=length if rng.random() < 0.7 else length // 2,
            grace_ms=rng.choice((0, 10_000, 30_000, 30_000)),
            min_runtime_ms=rng.choice((0, 30 * MINUTE_MS)) if "fixed" in has else 0,
            restart_ms=rng.choice((0, MINUTE_MS)),
            checkpoints=rng.random() < 0.4,
            preemptible=not ("fixed" in has and rng.random() < 0.3),
            **shape,  # type: ignore[arg-type]
        )
