"""``corral goodput``: which part of the time was training, and what the rest was lost to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.render import count, print_line, table, write_json
from corral.cli.session import connected
from corral.duration_text import span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.wire.api.record import IntervalView

#: What each cause of `corral.core.goodput` means to a user.
CAUSE_TEXT = {
    "trained": "trained, and kept",
    "unsaved": "trained since the last checkpoint",
    "queue": "waited in the queue",
    "start": "started: processes, rendezvous, first step",
    "saving": "stood still to save",
    "lost": "trained again after failures",
    "repair": "broken, until a node was replaced and the ranks had started",
    "straggler": "waited for a slow rank",
    "stopping": "leaving: saved and ended after a warning",
}


@click.command()
@click.argument("job", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
def goodput(job: str | None, as_json: bool) -> None:
    """Show which part of its time a job has trained, what the rest was lost to, and how often it should save.

    Without JOB: the GPU time of all jobs since the server started.
    """
    with connected() as client:
        found = client.goodput(job)
    if as_json:
        write_json(found)
        return
    whose = f"job {job}" if job else "all jobs"
    print_line(f"effective training time of {whose}: {found.ratio_ppm / 10_000:.2f} %")
    if job:
        parts = (count(found.attempts, "attempt"), count(found.failures, "failure"), count(found.saves, "checkpoint"))
        print_line(", ".join(parts))
    for line in causes_table(found.ms, "GPU TIME" if found.is_gpu_time else "IN ALL"):
        print_line(line)
    if found.advice is not None:
        for line in advice_text(found.advice):
            print_line(line)


def causes_table(times: Mapping[str, int], title: str = "IN ALL") -> list[str]:
    """The largest first, with parts of the whole."""
    total = sum(times.values())
    largest_first = sorted(times.items(), key=lambda each: -each[1])
    rows = [[CAUSE_TEXT.get(cause, cause), f"{100 * ms / total:.3f} %", span(ms)] for cause, ms in largest_first if ms]
    return table(["TIME", "PART", title], rows) if rows else []


def advice_text(advice: IntervalView) -> list[str]:
    loss = advice.saving_ppm + advice.repeated_ppm + advice.restarting_ppm
    parts = (
        f"saving {advice.saving_ppm / 10_000:.2f} %, repeated work {advice.repeated_ppm / 10_000:.2f} %, "
        f"restarts {advice.restarting_ppm / 10_000:.2f} %"
    )
    costs = (
        f"a save takes {span(advice.save_ms)} and stops training for {span(advice.stall_ms)}; "
        f"failures every {span(advice.mtbf_ms)}; a restart takes {span(advice.restart_ms)}"
    )
    interval = f"advised: a checkpoint every {span(advice.interval_ms)}"
    return [f"{interval}; expected loss {loss / 10_000:.2f} % ({parts})", f"  {costs}"]
