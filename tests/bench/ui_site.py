"""A server with many nodes and jobs for `tests.bench.ui`: the real API and page over a service in memory.

`python -m tests.bench.ui_site PORT NODES JOBS`. Prints a token when it serves; each line of its input is the number of
changes to make in a second.
"""

from __future__ import annotations

import asyncio
import sys
import threading

import uvicorn

from corral.core.accounts.accounts import Role
from corral.core.intake import commands
from corral.runtime.base import LogPart, TaskKey
from corral.server.api.app import make_app
from corral.server.api.http.settings import ApiSettings
from corral.wire.job import parse_job
from tests.server.in_memory_service import MemoryService

LINE = b"step %09d loss 0.1234567 lr 0.0003 tokens 1048576 grad 1.25\n"
LOG_BYTES = 1 << 30


class LongLogs:
    """A log of 1 GB that is made when it is read."""

    def read_log(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None:
        if stream != "stdout":
            return LogPart(0, b"", 0, True)
        size = len(LINE % 0)
        offset = max(0, LOG_BYTES + offset) if offset < 0 else min(offset, LOG_BYTES)
        first = offset // size
        text = b"".join(LINE % n for n in range(first, first + limit // size + 2))
        data = text[offset - first * size :][: min(limit, LOG_BYTES - offset)]
        return LogPart(offset, data, offset + len(data), offset + len(data) >= LOG_BYTES)


class ManyJobs(MemoryService):
    def __init__(self, nodes: int, jobs: int) -> None:
        super().__init__(nodes=nodes)
        for queue in ("research", "product"):
            self.queue(queue)
        self.backend = LongLogs()  # type: ignore[assignment]
        self.admin = self.user("admin", (Role.ADMINISTRATOR, ""))
        self.number = 0
        self._add(jobs)
        self.time_ms += 1000
        self.plan()

    def now_ms(self) -> int:
        return self.time_ms

    def _add(self, count: int) -> None:
        named = {}
        for _ in range(count):
            self.number += 1
            document = {
                "name": f"job-{self.number}", "queue": ("research", "product")[self.number % 2], "gpus": 8,
                "command": "true", "time_limit": "1h",
            }  # fmt: skip
            named[str(self.number)] = parse_job(document, now_ms=self.time_ms)
            if len(named) == 1000:
                self.do("admin", commands.submit_many(self.state, named, "admin", self.time_ms))  # type: ignore[arg-type]
                named = {}
        if named:
            self.do("admin", commands.submit_many(self.state, named, "admin", self.time_ms))  # type: ignore[arg-type]

    def make_change(self) -> None:
        """One change: a waiting job is held or released, or a node is cordoned or uncordoned."""
        self.time_ms += 10
        self.number += 1
        name = f"n{self.number % len(self.state.nodes)}"
        word = commands.uncordon if self.state.nodes[name].cordoned else commands.cordon
        self.do("admin", word(self.state, name, self.time_ms))


async def main(port: int, nodes: int, jobs: int) -> None:
    service = ManyJobs(nodes, jobs)
    app = make_app(service, ApiSettings(streams_per_token=1000, streams_per_user=1000, requests_per_s=1000))
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(service.admin, flush=True)
    rate = [0.0]
    threading.Thread(target=_listen, args=(rate,), daemon=True).start()
    while not serving.done():
        if rate[0]:
            service.make_change()
            await asyncio.sleep(1 / rate[0])
        else:
            await asyncio.sleep(0.05)


def _listen(rate: list[float]) -> None:
    for line in sys.stdin:
        rate[0] = float(line)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
