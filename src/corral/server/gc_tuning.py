"""Settings of the garbage collector for a process that keeps many jobs in memory.

Nearly all objects are jobs, which are freed by reference counting when they are dropped. With 100,000 jobs a full
collection takes a tenth of a second; while jobs arrive it runs more than once a second and blocks every answer. So
objects that survived a full collection are left out of later ones (``gc.freeze``); all objects are collected rarely.
"""

from __future__ import annotations

import gc

WHOLE_LOOK_S = 600.0


def set_survivors_aside() -> None:
    """Freeze survivors from now on, in this process. Existing objects are collected once."""
    if _after not in gc.callbacks:
        gc.callbacks.append(_after)
    gc.collect()


def stop_setting_aside() -> None:
    if _after in gc.callbacks:
        gc.callbacks.remove(_after)


def look_at_everything() -> None:
    """Collect everything, including objects that became garbage after they were frozen."""
    gc.unfreeze()
    gc.collect()


def _after(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
