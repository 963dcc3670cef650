"""Files and command lines of an earlier version are accepted, and mean the same."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rich_click as click

from corral.cli.main import corral
from corral.client.credentials import read_credentials
from corral.core.image import Image, from_image, take_image
from corral.core.laws import check
from corral.wire.config import Config, parse_config
from corral.wire.job import read_job_file, read_sbatch
from tests.cli.typed import typed
from tests.compatibility.record import NOW_MS
from tests.compatibility.recorded import VERSION, lacking, recorded


def test_a_configuration_with_every_key_is_accepted(capfd: pytest.CaptureFixture[str]):
    config = parse_config(recorded("config.yaml"))
    assert isinstance(config, Config), config
    assert (config.port, config.agents.farewell_ms, config.accounts.default) == (7411, 60_000, "research")
    assert typed(capfd, "config", "check", str(VERSION / "config.yaml")).code == 0


@pytest.mark.parametrize("name", sorted(recorded("specs.json")))
def test_job_files_mean_what_they_meant(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(VERSION)  # an unnamed script is called after its file
    text = Path(name).read_text(encoding="utf-8")
    is_script = name.endswith(".sbatch")
    jobs = [read_sbatch(text, name, now_ms=NOW_MS)] if is_script else read_job_file(text, name, now_ms=NOW_MS)
    assert [str(fault) for job in jobs for fault in job.faults] == []
    specs = msgspec.json.decode(msgspec.json.encode([job.spec for job in jobs]))
    assert len(specs) == len(recorded("specs.json")[name])
    known = SCRIPTS if is_script else LINES
    changed = [each for each in lacking(recorded("specs.json")[name], specs, values=True) if not known.search(each)]
    assert changed == []


#: A line for the shell ran with sh; now it runs with bash where there is one, which accepts all that sh does.
LINES = re.compile(r"work\.command\[0\] was 'sh', is 'bash'$")


#: A script for Slurm was an argument of its shell and ran on every node; now it is a file on the first node, with the
#: output and the variables of Slurm. A signal ahead of the end came while the grace of 30 s ran on; now the grace is as
#: long as the script expects to have after its signal.
SCRIPTS = re.compile(r"work\.(command|env|output|error|launch|script)\b|^\[0\]\.grace_ms was 30000, is 120000$")


def test_stored_credentials_are_read(tmp_path: Path):
    path = tmp_path / "credentials.json"
    shutil.copy(VERSION / "credentials.json", path)
    path.chmod(0o600)
    found, stored = read_credentials(path), recorded("credentials.json")
    assert found is not None
    assert (found.url, found.token) == (stored["url"], stored["token"])


def test_an_image_is_loaded_and_saved_with_the_same_values():
    state = from_image(msgspec.json.decode((VERSION / "image.json").read_bytes(), type=Image))
    check(state)
    assert state.reservations
    saved = msgspec.json.decode(msgspec.json.encode(take_image(state)))
    assert list(lacking(recorded("image.json"), saved, values=True)) == []


def options(command: click.Command, path: tuple[str, ...]) -> set[str]:
    """The options of a command, hidden ones too."""
    for word in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None, path
        command = found
    found_options = [each for each in command.params if isinstance(each, click.Option)]
    return {name for each in found_options for name in (*each.opts, *each.secondary_opts)}


@pytest.mark.parametrize("words", sorted(recorded("cli.json")))
def test_every_command_is_there_with_all_its_options(words: str):
    before: list[str] = recorded("cli.json")[words]
    assert set(before) <= options(corral, tuple(words.split()))


def test_what_a_client_would_miss_is_found():
    old: dict[str, Any] = {"a": 1, "b": [{"c": "x"}], "d": None}
    assert list(lacking(old, {"a": 2, "b": [{"c": "y", "e": 1}], "d": 1, "f": 0})) == []
    assert list(lacking(old, {"a": "2", "b": [{}]})) == [".a was 1, is '2'", ".b[0].c is missing", ".d is missing"]
    assert list(lacking(old, old | {"b": []}, values=True)) == [".b is empty"]
    assert list(lacking([1], [2], values=True)) == ["[0] was 1, is 2"]
