"""One undo log for everything that a draft holds: what is tried on it is taken back by the log, never by an inverse.

The columns, the queues and the draft itself write to the same log, so one mark covers all of them. The state has no
log: it is never rolled back.
"""

from __future__ import annotations

from typing import Any

#: (list or dict, key, value before). Key -1 of a list and ABSENT: something was appended.
Log = list[tuple[Any, Any, Any]]

ABSENT: Any = object()  # as a value before: there was none
ADDED: Any = object()  # instead of (dict, key, value before): (dicts, amounts, ADDED), the amounts were added to each


class Undoable:
    """Whatever changes is an element of a list or a dict. Each change is logged, with the value before it."""

    _log: Log | None = None

    def mark(self) -> int:
        """A point to undo to."""
        assert self._log is not None, "only a draft can be undone"
        return len(self._log)

    def undo(self, mark: int) -> None:
        log = self._log
        assert log is not None
        for _ in range(len(log) - mark):
            where, key, old = log.pop()
            if old is ABSENT:
                del where[key]
            elif old is ADDED:
                for amounts in where:
                    for name, amount in key:
                        amounts[name] -= amount
            else:
                where[key] = old

    def keep(self) -> None:
        """Forget the log: changes so far cannot be undone, and earlier marks are invalid."""
        assert self._log is not None
        self._log.clear()

    def _put(self, where: Any, key: Any, value: Any) -> None:
        if self._log is not None:
            self._log.append((where, key, where.get(key, ABSENT) if type(where) is dict else where[key]))
        where[key] = value

    def _drop(self, where: dict[Any, Any], key: Any) -> None:
        old = where.pop(key)
        if self._log is not None:
            self._log.append((where, key, old))
