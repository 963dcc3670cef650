"""``corral sim batch``: simulate a batching queue, or run the published example."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.cli.errors import Complaint

if TYPE_CHECKING:
    from corral.sim.batches.batch_study import BatchStudy


@click.command()
@click.option("--example", is_flag=True, help="Run 32 requests on three workers, beside a published run.")
@click.option("--fixed", type=click.FloatRange(min=0), default=20.0, show_default=True, help="Time per batch, in ms.")
@click.option("--each", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Time per item, in ms.")
@click.option("--size", type=click.IntRange(1, 4096), default=32, show_default=True, help="max_batch_size.")
@click.option("--wait", type=click.FloatRange(min=0), default=20.0, show_default=True, help="max_batch_wait, in ms.")
@click.option("--target", type=click.FloatRange(min=1), default=200.0, show_default=True, help="latency_target, in ms.")
@click.option("--workers", type=click.IntRange(1, 1024), default=1, show_default=True, help="Number of workers.")
@click.option("--items", type=click.IntRange(10, 1_000_000), default=1_000, show_default=True, help="Items per run.")
@click.option(
    "--rates",
    default="0.1,0.3,0.6,0.8,0.9",
    show_default=True,
    metavar="A,B,…",
    help="Arrival rates, as parts of what the workers can do with full batches.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the arrivals.")
@click.option("--html", metavar="FILE", help="Write the curve of throughput and latency over size and wait as a page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def batch(**given: Any) -> None:
    """Simulate a batching queue: one by one, fixed, adaptive, and the best possible for these arrivals.

    For example: corral sim batch --fixed 20 --each 1 --target 200 --html curve.html
    """
    if given["example"]:
        _example(given["as_json"])
        return
    from corral.sim.batches.batch_page import batch_page
    from corral.sim.batches.batch_study import study_rows

    study = _study(given)
    rows = study_rows(study)
    if given["html"]:
        Path(given["html"]).write_text(batch_page(study), encoding="utf-8")
    if given["as_json"]:
        import msgspec

        click.echo(json.dumps([msgspec.to_builtins(row) for row in rows], indent=2))
        return
    click.echo(f"{'arrivals/s':>10}  {'policy':<10}  {'items/s':>8}  {'p95 ms':>8}  {'batches':>7}  {'busy s':>7}")
    for row in rows:
        found = (
            "-" if row.p95_ms is None else f"{row.p95_ms:.0f}",
            "-" if row.batches is None else str(row.batches),
            "-" if row.busy_s is None else f"{row.busy_s:.2f}",
        )
        click.echo(
            f"{row.arrivals_per_s:>10.0f}  {row.policy:<10}  {row.items_per_s:>8.0f}  {found[0]:>8}  {found[1]:>7}  "
            f"{found[2]:>7}"
        )


def _study(given: dict[str, Any]) -> BatchStudy:
    from corral.sim.batches.batch_run import ServiceTimes
    from corral.sim.batches.batch_study import BatchStudy

    try:
        rates = tuple(float(each) for each in given["rates"].split(",") if each.strip())
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate <= 10 for rate in rates):
        raise Complaint(f"--rates cannot be {given['rates']!r}", "write it like 0.3,0.6,0.9")
    times = ServiceTimes(int(given["fixed"] * 1000), int(given["each"] * 1000))
    if times.batch_us(1) < 1:
        raise Complaint("a batch cannot take no time", "set --fixed or --each above 0")
    return BatchStudy(
        times=times,
        workers=given["workers"],
        items=given["items"],
        size=given["size"],
        wait_us=int(given["wait"] * 1000),
        target_us=int(given["target"] * 1000),
        rates=rates,
        seed=given["seed"],
    )


def _example(as_json: bool) -> None:
    from corral.sim.batches.batch_example import ASSUMPTIONS, PUBLISHED, run_example

    ours, single = run_example(), run_example(size=1)
    rows: dict[str, dict[str, float]] = {
        "published": {
            "requests": PUBLISHED.requests,
            "batches": PUBLISHED.batches,
            "mean_wait_ms": PUBLISHED.mean_wait_ms,
            "items_per_s": PUBLISHED.items_per_s,
        }
    }
    for name, run in (("corral", ours), ("one by one", single)):
        rows[name] = {
            "requests": run.completed,
            "batches": len(run.batches),
            "mean_wait_ms": round(run.mean_wait_ms, 1),
            "items_per_s": round(run.items_per_s, 1),
        }
    if as_json:
        click.echo(json.dumps({"runs": rows, "assumptions": ASSUMPTIONS}, indent=2))
        return
    click.echo(f"{'':<10}  {'requests':>8}  {'batches':>7}  {'mean wait ms':>12}  {'requests/s':>10}")
    for name, row in rows.items():
        counts = f"{name:<10}  {row['requests']:>8}  {row['batches']:>7}"
        click.echo(f"{counts}  {row['mean_wait_ms']:>12}  {row['items_per_s']:>10}")
    click.echo("\nassumptions:")
    for line in ASSUMPTIONS:
        click.echo(f"  {line}")
