"""The same thing done to many, several at a time. Knows threads, and nothing of what is done.

The threads are daemons: what never returns holds up whoever waits for it here, and not the end of the server.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 16


def abreast(do: Callable[[T], R], what: Iterable[T]) -> list[R]:
    """As ``[do(each) for each in what]``, begun in this order; all are done, also when some raise, and when all have
    returned the first fault is raised."""
    each = list(what)
    todo, found, faults = deque(range(len(each))), dict[int, R](), dict[int, Exception]()

    def work() -> None:
        while True:
            try:
                number = todo.popleft()
            except IndexError:
                return
            try:
                found[number] = do(each[number])
            except Exception as fault:  # whatever it is, it is told to whoever asked
                faults[number] = fault

    threads = [threading.Thread(target=work, name="abreast", daemon=True) for _ in range(min(AT_ONCE, len(each)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[min(faults)]
    return [found[number] for number in range(len(each))]
