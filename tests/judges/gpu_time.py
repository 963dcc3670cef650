"""The judges' own account of GPU time: what each queue has held in each window of its budget.

Written while time passes, from what gangs hold; not from what the engine has booked.
"""

from __future__ import annotations

from corral.core.state import State


class Book:
    """GPU-milliseconds by queue and window. A budget of another window begins a new account."""

    def __init__(self) -> None:
        self._spent: dict[tuple[str, int, int], int] = {}

    def spent(self, queue: str, window_ms: int, window: int) -> int:
        return self._spent.get((queue, window_ms, window), 0)

    def pass_time(self, state: State, begin_ms: int, end_ms: int) -> None:
        """Everything that holds seats holds them from one time to the other."""
        budgets = {name: queue.spec.budget for name, queue in state.queues.queues.items() if queue.spec.budget}
        for gang in state.holders.values() if budgets else ():
            for name, budget in budgets.items():
                assert budget is not None
                if gang.queue == name or gang.queue.startswith(f"{name}/") or not name:
                    at = begin_ms
                    while at < end_ms:
                        window = (at - budget.anchor_ms) // budget.window_ms
                        until = min(end_ms, budget.anchor_ms + (window + 1) * budget.window_ms)
                        key = (name, budget.window_ms, window)
                        self._spent[key] = self._spent.get(key, 0) + gang.gpu_milli * (until - at) // 1000
                        at = until
