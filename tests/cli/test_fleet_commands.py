"""``corral fleet`` as typed, with your own commands as the provider: the life of a fleet, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.cli.fleet.testbed_parts import Testbed
from tests.cli.typed import Typed, typed
from tests.providers.command_provider import SCRIPT, end_all


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    bed = Testbed(tmp_path_factory.mktemp("bed"), 0, lease_ms=2_000)
    bed.start()
    yield bed
    bed.stop()


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "cloud"
    folder.mkdir()
    yield folder
    end_all(folder)


@pytest.fixture
def corral(bed: Testbed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Typed]:
    monkeypatch.setenv("CORRAL_URL", bed.url)
    monkeypatch.setenv("CORRAL_TOKEN", bed.credentials().token)
    return lambda *words: typed(capsys, *words)


def hooks(cloud: Path) -> list[str]:
    return [
        word
        for what in ("acquire", "release", "look")
        for word in (f"--{what}", f"{sys.executable} {SCRIPT} {what} {cloud}")
    ]


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_the_life_of_a_fleet(corral: Callable[..., Typed], cloud: Path) -> None:
    done = corral("fleet", "up", "lab", "--on", "command", "--nodes", "2", *hooks(cloud))
    assert (done.code, "fleet lab is set to 2 nodes on command" in done.out) == (0, True)
    until(lambda: json.loads(corral("fleet", "show", "lab", "--json").out)["joined"] == 2)
    listed = corral("fleet", "list").out
    assert "2/2" in listed
    assert "ready" in listed
    shown = corral("fleet", "show", "lab").out
    assert "lab-1" in shown
    assert "process" in shown
    node = corral("node", "show", "lab-1").out
    assert "fleet lab (process" in node
    again = corral("fleet", "up", "lab", "--on", "command", "--nodes", "1", *hooks(cloud))
    assert again.code == 0, "said again it is the same fleet"
    until(lambda: json.loads(corral("fleet", "show", "lab", "--json").out)["joined"] == 1)
    assert corral("fleet", "scale", "lab", "--nodes", "0..1", "--idle", "1s").code == 0
    until(lambda: not json.loads(corral("fleet", "show", "lab", "--json").out)["pilots"])
    events = corral("fleet", "events", "lab").out
    for words in ("fleet lab set to 2 nodes", "pilot lab-1 joined", "the fleet was reduced", "idle"):
        assert words in events
    assert corral("fleet", "events", "other").out == ""
    down = corral("fleet", "down", "lab")
    assert (down.code, "given back" in down.out) == (0, True)
    until(lambda: json.loads(corral("fleet", "list", "--json").out) == [])


REFUSED = {
    "no engine": (("fleet", "up", "x"), "--on"),
    "an unknown engine": (("fleet", "up", "x", "--on", "slrum"), "slurm"),
    "an option of another engine": (
        ("fleet", "up", "x", "--on", "slurm", "--hosts", "h.yaml"),
        "--hosts does not apply",
    ),
    "a range that is none": (("fleet", "up", "x", "--on", "slurm", "--nodes", "8..2"), "write 8, or 0..8"),
    "no command": (("fleet", "up", "x", "--on", "command", "--acquire", "true"), "needs --release"),
    "GPUs that are none": (("fleet", "up", "x", "--on", "slurm", "--fake-gpus", "9xB9"), "does not describe GPUs"),
    "a name that is none": (("fleet", "up", "a b", "--on", "slurm"), "is not a valid fleet name"),
    "a cost without a price": (("fleet", "up", "x", "--on", "slurm", "--cost-max", "5"), "set a price"),
    "a fleet that is not there": (("fleet", "scale", "x", "--nodes", "3"), "x"),
    "nothing said": (("fleet", "scale", "x"), "give --nodes"),
}


@pytest.mark.parametrize(("words", "told"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_is_refused_with_what_to_do(
    corral: Callable[..., Typed], words: tuple[str, ...], told: str
) -> None:
    done = corral(*words)
    assert done.code != 0
    assert told in done.err
    assert "Traceback" not in done.err


def test_an_engine_that_is_not_here_is_trouble_of_its_fleet_alone(
    corral: Callable[..., Typed], bed: Testbed, cloud: Path
) -> None:
    assert corral("fleet", "up", "gone", "--on", "command", "--acquire", "/no/such", "--release", "/no", "--look",
                  "/no").code == 0  # fmt: skip
    until(lambda: "/no/such" in corral("fleet", "list", "--json").out)
    assert corral("fleet", "up", "well", "--on", "command", *hooks(cloud)).code == 0
    until(lambda: json.loads(corral("fleet", "show", "well", "--json").out)["joined"] == 1)
    for name in ("gone", "well"):
        corral("fleet", "down", name)
    until(lambda: json.loads(corral("fleet", "list", "--json").out) == [])
    with bed.client() as client:
        assert client.health().status == "ok"


def test_nothing_of_an_engine_is_loaded_by_a_server_that_has_no_fleet() -> None:
    code = (
        "import sys, corral.server.main, corral.cli.fleet.fleet; "
        "own = ('slurm', 'ssh', 'ray', 'command'); "
        "print([m for m in sys.modules if m.split('.')[0] == 'ray' or "
        "any(m.startswith('corral.providers.' + each) for each in own)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
