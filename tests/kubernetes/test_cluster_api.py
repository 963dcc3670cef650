"""Requests to a real API server, also through a proxy that breaks them."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from corral.kubernetes.cluster_api import (
    ApiRefused,
    ApiUnreachable,
    ClusterApi,
    NoCluster,
    Stopped,
    connect,
    object_path,
)
from tests.kubernetes.breaking_proxy import BUSY, DROP, LOSE, PASS, BreakingProxy, Rule
from tests.kubernetes.control_plane import ControlPlane

MAPS = "api/v1/configmaps"


@pytest.fixture
def proxy(control_plane: ControlPlane, tmp_path: Path) -> Iterator[BreakingProxy]:
    proxy = BreakingProxy(control_plane, tmp_path)
    yield proxy
    proxy.close()


@pytest.fixture
def api(proxy: BreakingProxy) -> Iterator[ClusterApi]:
    api = connect(str(proxy.kubeconfig))
    yield api
    for name in ("here", "twice"):
        api.delete(object_path(MAPS, "default", name))
    api.close()


def named(name: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"n": "1"}}


def first(action: str, times: int, method: str) -> Rule:
    """The first requests of this method are treated so, the others pass."""
    numbers = count()

    def rule(asked: str, _: str) -> str:
        return action if asked == method and next(numbers) < times else PASS

    return rule


def test_an_object_is_created_read_changed_and_deleted_with_tls(control_plane: ControlPlane):
    api = connect(str(control_plane.kubeconfig))
    assert api.namespace == "default"
    path = object_path(MAPS, "default")
    made = api.create(path, named("here"))
    one = object_path(MAPS, "default", "here")
    assert api.get(one)["metadata"]["uid"] == made["metadata"]["uid"]
    assert api.patch(one, {"data": {"n": "2"}})["data"] == {"n": "2"}
    with pytest.raises(ApiRefused) as refused:
        api.create(path, named("here"))
    assert (refused.value.status, refused.value.reason) == (409, "AlreadyExists")
    api.delete(one, uid="another")
    assert api.get(one)["data"] == {"n": "2"}, "another object of this name is left alone"
    api.delete(one, uid=made["metadata"]["uid"])
    assert api.delete(one) == {}, "what is gone already is no error"
    with pytest.raises(ApiRefused, match="not found") as refused:
        api.get(one)
    assert refused.value.status == 404
    api.close()


def test_a_request_that_never_arrives_is_repeated(api: ClusterApi, proxy: BreakingProxy):
    proxy.rule = first(DROP, 2, "POST")
    assert api.create(object_path(MAPS, "default"), named("here"))["data"] == {"n": "1"}
    assert [action for method, _, action in proxy.seen if method == "POST"] == [DROP, DROP, PASS]


def test_an_answer_that_is_lost_after_a_create_shows_as_exists(api: ClusterApi, proxy: BreakingProxy):
    proxy.rule = first(LOSE, 1, "POST")
    with pytest.raises(ApiRefused) as refused:
        api.create(object_path(MAPS, "default"), named("twice"))
    assert refused.value.status == 409


def test_an_answer_that_is_lost_after_a_delete_is_no_error(api: ClusterApi, proxy: BreakingProxy):
    api.create(object_path(MAPS, "default"), named("here"))
    proxy.rule = first(LOSE, 1, "DELETE")
    api.delete(object_path(MAPS, "default", "here"))
    assert sum(method == "DELETE" for method, _, _ in proxy.seen) == 2


def test_an_answer_of_429_is_respected_by_all_threads(api: ClusterApi, proxy: BreakingProxy):
    proxy.retry_after_s = 2
    proxy.rule = first(BUSY, 1, "GET")
    started = time.monotonic()
    api.get("/version")
    assert time.monotonic() - started >= 2
    assert [action for *_, action in proxy.seen] == [BUSY, PASS]

    proxy.rule = first(BUSY, 1, "GET")
    slow = threading.Thread(target=api.get, args=("/version",))
    slow.start()
    while len(proxy.seen) < 3:
        time.sleep(0.01)
    time.sleep(0.2)  # its answer has arrived
    started = time.monotonic()
    api.get("/api", patience_s=0.0)
    assert time.monotonic() - started >= 1, "another request waits too"
    slow.join()


def test_a_server_that_does_not_answer_is_given_up_in_time(api: ClusterApi, proxy: BreakingProxy):
    proxy.rule = lambda *_: DROP
    with pytest.raises(ApiUnreachable, match="GET /version"):
        api.get("/version", patience_s=0.5)
    assert len(proxy.seen) >= 2
    proxy.rule = lambda *_: PASS


def test_closing_ends_what_waits(proxy: BreakingProxy):
    api = connect(str(proxy.kubeconfig))
    proxy.rule = lambda *_: DROP
    ended: list[type[Exception]] = []

    def ask() -> None:
        try:
            api.get("/version")
        except Exception as wrong:
            ended.append(type(wrong))

    asking = threading.Thread(target=ask)
    asking.start()
    while not proxy.seen:
        time.sleep(0.01)
    api.close()
    asking.join(20)
    assert ended == [Stopped]


@pytest.mark.parametrize("content", [None, "", "{", "kind: Config\n", "[1, 2]"])
def test_what_describes_no_cluster_is_named(tmp_path: Path, content: str | None):
    file = tmp_path / "kubeconfig"
    if content is not None:
        file.write_text(content)
    with pytest.raises(NoCluster, match="kubeconfig"):
        connect(str(file))


def test_without_the_extra_it_says_what_to_install():
    program = (
        "import sys\nsys.modules['lightkube'] = None\n"
        "import corral.kubernetes.cluster_api as a, corral.kubernetes.list_watch\n"
        "try: a.connect('')\nexcept a.MissingClient as wrong: print(wrong)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'corral-scheduler[kubernetes]'" in done.stdout


def test_names_cannot_leave_their_place_in_a_path():
    assert object_path("apis/batch/v1/jobs", "a/b", "../c", "status") == (
        "/apis/batch/v1/namespaces/a%2Fb/jobs/..%2Fc/status"
    )
    assert object_path("api/v1/nodes", name="n1") == "/api/v1/nodes/n1"
