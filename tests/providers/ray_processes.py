"""Ray on this machine, several raylets on an address of loopback: a program, run by the Python of Ray's environment.

    python ray_processes.py FOLDER NODES PID

Nodes are labelled machine=m1, m2, ...; the first is that of the head. The first two have pool=a, the others pool=b.
Says in FOLDER/bed.json where things are, and obeys lines that come through FOLDER/bed.sock. The head keeps on disk what
it must not forget. Ends with the process PID, together with everything that it started.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

HOST = "127.0.0.2"  # 127.0.0.1 would become the machine's address on its network
SETTINGS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1_000,
    "health_check_failure_threshold": 3,
}


class Bed:
    def __init__(self, folder: Path, count: int) -> None:
        from ray.cluster_utils import Cluster

        self.settings = SETTINGS | {"gcs_storage": "rocksdb", "gcs_storage_path": str(folder / "gcs")}
        (folder / "gcs").mkdir()
        self.cluster = Cluster()
        self.nodes: dict[str, Any] = {}
        for number in range(1, count + 1):
            self.start(f"m{number}")
        self.cluster.wait_for_nodes()

    def start(self, machine: str) -> None:
        terms: dict[str, Any] = {}
        if not self.nodes:
            terms = {"_system_config": self.settings, "include_dashboard": False, "gcs_server_port": _free_port()}
        labels = {"machine": machine, "pool": "a" if machine in ("m1", "m2") else "b"}
        self.nodes[machine] = self.cluster.add_node(
            wait=False, num_cpus=0, num_gpus=0, object_store_memory=80 << 20, node_ip_address=HOST, labels=labels,
            **terms,
        )  # fmt: skip

    def told(self) -> dict[str, Any]:
        head = self.cluster.head_node
        return {
            "address": self.cluster.address,
            "python": sys.executable,
            "gcs": _pid(head, "gcs_server"),
            "raylets": {name: _pid(node, "raylet") for name, node in self.nodes.items()},
        }

    def obey(self, words: list[str]) -> dict[str, Any]:
        if words[0] == "start":
            self.cluster.remove_node(self.nodes[words[1]], allow_graceful=False)
            self.start(words[1])
        if words[0] == "start-head":
            self.cluster.head_node.kill_gcs_server(check_alive=False)
            self.cluster.head_node.start_gcs_server()
        return self.told()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _pid(node: Any, kind: str) -> int:
    return next((each.process.pid for each in node.all_processes.get(kind, ())), 0)


def main() -> None:
    folder, count, owner = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ |= {"RAY_TMPDIR": str(folder), "RAY_gcs_rpc_server_reconnect_timeout_s": "3600"}
    threading.Thread(target=_end_with, args=(owner, folder), daemon=True).start()
    bed = Bed(folder, count)
    threading.Thread(target=_reap, args=(bed,), daemon=True).start()
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(folder / "bed.sock"))
        door.listen()
        (folder / "bed.json.new").write_text(json.dumps(bed.told()))
        (folder / "bed.json.new").rename(folder / "bed.json")
        while True:
            visitor, _ = door.accept()
            with visitor:
                visitor.sendall(json.dumps(bed.obey(visitor.recv(1_000).decode().split())).encode())


def _reap(bed: Bed) -> None:
    """As init does where raylets are daemons: for its workers, a raylet that is a zombie would be alive."""
    while True:
        for node in list(bed.nodes.values()):
            for started in [each for kind in list(node.all_processes.values()) for each in kind]:
                started.process.poll()
        time.sleep(0.05)


def _end_with(owner: int, folder: Path) -> None:
    """Everything that descends from this process."""
    while os.path.exists(f"/proc/{owner}"):
        time.sleep(0.2)
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    for pid in ours - {os.getpid()}:
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
    for _ in range(20):  # some are still about to end, and write a last word
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.1)
    os._exit(0)


if __name__ == "__main__":
    main()
