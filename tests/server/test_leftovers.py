"""A first start in a folder that is not empty."""

from pathlib import Path

from corral.server.main import Options, _found
from corral.store.memory import MemoryJournal


def test_logs_of_an_earlier_journal_are_not_shown_as_those_of_new_jobs(tmp_path: Path):
    for place in ("tasks", "fleet"):
        old = tmp_path / place / "logs" / "ab" / "1%2Fmain@1.0"
        old.mkdir(parents=True)
        (old / "stdout.0000000000000000").write_text("of another job 1")
    _found(MemoryJournal(), Options(data=tmp_path, credentials=tmp_path / "token.json"))
    for place in ("tasks", "fleet"):
        assert not (tmp_path / place / "logs").exists()
        (aside,) = (tmp_path / place).glob("logs.before-*")
        assert (aside / "ab" / "1%2Fmain@1.0" / "stdout.0000000000000000").exists(), "nothing is lost"
