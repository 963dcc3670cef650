"""Recorded journals of every format that was ever released: each must still be read, be whole, and give the same."""

from pathlib import Path
from typing import get_args

import pytest

from corral.core.accounts.accounts import AccountEvent
from corral.core.events import Event
from corral.core.fleets.fleets import FleetEvent
from corral.store.archive import archive_begins_after, read_archive
from corral.store.chain import BEGINNING
from corral.wire import codec
from tests.journals.replay import FOLDER, digest, replay

JOURNALS = sorted(FOLDER.glob("*.jsonl"))


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_it_still_gives_what_it_gave(path: Path) -> None:
    assert archive_begins_after(path) == BEGINNING
    records = list(read_archive(path))  # which checks the chain
    assert len(records) > 300
    assert digest(replay(records)) + "\n" == path.with_suffix(".digest").read_text()


def test_every_format_has_some_and_the_newest_has_every_event() -> None:
    formats = {path: {record.format for record in read_archive(path)} for path in JOURNALS}
    assert set().union(*formats.values()) == set(range(1, codec.FORMAT + 1))
    newest = [path for path, found in formats.items() if found == {codec.FORMAT}]
    found = {codec.kind_of(record.body) for path in newest for record in read_archive(path)}
    known = {kind.__name__ for kind in get_args(Event) + get_args(AccountEvent) + get_args(FleetEvent)}
    assert found == known, "an event is new or gone: record one more journal (python -m tests.journals.replay NAME)"
