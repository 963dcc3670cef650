"""The other end of the bridge: a program that is a Ray driver and executes requests.

Run by the Python of Ray's environment, which has no Corral: uses only the standard library and Ray. A request is a line
of JSON on the standard input, followed by as many bytes as it says (see `driver_messages`). Each is answered by a line
with its number, in any order. The program ends with its input. If Ray ends it, nothing else is affected.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

_IDLE_S = 60.0  # an actor on a machine without a pilot ends after this time
_LOOK_S = 0.1
_RECONNECT, _RECONNECT_S = "RAY_gcs_rpc_server_reconnect_timeout_s", 60  # Ray's default
_LONG_S = 600
#: Runs the agent's supervisor so that it ends with the actor's thread (PR_SET_PDEATHSIG).
_KEEP = (
    "import ctypes, os, runpy, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv.pop(1)) or os._exit(0); runpy.run_path(sys.argv[1], run_name='__main__')"
)


def caveat(env: Mapping[str, str]) -> str:
    """Warns if the loss of Ray's head node soon ends a node. Empty: the node survives it for long."""
    stated = env.get(_RECONNECT, "")
    left_s = int(stated) if stated.isdecimal() else _RECONNECT_S
    if left_s >= _LONG_S:
        return ""
    return f"Ray ends the node after {left_s} s without its head: set {_RECONNECT} where its raylet is started"


class NodeActor:
    """The actor of a node: runs requests on its machine, and keeps the agent's supervisor running while it is wanted.
    Both use the machine's Python, and nothing of Ray's environment. ``first``: the bytes of a look request. The actor
    outlives versions of the server: the signature of `ask` must not change, and every request brings its program."""

    def __init__(self, python: str, words: str, first: bytes) -> None:
        self._python, self._words = python or sys.executable, words
        self._base = json.loads(self.ask(first, 30.0).splitlines()[-1]).get("folder", "")
        self._idle_s = time.monotonic()
        threading.Thread(target=self._keep, name="keeping", daemon=True).start()

    def caveat(self) -> str:
        return caveat(os.environ)

    def ask(self, said: bytes, within_s: float) -> bytes:
        """The answer of the machine. Raises if there is none in time."""
        self._idle_s = time.monotonic()
        env = {
            name: os.environ[name] for name in ("PATH", "HOME", "LANG", "USER", "XDG_STATE_HOME") if name in os.environ
        }
        command = [self._python, "-I", "-S", "-c", self._words]
        done = subprocess.run(
            command, input=said, stdout=subprocess.PIPE, timeout=within_s, env=env, cwd="/", check=True
        )
        return done.stdout

    def _keep(self) -> None:
        """One thread for the lifetime of the actor: its children end with it. Tasks do not: they are detached."""
        while time.monotonic() - self._idle_s < _IDLE_S or self._is_wanted():
            if self._is_wanted():
                keeper = os.path.join(self._base, "keeper.py")
                subprocess.run(
                    [self._python, "-I", "-S", "-c", _KEEP, str(os.getpid()), keeper],
                    stdin=subprocess.DEVNULL,
                    cwd="/",
                    start_new_session=True,
                    check=False,
                )
                if not os.path.exists(os.path.join(self._base, "place.json")):
                    break
            time.sleep(_LOOK_S)
        self._end()

    def _is_wanted(self) -> bool:
        """Whether an agent should run here that is not kept running otherwise."""
        try:
            with open(os.path.join(self._base, "place.json")) as file:
                is_ours = bool(json.load(file)["is_kept"])
        except FileNotFoundError:
            return False
        has = [os.path.exists(os.path.join(self._base, name)) for name in ("keeper.py", "ended.json")]
        return is_ours and has == [True, False]

    def _end(self) -> None:
        import ray

        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


class Driver:
    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._actors: dict[str, Any] = {}
        self._lock = threading.Lock()

    def nodes(self, _request: dict[str, Any], _body: bytes) -> dict[str, Any]:
        import ray

        return {
            "nodes": [
                {
                    "id": node["NodeID"],
                    "address": node["NodeManagerAddress"],
                    "host": node["NodeManagerHostname"],
                    "labels": node.get("Labels") or {},
                    "is_head": "node:__internal_head__" in node["Resources"],
                }
                for node in ray.nodes()
                if node["Alive"]
            ]
        }

    def ask(self, request: dict[str, Any], body: bytes) -> dict[str, Any]:
        """``is_absent``: there is no actor, and none was to be created. ``away``: the outcome is unknown."""
        import ray
        from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError

        node, within_s = request["node"], request["within_s"]
        for _ in range(2):
            actor = self._actor(request)
            if actor is None:
                return {"is_absent": True}
            try:
                output = ray.get(actor.ask.remote(body, within_s), timeout=within_s)
                more = getattr(actor, "caveat", None)  # an actor may be older than this driver
                caveat = "" if more is None else ray.get(more.remote(), timeout=within_s)
                return {"output": output.decode(), "caveat": caveat}
            except ActorDiedError:
                self._actors.pop(node, None)  # a new one is created
            except (GetTimeoutError, RayActorError) as lost:
                return {"away": _short(lost)}
        return {"away": "its actor died"}

    def _actor(self, request: dict[str, Any]) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = request["node"]
        with self._lock:
            if node in self._actors:
                return self._actors[node]
            name = f"corral-{node}"
            if request["is_met"]:
                strategy = NodeAffinitySchedulingStrategy(node, soft=False)
                options = ray.remote(NodeActor).options(
                    name=name,
                    namespace=self._namespace,
                    lifetime="detached",
                    get_if_exists=True,
                    num_cpus=0,
                    num_gpus=0,
                    max_restarts=-1,
                    max_concurrency=4,
                    scheduling_strategy=strategy,
                )
                found = options.remote(request["python"], request["words"], request["first"].encode())
            else:
                try:
                    found = ray.get_actor(name, namespace=self._namespace)
                except ValueError:
                    return None
            self._actors[node] = found
            return found


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other output must not mix with the answers
    lock = threading.Lock()

    def send(answer: dict[str, Any]) -> None:
        with lock:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()

    opening = json.loads(sys.stdin.buffer.readline())
    try:
        import ray

        ray.init(address=opening["address"], namespace=opening["namespace"], log_to_driver=False, logging_level="ERROR")
    except Exception as wrong:  # reported to the server
        send({"number": 0, "away": _short(wrong)})
        return
    send({"number": 0})
    driver = Driver(opening["namespace"])
    while True:
        line = sys.stdin.buffer.readline()
        if not line:
            os._exit(0)  # without waiting for Ray, which may not answer
        request = json.loads(line)
        body = sys.stdin.buffer.read(request["size"])
        threading.Thread(target=_execute, args=(driver, request, body, send), daemon=True).start()


def _execute(driver: Driver, request: dict[str, Any], body: bytes, send: Any) -> None:
    try:
        answer = {"nodes": driver.nodes, "ask": driver.ask}[request["act"]](request, body)
    except Exception as wrong:
        answer = {"away": _short(wrong)}
    send({"number": request["number"], **answer})


def _short(wrong: Exception) -> str:
    lines = [line.strip() for line in str(wrong).splitlines() if line.strip()]
    return f"{type(wrong).__name__}: {lines[0][:300] if lines else ''}"


if __name__ == "__main__":
    main()
