"""Every command line in a page is accepted by the real command line: commands, options, arguments and their types."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from corral.wire.job.directives import BY_NAME
from tests.architecture.documented_commands import commands_in, fault_of
from tests.architecture.repository import ROOT, markdown_pages

#: The changelog names commands of earlier versions; docs/cli.md is made from the commands themselves.
PAGES = [page for page in markdown_pages() if page.name not in {"CHANGELOG.md", "cli.md"}]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_line_of_a_page_is_accepted(page: Path) -> None:
    commands = commands_in(page.read_text(encoding="utf-8"))
    faults = [f"{command}: {fault}" for command in commands if (fault := fault_of(command))]
    assert faults == []


def test_command_lines_are_found_at_all() -> None:
    assert sum(len(commands_in(page.read_text(encoding="utf-8"))) for page in PAGES) > 150


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("`corral node explode n1`", "there is no command 'corral node explode'"),
        ("```sh\ncorral up --cluster \\\n    --colour red\n```", "--colour"),
        ("```console\n$ corral ps --limit seventeen\n```", "'seventeen'"),
        ("```\ncorral logs\n```", "Missing"),
        ("`corral logs`, `corral submit --gpus`, `corral why JOB`", ""),
        ("    corral db backup --data /var/lib/corral x.gz", ""),
        ("```python\nfrom corral import training\n```\n\n`corral ps`", ""),
    ],
)
def test_what_does_not_exist_is_found(text: str, fault: str) -> None:
    faults = [fault_of(command) for command in commands_in(text)]
    assert faults
    assert all(fault in found if fault else not found for found in faults), faults


SLURM = (ROOT / "docs" / "coming-from-slurm.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "word",
    [
        "sbatch", "srun", "salloc", "sattach", "squeue", "sprio", "scancel", "sacct", "sreport", "sstat", "sshare",
        "sinfo", "sdiag", "scontrol hold", "scontrol show job", "scontrol show node", "scontrol update job",
        "scontrol create", "sacctmgr", "account", "partition", "QOS", "association", "GRES", "TRES", "job step",
        "job array", "dependency", "heterogeneous job", "reservation", "backfill", "fair share", "prolog", "slurmctld",
    ],
)  # fmt: skip
def test_commands_and_words_of_slurm_have_a_row(word: str) -> None:
    rows = [line.split("|")[1] for line in SLURM.splitlines() if line.startswith("| ")]
    assert any(word in row for row in rows)


def test_every_option_of_sbatch_that_has_a_meaning_has_a_row() -> None:
    rows = [line.split("|")[1] for line in SLURM.splitlines() if line.startswith("| `--")]
    named = set(re.findall(r"--([a-z-]+)", " ".join(rows)))
    assert {option.name for option in BY_NAME.values() if not option.note} - named == set()
