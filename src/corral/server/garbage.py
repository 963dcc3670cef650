"""How often a process that keeps many jobs looks for garbage among them.

Nearly all that it keeps are jobs, which are no garbage until they are forgotten, and then need no look. With 100,000 of
them each whole look takes a tenth of a second, more than once a second while jobs come in, and meanwhile nobody is
answered. So what has survived a whole look is left out of the next ones; at everything one looks now and then.
"""

from __future__ import annotations

import gc

WHOLE_LOOK_S = 600.0


def set_survivors_aside() -> None:
    """From now on, in this process. What is there already is looked at once."""
    if _after not in gc.callbacks:
        gc.callbacks.append(_after)
    gc.collect()


def stop_setting_aside() -> None:
    if _after in gc.callbacks:
        gc.callbacks.remove(_after)


def look_at_everything() -> None:
    """For what has become garbage after it was set aside."""
    gc.unfreeze()
    gc.collect()


def _after(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
