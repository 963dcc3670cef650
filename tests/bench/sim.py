"""How fast the simulator is: events a second of CPU on real and made-up workloads, as a table and as JSON.

An event is one entry of the journal; a job that is never disturbed gives six. All the engine and the simulator do is
counted: react, plan, commit, apply, the world, the history. Reading the trace and measuring the result are not. How
much CPU time an event costs is also given as a ratio to the calibration loop of the engine's benchmark.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import sys
from pathlib import Path
from time import process_time
from typing import Any

if not __package__:  # run as a file: the root of the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from corral.core.engine import Policy
from corral.core.intake.refusal import Refusal
from corral.policy.backfill.backfill import EASY
from corral.policy.cycle.order import ByArrival
from corral.policy.cycle.parts import Parts
from corral.policy.cycle.standard import Standard
from corral.sim.cluster_spec import ClusterSpec, build_cluster, parse_cluster
from corral.sim.history import Recorder
from corral.sim.learning import Learner
from corral.sim.research.published import policy as named_policy
from corral.sim.run import Simulation
from corral.sim.traces.catalog import FOLDER_VARIABLE, open_trace
from corral.sim.traces.trace import Trace, TraceJob
from corral.sim.workload import SubmissionTerms, arrivals_of, exact, queues_of
from tests.bench.engine import calibrate, rss_mib

MINUTE_MS = 60_000


def timed(
    trace: Trace, cluster: ClusterSpec, policy: Policy | str, terms: SubmissionTerms, is_learning: bool
) -> dict[str, Any]:
    """A whole run, and what it cost."""
    chosen = named_policy(policy) if isinstance(policy, str) else policy
    assert not isinstance(chosen, Refusal), chosen
    recorder = Recorder()
    arrivals, before = arrivals_of(trace, cluster, terms), calibrate()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    begin = process_time()
    simulation = Simulation(
        cluster,
        arrivals,
        chosen,
        recorder,
        queues=queues_of(trace),
    )
    if is_learning:
        simulation.admit = Learner(simulation.state).admit
    simulation.run()
    spent = process_time() - begin
    events, loop = recorder.history.events, min(before, calibrate())
    return {
        "jobs": len(arrivals),
        "events": events,
        "cpu_s": spent,
        "events_per_cpu_s": events / spent,
        "us_per_event": spent / events * 1e6,
        "ratio": spent / events * 1e6 / loop,
        "calibration_ms": loop,
        "rss_mib": rss_mib(),
    }


def from_folder(folder: str, name: str, nodes: str, policy: str) -> dict[str, Any]:
    trace, cluster = open_trace(name, folder), parse_cluster(nodes)
    assert not isinstance(cluster, Refusal), cluster
    if policy == "easy":
        return timed(trace, cluster, Standard(Parts(ByArrival(), EASY)), SubmissionTerms(estimate=exact), False)
    return timed(trace, cluster, policy, SubmissionTerms(), policy == "standard")


def month(policy: str) -> dict[str, Any]:
    """200,000 jobs in a month on 10,000 GPUs of two models, three levels of topology."""
    trace = open_trace("synthetic:large")
    cluster = build_cluster(trace.nodes, (("rack", 10), ("spine", 5), ("zone", 5)))
    return timed(trace, cluster, policy, SubmissionTerms(), True)


def steady(jobs: int) -> dict[str, Any]:
    """This many jobs at constant load: what an event costs must not depend on how many there were before."""
    sizes, lengths = (1, 1, 1, 2, 1, 4, 1, 8), (7, 31, 3, 13, 59, 5, 17)
    each = [
        TraceJob(
            id=f"j{at}",
            submit_ms=(at + 1) * MINUTE_MS // 2,
            work_ms=lengths[at * 5 % 7] * MINUTE_MS,
            gpus=sizes[at * 3 % 8],
            team=f"t{at % 5}",
        )
        for at in range(jobs)
    ]
    cluster = parse_cluster("16x8")
    assert not isinstance(cluster, Refusal)
    return timed(Trace("steady", tuple(each)), cluster, "fifo", SubmissionTerms(), False)


def apart(part: Any, *given: Any) -> dict[str, Any]:
    """The part in a fresh process, so that neither its memory nor its garbage is another's."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found: dict[str, Any] = pool.apply(part, given)
        return found


def main(folder: str, quick: bool) -> None:
    load = os.getloadavg()
    print(f"load average {load[0]:.2f} {load[1]:.2f} {load[2]:.2f}; CPU time; ratio: of 1,000 events to the loop\n")
    found: dict[str, Any] = {"load_average": load[0], "is_quick": quick}

    def tell(key: str, what: str, aim: str, each: dict[str, Any]) -> None:
        found[key] = each
        print(
            f"{what:<52} {each['events_per_cpu_s']:>9,.0f} events/s  {each['cpu_s']:>7.1f} s  "
            f"{each['rss_mib']:>6,.0f} MiB  {each['ratio']:.3f}  {aim}",
            flush=True,
        )

    if folder:
        for name, nodes in (("A", "5x8"), ("D", "8x8")):
            for policy, aim in (("fifo", ">= 20,000"), ("standard", ">= 5,000")):
                each = apart(from_folder, folder, f"philly:{name}", nodes, policy)
                tell(f"philly_{name}_{policy}", f"philly:{name}, {policy}", aim, each)
        tell(
            "itp07_easy",
            "itp:cluster07 (12,699 jobs), EASY, 288 GPUs",
            "under 10 s",
            apart(from_folder, folder, "itp:cluster07", "count:288", "easy"),
        )
    else:
        print(f"{FOLDER_VARIABLE} is not set: left out what needs the public traces")
    small, large = apart(steady, 10_000), apart(steady, 50_000 if quick else 1_000_000)
    tell("steady_small", "10,000 jobs at constant load", "", small)
    tell("steady_large", f"{large['jobs']:,} jobs at constant load", "", large)
    found["growth_ratio"] = large["ratio"] / small["ratio"]
    print(f"{'growth of the cost of an event':<52} {found['growth_ratio']:>9.2f} x  aim <= 1.2")
    if not quick:
        tell("month", "a month, 10,000 GPUs, 200,000 jobs, standard", "under 600 s and 4 GiB", apart(month, "standard"))
    print()
    print(json.dumps(found, default=float))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", default=os.environ.get(FOLDER_VARIABLE, ""), help="where the traces lie")
    parser.add_argument("--quick", action="store_true", help="a minute or two: no month, 50,000 jobs at constant load")
    given = parser.parse_args()
    main(given.folder, given.quick)
