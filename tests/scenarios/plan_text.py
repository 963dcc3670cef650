"""A plan and the reasons why gangs wait as text, one line each. Knows plans; drives nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from corral.core.cluster.resources import Seat
from corral.core.plan import Decision, DropClaim, Evict, Grow, MakeRoom, Place, Plan, Repair
from corral.duration_text import span
from corral.policy.explain.reasons import Hold


def plan_lines(plan: Plan, with_gpus: bool) -> Iterator[str]:
    for decision in plan.decisions:
        yield from _decision_lines(decision, with_gpus)
    for reservation in plan.reservations:
        at = span(reservation.at_ms - plan.at_ms)
        yield _line("reserve", reservation.gang, f"at +{at} on {places(reservation.seats, with_gpus)}")


def _decision_lines(decision: Decision, with_gpus: bool) -> Iterator[str]:
    match decision:
        case Place() | Repair():
            verb = "place" if isinstance(decision, Place) else "repair"
            spares = f", spare {places(decision.spares, with_gpus)}" if decision.spares else ""
            yield _line(verb, decision.gang, f"on {places(decision.seats, with_gpus)}{spares}")
        case MakeRoom():
            for victim in decision.victims:
                price = f"({victim.cause}, {victim.price_gpu_ms // 60_000} GPU-minutes)"
                kept = f"to {len(victim.keep)} on {places(victim.keep, with_gpus)}, " if victim.keep else ""
                verb = "shrink" if victim.keep else "preempt"
                yield _line(verb, victim.gang, f"{kept}makes room for {_short(decision.gang)} {price}")
            yield _line("claim", decision.gang, f"on {places(decision.seats, with_gpus)}")
        case Grow():
            yield _line("grow", decision.gang, f"to {len(decision.seats)} on {places(decision.seats, with_gpus)}")
        case Evict():
            yield _line("evict", decision.gang, f"({decision.cause})")
        case DropClaim():
            yield _line("drop", decision.gang, "its claim")
        case _:
            assert_never(decision)


def reason_lines(hold: Hold, now_ms: int, with_ways: bool) -> Iterator[str]:
    """The first reason is beside the name, the others below it."""
    texts = [reason.text(now_ms) for reason in hold.reasons] or ["nothing holds it"]
    yield _line("hold", hold.gang, texts[0])
    yield from (" " * 17 + text for text in texts[1:])
    if with_ways:
        yield from (" " * 17 + f"in the way: {each.text(now_ms)}" for each in hold.in_the_way)


def places(seats: Sequence[Seat], with_gpus: bool) -> str:
    """Nodes in rank order; ``a1 x2`` for two tasks in a row on one node."""
    found: list[list[object]] = []
    for seat in seats:
        name = seat.node + (f":{_gpus(seat.gpus)}" if with_gpus and seat.gpus else "")
        if found and found[-1][0] == name:
            found[-1][1] = int(str(found[-1][1])) + 1
        else:
            found.append([name, 1])
    return " ".join(f"{name} x{count}" if count != 1 else str(name) for name, count in found)


def _gpus(mask: int) -> str:
    numbers = [gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1]
    spans: list[list[int]] = []
    for gpu in numbers:
        if spans and spans[-1][1] == gpu - 1:
            spans[-1][1] = gpu
        else:
            spans.append([gpu, gpu])
    return ",".join(f"{lo}-{hi}" if hi > lo else str(lo) for lo, hi in spans)


def _short(gang: str) -> str:
    return gang.removesuffix("/main")


def _line(verb: str, gang: str, rest: str) -> str:
    return f"{verb:<8} {_short(gang):<7} {rest}"
