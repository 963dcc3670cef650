"""Lists and watches of a real API server, with every way in which a watch ends."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from corral.kubernetes.cluster_api import ClusterApi, Document, connect, object_path
from corral.kubernetes.list_watch import ListWatch
from tests.kubernetes.breaking_proxy import DROP, FREEZE, PASS, BreakingProxy
from tests.kubernetes.control_plane import ControlPlane
from tests.runtime.reports import until

MAPS = "api/v1/configmaps"
LABEL = {"labelSelector": "corral.dev/of=test-list-watch"}


class Kept:
    """The objects that a listener knows of."""

    def __init__(self) -> None:
        self.objects: dict[str, str] = {}
        self.events = 0
        self.fail = False

    def listed(self, objects: Sequence[Document]) -> None:
        self.objects = {found["metadata"]["name"]: found["data"]["n"] for found in objects}

    def changed(self, found: Document) -> None:
        self.events += 1
        if self.fail:
            self.fail = False
            raise RuntimeError("planned")
        self.objects[found["metadata"]["name"]] = found["data"]["n"]

    def removed(self, last: Document) -> None:
        self.events += 1
        self.objects.pop(last["metadata"]["name"])


class Maps:
    """Objects to watch, changed past the proxy."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.path = plane, object_path(MAPS, namespace)

    def put(self, name: str, n: int) -> None:
        meta = {"name": name, "labels": {"corral.dev/of": "test-list-watch"}}
        body = {"metadata": meta, "data": {"n": str(n)}}
        if n == 0:
            self.plane.call("POST", self.path, body)
        else:
            self.plane.call("PUT", f"{self.path}/{name}", body)

    def drop(self, name: str) -> None:
        self.plane.call("DELETE", f"{self.path}/{name}")


@pytest.fixture
def proxy(control_plane: ControlPlane, tmp_path: Path) -> Iterator[BreakingProxy]:
    proxy = BreakingProxy(control_plane, tmp_path)
    yield proxy
    proxy.close()


@pytest.fixture
def maps(control_plane: ControlPlane) -> Iterator[Maps]:
    with control_plane.namespace(f"watch-{time.time_ns()}") as namespace:
        yield Maps(control_plane, namespace)


@pytest.fixture
def api(proxy: BreakingProxy) -> Iterator[ClusterApi]:
    api = connect(str(proxy.kubeconfig))
    yield api
    api.close()


@pytest.fixture
def start(api: ClusterApi, maps: Maps) -> Iterator[Callable[..., tuple[Kept, ListWatch]]]:
    started: list[ListWatch] = []

    def begin(watch_s: int = 60) -> tuple[Kept, ListWatch]:
        kept = Kept()
        watch = ListWatch(api, maps.path, kept, LABEL, watch_s=watch_s)
        watch.start()
        started.append(watch)
        assert watch.wait_synced(30)
        return kept, watch

    yield begin
    for watch in started:
        watch.stop()


Start = Callable[..., tuple[Kept, ListWatch]]


def test_what_is_there_is_listed_in_pages_and_what_changes_is_reported(maps: Maps, start: Start, monkeypatch):
    monkeypatch.setattr("corral.kubernetes.list_watch.PAGE", 2)
    for n in range(5):
        maps.put(f"m{n}", 0)
    kept, watch = start()
    assert kept.objects == {f"m{n}": "0" for n in range(5)}
    maps.put("m0", 7)
    maps.drop("m1")
    maps.put("new", 0)
    until(lambda: kept.objects == {"m0": "7", "m2": "0", "m3": "0", "m4": "0", "new": "0"})
    assert (watch.lists, watch.watches) == (1, 1), "one list, and then the watch alone"


def test_a_watch_that_is_cut_goes_on_where_it_ended(maps: Maps, start: Start, proxy: BreakingProxy):
    kept, watch = start()
    maps.put("a", 0)
    until(lambda: "a" in kept.objects)
    for n in range(1, 4):
        until(lambda: proxy.cut() == 1)
        maps.put("a", n)
        until(partial(lambda n: kept.objects["a"] == str(n), n))
    assert watch.lists == 1
    assert kept.events == 4, "nothing is missed and nothing comes twice"


def test_a_watch_that_the_server_ends_goes_on(maps: Maps, start: Start):
    kept, watch = start(watch_s=1)
    until(lambda: watch.watches >= 3)
    maps.put("a", 0)
    until(lambda: kept.objects == {"a": "0"})
    assert watch.lists == 1


def test_versions_that_are_gone_are_listed_again(
    maps: Maps, start: Start, proxy: BreakingProxy, control_plane: ControlPlane
):
    maps.put("stays", 0)
    maps.put("goes", 0)
    kept, watch = start()
    until(lambda: watch.watches == 1)
    proxy.rule = lambda method, path: DROP
    until(lambda: proxy.cut() == 1)
    maps.put("stays", 1)
    maps.drop("goes")
    # The server's own cache of recent versions is lost with it, those in etcd by compaction.
    for n in range(2, 20):
        maps.put("stays", n)
    control_plane.compact()
    control_plane.kill("apiserver")
    control_plane.restart("apiserver")
    proxy.rule = lambda method, path: PASS
    until(lambda: kept.objects == {"stays": "19"})
    assert watch.lists >= 1
    assert watch.gone + watch.lists >= 2, "the server has answered that the version is gone"


def test_a_silent_connection_is_given_up(maps: Maps, start: Start, proxy: BreakingProxy, monkeypatch):
    monkeypatch.setattr("corral.kubernetes.list_watch._SILENCE_S", 0.5)
    proxy.rule = lambda method, path: FREEZE if "watch=true" in path else PASS
    kept, _ = start(watch_s=2)
    maps.put("a", 0)
    proxy.rule = lambda method, path: PASS
    until(lambda: kept.objects == {"a": "0"})


def test_what_a_listener_cannot_take_is_listed_again(maps: Maps, start: Start):
    kept, watch = start()
    kept.fail = True
    maps.put("a", 0)
    until(lambda: kept.objects == {"a": "0"})
    assert watch.lists == 2


def test_stopping_does_not_wait_for_the_watch_to_end(maps: Maps, start: Start):
    _, watch = start()
    until(lambda: watch.watches == 1)
    started = time.monotonic()
    watch.stop()
    assert time.monotonic() - started < 10
