"""The units that operators install: systemd accepts them, and the real command line accepts their commands."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.documented_commands import Command, fault_of
from tests.architecture.repository import ROOT

UNITS = sorted((ROOT / "packaging" / "systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_are_what_systemd_accepts(unit: Path, tmp_path: Path) -> None:
    parsed = configparser.RawConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(unit.read_text())
    assert parsed.sections() == ["Unit", "Service", "Install"]
    program, *words = shlex.split(parsed["Service"]["ExecStart"])
    assert program == "/opt/corral/bin/corral"
    assert fault_of(Command(tuple(words), True)) == ""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(program, "/bin/true").replace("=corral\n", "=daemon\n"))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60)
    complaints = [line for line in done.stderr.splitlines() if "DelegateSubgroup" not in line]  # systemd below 254
    assert (done.returncode, complaints) == (0, [])


def test_restarting_the_agent_leaves_its_tasks_alone() -> None:
    text = (ROOT / "packaging" / "systemd" / "corral-agent.service").read_text()
    for line in ("KillMode=process", "Delegate=yes", "DelegateSubgroup=corral-server", "OOMPolicy=continue"):
        assert f"\n{line}\n" in text
    for taken in ("NoNewPrivileges", "PrivateTmp", "ProtectSystem", "ProtectHome", "PrivateDevices"):
        assert taken not in text, "tasks inherit it"


def test_the_leaf_of_the_unit_is_the_one_that_limits_expect() -> None:
    from corral.runtime.local.task import cgroups

    assert cgroups._LEAF == "corral-server"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_are_started_again_however_often_they_end(unit: Path) -> None:
    """By default systemd gives up after five ends in ten seconds: a database that is away would end all servers."""
    text = unit.read_text()
    assert "StartLimitIntervalSec=0" in text
    assert "Restart=always" in text
