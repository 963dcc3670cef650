"""A short run of `make fuzz-nodes`: nothing that a node or a task says ends the server or is believed of others."""

from pathlib import Path

from tests.fuzz.files import read_hostile_files
from tests.fuzz.nodes import KINDS, Liar, Run


def test_twenty_thousand_lies_end_nothing_and_move_nothing_of_others(tmp_path: Path):
    run = Run(7, tmp_path)
    run.lie(20_000)
    assert run.ended == []
    assert run.foreign == []
    assert run.finish() == []
    assert all(run.taken[kind] for kind in KINDS), "every kind of liar is tried, or it tries nothing"
    assert run.site.next_job > 100, "work went on meanwhile"


def test_there_are_twenty_kinds_of_hostile_node_each_with_a_line_about_it():
    assert len(KINDS) >= 20
    assert all(getattr(Liar, kind).__doc__ for kind in KINDS)


def test_hostile_files_of_tasks_give_small_numbers_or_nothing(tmp_path: Path):
    assert read_hostile_files(3_000, 7, tmp_path / "files") == []
