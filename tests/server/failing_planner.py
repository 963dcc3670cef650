"""The planner with a policy that cannot cope with some jobs, by their names: for tests of what is then done."""

import os
import signal
import sys
import time

from corral.core.plan import Plan
from corral.core.snapshot import Snapshot
from corral.policy.catalog import standard
from corral.server.planner import process


def poisoned(depth: int, patience_ms: int) -> object:
    whole = standard(depth=depth, patience_ms=patience_ms)

    def policy(snapshot: Snapshot) -> Plan:
        state = snapshot.state
        names = {state.jobs[state.gangs[name].job].spec.name for line in state.backlog.entries() for name in line}
        if "raises" in names:
            raise KeyError("a fault of the policy")
        if "hangs" in names:
            time.sleep(3600)
        if "crashes" in names:
            os.kill(os.getpid(), signal.SIGKILL)
        if state.nodes and any(node.drained for node in state.nodes.values()):
            raise ValueError("no job is to blame for this")
        return whole(snapshot)

    return policy


if __name__ == "__main__":
    vars(process)["standard"] = poisoned
    process.main(sys.argv[1])
