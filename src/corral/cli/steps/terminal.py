"""This process's terminal for a process elsewhere: raw while it runs, and as before when this one ends."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.runtime.steps.step_client import StepPlan


def give_terminal(plan: StepPlan) -> None:
    """Without a terminal the process gets one of 24 lines all the same."""
    plan.input, plan.labels = 0, False
    plan.terminal = (24, 80)
    try:
        size = os.get_terminal_size(0)
    except OSError:
        return
    plan.terminal = (size.lines, size.columns)
    import atexit
    import termios
    import tty

    before = termios.tcgetattr(0)
    tty.setraw(0)
    atexit.register(termios.tcsetattr, 0, termios.TCSADRAIN, before)
