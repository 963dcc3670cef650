"""A map over many items with several threads. Does not know what is done.

The threads are daemons: a call that never returns blocks the caller, but not the end of the server.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 16


def parallel_map(do: Callable[[T], R], what: Iterable[T]) -> list[R]:
    """Like ``[do(each) for each in what]``, started in this order. All are executed, also if some raise; when all have
    returned, the first exception is raised."""
    each = list(what)
    todo = deque(range(len(each)))
    found: dict[int, R] = {}
    faults: dict[int, Exception] = {}

    def work() -> None:
        while True:
            try:
                number = todo.popleft()
            except IndexError:
                return
            try:
                found[number] = do(each[number])
            except Exception as fault:  # raised in the calling thread
                faults[number] = fault

    threads = [threading.Thread(target=work, name="parallel-map", daemon=True) for _ in range(min(AT_ONCE, len(each)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[min(faults)]
    return [found[number] for number in range(len(each))]
