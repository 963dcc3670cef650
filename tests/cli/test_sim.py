"""``corral sim`` through what people type: every command, what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from corral.cli.sim.compare import compare
from corral.cli.sim.policies import SENTENCES
from corral.cli.sim.run import run
from corral.sim.report.result_files import JOB_COLUMNS
from corral.sim.research.published import POLICIES
from tests.architecture.repository import ROOT
from tests.cli.typed import table, typed

Capture = pytest.CaptureFixture[str]
TWO_TEAMS = str(ROOT / "examples" / "workloads" / "two_teams.yaml")


@pytest.fixture(autouse=True)
def no_folder_of_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CORRAL_TRACES", raising=False)


@pytest.fixture
def workload(tmp_path: Path) -> str:
    return table(tmp_path / "jobs.csv")


# --- what it does ---------------------------------------------------------------------------------------------------


def test_run_shows_the_measures_of_one_policy(capsys: Capture, workload: str) -> None:
    done = typed(capsys, "sim", "run", "--trace", workload, "--nodes", "1x8", "--policy", "fifo", "-q")
    assert done.code == 0
    assert done.out.startswith(f"{workload}: 12 jobs on 1 node, 8 GPUs\n")
    assert "completion, mean" in done.out
    assert not done.err


@pytest.mark.parametrize("stated", [("fifo,fair,standard",), ("fifo", "fair", "standard")])
def test_compare_shows_policies_side_by_side(capsys: Capture, workload: str, stated: tuple[str, ...]) -> None:
    policies = [word for each in stated for word in ("--policy", each)]
    done = typed(capsys, "sim", "compare", "--trace", workload, "--nodes", "1x8", *policies)
    assert done.code == 0
    titles = next(line.split() for line in done.out.splitlines() if line.split()[:2] == ["fifo", "fair"])
    assert titles == ["fifo", "fair", "standard"]
    assert "best of its row" in done.out


def test_the_verdict_is_said_first_and_against_a_baseline(capsys: Capture, workload: str) -> None:
    asked = ("sim", "compare", "--trace", workload, "--nodes", "1x8", "-q", "--policy")
    done = typed(capsys, *asked, "strict_fifo,standard")
    said = " ".join(done.out.split())
    assert "8 GPUs strict_fifo (baseline): 12 of 12 submitted jobs ended; mean completion " in said
    assert said.index("standard against strict_fifo: ") < said.index("completion, mean")
    turned = typed(capsys, *asked, "strict_fifo,standard", "--baseline", "standard").out
    assert "strict_fifo against standard: " in " ".join(turned.split())
    wrong = typed(capsys, *asked, "strict_fifo,standard", "--baseline", "fair")
    assert wrong.code == 2
    assert "--baseline 'fair' is not among the policies" in wrong.err


def test_an_incomplete_run_is_never_best_and_its_averages_are_not_compared(capsys: Capture, workload: str) -> None:
    asked = ("sim", "compare", "--trace", workload, "--nodes", "1x8", "-q", "--policy", "fifo,standard")
    done = typed(capsys, *asked, "--until", "1h30m")
    assert "●" not in done.out
    assert "not comparable with fifo by averages, because both runs are incomplete" in " ".join(done.out.split())


def test_refused_jobs_are_counted_by_their_reasons(capsys: Capture, tmp_path: Path) -> None:
    """`sim run --nodes 2x8` said "24 of 75 jobs refused" and not why."""
    page = tmp_path / "page.html"
    asked = ("sim", "run", "--trace", "synthetic:lab", "--nodes", "2x8", "--until", "2d", "-q", "--node-hours", "60")
    done = typed(capsys, *asked, "--html", str(page))
    said = " ".join(done.out.split())
    assert "24 refused" in said
    assert "REFUSED: 24 jobs when they were submitted. 17: there is no GPU of model A100; 7: " in said
    shown = page.read_text()
    assert shown.index('id="verdict"') < shown.index("<svg role") < shown.index("<table>")
    assert "there is no GPU of model A100" in shown
    assert 'class="hover"' in shown
    assert "after the start, for" in shown, "losses of nodes are drawn"


def test_policies_in_processes_of_their_own_give_the_same(capsys: Capture, workload: str, tmp_path: Path) -> None:
    asked = ("sim", "compare", "--trace", workload, "--nodes", "1x8", "--policy", "fifo,fair", "-q", "--json")
    assert typed(capsys, *asked, str(tmp_path / "one.json")).code == 0
    assert typed(capsys, *asked, str(tmp_path / "two.json"), "--jobs", "2").code == 0
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_json_on_standard_output_is_all_there_is(capsys: Capture, workload: str) -> None:
    done = typed(capsys, "sim", "run", "--trace", workload, "--nodes", "1x8", "--json", "-")
    (run,) = json.loads(done.out)["runs"]
    assert (run["policy"], run["measures"]["total"]["jobs"], run["cut_ms"]) == ("standard", 12, None)


def test_every_report_is_written_where_it_was_asked_for(capsys: Capture, workload: str, tmp_path: Path) -> None:
    names = {option: str(tmp_path / f"report.{option}") for option in ("json", "csv", "html", "journal")}
    options = [word for option, name in names.items() for word in (f"--{option}", name)]
    done = typed(capsys, "sim", "run", "--trace", workload, "--nodes", "1x8", "-q", *options)
    assert done.code == 0
    assert json.loads(Path(names["json"]).read_bytes())["format"] == 1
    assert Path(names["csv"]).read_text().splitlines()[0] == ",".join(JOB_COLUMNS)
    assert Path(names["html"]).read_text().startswith("<!DOCTYPE html>")
    kinds = [json.loads(line)["type"] for line in Path(names["journal"]).read_text().splitlines()]
    assert kinds[0] == "NodeAdded"
    assert kinds.count("JobEnded") == 12


def test_several_policies_have_tables_and_journals_of_their_own(capsys: Capture, workload: str, tmp_path: Path) -> None:
    where = ("--csv", str(tmp_path / "jobs-out.csv"), "--journal", str(tmp_path / "events.jsonl"))
    typed(capsys, "sim", "compare", "--trace", workload, "--nodes", "1x8", "--policy", "fifo,fair", "-q", *where)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == ["events.fair.jsonl", "events.fifo.jsonl", "jobs-out.fair.csv", "jobs-out.fifo.csv", "jobs.csv"]


def test_a_run_can_end_at_a_time_and_says_that_it_did(capsys: Capture, workload: str) -> None:
    asked = ("sim", "run", "--trace", workload, "--nodes", "1x8", "-q", "--until", "1h30m")
    shown = typed(capsys, *asked)
    assert shown.code == 0
    assert "INCOMPLETE: the run was ended 1h30m after the first submission" in " ".join(shown.out.split())
    (run,) = json.loads(typed(capsys, *asked, "--json", "-").out)["runs"]
    assert run["cut_ms"] == 5_400_000


def test_every_option_is_understood(capsys: Capture, workload: str) -> None:
    options = """--topology rack=2,spine=2 --estimates exact --time-share 4 --guarantee red=4 --whole-nodes
        --costs free --start 30s --restart 1m --save 10s --stop 1s --checkpoint-every 30m --speed-model none
        --node-hours 20 --node-repair-hours 1 --gpu-hours 500 --gpu-repair-hours 2 --lost-reports 0.1 --seed 3
        --power-idle 60 --power-busy 500 --price 0.3 --json - --quiet"""
    done = typed(capsys, "sim", "run", "--trace", workload, "--nodes", "4x2:H100+2x8", *options.split())
    assert done.code == 0
    (run,) = json.loads(done.out)["runs"]
    assert run["measures"]["total"]["unfinished"] == 0
    assert run["measures"]["energy"]["cost"] > 0


def test_costs_that_are_not_stated_are_those_of_the_set(capsys: Capture, tmp_path: Path) -> None:
    alone = table(tmp_path / "one.csv", [("a", 1_000, 3_600_000, 8, "", "")])

    def completion(*words: str) -> float:
        done = typed(capsys, "sim", "run", "--trace", alone, "--nodes", "1x8", "--json", "-", *words)
        return float(json.loads(done.out)["runs"][0]["measures"]["total"]["completion_ms"]["mean"])

    assert completion("--costs", "free") == 3_600_000
    assert completion("--costs", "free", "--start", "2m") == 3_720_000
    assert completion("--start", "2m") == 3_720_000
    assert completion() > 3_600_000


def test_machines_of_the_workload_are_the_default(capsys: Capture) -> None:
    done = typed(capsys, "sim", "run", "--trace", "synthetic:lab", "--until", "1d", "-q")
    assert "jobs on 2 nodes, 16 GPUs" in done.out


def test_list_names_what_comes_with_corral_and_what_is_in_the_folder(capsys: Capture, tmp_path: Path) -> None:
    assert typed(capsys, "sim", "list").out.split() == [
        "synthetic:department", "synthetic:lab", "synthetic:large", "synthetic:overload"
    ]  # fmt: skip
    (tmp_path / "swf").mkdir()
    (tmp_path / "swf" / "mine.swf").write_text("")
    assert "swf:mine" in typed(capsys, "sim", "list", "--traces", str(tmp_path)).out.split()
    assert "swf:mine" in json.loads(typed(capsys, "sim", "list", "--traces", str(tmp_path), "--json").out)


def test_policies_have_a_sentence_each(capsys: Capture) -> None:
    silent = sorted(POLICIES.keys() - SENTENCES.keys())
    assert not silent, f"say in corral/cli/sim/policies.py what these do: {', '.join(silent)}"
    lines = typed(capsys, "sim", "policies").out.splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(POLICIES)
    assert json.loads(typed(capsys, "sim", "policies", "--json").out)["fifo"] == SENTENCES["fifo"]


def test_generate_draws_a_table_that_run_reads(capsys: Capture, tmp_path: Path) -> None:
    first, again, other = (str(tmp_path / name) for name in ("first.csv", "again.csv", "other.csv"))
    done = typed(capsys, "sim", "generate", TWO_TEAMS, "--out", first)
    assert done.code == 0
    assert f"next: corral sim run --trace csv:{first} --nodes " in done.err
    typed(capsys, "sim", "generate", TWO_TEAMS, "--out", again, "-q")
    typed(capsys, "sim", "generate", TWO_TEAMS, "--out", other, "--seed", "99", "-q")
    assert Path(first).read_bytes() == Path(again).read_bytes() != Path(other).read_bytes()
    nodes = done.err.split("--nodes ")[1].split()[0]
    until = ("--until", "1d", "-q")
    assert typed(capsys, "sim", "run", "--trace", f"csv:{first}", "--nodes", nodes, *until).code == 0


def test_generate_overwrites_only_when_reported_to(capsys: Capture, tmp_path: Path) -> None:
    out = tmp_path / "jobs.csv"
    out.write_text("precious")
    refused = typed(capsys, "sim", "generate", TWO_TEAMS, "--out", str(out))
    assert refused.code == 2
    assert "exists already" in refused.err
    assert out.read_text() == "precious"
    assert typed(capsys, "sim", "generate", TWO_TEAMS, "--out", str(out), "--force", "-q").code == 0
    assert out.read_text().startswith("id,")


def test_every_option_is_explained_in_the_page_of_the_simulator() -> None:
    page = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    options = {name for verb in (run, compare) for option in verb.params for name in option.opts if name[:2] == "--"}
    assert sorted(name for name in options if not re.search(rf"`{name}\b", page)) == []


# --- what it refuses ------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[str, tuple[str, ...]]] = {
    "a policy that is nearly one": (
        "run --trace TABLE --nodes 1x8 --policy fifoo",
        ("there is no policy 'fifoo'", "did you mean 'fifo'?"),
    ),
    "a policy that is nothing like one": (
        "compare --trace TABLE --nodes 1x8 --policy fifo,qqqqqq",
        ("there is no policy 'qqqqqq'", "there are: fifo,"),
    ),
    "a policy twice": ("compare --trace TABLE --nodes 1x8 --policy fifo,fifo", ("names 'fifo' twice",)),
    "no policy": ("compare --trace TABLE --nodes 1x8 --policy ,", ("names no policy",)),
    "a trace that is nearly one": ("run --trace synthetic:labb", ("Did you mean 'lab'?", "corral sim list")),
    "a family that is nearly one": ("run --trace sintetic:lab", ("Did you mean 'synthetic'?",)),
    "a public trace without its folder": ("run --trace philly:6c71a0", ("CORRAL_TRACES", "--traces")),
    "a folder that is not there": ("list --traces NOWHERE", ("there is no folder NOWHERE",)),
    "a table that is not there": ("run --trace csv:nothing.csv", ("nothing.csv: there is no such file",)),
    "no machines": ("run --trace TABLE", ("does not describe a cluster", "--nodes 8x8 (8 nodes of 8 GPUs)")),
    "machines that are none": ("run --trace TABLE --nodes 8by8", ("--nodes: '8by8' does not describe nodes", "8x8")),
    "machines beyond measure": ("run --trace TABLE --nodes 999999x8", ("more than 1,000,000 GPUs",)),
    "a topology that is none": ("run --trace TABLE --nodes 1x8 --topology rack", ("--topology: 'rack'", "rack=8")),
    "a level twice": ("run --trace TABLE --nodes 1x8 --topology rack=2,rack=2", ("the level 'rack' is given twice",)),
    "a level that is taken": ("run --trace TABLE --nodes 1x8 --topology node=2", ("'node' cannot be a level",)),
    "a word that is nearly one": (
        "run --trace TABLE --nodes 1x8 --estimates exakt",
        ("--estimates cannot be 'exakt'", "did you mean 'exact'?"),
    ),
    "a span without a unit": ("run --trace TABLE --nodes 1x8 --until 30", ("--until: '30' has no unit", "30s, 30m")),
    "a number that is none": ("run --trace TABLE --nodes 1x8 --node-hours x", ("--node-hours", "'x' is not a number")),
    "a part beyond one": (
        "run --trace TABLE --nodes 1x8 --lost-reports 1",
        ("--lost-reports: lost_reports is a fraction",),
    ),
    "a price without watts": ("run --trace TABLE --nodes 1x8 --price 1", ("--price needs --power-idle",)),
    "half of the watts": ("run --trace TABLE --nodes 1x8 --power-idle 1", ("belong together",)),
    "a team that is nearly one": (
        "run --trace TABLE --nodes 1x8 --guarantee rad=4",
        ("has no team 'rad'", "did you mean 'red'?"),
    ),
    "more guarantees than GPUs": (
        "run --trace TABLE --nodes 1x8 --guarantee red=9",
        ("adds up to 9 GPUs, there are 8",),
    ),
    "a guarantee that is none": ("run --trace TABLE --nodes 1x8 --guarantee red", ("cannot be 'red'", "vision=16")),
    "no saves and a save": ("run --trace TABLE --nodes 1x8 --no-saves --save 5s", ("--no-saves excludes --save",)),
    "an option that is nearly one": ("run --trce TABLE", ("there is no option --trce", "--trace")),
    "a command that is nearly one": ("rum --trace TABLE", ("corral sim rum'", "did you mean: corral sim run")),
    "no trace at all": ("run", ("the option --trace is missing", "corral sim run --help")),
    "a report in no folder": ("run --trace TABLE --nodes 1x8 --html no/where.html", ("there is no folder no",)),
    "a report that is a folder": ("run --trace TABLE --nodes 1x8 --csv .", ("--csv: . is a folder", "name a file")),
    "a report on a strange file system": (
        "run --trace TABLE --nodes 1x8 --json /proc/corral.json",
        ("--json: /proc/corral.json cannot be written",),
    ),
    "two reports in one file": ("run --trace TABLE --nodes 1x8 --json a --html ./a", ("are the same file",)),
    "a page on standard output": ("run --trace TABLE --nodes 1x8 --html -", ("--html cannot go to standard output",)),
}


@pytest.mark.parametrize(("words", "told"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses(
    capsys: Capture, workload: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, told: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = typed(capsys, "sim", *words.replace("TABLE", workload).split())
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert not [text for text in told if text not in done.err], done.err
    assert not done.out
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.csv"]


def test_a_bad_field_is_named_with_its_file_and_line(capsys: Capture, tmp_path: Path) -> None:
    bad = table(tmp_path / "bad.csv", [("a", 0, 1000, 8, "", ""), ("b", 0, "soon", 8, "", "")])
    done = typed(capsys, "sim", "run", "--trace", bad, "--nodes", "1x8")
    assert done.code == 2
    assert "bad.csv, line 3: work_ms: is 'soon', which is not a number" in done.err


def test_a_bad_description_is_named_with_its_line_and_leaves_nothing_behind(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("seed: 1\njobz: 3\n")
    done = typed(capsys, "sim", "generate", str(tmp_path / "bad.yaml"), "--out", str(tmp_path / "out.csv"))
    assert done.code == 2
    assert "line 2: jobz: there is no such key. Did you mean 'jobs'?" in done.err
    assert not (tmp_path / "out.csv").exists()
