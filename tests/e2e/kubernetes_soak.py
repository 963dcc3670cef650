"""Break a Kubernetes cluster under gangs of pods, again and again: API server killed or frozen, watches cut, versions
compacted, answers lost, nodes silent, pods deleted by others, Corral's own side restarted.

    python -m tests.e2e.kubernetes_soak --trials 200 --seed 1

The driver does what the server does: it orders gangs, ends some, starts another attempt when all tasks of one have been
reported down, and forgets what is over. After every trial it checks the laws: each task ordered is reported down once;
its program was started at most once for an attempt; programs of two attempts never ran at the same time; the exit code
is the one of the program unless it was ended; nothing is left on the cluster. Ends with one line of JSON: ``trials``,
``lost``, ``second_pods``, ``left_over``, ``overlap``, ``wrong``, ``checks``.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import structs

from corral.core.model import FailureClass
from corral.kubernetes.pod_backend import PodBackend
from corral.runtime.base import Phase, Report, TaskKey, TaskOrder, TaskReport
from tests.kubernetes.breaking_proxy import BUSY, DROP, LOSE, PASS, BreakingProxy
from tests.kubernetes.control_plane import ControlPlane, NoControlPlane
from tests.kubernetes.pods import pods_namespace, settings_for
from tests.runtime.reports import order

PATIENCE_S = 150.0
ATTEMPTS_MAX = 3
FAULTS = ("none", "cut", "lost create", "lost delete", "busy", "compacted", "restart", "others delete", "killed",
          "frozen", "silent")  # fmt: skip
#: Notes that it began, holds the lock of its gang and task while it runs, and notes when another had it.
PROGRAM = """
echo begun >> "$BOOK/begun-$NAME"
exec 9>"$BOOK/lock-$SEAT"
flock -n 9 || echo overlap >> "$BOOK/overlap"
{body}
"""


class Soak:
    def __init__(self, plane: ControlPlane, namespace: str, folder: Path, seed: int) -> None:
        self.plane, self.namespace, self.folder = plane, namespace, folder
        self.draw = random.Random(seed)
        self.proxy = BreakingProxy(plane, folder)
        self.settings = structs.replace(settings_for(plane, namespace, folder), kubeconfig=str(self.proxy.kubeconfig))
        self.book = folder / "book"
        self.book.mkdir()
        self.found: Counter[str] = Counter(trials=0, lost=0, second_pods=0, left_over=0, overlap=0, wrong=0, checks=0)
        self.downs: dict[TaskKey, list[TaskReport]] = {}
        self.expected: dict[TaskKey, int | None] = {}
        self.news = threading.Condition()
        self.ordered: dict[TaskKey, TaskOrder] = {}
        self.turn = threading.Lock()
        self.epoch = 0
        self.next_gang = 0
        self.backend = self.opened()

    def opened(self) -> PodBackend:
        self.epoch += 1
        backend = PodBackend(self.folder / "server", self.settings)
        backend.open(self.hear, self.epoch)
        return backend

    def hear(self, report: Report) -> None:
        if isinstance(report, TaskReport) and report.phase is Phase.DOWN:
            with self.news:
                self.downs.setdefault(report.key, []).append(report)
                self.news.notify_all()

    # ---- one trial ---------------------------------------------------------------------------------------------

    def trial(self, fault: str) -> None:
        gangs = [self.gang() for _ in range(self.draw.randint(1, 2))]
        orders = [self.order(key) for gang in gangs for key in gang]
        is_early = self.draw.random() < 0.5
        inject = threading.Thread(target=self.inject, args=(fault,))
        if is_early:
            inject.start()
            time.sleep(self.draw.random() * 0.3)
        for gang in gangs:
            self.launch([each for each in orders if each.key in gang])
        if not is_early:
            time.sleep(self.draw.random())
            inject.start()
        inject.join()
        for gang in gangs:
            self.see_through(gang)
        self.check_left_over()
        self.found["trials"] += 1

    def launch(self, orders: list[TaskOrder]) -> None:
        with self.turn:
            self.ordered = {**self.ordered, **{each.key: each for each in orders}}
            self.backend.launch([structs.replace(each, epoch=self.epoch) for each in orders])

    def restart(self) -> None:
        """As a server: what was ordered and is not known to have ended is ordered again."""
        with self.turn:
            self.backend.close()
            time.sleep(self.draw.random())
            self.backend = self.opened()
            with self.news:
                again = [each for key, each in self.ordered.items() if key not in self.downs]
            self.backend.launch([structs.replace(each, epoch=self.epoch) for each in again])

    def gang(self) -> list[TaskKey]:
        self.next_gang += 1
        return [TaskKey(f"{self.next_gang}/main", 1, task) for task in range(self.draw.randint(1, 3))]

    def order(self, key: TaskKey) -> TaskOrder:
        code = self.draw.choice([0, 0, 3, None])  # None: until it is ended
        self.expected[key] = code
        seconds = self.draw.choice([0, 0.3, 1.5])
        body = "while :; do sleep 0.1; done" if code is None else f"sleep {seconds}; exit {code}"
        env = {"BOOK": str(self.book), "NAME": f"{key.gang.partition('/')[0]}-{key.attempt}-{key.task}"}
        env["SEAT"] = f"{key.gang.partition('/')[0]}-{key.task}"
        program = order(key, "sh", "-c", PROGRAM.replace("{body}", body), epoch=self.epoch, env=tuple(env.items()))
        return structs.replace(program, node=f"node-{self.draw.randrange(4)}")

    def see_through(self, gang: list[TaskKey]) -> None:
        """Until all is over: end what does not end by itself, and try again what others have lost."""
        attempt = 1
        while True:
            for key in gang:
                if self.expected[key] is None:
                    if self.draw.random() < 0.5:
                        self.backend.kill(key)
                    else:
                        self.backend.warn(key, time.time_ns() // 1_000_000 + 2_000, "drain")
            if not self.wait(gang):
                return
            for key in gang:
                self.check(key)
            is_lost = any(self.downs[key][-1].failure is FailureClass.NODE_LOST for key in gang)
            again = [TaskKey(key.gang, attempt + 1, key.task) for key in gang]
            orders = [self.order(key) for key in again] if is_lost and attempt < ATTEMPTS_MAX else []
            if orders:
                self.launch(orders)  # the earlier attempt is forgotten later, as the server does
            for key in gang:
                self.backend.forget(key)
            if not orders:
                return
            gang, attempt = again, attempt + 1

    def wait(self, gang: list[TaskKey]) -> bool:
        end = time.monotonic() + PATIENCE_S
        with self.news:
            while missing := [key for key in gang if key not in self.downs]:
                left = end - time.monotonic()
                if left <= 0:
                    self.note("lost", f"{missing}")
                    return False
                self.news.wait(left)
        return True

    # ---- laws --------------------------------------------------------------------------------------------------

    def check(self, key: TaskKey) -> None:
        name = f"begun-{key.gang.partition('/')[0]}-{key.attempt}-{key.task}"
        begun = (self.book / name).read_text().count("begun") if (self.book / name).exists() else 0
        self.found["checks"] += 3
        if begun > 1:
            self.note("second_pods", f"{key} was started {begun} times")
        if (self.book / "overlap").exists():
            self.note("overlap", f"at {key}")
            (self.book / "overlap").unlink()
        down, expected = self.downs[key][-1], self.expected[key]
        if expected is not None and down.failure is None and down.exit_code != expected:
            self.note("wrong", f"{key} ended with {down}, not {expected}")

    def check_left_over(self) -> None:
        end = time.monotonic() + PATIENCE_S
        while left := self.left():
            if time.monotonic() > end:
                self.note("left_over", str(left))
                for pod in self.of("pods"):
                    with suppress(OSError):
                        self.plane.call("DELETE", f"{self.path('pods')}/{pod}", {"gracePeriodSeconds": 0})
                return
            time.sleep(0.1)
        self.found["checks"] += 1

    def left(self) -> list[str]:
        known = [str(key) for key in self.backend.known()]
        return known + [f"{kind} {name}" for kind in ("pods", "configmaps", "secrets") for name in self.of(kind)]

    def of(self, kind: str) -> list[str]:
        with suppress(OSError):
            items: list[Any] = self.plane.json("GET", self.path(kind))["items"]
            marked = [each["metadata"] for each in items if "corral.dev/attempt" in each["metadata"].get("labels", {})]
            return [meta["name"] for meta in marked]
        return ["(no answer)"]

    def path(self, kind: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/{kind}"

    def note(self, law: str, what: str) -> None:
        self.found[law] += 1
        print(f"trial {self.found['trials']}: {law}: {what}", file=sys.stderr, flush=True)

    # ---- faults ------------------------------------------------------------------------------------------------

    def inject(self, fault: str) -> None:
        draw = self.draw
        if fault == "cut":
            for _ in range(draw.randint(1, 4)):
                self.proxy.cut()
                time.sleep(draw.random() * 0.3)
        elif fault in ("lost create", "lost delete", "busy"):
            method = "DELETE" if fault == "lost delete" else "POST"
            self.proxy.rule = self.sometimes(method, BUSY if fault == "busy" else LOSE, draw.randint(1, 4))
            time.sleep(1.5)
        elif fault == "compacted":
            self.proxy.rule = lambda *_: DROP
            self.proxy.cut()
            time.sleep(draw.random() * 2)
            with suppress(OSError):
                self.plane.compact()
            self.proxy.rule = lambda *_: PASS
        elif fault == "restart":
            self.restart()
        elif fault == "others delete":
            self.others_delete()
        elif fault == "killed":
            self.plane.kill("apiserver")
            time.sleep(draw.choice([0.2, 2.0, 5.0]))
            self.plane.restart("apiserver")
        elif fault == "frozen":
            self.plane.kill("apiserver", signal.SIGSTOP)
            time.sleep(draw.choice([1.0, 4.0, 12.0]))
            self.plane.kill("apiserver", signal.SIGCONT)
        elif fault == "silent":
            with self.plane.node_is(f"node-{draw.randrange(4)}", "silent"):
                time.sleep(draw.choice([2.0, 9.0]))

    def sometimes(self, method: str, action: str, times: int) -> Any:
        left = [times]

        def rule(asked: str, path: str) -> str:
            if asked == method and "watch=" not in path and left[0] > 0 and self.draw.random() < 0.5:
                left[0] -= 1
                return action
            return PASS

        return rule

    def others_delete(self) -> None:
        self.proxy.rule = self.sometimes("POST", LOSE, self.draw.randint(0, 2))
        end = time.monotonic() + 2
        while time.monotonic() < end:
            for pod in self.of("pods"):
                with suppress(OSError):
                    grace_s = self.draw.choice([0, 1, 5])
                    self.plane.call("DELETE", f"{self.path('pods')}/{pod}", {"gracePeriodSeconds": grace_s})
            time.sleep(0.1)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--trials", type=int, default=200)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--faults", default=",".join(FAULTS), help="which of them")
    given = options.parse_args()
    try:
        plane = ControlPlane()
    except NoControlPlane as missing:
        print(missing, file=sys.stderr)
        return 2
    try:
        with tempfile.TemporaryDirectory(prefix="corral-soak-") as folder, pods_namespace(plane) as namespace:
            soak = Soak(plane, namespace, Path(folder), given.seed)
            try:
                for number in range(given.trials):
                    fault = soak.draw.choice(given.faults.split(","))
                    began = time.monotonic()
                    soak.trial(fault)
                    soak.proxy.rule = lambda *_: PASS
                    took = time.monotonic() - began
                    print(f"{number + 1}/{given.trials} {fault} {took:.1f} s", file=sys.stderr, flush=True)
            finally:
                soak.proxy.rule = lambda *_: PASS
                soak.backend.close()
                soak.proxy.close()
    finally:
        plane.stop()
    print(json.dumps(dict(soak.found)))
    return 1 if any(soak.found[law] for law in ("lost", "second_pods", "left_over", "overlap", "wrong")) else 0


if __name__ == "__main__":
    sys.exit(main())
