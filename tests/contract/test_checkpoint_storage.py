"""What every storage of checkpoints does: a directory, an S3-compatible server, and the fake."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.checkpoints.run_store import RunStore
from corral.checkpoints.storage import DirectoryStorage, MemoryStorage, Storage, open_storage
from tests.checkpoints.object_server import object_server
from tests.checkpoints.written import origin, restore, save


@pytest.fixture(params=["directory", "memory", "object store"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    if request.param == "memory":
        yield MemoryStorage()
    elif request.param == "directory":
        yield DirectoryStorage(tmp_path / "store")
    else:
        with object_server(tmp_path) as server:
            for name, value in server.env.items():
                monkeypatch.setenv(name, value)
            yield open_storage(f"s3://{server.bucket}/some/prefix")


def test_an_object_is_created_once(storage: Storage):
    assert storage.create("a/log/1", b"one")
    assert not storage.create("a/log/1", b"two")
    assert storage.read("a/log/1") == b"one"


def test_of_many_that_create_an_object_one_succeeds(storage: Storage):
    won: list[int] = []

    def create(number: int) -> None:
        if storage.create("a/one", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert storage.read("a/one") == b"%d" % won[0]


def test_parts_of_objects_are_read(storage: Storage):
    assert storage.write("a/packs/p", [b"0123", memoryview(b"456789"), b""]) == 10
    assert storage.read("a/packs/p", 3, 4) == b"3456"
    assert storage.read("a/packs/p", 8) == b"89"
    target = bytearray(6)
    assert storage.read_into("a/packs/p", 2, memoryview(target)) == 6
    assert bytes(target) == b"234567"


def test_large_objects_are_written_whole(storage: Storage):
    chunk = os.urandom(1 << 20)
    assert storage.write("a/packs/large", [chunk] * 20) == 20 << 20
    assert storage.names("a/packs") == {"large": 20 << 20}
    assert storage.read("a/packs/large", (19 << 20) + 5, 100) == chunk[5:105]


def test_objects_are_listed_by_folder(storage: Storage):
    for name in ("a/log/1", "a/log/2", "a/packs/p", "b/log/1"):
        storage.create(name, b"xyz")
    assert storage.names("a/log") == {"1": 3, "2": 3}
    assert storage.names("c/log") == {}
    assert storage.folders() == ["a", "b"]
    assert storage.folders("a") == ["log", "packs"]


def test_what_is_missing_is_not_found(storage: Storage):
    with pytest.raises(FileNotFoundError):
        storage.read("a/none")
    storage.remove("a/none")
    storage.create("a/one", b"")
    storage.remove("a/one")
    assert storage.names("a") == {}


def test_a_run_is_saved_and_restored(storage: Storage):
    store = RunStore(storage, "r")
    writer = store.open(origin(1))
    first, manifest = save(store, writer, 1)
    save(store, writer, 2, base=(first.number, manifest))
    found = restore(RunStore(storage, "r"))
    assert found is not None
    assert found[0].step == 2
