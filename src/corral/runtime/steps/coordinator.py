"""Gives steps their shares of the gang's seats, one after another, and notes which have begun and ended.

It lives in the supervisor of the first seat. A step that does not fit waits for its turn behind those that came before
it, and only as long as its client is there. Knows the ledger and connections, not processes.
"""

from __future__ import annotations

import json
import time

from corral.runtime.steps import step_frames as frames
from corral.runtime.steps.step_ledger import STEPS_MAX, CannotFit, StepLedger, StepSeat, Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from corral.runtime.steps.seat_processes import Connection

    Tell = Callable[[bytes], None]

_TEXT_MAX = 200


class _Step:
    def __init__(self, name: str, connection: Connection) -> None:
        self.name = name
        self.connection: Connection | None = connection
        self.away_since = 0.0


class Coordinator:
    def __init__(self, seats: list[Any], record: Callable[[bytes], None]) -> None:
        self._seats = [StepSeat(node, gpus, cpus, memory_mib) for node, gpus, cpus, memory_mib in seats]
        self._ledger = StepLedger(self._seats)
        self._record = record
        self._next = 0
        self._steps: dict[str, _Step] = {}
        self._waiting: list[tuple[Connection, Wanted, dict[str, Any], Tell]] = []

    def take(self, connection: Connection, kind: bytes, said: dict[str, Any], tell: Tell) -> None:
        if kind == frames.SEATS:
            seats = [[seat.node, seat.gpus, seat.cpus, seat.memory_mib] for seat in self._seats]
            tell(frames.message(frames.DONE, {"seats": seats}))
        elif kind == frames.ALLOCATE:
            self._allocate(connection, said, tell)
        else:
            self._release(str(said.get("step", "")), said.get("code"))
            tell(frames.message(frames.DONE, {}))
            self._serve()

    def on_closed(self, connection: Connection, is_relayed: bool) -> None:
        """The client of steps is gone, or may come back."""
        self._waiting = [each for each in self._waiting if each[0] is not connection]
        for step in [step for step in self._steps.values() if step.connection is connection]:
            step.connection, step.away_since = None, time.monotonic()
            if not is_relayed:
                self._release(step.name, None)
        self._serve()

    def tick(self, now: float) -> None:
        late = [s for s in self._steps.values() if s.connection is None and now - s.away_since > frames.DETACHED_S]
        for step in late:
            self._release(step.name, None)
        if late:
            self._serve()

    def _allocate(self, connection: Connection, said: dict[str, Any], tell: Tell) -> None:
        known = self._steps.get(str(said.get("step", "")))
        if known is not None:  # its client is back
            known.connection = connection
            tell(frames.message(frames.DONE, {"step": known.name}))
            return
        if len(self._steps) + len(self._waiting) >= STEPS_MAX:
            tell(frames.message(frames.FAILED, {"why": f"{STEPS_MAX} steps run or wait already", "code": 1}))
            return
        try:
            wanted = Wanted(said)
        except CannotFit as wrong:
            tell(frames.message(frames.FAILED, {"why": str(wrong), "code": 1}))
            return
        self._waiting.append((connection, wanted, said, tell))
        self._serve()
        if any(each[0] is connection for each in self._waiting):
            if said.get("immediate"):
                self._waiting = [each for each in self._waiting if each[0] is not connection]
                tell(frames.message(frames.FAILED, {"why": "its resources are in use by other steps", "code": 1}))
            else:
                tell(frames.message(frames.WAIT, {"why": "its resources are in use by other steps"}))

    def _serve(self) -> None:
        """In the order of arrival; one that needs only what is left goes before one that waits for more."""
        still = []
        for connection, wanted, said, tell in self._waiting:
            name = str(self._next)
            try:
                shares = self._ledger.allocate(name, wanted)
            except CannotFit as wrong:
                tell(frames.message(frames.FAILED, {"why": str(wrong), "code": 1}))
                continue
            if shares is None:
                still.append((connection, wanted, said, tell))
                continue
            self._next += 1
            self._steps[name] = _Step(name, connection)
            connection.allocated.add(name)
            tasks = sum(share.tasks for share in shares)
            self._note({"step": int(name), "begun_ms": _now_ms(), "seats": len(shares), "tasks": tasks,
                        "name": str(said.get("name", ""))[:_TEXT_MAX]})  # fmt: skip
            listed = [
                [each.seat, self._seats[each.seat].node, each.tasks, each.gpus, each.cpus, each.memory_mib]
                for each in shares
            ]
            tell(frames.message(frames.DONE, {"step": name, "shares": listed}))
        self._waiting = still

    def _release(self, name: str, code: Any) -> None:
        step = self._steps.pop(name, None)
        if step is None:
            return
        self._ledger.release(name)
        exit_code = code if type(code) is int and 0 <= code <= 255 else 137
        self._note({"step": int(name), "ended_ms": _now_ms(), "exit_code": exit_code})

    def _note(self, record: dict[str, Any]) -> None:
        self._record(json.dumps(record).encode() + b"\n")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
