"""The network between an agent of a test cluster and its server, which can be cut, delayed and restored.

`ProxyLink`: a proxy on this machine, for any user; a cut holds back data in flight and delivers it when the link is
restored, as TCP does. `NamespaceLink`: a network namespace for the agent, joined to this machine by a pair of virtual
interfaces; needs root. Knows addresses and bytes, not their meaning.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from contextlib import suppress
from functools import partial
from typing import Protocol

_CHUNK = 1 << 16


class NetworkLink(Protocol):
    url: str  # where the agent connects to the server
    gateway: str  # where the proxy connects to the server

    def words(self) -> list[str]:
        """Words to put before the agent's command."""

    def cut(self) -> None: ...

    def mend(self) -> None: ...

    def slow(self, ms: int) -> None:
        """Delay of all data, in each direction; 0: none."""

    def close(self) -> None: ...


class Proxies:
    """The thread that runs all proxies of a test cluster."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def close(self) -> None:
        async def end() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class ProxyLink:
    def __init__(self, proxies: Proxies, port: int, agent_port: int) -> None:
        self._loop, self._late_s = proxies.loop, 0.0
        self._open: asyncio.Event = asyncio.Event()
        self._servers = [
            asyncio.run_coroutine_threadsafe(self._begin(each), self._loop).result(10) for each in (port, agent_port)
        ]
        web, agents = (server.sockets[0].getsockname()[1] for server in self._servers)
        self.url, self.gateway = f"http://127.0.0.1:{web}", f"127.0.0.1:{agents}"

    def words(self) -> list[str]:
        return []

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._open.clear)

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._open.set)

    def slow(self, ms: int) -> None:
        self._late_s = ms / 1000

    def close(self) -> None:
        for server in self._servers:
            self._loop.call_soon_threadsafe(server.close)

    async def _begin(self, port: int) -> asyncio.Server:
        self._open.set()
        return await asyncio.start_server(partial(self._serve, port), "127.0.0.1", 0)

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far: asyncio.StreamWriter | None = None
        try:
            await self._open.wait()
            there, far = await asyncio.open_connection("127.0.0.1", port)
            ways = [asyncio.create_task(self._pump(reader, far)), asyncio.create_task(self._pump(there, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # the server is away, or the test cluster is ending
        finally:
            for end in (writer, far):
                if end is not None:
                    end.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self._late_s:
                    await asyncio.sleep(self._late_s)
                await self._open.wait()
                writer.write(data)
                await writer.drain()


class NamespaceLink:
    """``number``: n of the network 10.77.n.0/24 to use."""

    def __init__(self, name: str, number: int, port: int, agent_port: int) -> None:
        self._space = f"corral-{name}"
        self._inner = f"cri{number}"
        self._outer = f"cro{number}"
        self.url, self.gateway = f"http://10.77.{number}.1:{port}", f"10.77.{number}.1:{agent_port}"
        self.close()
        _ip("netns", "add", self._space)
        _ip("link", "add", self._outer, "type", "veth", "peer", "name", self._inner)
        _ip("link", "set", self._inner, "netns", self._space)
        _ip("addr", "add", f"10.77.{number}.1/24", "dev", self._outer)
        _ip("link", "set", self._outer, "up")
        _ip("-n", self._space, "addr", "add", f"10.77.{number}.2/24", "dev", self._inner)
        _ip("-n", self._space, "link", "set", self._inner, "up")
        _ip("-n", self._space, "link", "set", "lo", "up")

    def words(self) -> list[str]:
        return ["ip", "netns", "exec", self._space]

    def cut(self) -> None:
        _ip("link", "set", self._outer, "down")

    def mend(self) -> None:
        _ip("link", "set", self._outer, "up")

    def slow(self, ms: int) -> None:
        subprocess.run(["tc", "qdisc", "del", "dev", self._outer, "root"], capture_output=True, check=False)
        if ms:
            _run("tc", "qdisc", "add", "dev", self._outer, "root", "netem", "delay", f"{ms}ms")

    def close(self) -> None:
        subprocess.run(["ip", "link", "del", self._outer], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", self._space], capture_output=True, check=False)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
