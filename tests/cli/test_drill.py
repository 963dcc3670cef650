"""Drills and clearings as they are typed on a machine: what is written down, and what is refused."""

import pytest

from corral.health.fault_injection import InjectedFault, health_folder, read_clearings, read_drills
from tests.cli.typed import typed

DRILLS = {
    "hot": (("--temperature", "97"), InjectedFault(temperature_c=97)),
    "slowed down": (("--throttle", "hw_thermal"), InjectedFault(throttle="hw_thermal")),
    "memory": (("--uncorrected", "2", "--corrected", "9"), InjectedFault(uncorrected=2, corrected=9)),
    "rows": (("--remap-failed",), InjectedFault(remap_failed=True)),
    "links": (("--link-down", "0", "--link-down", "4"), InjectedFault(links_down=(0, 4))),
    "lanes": (("--pcie-width", "4"), InjectedFault(pcie_width=4)),
    "gone": (("--vanish", "--fail-probe"), InjectedFault(vanished=True, probe_fails=True)),
}


@pytest.mark.parametrize(("words", "drill"), DRILLS.values(), ids=DRILLS)
def test_a_drill_is_written_down(capsys, tmp_path, words, drill):
    ran = typed(capsys, "node", "drill", "--data", str(tmp_path), "--gpu", "3", *words)
    assert (ran.code, ran.out) == (0, "GPU 3: the fault is simulated; see: corral node show\n")
    assert read_drills(health_folder(tmp_path)) == {3: drill}


def test_drills_of_one_gpu_add_up_until_they_end(capsys, tmp_path):
    for words in (("--xid", "79"), ("--xid", "48"), ("--temperature", "95")):
        typed(capsys, "node", "drill", "--data", str(tmp_path), "--gpu", "1", *words)
    (drill,) = read_drills(health_folder(tmp_path)).values()
    assert ([each.xid for each in drill.xids], drill.temperature_c) == ([79, 48], 95)
    assert "ended" in typed(capsys, "node", "drill", "--data", str(tmp_path), "--gpu", "1", "--end").out
    assert read_drills(health_folder(tmp_path)) == {}


def test_a_drill_of_nothing_is_refused(capsys, tmp_path):
    ran = typed(capsys, "node", "drill", "--data", str(tmp_path), "--gpu", "1")
    assert ran.code != 0
    assert "--xid 79" in ran.err


def test_clearings_are_written_down(capsys, tmp_path):
    assert "GPU 2" in typed(capsys, "node", "clear", "--data", str(tmp_path), "--gpu", "2").out
    assert "this machine" in typed(capsys, "node", "clear", "--data", str(tmp_path)).out
    assert [each.gpu for each in read_clearings(health_folder(tmp_path))] == [2, None]
