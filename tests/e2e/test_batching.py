"""Batching queues on a real server: real workers as jobs, results, failures, kills, rights, commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.client.blocking import Client
from corral.client.errors import BatchItemFailed, NotFound
from corral.wire.api.batch import BatchItemsBody
from tests.e2e.batching import batching_server, settings, until
from tests.e2e.live import Live, children, command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batching")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[tuple[Live, Client]]:
    with batching_server(folder) as found:
        yield found


@pytest.fixture
def live(served: tuple[Live, Client]) -> Live:
    return served[0]


@pytest.fixture
def client(served: tuple[Live, Client]) -> Iterator[Client]:
    yield served[1]
    for each in served[1].batch_queues().batch_queues:
        served[1].delete_batch_queue(each.name)


def batch_process(live: Live) -> int:
    assert live.process is not None
    return next(pid for pid in children(live.process.pid) if b"corral.server.batches.process" in command(pid))


def workers() -> list[int]:
    return [int(each) for each in os.listdir("/proc") if each.isdecimal() and b"corral_batch.py" in command(int(each))]


def test_results_come_in_order_and_a_known_id_does_not_run_again(client: Client, folder: Path):
    client.set_batch_queue("twice", settings(folder, "double"))
    assert client.batch("twice").map(range(1_000)) == [2 * n for n in range(1_000)]
    again = BatchItemsBody([1, 2], ["one", "two"], wait_ms=10_000)
    first = client.submit_items("twice", again)
    assert [(view.state, view.result) for view in first.items] == [("done", 2), ("done", 4)]
    done = client.batch_queue("twice").stats.done
    assert client.submit_items("twice", again) == first
    assert client.item_results("twice", ["two", "none"]).items[1].state == "unknown"
    assert client.batch_queue("twice").stats.done == done


def test_an_item_that_the_handler_raises_for_fails_alone(client: Client, folder: Path):
    client.set_batch_queue("picky", settings(folder, "picky"))
    views = client.submit_items("picky", BatchItemsBody([12, 13, 14], wait_ms=20_000)).items
    assert [view.state for view in views] == ["done", "failed", "done"]
    assert views[1].error == "ValueError: thirteen"
    with pytest.raises(BatchItemFailed, match="thirteen"):
        client.batch("picky").map([13])


def test_an_item_that_kills_its_worker_is_found_and_reported(client: Client, folder: Path):
    client.set_batch_queue("deadly", settings(folder, "deadly", max_batch_size=4))
    views = [*client.map_items("deadly", [11, 12, 13, 14])]
    assert [view.state for view in views] == ["done", "done", "failed", "done"]
    assert "twice" in views[2].error


def test_a_handler_that_hangs_is_ended_and_the_item_that_it_hangs_at_is_found(client: Client, folder: Path):
    body = settings(folder, "sleepy", max_batch_size=4, handler_timeout="1s")
    client.set_batch_queue("sleepy", body)
    views = [*client.map_items("sleepy", [11, 12, 13, 14])]
    assert [view.state for view in views] == ["done", "done", "failed", "done"]
    assert "twice" in views[2].error


@pytest.mark.parametrize("what", ["worker", "batch process", "server"])
def test_nothing_is_lost_when_something_is_killed_in_mid_batch(client: Client, live: Live, folder: Path, what: str):
    client.set_batch_queue("slow", settings(folder, "slow"))
    ids = [f"{what}-{n}" for n in range(40)]
    client.submit_items("slow", BatchItemsBody(list(range(40)), ids))
    until(lambda: client.batch_queue("slow").stats.done >= 8, "the first batch")
    if what == "worker":
        os.kill(workers()[0], signal.SIGKILL)
    elif what == "batch process":
        os.kill(batch_process(live), signal.SIGKILL)
    else:
        live.kill()
        live.start()
    until(lambda: all(v.state == "done" for v in client.item_results("slow", ids, 5_000).items), "all results", 60)
    assert [view.result for view in client.item_results("slow", ids).items] == [2 * n for n in range(40)]


def test_workers_come_with_the_line_and_leave_when_idle(client: Client, folder: Path):
    client.set_batch_queue("idle", settings(folder, "slow", min_workers=0, max_workers=3, idle="1s", max_batch_size=2))
    assert client.batch_queue("idle").jobs == ()
    assert len(client.batch("idle").map(range(40))) == 40
    assert len(client.batch_queue("idle").jobs) >= 2
    until(lambda: client.batch_queue("idle").jobs == (), "the end of idle workers", 20)


def test_busy_time_is_charged_to_users_and_sums_to_that_of_the_workers(client: Client, folder: Path):
    client.set_batch_queue("bill", settings(folder, "slow"))
    client.batch("bill").map(range(16))
    stats = client.batch_queue("bill").stats
    assert stats.busy_ms_by_user.keys() == {"admin"}
    assert sum(stats.busy_ms_by_user.values()) == stats.busy_ms
    assert stats.busy_ms >= 2 * 200


def test_only_users_of_its_queue_see_a_batching_queue(client: Client, live: Live, folder: Path):
    client.set_batch_queue("mine", settings(folder, "double"))
    client.set_user("eve")
    token = client.make_token("t", user="eve").token
    with Client(live.url, token) as eve:
        assert eve.batch_queues().batch_queues == ()
        with pytest.raises(NotFound):
            eve.submit_items("mine", BatchItemsBody([1]))
        client.grant("eve", "member", "default")
        assert eve.batch("mine").map([4]) == [8]


def test_a_deleted_queue_is_gone_at_once(client: Client, folder: Path):
    for _ in range(3):
        client.set_batch_queue("brief", settings(folder, "double", min_workers=0))
        time.sleep(0.6)  # the server has looked at it since
        assert client.batch_queue("brief").name == "brief"
        client.delete_batch_queue("brief")
        for use in (
            lambda: client.batch_queue("brief"),
            lambda: client.delete_batch_queue("brief"),
            lambda: client.submit_items("brief", BatchItemsBody([1])),
        ):
            with pytest.raises(NotFound):
                use()


def test_a_full_queue_refuses_with_a_time_and_a_drained_one_for_good(client: Client, folder: Path):
    client.set_batch_queue("small", settings(folder, "slow", max_waiting=2, min_workers=0, max_workers=1))
    views = client.submit_items("small", BatchItemsBody(list(range(4)))).items
    assert [view.state for view in views] == ["waiting", "waiting", "refused", "refused"]
    assert views[2].retry_ms > 0
    client.drain_batch_queue("small")
    (refused,) = client.submit_items("small", BatchItemsBody([1])).items
    assert (refused.state, refused.retry_ms) == ("refused", 0)


def test_results_are_streamed_as_they_come(client: Client, live: Live, folder: Path):
    client.set_batch_queue("sse", settings(folder, "slow"))
    client.submit_items("sse", BatchItemsBody(list(range(3)), ["a", "b", "c"]))
    with live.connection() as wire:
        body = json.dumps({"ids": ["a", "b", "c"]})
        headers = {"Authorization": f"Bearer {live.token}", "Accept": "text/event-stream"}
        wire.request("POST", "/v1/batch/sse/results", body, headers | {"Content-Type": "application/json"})
        text = wire.getresponse().read().decode()
    found = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert {each["id"]: each["result"] for each in found} == {"a": 0, "b": 2, "c": 4}


def test_commands_create_submit_continue_and_delete(client: Client, live: Live, folder: Path, tmp_path: Path):
    (tmp_path / "double.yaml").write_text(
        f"queue: default\nhandler: handlers:double\nmin_workers: 1\nmax_batch_wait: 5ms\npython: {sys.executable}\n"
        f"job: {{gpus: 1, directory: {folder}}}\n"
    )
    (tmp_path / "items.jsonl").write_text("".join(f"{n}\n" for n in range(30)))
    env = os.environ | {"CORRAL_URL": live.url, "CORRAL_TOKEN": live.token}

    def corral(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "corral", "batch", *words], cwd=tmp_path, env=env, capture_output=True, text=True
        )

    assert corral("create", "double.yaml").stdout == "batching queue double is set\n"
    done = corral("submit", "double", "items.jsonl", "--out", "results.jsonl")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["result"] for line in lines] == [2 * n for n in range(30)]
    text = (tmp_path / "results.jsonl").read_text()
    (tmp_path / "results.jsonl").write_text(text[: len(text) // 2])  # as after an interruption, within a line
    assert corral("submit", "double", "items.jsonl", "--out", "results.jsonl").returncode == 0
    assert (tmp_path / "results.jsonl").read_text() == text
    assert "30 done" in corral("stats", "double").stdout
    assert corral("flush", "double").returncode == 0
    assert "draining" in corral("drain", "double").stdout
    assert "double" in corral("list").stdout
    assert "handlers:double" in corral("show", "double").stdout
    assert corral("delete", "double").returncode == 0
    assert corral("show", "double").returncode != 0
