"""Heads that were signed and kept elsewhere prove that a journal was put back or written again."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from corral.server.vault.attesting import Attester
from corral.store.attest import BadAttestation, Signer, line_of, read_lines, signer_of
from corral.store.backup import missing_heads
from corral.store.journal import JournalHead
from corral.store.sqlite.journal import SqliteJournal
from corral.store.verify import verify
from corral.wire.site.retention import AttestRules
from tests.store.entries import entry

SIGNER = Signer(bytes(range(32)))


def written(folder, *numbers: int) -> JournalHead:
    journal = SqliteJournal(folder)
    try:
        return journal.append([entry(number) for number in numbers]).result()
    finally:
        journal.close()


def test_what_was_signed_is_read_back():
    lines = [line_of(SIGNER.attest(JournalHead(n, bytes([n] * 32)), 1000 + n)) for n in range(1, 4)]
    assert [each.head for each in read_lines(lines, SIGNER.public)] == [
        JournalHead(n, bytes([n] * 32)) for n in range(1, 4)
    ]


@pytest.mark.parametrize(("old", "new"), [(b'"seq":7', b'"seq":8'), (b'"at_ms":1', b'"at_ms":2'), (b':"00', b':"11')])
def test_a_changed_line_is_found(old, new):
    line = line_of(SIGNER.attest(JournalHead(7, bytes(32)), 1))
    assert old in line
    with pytest.raises(BadAttestation, match="line 1"):
        list(read_lines([line.replace(old, new)]))


def test_another_key_is_not_ours():
    line = line_of(Signer(bytes(32)).attest(JournalHead(7, bytes(32)), 1))
    assert list(read_lines([line]))
    with pytest.raises(BadAttestation, match="another key"):
        list(read_lines([line], SIGNER.public))


def test_the_key_is_made_once_and_is_no_other_users(tmp_path):
    assert signer_of(tmp_path / "key").public == signer_of(tmp_path / "key").public
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(BadAttestation, match="read by other users"):
        signer_of(tmp_path / "key")


def test_a_journal_that_was_put_back_as_a_whole_is_found(tmp_path):
    early = written(tmp_path / "data", 1, 2, 3)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    late = written(tmp_path / "data", 4, 5)
    assert missing_heads(tmp_path / "data", [early, late]) == []
    shutil.rmtree(tmp_path / "data")
    shutil.copytree(tmp_path / "copy", tmp_path / "data")
    assert verify(tmp_path / "data") == []  # by itself it looks whole
    assert missing_heads(tmp_path / "data", [early, late]) == [late]


def test_a_journal_that_was_written_again_is_found(tmp_path):
    head = written(tmp_path / "data", 1, 2, 3)
    written(tmp_path / "other", 1, 9, 3)
    assert verify(tmp_path / "other") == []
    assert missing_heads(tmp_path / "other", [head]) == [head]


async def test_a_journal_that_cannot_be_read_for_a_while_ends_nothing(tmp_path):
    heads: list[JournalHead] = []  # at first there is none to be had
    target = tmp_path / "heads"
    rules = AttestRules(file=str(target), every_ms=1)
    running = asyncio.create_task(Attester(rules, SIGNER, lambda: heads[-1]).run(lambda: 1))
    await asyncio.sleep(0.05)
    assert not running.done()
    heads.append(JournalHead(3, bytes(32)))
    async with asyncio.timeout(30):
        while not target.exists() or not target.read_bytes():
            await asyncio.sleep(0.01)
    running.cancel()


async def test_a_head_is_handed_out_once_and_again_when_it_did_not_arrive(tmp_path):
    heads = [JournalHead(3, bytes(32))]
    target = tmp_path / "folder" / "heads"
    (tmp_path / "folder").write_text("in the way")
    attester = Attester(AttestRules(file=str(target)), SIGNER, lambda: heads[-1])
    assert not await attester.attest(1)
    (tmp_path / "folder").unlink()
    assert await attester.attest(2)
    assert await attester.attest(3)
    heads.append(JournalHead(4, bytes(32)))
    assert await attester.attest(4)
    with target.open("rb") as lines:
        assert [each.seq for each in read_lines(lines, SIGNER.public)] == [3, 4]
