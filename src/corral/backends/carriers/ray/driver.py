"""The other end of the bridge: a program that is a driver of Ray, and does nothing but what it is told.

Run by the Python of Ray's environment, in which there is no Corral: knows the standard library and Ray. A request is a
line of JSON on the standard input, followed by as many bytes as it says; each is answered by a line with its number, in
any order. When the input ends, so does this. When Ray ends it, nobody else is harmed.
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

_IDLE_S = 60.0  # an actor on whose machine nothing of ours is ends by itself
_LOOK_S = 0.1
_RECONNECT, _RECONNECT_S = "RAY_gcs_rpc_server_reconnect_timeout_s", 60  # as Ray has it
_LONG_S = 600
#: To end with the actor's thread (PR_SET_PDEATHSIG), then be the keeper.
_KEEP = (
    "import ctypes, os, runpy, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv.pop(1)) or os._exit(0); runpy.run_path(sys.argv[1], run_name='__main__')"
)


def caveat(env: Mapping[str, str]) -> str:
    """What the loss of Ray's head will do to a node, where that is soon; empty: it goes on for long."""
    said = env.get(_RECONNECT, "")
    left_s = int(said) if said.isdecimal() else _RECONNECT_S
    if left_s >= _LONG_S:
        return ""
    return f"Ray ends it when the head is gone for {left_s} s: set {_RECONNECT} where its raylet is started"


class Warden:
    """The actor of a node: runs what is sent to its machine, and keeps a keeper running for as long as one is wanted.
    Both in the Python of the machine, with nothing of Ray's environment. ``first``: a look, as bytes for it. It
    outlives versions of the server: `ask` must stay as it is, and what it runs comes with every question."""

    def __init__(self, python: str, words: str, first: bytes) -> None:
        self._python, self._words = python or sys.executable, words
        self._base = json.loads(self.ask(first, 30.0).splitlines()[-1]).get("folder", "")
        self._idle_s = time.monotonic()
        threading.Thread(target=self._keep, name="keeping", daemon=True).start()

    def caveat(self) -> str:
        return caveat(os.environ)

    def ask(self, said: bytes, within_s: float) -> bytes:
        """What the machine answers. Raises where it does not in time."""
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
        """In one thread for as long as the actor lives: what it starts ends with it. Tasks do not: they have left."""
        while time.monotonic() - self._idle_s < _IDLE_S or self._is_wanted():
            if self._is_wanted():
                keeper = os.path.join(self._base, "keeper.py")
                subprocess.run(
                    [self._python, "-I", "-S", "-c", _KEEP, str(os.getpid()), keeper], stdin=subprocess.DEVNULL,
                    cwd="/", start_new_session=True, check=False,
                )  # fmt: skip
                if not os.path.exists(os.path.join(self._base, "place.json")):
                    break
            time.sleep(_LOOK_S)
        self._end()

    def _is_wanted(self) -> bool:
        """Whether an agent is to run here that nobody else keeps."""
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
        self._wardens: dict[str, Any] = {}
        self._lock = threading.Lock()

    def nodes(self, _request: dict[str, Any], _body: bytes) -> dict[str, Any]:
        import ray

        return {
            "nodes": [
                {
                    "id": node["NodeID"], "address": node["NodeManagerAddress"], "host": node["NodeManagerHostname"],
                    "labels": node.get("Labels") or {}, "is_head": "node:__internal_head__" in node["Resources"],
                }
                for node in ray.nodes() if node["Alive"]
            ]
        }  # fmt: skip

    def ask(self, request: dict[str, Any], body: bytes) -> dict[str, Any]:
        """``is_absent``: there is no actor, and none was to be made. ``away``: nobody knows."""
        import ray
        from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError

        node, within_s = request["node"], request["within_s"]
        for _ in range(2):
            warden = self._warden(request)
            if warden is None:
                return {"is_absent": True}
            try:
                output = ray.get(warden.ask.remote(body, within_s), timeout=within_s)
                more = getattr(warden, "caveat", None)  # an actor may be older than this driver
                caveat = "" if more is None else ray.get(more.remote(), timeout=within_s)
                return {"output": output.decode(), "caveat": caveat}
            except ActorDiedError:
                self._wardens.pop(node, None)  # for good: another takes its place
            except (GetTimeoutError, RayActorError) as lost:
                return {"away": _short(lost)}
        return {"away": "its actor died"}

    def _warden(self, request: dict[str, Any]) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = request["node"]
        with self._lock:
            if node in self._wardens:
                return self._wardens[node]
            name = f"corral-{node}"
            if request["is_met"]:
                strategy = NodeAffinitySchedulingStrategy(node, soft=False)
                found = ray.remote(Warden).options(
                    name=name, namespace=self._namespace, lifetime="detached", get_if_exists=True, num_cpus=0,
                    num_gpus=0, max_restarts=-1, max_concurrency=4, scheduling_strategy=strategy,
                ).remote(request["python"], request["words"], request["first"].encode())  # fmt: skip
            else:
                try:
                    found = ray.get_actor(name, namespace=self._namespace)
                except ValueError:
                    return None
            self._wardens[node] = found
            return found


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no answer
    lock = threading.Lock()

    def tell(answer: dict[str, Any]) -> None:
        with lock:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()

    said = json.loads(sys.stdin.buffer.readline())
    try:
        import ray

        ray.init(address=said["address"], namespace=said["namespace"], log_to_driver=False, logging_level="ERROR")
    except Exception as wrong:  # whatever it is, it is told
        tell({"number": 0, "fault": _short(wrong)})
        return
    tell({"number": 0, "version": ray.__version__})
    driver = Driver(said["namespace"])
    while True:
        line = sys.stdin.buffer.readline()
        if not line:
            os._exit(0)  # without waiting for Ray, which may be away
        request = json.loads(line)
        body = sys.stdin.buffer.read(request["size"])
        threading.Thread(target=_carry_out, args=(driver, request, body, tell), daemon=True).start()


def _carry_out(driver: Driver, request: dict[str, Any], body: bytes, tell: Any) -> None:
    try:
        answer = {"nodes": driver.nodes, "ask": driver.ask}[request["act"]](request, body)
    except Exception as wrong:
        answer = {"away": _short(wrong)}
    tell({"number": request["number"], **answer})


def _short(wrong: Exception) -> str:
    lines = [line.strip() for line in str(wrong).splitlines() if line.strip()]
    return f"{type(wrong).__name__}: {lines[0][:300] if lines else ''}"


if __name__ == "__main__":
    main()
