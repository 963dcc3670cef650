"""A small site with something on every page: queues, users, secrets, and jobs that run, wait, failed and ended."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.e2e.live import Live, Refused

TRAINS = """
import time
for step in range(2000):
    print("\\033[32mstep\\033[0m", step, "loss", round(2 / (step + 1), 4), flush=True)
    time.sleep(0.3)
"""
QUEUES = {"research": 4, "research/vision": 2, "product": 4}


class SmallSite:
    """A server with its jobs. ``tokens``: by user."""

    def __init__(self, data: Path, gpus: int = 8) -> None:
        self.live = Live(data, gpus=gpus)
        self.tokens: dict[str, str] = {}

    def start(self) -> SmallSite:
        self.live.start()
        self.tokens["admin"] = self.live.token
        for queue, gpus in QUEUES.items():
            self.live.ask("PUT", f"/v1/queues/{queue}", {"guarantee": {"gpu_milli": gpus * 1000}})
        self.user("ann", "member", "research")
        self.user("bob", "viewer", "product")
        self.live.ask("PUT", "/v1/secrets/WANDB_API_KEY?queue=research", {"value": "a secret value"})
        return self

    def user(self, name: str, role: str, queue: str) -> None:
        self.live.ask("PUT", f"/v1/users/{name}", {})
        self.live.ask("PUT", f"/v1/users/{name}/roles", {"role": role, "queue": queue})
        body = {"user": name, "expires_in_ms": 86_400_000}
        self.tokens[name] = self.live.ask("POST", "/v1/tokens", body)["token"]

    def submit(self, **document: Any) -> str:
        usual = {"queue": "research", "command": ["python3", "-c", TRAINS]}
        return str(self.live.ask("POST", "/v1/jobs", usual | document)["id"])

    def fill(self) -> None:
        """Jobs of every kind; returns when the first runs."""
        self.submit(name="llama-pretrain", gpus=4, time_limit="2h", labels={"project": "llm"})
        self.until("1", "running")
        self.submit(name="resnet-50", queue="research/vision", gpus=1, time_limit="30m")
        self.submit(name="eval-mmlu", queue="product", gpus=1, command="echo no such file >&2; exit 3")
        self.submit(name="tokenize", queue="product", gpus=1, command="echo done")
        self.submit(name="sweep-lr", queue="product", gpus=1, array="0-5", command="sleep 20", time_limit="5m")
        for number, queue in enumerate(("product", "research") * 6):
            self.submit(name=f"finetune-{number}", queue=queue, gpus=(2, 4, 8)[number % 3], time_limit="1h")
        self.until("3", "failed")

    def until(self, job: str, state: str) -> None:
        found: dict[str, Any] = {}
        for _ in range(600):
            found = self.live.ask("GET", f"/v1/jobs/{job}")
            if found["state"] == state:
                return
            time.sleep(0.1)
        raise AssertionError(f"job {job} is not {state} after 60 s: {found['state']} {found['why']} {found['reason']}")

    def stop(self) -> None:
        """Cancel what is not over, and end the server whatever happens."""
        try:
            for job in self.live.ask("GET", "/v1/jobs?states=running,starting,waiting&limit=1000")["jobs"]:
                self.cancel(job["id"])
            time.sleep(0.5)
        finally:
            self.live.stop()

    def cancel(self, job: str) -> None:
        """End the job, unless it has just ended by itself."""
        try:
            self.live.ask("POST", f"/v1/jobs/{job}/cancel?now=true")
        except Refused as refused:
            if refused.problem["code"] != "job_over":
                raise
