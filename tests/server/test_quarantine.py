"""A report that cannot be taken is put aside: the server goes on, and says so."""

import pytest

from corral.core.cluster.resources import Gpu
from corral.core.cluster.topology import NodeSpec
from corral.core.laws import check
from corral.core.model import GangState, Health
from corral.runtime.base import HealthReport, NodePhase, NodeReport, Phase, SavedReport, TaskKey, TaskReport
from corral.runtime.fake import FakeBackend, FakeScript
from corral.server.server import Server
from tests.server.servers import NODE, job, running, until


def hear(server: Server, *reports: object) -> None:
    server._reports.extend(reports)  # type: ignore[arg-type]
    server._take_reports()


async def test_a_task_number_that_cannot_be_changes_nothing(tmp_path):
    """It was shifted by: negative shift count, and the server ended; a large one took all memory."""
    async with running(tmp_path, backend=FakeBackend([NODE], lambda _: FakeScript(runs_ms=600_000))) as server:
        state, gang = server.service.state, "1/main"
        await server.service.submit("root", [job()])
        await until(lambda: state.gangs[gang].state is GangState.RUNNING)
        for task in (-1, 1, 2**40):
            key = TaskKey(gang, 1, task)
            hear(server, TaskReport(key=key, phase=Phase.DOWN, at_ms=1, node="here"), SavedReport(key, 5))
        hear(server, SavedReport(TaskKey(gang, 1, 0), 2**63), SavedReport(TaskKey(gang, 1, 0), -1))
        assert server.durability.failure is None
        assert (state.gangs[gang].state, state.gangs[gang].saved_step) == (GangState.RUNNING, -1)
        check(state)


async def test_a_report_that_raises_is_put_aside_and_those_after_it_are_taken(tmp_path, monkeypatch):
    async with running(tmp_path) as server:
        taken = server._dispatch.fact

        def picky(report):
            if isinstance(report, HealthReport) and report.why == "poison":
                raise ZeroDivisionError("poison")
            return taken(report)

        monkeypatch.setattr(server._dispatch, "fact", picky)
        poison = HealthReport("here", None, Health.SUSPECT, "poison")
        hear(server, poison, HealthReport("here", None, Health.SUSPECT, "dust"))
        assert server.durability.failure is None
        assert server.quarantined_reports == 1
        assert server.service.state.nodes["here"].why == "dust"


async def test_a_node_describes_itself_and_no_other(tmp_path):
    async with running(tmp_path) as server:
        ghost = NodeSpec("ghost", tuple(Gpu(f"GPU-{n}", "H100", 80_000) for n in range(64)))
        hear(server, NodeReport("here", NodePhase.JOINED, ghost))
        assert server._joined == {}


@pytest.mark.parametrize("report", [HealthReport("nowhere", 3, Health.FAILED), NodeReport("nowhere", NodePhase.GONE)])
async def test_what_is_said_of_a_node_that_is_not_there_changes_nothing(tmp_path, report):
    async with running(tmp_path) as server:
        seq = server._journal.head.seq
        hear(server, report)
        assert server._journal.head.seq == seq
