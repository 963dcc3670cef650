"""Whether queues stayed within their budgets in every window, counting what was really held, from the journal."""

from __future__ import annotations

from tests.judges.runs.lives import lives
from tests.judges.runs.site import HOUR, START_MS, Run


def judge_budgets(run: Run, slack_ms: int = 0) -> list[str]:
    """``slack_ms``: so much longer than it was said to each attempt may hold its GPUs, to save and leave."""
    found, known = [], lives(run)
    for spec in run.site.queues:
        budget = spec.budget
        if budget is None:
            continue
        stays = [stay for life in known.values() if _is_below(life.queue, spec.name) for stay in life.stays]
        begin = budget.anchor_ms + (START_MS - budget.anchor_ms) // budget.window_ms * budget.window_ms
        while begin < run.end_ms:
            end = begin + budget.window_ms
            here = [(stay.gpus, held) for stay in stays if (held := stay.held_ms(begin, min(end, run.end_ms)))]
            used, slack = sum(gpus * held for gpus, held in here), sum(gpus * slack_ms for gpus, _ in here)
            if used > budget.gpu_ms + slack:
                hours = f"{used / HOUR:.1f} GPU hours instead of {budget.gpu_ms / HOUR:.1f}"
                found.append(f"{spec.name} used {hours} in the window at {(begin - START_MS) / HOUR:.0f} h")
            begin = end
    return found


def _is_below(name: str, queue: str) -> bool:
    return name == queue or name.startswith(f"{queue}/")
