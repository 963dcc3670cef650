"""What operators are told to type exists: every command and option in docs/operate, and units that systemd accepts."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import rich_click as click

from corral.cli.main import corral
from tests.architecture.repository import ROOT

PAGES = sorted((ROOT / "docs" / "operate").glob("*.md"))
UNITS = sorted((ROOT / "packaging" / "systemd").glob("*.service"))
_SPANS = re.compile(r"```(?:sh)?\n(.*?)```|`([^`\n]+)`|^    (\S.*)$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"(?:^|[\s/(])corral ([a-z][^#|>;()`]*)")


def commands_in(text: str) -> list[list[str]]:
    """The words after ``corral``, wherever a page shows something to type."""
    found = []
    for block, span, indented in _SPANS.findall(text):
        shown = (block or span or indented).replace("\\\n", " ")
        for line in shown.splitlines():
            if line.lstrip().startswith(("podman build", "useradd")):
                continue  # there it is a name
            found += [shlex.split(words.replace("'", " "), posix=True) for words in _COMMAND.findall(line)]
    return found


def fault_of(words: list[str]) -> str:
    """What is wrong with a command; empty: nothing."""
    command: click.Command = corral
    context = click.Context(corral, info_name="corral")
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        below = command.get_command(context, rest[0])
        if below is None:
            return f"there is no command {rest[0]!r}"
        context, command = click.Context(below, parent=context, info_name=rest.pop(0)), below
    known = {name for each in command.get_params(context) for name in (*each.opts, *each.secondary_opts)}
    stated = [word.partition("=")[0] for word in rest if re.fullmatch(r"--?[a-z][a-z-]*(=.*)?", word)]
    unknown = [option for option in stated if option not in known]
    return f"there is no option {unknown}" if unknown else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_that_operators_are_told_to_type_exists(page: Path) -> None:
    commands = commands_in(page.read_text())
    faults = [f"corral {' '.join(words)}: {fault}" for words in commands if (fault := fault_of(words))]
    assert faults == []


def test_commands_are_found_at_all() -> None:
    assert sum(len(commands_in(page.read_text())) for page in PAGES) > 60


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("`corral node explode n1`", "there is no command 'explode'"),
        ("```sh\ncorral up --cluster \\\n    --colour red\n```", "there is no option ['--colour']"),
        ("    corral db backup --data /var/lib/corral x.gz", ""),
    ],
)
def test_what_does_not_exist_is_found(text: str, fault: str) -> None:
    (words,) = commands_in(text)
    assert fault_of(words) == fault


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_are_what_systemd_accepts(unit: Path, tmp_path: Path) -> None:
    parsed = configparser.RawConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(unit.read_text())
    assert parsed.sections() == ["Unit", "Service", "Install"]
    program, *words = shlex.split(parsed["Service"]["ExecStart"])
    assert program == "/opt/corral/bin/corral"
    assert fault_of(words) == ""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(program, "/bin/true").replace("=corral\n", "=daemon\n"))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60)
    told = [line for line in done.stderr.splitlines() if "DelegateSubgroup" not in line]  # systemd below 254
    assert (done.returncode, told) == (0, [])


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
