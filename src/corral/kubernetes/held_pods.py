"""Seats that a job holds for pods which it does not run itself: those of a suspended Job, which Kubernetes runs.

The words are shared with the controller. The job's own tasks are placeholders: pods without GPUs, which say in an
annotation what their seats hold, so that a restarted server knows it from them alone. What a pod of the Job requests is
then not taken once more, as far as its seat holds it: a label alone hides nothing. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, structs

from corral.core.gang_id import MAIN, gang_id
from corral.kubernetes.cluster_api import Document
from corral.kubernetes.node_inventory import PodRequest
from corral.kubernetes.pod_names import ATTEMPT, DOMAIN
from corral.runtime.base import TaskKey, TaskOrder

#: Labels of the Job's pods: the job of Corral that holds their seats, and which seat each of them has.
HELD_BY = f"{DOMAIN}/held-by"
SEAT = f"{DOMAIN}/seat"
#: Annotation of a placeholder: what its seat holds.
HOLDS = f"{DOMAIN}/holds"
#: Variable of the program that holds seats.
PLACEHOLDER = "CORRAL_PLACEHOLDER"
_DIGITS_MAX, _AMOUNT_MAX = 9, 1 << 52


class OtherPod(Struct, frozen=True):
    """A pod that is not Corral's. ``seat``: which one it says that it has; None: none."""

    node: str
    namespace: str
    request: PodRequest
    seat: TaskKey | None = None


class HeldSeat(Struct, frozen=True):
    """What a live placeholder holds, and where."""

    node: str
    has: PodRequest


def is_placeholder(env: Iterable[tuple[str, str]]) -> bool:
    return (PLACEHOLDER, "1") in env


def held_by_order(order: TaskOrder) -> PodRequest | None:
    """What the seat of a placeholder holds; None: it is none."""
    if not is_placeholder(order.env):
        return None
    return PodRequest(len(order.gpus), order.cpu_milli or 0, order.memory_mib or 0)


def holds_text(held: PodRequest) -> str:
    return json.dumps(structs.asdict(held))


def held_by_pod(pod: Document) -> PodRequest | None:
    """The same, from a pod that an earlier server has made."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(HOLDS)
    try:
        found = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    amounts = [_amount(found.get(name)) for name in PodRequest.__struct_fields__]
    return None if min(amounts) < 0 else PodRequest(*amounts)


def _amount(found: object) -> int:
    """-1: it is none."""
    return found if type(found) is int and 0 <= found <= _AMOUNT_MAX else -1


def seat_of(pod: Document) -> TaskKey | None:
    """The task that holds the seat of a pod, as its labels say; None: they name none."""
    marks = (pod.get("metadata") or {}).get("labels") or {}
    job, attempt, seat = (str(marks.get(label, "")) for label in (HELD_BY, ATTEMPT, SEAT))
    if not job or not all(each.isdecimal() and len(each) <= _DIGITS_MAX for each in (attempt, seat)):
        return None
    return TaskKey(gang_id(job, MAIN, None), int(attempt), int(seat))


def beyond_seats(others: Iterable[OtherPod], seats: Mapping[TaskKey, HeldSeat]) -> Iterator[OtherPod]:
    """Other pods with what they have beyond the seats that are held for them. All pods of one seat, on its node,
    together have the amounts of the seat once."""
    left = {key: seat.has for key, seat in seats.items()}
    for pod in others:
        if pod.seat is None or pod.seat not in left or seats[pod.seat].node != pod.node:
            yield pod
            continue
        asked, held = structs.astuple(pod.request), structs.astuple(left[pod.seat])
        left[pod.seat] = PodRequest(*(max(has - want, 0) for has, want in zip(held, asked, strict=True)))
        rest = PodRequest(*(max(want - has, 0) for has, want in zip(held, asked, strict=True)))
        yield structs.replace(pod, request=rest)
