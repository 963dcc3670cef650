"""What the default policy gains over the naive one, on public workloads: waiting, GPU uptime, and what it costs.

Every policy meets the same costs (starting, saving, stopping, restarting) and knows no more than a site would: lengths
of jobs are learned from those that ended. Prints a table in Markdown and ends with one line of JSON. The traces are not
part of the project: `CORRAL_TRACES` names the folder they lie in.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from corral.core.intake.refusal import Refusal
from corral.sim.cluster_spec import build_cluster, parse_cluster
from corral.sim.experiment import Scenario, simulate
from corral.sim.traces.catalog import FOLDER_VARIABLE, open_trace
from corral.sim.world import TYPICAL

#: (workload, machines); "" are those that the workload names
WORKLOADS = (
    ("philly:A", "5x8"),
    ("philly:D", "8x8"),
    ("itp:cluster06", "count:96"),
    ("shockwave:120", "8x4"),
    ("shockwave:120", "6x4"),
    ("muri:trace3", "8x8"),
    ("synthetic:overload", ""),
)
#: (what it is called, policy, time sharing)
RIVALS = (
    ("naive: strict FIFO", "strict_fifo", 0),
    ("standard", "standard", 0),
    ("standard, sharing time", "standard", 4),
)


def measured(folder: str, what: tuple[str, str, int]) -> dict[str, Any]:
    """One workload on some machines under one policy."""
    name, nodes, rival = what
    called, policy, time_share = RIVALS[rival]
    trace = open_trace(name, folder)
    cluster = parse_cluster(nodes) if nodes else build_cluster(trace.nodes)
    assert not isinstance(cluster, Refusal), cluster
    scenario = Scenario(policy=policy, time_share=time_share, costs=TYPICAL, slowdown=None)
    result = simulate(trace, cluster, scenario)
    assert not isinstance(result, Refusal), result
    measures = result.measures
    largest = list(measures.sizes.values())[-1]
    assert measures.total.waiting_ms is not None
    assert measures.total.completion_ms is not None
    assert largest.waiting_ms is not None
    return {
        "workload": name,
        "gpus": cluster.gpus,
        "jobs": len(trace.jobs),
        "policy": called,
        "waiting_h": measures.total.waiting_ms.mean / 3_600_000,
        "largest_p99_h": largest.waiting_ms.p99 / 3_600_000,
        "completion_h": measures.total.completion_ms.mean / 3_600_000,
        "utilisation": measures.cluster.utilisation_in_window,
        "utilisation_in_span": measures.cluster.utilisation_in_span,
        "uptime": measures.cluster.uptime_in_window,
        "uptime_in_span": measures.cluster.uptime_in_span,
        "uptime_while_waiting": measures.cluster.uptime_while_waiting,
        "preemptions": measures.total.preemptions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", default=os.environ.get(FOLDER_VARIABLE, ""), help="where the traces lie")
    parser.add_argument("--only", default="", help="only workloads whose name has this in it")
    given = parser.parse_args()
    if not given.folder or not Path(given.folder).is_dir():
        parser.error(f"no folder with the public traces: name it, or set {FOLDER_VARIABLE} (see docs/traces.md)")
    questions = [(*each, at) for each in WORKLOADS if given.only in each[0] for at in range(len(RIVALS))]
    columns = (
        "workload (GPUs)",
        "policy",
        "mean wait",
        "against naive",
        "p99 wait, largest jobs",
        "mean completion",
        "utilisation",
        "GPU uptime",
        "against naive",
        "GPU uptime while work waits",
        "against naive",
        "preemptions",
    )
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    found: list[dict[str, Any]] = []  # each group of rivals begins with the naive one
    with ProcessPoolExecutor() as pool:
        for each in pool.map(partial(measured, given.folder), questions):
            naive = each if each["policy"] == RIVALS[0][0] else found[-1]["naive"]
            found.append(each)
            each["naive"] = naive
            each["waiting_less"] = 1 - each["waiting_h"] / naive["waiting_h"]
            each["uptime_more"] = each["uptime"] / naive["uptime"] - 1
            each["uptime_while_waiting_more"] = each["uptime_while_waiting"] / naive["uptime_while_waiting"] - 1
            print(
                f"| {each['workload']} ({each['gpus']}) | {each['policy']} | {each['waiting_h']:.2f} h "
                f"| {-100 * each['waiting_less']:+.0f} % | {each['largest_p99_h']:.1f} h "
                f"| {each['completion_h']:.2f} h | {100 * each['utilisation']:.1f} % | {100 * each['uptime']:.1f} % "
                f"| {100 * each['uptime_more']:+.0f} % | {100 * each['uptime_while_waiting']:.1f} % "
                f"| {100 * each['uptime_while_waiting_more']:+.0f} % | {each['preemptions']:,} |",
                flush=True,
            )
    print()
    print(json.dumps([{key: value for key, value in each.items() if key != "naive"} for each in found]))


if __name__ == "__main__":
    main()
