"""Victims as a transportation problem: from what queues may still lose to what nodes lack.

Choosing node by node, the cheapest first, fails where every queue may lose just as much as is needed: what a queue
loses on one node it cannot lose on another. Here, for each node, every way of making room for some tasks is a vector of
losses, one coordinate for each guarantee that binds. Which sums of vectors can be reached, with how many tasks, is
computed for all sums at once: a set of sums is the bits of one integer, and a way is a shift.

Exact for gangs on one node that lose as much as others of their queue. For a gang on several nodes, and for the last
victim of a queue, which may take it below its guarantee, losses are first taken too low: if nothing is found, there is
nothing. Then too high: what is found is legal. Then sets are tried one after another. Knows queues only through a
ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd, prod

from msgspec import Struct

from corral.core.cluster.resources import GPU_MILLI
from corral.core.cluster.slots import NODE_LEVEL
from corral.policy.preemption.ledger import Key, Ledger
from corral.policy.preemption.vacancy import Candidate, Here, Vacancy, in_order

#: A problem with more sums, or more steps over them, is made smaller first: some nodes are chosen by balance alone.
SUMS_MAX, STEPS_MAX = 1 << 20, 1 << 32
TRIES_MAX = 4  # choices of these nodes
SETS_MAX = 20_000  # sets that are tried one after another
WAYS_MAX = 1_000  # sets that are tried on one node

Losses = Mapping[Key, int]
Vector = tuple[int, ...]


class _Way(Struct):
    """Candidates on one node, for how many tasks they make room, and what that costs each coordinate."""

    node: int
    gain: int
    losses: Vector
    chosen: list[Candidate]

    @property
    def price(self) -> int:
        return sum(candidate.price for candidate in self.chosen) // self.gain


#: Candidates that make room on a node only together, and what that costs each coordinate.
_Piece = tuple[list[Here], Vector]


class Transportation:
    """Within one domain, from candidates of which each may leave by itself."""

    def __init__(self, vacancy: Vacancy, at: int, candidates: Sequence[Candidate], ledger: Ledger) -> None:
        self._vacancy = vacancy
        self._at = at
        self._ledger = ledger
        lo, hi = vacancy.domains[at]
        self._candidates = [c for c in sorted(candidates, key=in_order) if any(lo <= n < hi for n, _ in c.on)]
        self._losses = {id(c): dict(ledger.losses(c)) for c in self._candidates}
        self._left = SETS_MAX

    def find(self) -> list[Candidate] | None:
        """A legal set that makes enough room, if there is one. With losses taken too low, what is found may not be
        legal: then with losses taken too high, and then set by set."""
        wanted = self._vacancy.wanted - self._vacancy.room(self._at)
        if wanted <= 0:
            return []  # only quota is missing
        sums, nodes = self._problem(wanted, is_low=True)
        low = sums.choose(nodes, wanted)
        if low is None or self._ledger.is_legal(low):
            return low
        sums, fewer = self._problem(wanted, is_low=False)
        return sums.choose(fewer, wanted) or self._try(nodes, wanted, [])

    def _problem(self, wanted: int, is_low: bool) -> tuple[_Sums, list[list[_Way]]]:
        """The sums that are legal, and the ways of each node, the cheapest first."""
        at_node = self._by_node()
        losses = {
            (n, id(c)): _loss(c, gpus, self._losses[id(c)], is_low) for n, here in at_node.items() for c, gpus in here
        }
        sums = _Sums(self._most(is_low), losses.values())
        nodes: list[list[_Way]] = []
        if not self._may_be_enough(at_node, sums, wanted):
            return sums, nodes
        for n, here in at_node.items():
            pieces = [(piece, sums.vector([losses[n, id(c)] for c, _ in piece])) for piece in _pieces(here)]
            ways = self._ways(n, pieces, sums, wanted)
            if ways:
                nodes.append(ways)
        return sums, sorted(nodes, key=lambda ways: ways[0].price)

    def _may_be_enough(self, at_node: Mapping[int, Sequence[Here]], sums: _Sums, wanted: int) -> bool:
        """A quick no: queues may not lose as many GPUs as the tasks lack, wherever they lack the fewest."""
        vacancy, each = self._vacancy, self._vacancy.demand.task.gpus
        if not each or any(c.gang.demand.task.slice_mib for c in self._candidates):
            return True
        lacking = []
        free = sums.most(GPU_MILLI) // 1000  # and what candidates have that no guarantee protects
        for n, here in at_node.items():
            lacking.append(max(0, each * (vacancy.column[n] + 1) - vacancy.useful(n, vacancy.capacity.free[n])))
            free += sum([gpus.bit_count() for c, gpus in here if not sums.binds(self._losses[id(c)], GPU_MILLI)])
        least = sorted(lacking)[:wanted]
        return sum(least) + each * (wanted - len(least)) <= free

    def _try(self, nodes: Sequence[list[_Way]], wanted: int, chosen: list[Candidate]) -> list[Candidate] | None:
        """One way after another, as long as they are legal together."""
        if wanted <= 0:
            return chosen
        for at, ways in enumerate(nodes):
            for way in ways:
                self._left -= 1
                more = _union(chosen, way.chosen)
                if self._left > 0 and self._ledger.is_legal(more):
                    found = self._try(nodes[at + 1 :], wanted - way.gain, more)
                    if found is not None:
                        return found
        return None

    def _by_node(self) -> dict[int, list[Here]]:
        lo, hi = self._vacancy.domains[self._at]
        found: dict[int, list[Here]] = {}
        for candidate in self._candidates:
            for n, gpus in candidate.on:
                if lo <= n < hi:
                    found.setdefault(n, []).append((candidate, gpus))
        return found

    def _most(self, is_low: bool) -> dict[Key, int]:
        """What each queue may lose. Only where that is less than all there is."""
        sizes: dict[Key, list[int]] = {}
        for losses in self._losses.values():
            for key, loss in losses.items():
                sizes.setdefault(key, []).append(loss)
        most = {key: self._ledger.most(key, max(each) if is_low else min(each)) for key, each in sizes.items()}
        return {key: each for key, each in most.items() if each < sum(sizes[key])}

    def _ways(self, n: int, pieces: Sequence[_Piece], sums: _Sums, wanted: int) -> list[_Way]:
        """Every set of pieces of which none can be left out. Of pieces of one kind the cheaper ones leave first."""
        kinds: dict[object, list[_Piece]] = {}
        for piece, losses in pieces:
            kinds.setdefault(self._kind(n, piece, losses), []).append((piece, losses))
        tried: dict[tuple[int, ...], _Piece] = {(): ([], sums.nothing)}
        for alike in kinds.values():
            tried = {(*counts, 0): piece for counts, piece in tried.items()}
            for counts, (steps, losses) in list(tried.items()):
                for count, (piece, each) in enumerate(alike, 1):
                    losses = tuple(map(sum, zip(losses, each, strict=True)))
                    shrinks_too = any(one.gang is other.gang for one, _ in piece for other, _ in steps)
                    if shrinks_too or len(tried) >= WAYS_MAX or not sums.holds(losses):
                        break
                    steps = [*steps, *piece]
                    tried[*counts[:-1], count] = (steps, losses)
        gains = {counts: min(wanted, self._gain(n, steps)) for counts, (steps, _) in tried.items()}
        found = []
        for counts, (steps, losses) in tried.items():
            fewer = [(*counts[:at], count - 1, *counts[at + 1 :]) for at, count in enumerate(counts) if count]
            if gains[counts] > max([gains.get(less, 0) for less in fewer], default=0):
                found.append(_Way(n, gains[counts], losses, [candidate for candidate, _ in steps]))
        return sorted(found, key=lambda way: way.price)

    def _gain(self, n: int, steps: Sequence[Here]) -> int:
        vacancy, demand = self._vacancy, self._vacancy.demand
        gain, now = vacancy.gain(n, steps) if steps else 0, vacancy.column[n]
        if demand.spread == NODE_LEVEL:
            return min(now + gain, demand.spread_max) - min(now, demand.spread_max)
        return gain

    def _kind(self, n: int, piece: Sequence[Here], losses: Vector) -> object:
        """Pieces of one kind make the same room and cost the same; only their prices differ."""
        (candidate, gpus), gang = piece[0], piece[0][0].gang
        if len(piece) > 1 or self._vacancy.counts_groups or len(candidate.on) > 1 or gang.demand.tasks_min:
            return gang.id, len(candidate.frees)
        return losses, self._vacancy.useful(n, gpus), gang.amounts, len(candidate.frees)


def _loss(candidate: Candidate, gpus: int, losses: Losses, is_low: bool) -> Losses:
    """What a candidate costs on one node; if taken low, of a gang on several nodes only its part there."""
    if not is_low or len(candidate.on) < 2:
        return losses
    whole = sum(mask.bit_count() for _, mask in candidate.on)
    part = gpus.bit_count() if whole else 0  # a gang without GPUs costs nothing, if taken low
    return {key: loss * part // (whole or 1) for key, loss in losses.items()}


def _union(*sets: Iterable[Candidate]) -> list[Candidate]:
    """Of a gang that would shrink for one node and leave for another, the candidate that leaves."""
    found: dict[str, Candidate] = {}
    for candidate in [each for some in sets for each in some]:
        known = found.get(candidate.gang.id)
        if known is None or len(known.frees) < len(candidate.frees):
            found[candidate.gang.id] = candidate
    return list(found.values())


def _pieces(here: Iterable[Here]) -> list[list[Here]]:
    """Gangs that share GPUs in slices are one piece: a shared GPU is free only when all have left it."""
    found: list[tuple[int, list[Here]]] = []
    for item in here:
        shared, piece = item[1] if item[0].gang.demand.task.slice_mib else 0, [item]
        for other in [each for each in found if each[0] & shared]:
            found.remove(other)
            shared, piece = shared | other[0], [*other[1], *piece]
        found.append((shared, piece))
    leaving = [{id(each) for each in _union([candidate for candidate, _ in piece])} for _, piece in found]
    return [[item for item in piece if id(item[0]) in ids] for (_, piece), ids in zip(found, leaving, strict=True)]


class _Sums:
    """Sums of losses that are legal. A coordinate for each set of guarantees that bind the same candidates; the bits of
    an integer are all vectors, numbered as digits of mixed radix."""

    def __init__(self, most: Mapping[Key, int], losses: Iterable[Losses]) -> None:
        self._most = dict(most)
        self._unit: dict[str, int] = {}  # resource -> what all losses of it are multiples of
        self._all: dict[tuple[Key, ...], int] = {}  # coordinate -> all losses there are
        for each in losses:
            for chain in self._chains(each):
                resource, loss = chain[0][1], each[chain[0]]
                self._all[chain] = self._all.get(chain, 0) + loss
                self._unit[resource] = gcd(self._unit.get(resource, 0), loss)
        chains = self._chain = {chain: at for at, chain in enumerate(self._all)}
        self.nothing: Vector = (0,) * len(chains)
        self._ends = {key: most[key] // (self._unit.get(key[1]) or 1) for key in most}
        self._under = {key: [at for chain, at in chains.items() if key in chain] for key in most}

    def _chains(self, losses: Losses) -> list[tuple[Key, ...]]:
        """For each resource, the queues, one above the other, that bind."""
        found: dict[str, list[Key]] = {}
        for key in losses:
            if key in self._most:
                found.setdefault(key[1], []).append(key)
        return [tuple(sorted(keys)) for keys in found.values()]

    def binds(self, losses: Losses, resource: str) -> bool:
        return any(key in self._most and key[1] == resource for key in losses)

    def most(self, resource: str) -> int:
        """No more of a resource than this may be lost by all together."""
        found: dict[Key, int] = {}
        for chain, total in self._all.items():
            if chain[0][1] == resource:
                found[chain[0]] = found.get(chain[0], 0) + min(total, *[self._most[key] for key in chain])
        return sum([min(self._most[key], total) for key, total in found.items()])

    def vector(self, losses: Iterable[Losses]) -> Vector:
        found = list(self.nothing)
        for each in losses:
            for chain in self._chains(each):
                found[self._chain[chain]] += each[chain[0]] // (self._unit[chain[0][1]] or 1)
        return tuple(found)

    def holds(self, vector: Vector) -> bool:
        return all(sum([vector[at] for at in ats]) <= self._ends[key] for key, ats in self._under.items())

    def choose(self, nodes: Sequence[list[_Way]], wanted: int) -> list[Candidate] | None:
        """Ways, one for each node at most, that make this much room together."""
        ways, ends = [way for each in nodes for way in each], self._ends
        if sum([max([way.gain for way in each]) for each in nodes]) < wanted:
            return None
        for skip in range(TRIES_MAX):
            self._ends = dict(ends)
            taken = self._balanced(ways, wanted, skip)
            used, left = {way.node for way in taken}, wanted - sum([way.gain for way in taken])
            found = None
            if self._is_small(len(ways) * left):
                found = self._reach([each for each in nodes if each[0].node not in used], left)
            if found is not None or not taken:
                return None if found is None else _union(*[way.chosen for way in (*taken, *found)])
        return None

    def _tops(self) -> list[int]:
        """How many values each coordinate has."""
        units = [self._unit[chain[0][1]] or 1 for chain in self._chain]
        return [
            1 + min(total // unit, *[self._ends[key] for key in chain])
            for unit, (chain, total) in zip(units, self._all.items(), strict=True)
        ]

    def _is_small(self, steps: int) -> bool:
        sums = prod(self._tops())
        return sums <= SUMS_MAX and sums * steps <= STEPS_MAX

    def _balanced(self, ways: list[_Way], wanted: int, skip: int) -> list[_Way]:
        """The ways that cost most where most may be lost, until few sums are left; some are skipped."""
        tops, count = self._tops(), len(ways)
        used: set[int] = set()
        found: list[_Way] = []

        def imbalance(way: _Way) -> float:
            return sum([n * n / top for n, top in zip(way.losses, tops, strict=True)]) / way.gain

        for way in sorted(ways, key=imbalance)[skip:]:
            if self._is_small(count * wanted):
                break
            if way.node not in used and way.gain <= wanted and self.holds(way.losses):
                used.add(way.node)
                found.append(way)
                wanted -= way.gain
                for key, ats in self._under.items():
                    self._ends[key] -= sum([way.losses[at] for at in ats])
        return found

    def _reach(self, nodes: Sequence[list[_Way]], wanted: int) -> list[_Way] | None:
        """By the number of tasks, all sums that can be reached; for each the way by which it was reached first."""
        tops = self._tops()
        strides = [prod(tops[:at]) for at in range(len(tops))]
        legal, boxes = self._legal(tops, strides), {}
        reached = [1] + [0] * wanted
        steps: list[tuple[int, int, int, _Way]] = []  # number of tasks, new sums, the number before, by which way
        for ways in nodes:
            before = reached.copy()
            for way in ways:
                if way.losses not in boxes:
                    boxes[way.losses] = _box([top - n for top, n in zip(tops, way.losses, strict=True)], strides)
                box, offset = boxes[way.losses], self._number(way.losses, strides)
                for tasks in range(wanted):
                    start = before[tasks] & box
                    if start:
                        to = min(wanted, tasks + way.gain)
                        new = (start << offset) & legal & ~reached[to]
                        if new:
                            reached[to] |= new
                            steps.append((to, new, tasks, way))
            if reached[wanted]:
                break
        return self._back(steps, wanted, strides) if reached[wanted] else None

    def _number(self, vector: Vector, strides: Sequence[int]) -> int:
        return sum([n * stride for n, stride in zip(vector, strides, strict=True)])

    def _back(self, steps: Sequence[tuple[int, int, int, _Way]], tasks: int, strides: Sequence[int]) -> list[_Way]:
        found: list[_Way] = []
        at: int | None = None
        for to, new, since, way in reversed(steps):
            if to == tasks and (at is None or new >> at & 1):
                at = (new & -new).bit_length() - 1 if at is None else at
                at, tasks = at - self._number(way.losses, strides), since
                found.append(way)
        return found

    def _legal(self, tops: Sequence[int], strides: Sequence[int]) -> int:
        """All vectors whose sums are legal for each queue above several coordinates."""
        legal = _box(tops, strides)
        for key, ats in self._under.items():
            if len(ats) > 1:
                by_sum = {0: 1}
                for at, (top, stride) in enumerate(zip(tops, strides, strict=True)):
                    wider: dict[int, int] = {}
                    for total, bits in by_sum.items():
                        if at not in ats:
                            wider[total] = _copies(bits, stride, top)
                            continue
                        for n in range(min(top, self._ends[key] - total + 1)):
                            wider[total + n] = wider.get(total + n, 0) | bits << n * stride
                    by_sum = wider
                some = 0
                for bits in by_sum.values():
                    some |= bits
                legal &= some
        return legal


def _box(tops: Sequence[int], strides: Sequence[int]) -> int:
    """All vectors below these tops."""
    bits = 1
    for top, stride in zip(tops, strides, strict=True):
        bits = _copies(bits, stride, top)
    return bits


def _copies(bits: int, stride: int, count: int) -> int:
    found, have = bits, 1
    while have < count:
        more = min(have, count - have)
        found |= found << stride * more
        have += more
    return found if count > 0 else 0
