"""The worker of a batching queue: runs in the user's Python as a task of a job, with the standard library only.

Connects to the server, gets batches, calls the handler, sends the results. A handler is ``module:function`` with a list
of items in and a list of results out (a result may be an exception), or a URL: ``/v1/embeddings`` and
``/v1/completions`` get the form of OpenAI, any other ``{"items": [...]}`` for ``{"results": [...]}``. Copied to every
task as ``corral_batch.py``; one file, any Python from 3.10 on.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import socket
import ssl
import struct
import sys
import threading
import time
import traceback
import urllib.request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Message = dict[str, Any]
    Handler = Callable[[Sequence[Any]], Any]

BEAT_S = 2.0
AGAIN_S = 0.5
PATIENCE_S = 60.0  # without a server; then the worker ends and is started again
RUN_AGAIN = 85  # exit status of a task that was warned and wants to run again
_LENGTH = struct.Struct("!I")


class _Lost(Exception):
    """The connection to the server is gone."""


class BatchRunner:
    def __init__(self, environ: Mapping[str, str]) -> None:
        host, _, port = environ["BATCH_SERVER"].rpartition(":")
        self.address = (host.strip("[]"), int(port))
        self.queue = environ["BATCH_QUEUE"]
        self.token = environ["BATCH_TOKEN"]
        self.vram_mib = int(environ.get("BATCH_VRAM_MIB", "0"))
        self.ca = environ.get("BATCH_CA")
        self.handler = environ.get("BATCH_HANDLER", "")
        self.name = environ.get("CORRAL_JOB_ID", "worker")
        self.handlers: dict[str, Handler] = {}
        self.is_warned = False
        self._socket: Any = None
        self._lock = threading.Lock()

    def run(self) -> int:
        """Serve batches until the server says stop (0), the task is warned (85), or no server is there (1)."""
        if self.handler:
            self._handler(self.queue, self.handler)  # first: if that fails, no item has to do with it
        signal.signal(signal.SIGTERM, self._warn)
        threading.Thread(target=self._beat, daemon=True).start()
        since = time.monotonic()
        while not self.is_warned:
            try:
                self._connect()
                since = time.monotonic()
                if self._serve():
                    return 0
            except (_Lost, OSError) as lost:
                print(f"batch worker: {lost}", file=sys.stderr, flush=True)
            if time.monotonic() - since > PATIENCE_S:
                return 1
            time.sleep(AGAIN_S)
        return RUN_AGAIN

    def _warn(self, *_: Any) -> None:
        """Preemption, drain or a time limit: finish the batch, say goodbye, and end."""
        self.is_warned = True

    def _connect(self) -> None:
        found = socket.create_connection(self.address, 10)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.ca is not None:
            context = ssl.create_default_context(cafile=self.ca or None)
            found = context.wrap_socket(found, server_hostname=self.address[0])
        found.settimeout(1.0)
        self._socket = found
        self._send({"hello": self.queue, "token": self.token, "worker": self.name, "vram_mib": self.vram_mib})

    def _serve(self) -> bool:
        """True: the server wants this worker to end."""
        try:
            while True:
                message = self._receive()
                if message is None:  # warned while idle
                    self._send({"bye": True})
                    return False
                if "refused" in message:
                    raise SystemExit("batch worker: the server refused: {}".format(message["refused"]))
                if "stop" in message:
                    self._send({"bye": True})
                    return True
                self._send(self._answer(message))
        finally:
            self._socket.close()

    def _answer(self, message: Message) -> Message:
        began = time.monotonic()
        for other in message["unload"]:
            self._unload(other)
        try:
            handler = self._handler(message["queue"], message["handler"])
        except Exception as wrong:
            traceback.print_exc()
            failed = {"error": f"the handler cannot be loaded: {type(wrong).__name__}: {wrong}"}
            return {"done": message["batch"], "results": [failed] * len(message["items"])}
        loaded = time.monotonic()
        torch = sys.modules.get("torch")
        cuda = torch.cuda if torch is not None and torch.cuda.is_available() else None
        if cuda is not None:
            cuda.reset_peak_memory_stats()
        try:
            results = outcomes(timed(handler, message.get("timeout_ms", 0) / 1000), message["items"])
        except MemoryError:
            return {"oom": message["batch"]}
        except Exception as wrong:
            if cuda is None or not isinstance(wrong, cuda.OutOfMemoryError):
                raise
            cuda.empty_cache()
            return {"oom": message["batch"]}
        ended = time.monotonic()
        return {
            "done": message["batch"],
            "results": results,
            "service_us": int((ended - loaded) * 1e6),
            "load_us": int((loaded - began) * 1e6) if message["load"] else 0,
            "peak_mib": int(cuda.max_memory_reserved() >> 20) if cuda is not None else 0,
        }

    def _handler(self, queue: str, name: str) -> Handler:
        if queue not in self.handlers:
            self.handlers[queue] = found(name)
        return self.handlers[queue]

    def _unload(self, queue: str) -> None:
        handler = self.handlers.pop(queue, None)
        unload = getattr(handler, "unload", None)
        if unload is not None:
            unload()

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_S)
            try:
                if self._socket is not None:
                    self._send({"beat": True})
            except (OSError, _Lost):
                pass

    def _send(self, message: Message) -> None:
        try:
            body = json.dumps(message).encode()
        except (TypeError, ValueError) as wrong:
            message["results"] = [_one_by_one(each, wrong) for each in message["results"]]
            body = json.dumps(message).encode()
        with self._lock:
            view = memoryview(_LENGTH.pack(len(body)) + body)
            while view:
                try:
                    view = view[self._socket.send(view) :]
                except TimeoutError:
                    continue

    def _receive(self) -> Message | None:
        raw = self._read(_LENGTH.size)
        if raw is None:
            return None
        message: Message = json.loads(self._read(_LENGTH.unpack(raw)[0], True) or b"")
        return message

    def _read(self, length: int, is_begun: bool = False) -> bytes | None:
        """This many bytes; None if the task was warned before the first of them."""
        parts = bytearray()
        while len(parts) < length:
            try:
                part = self._socket.recv(min(1 << 20, length - len(parts)))
            except TimeoutError:
                if self.is_warned and not parts and not is_begun:
                    return None
                continue
            if not part:
                raise _Lost("the server closed the connection")
            parts += part
        return bytes(parts)


def found(name: str) -> Handler:
    """The function that a handler names."""
    if name.startswith(("http://", "https://")):
        return _endpoint(name)
    module, _, attribute = name.partition(":")
    sys.path.insert(0, os.getcwd())
    value: Any = importlib.import_module(module)
    for part in attribute.split("."):
        value = getattr(value, part)
    handler: Handler = value
    return handler


def timed(handler: Handler, seconds: float) -> Handler:
    """The handler with a time limit for each call. If it is exceeded, the stacks of the process
    go to the log and it ends, which the server takes for a worker that was killed by its batch."""
    if not seconds:
        return handler

    def call(items: Sequence[Any]) -> list[Any]:
        faulthandler.dump_traceback_later(seconds, exit=True)
        try:
            return list(handler(items))  # it may be a generator
        finally:
            faulthandler.cancel_dump_traceback_later()

    return call


def outcomes(handler: Handler, items: Sequence[Any]) -> list[Message]:
    """The outcome of each item. If the handler raises, halves are tried until the items that it raises for are found;
    running out of memory is left to the caller."""
    try:
        results = list(handler(items))
    except MemoryError:
        raise
    except Exception as wrong:
        if type(wrong).__name__ == "OutOfMemoryError":
            raise
        if len(items) > 1:
            middle = len(items) // 2
            return outcomes(handler, items[:middle]) + outcomes(handler, items[middle:])
        traceback.print_exc()
        return [{"error": f"{type(wrong).__name__}: {wrong}"}]
    if len(results) != len(items):
        return [{"error": f"the handler returned {len(results)} results for {len(items)} items"}] * len(items)
    return [
        {"error": f"{type(each).__name__}: {each}"} if isinstance(each, Exception) else {"ok": _plain(each)}
        for each in results
    ]


def _plain(value: Any) -> Any:
    """Tensors and arrays as lists."""
    return value.tolist() if hasattr(value, "tolist") else value


def _one_by_one(outcome: Message, wrong: Exception) -> Message:
    try:
        json.dumps(outcome)
        return outcome
    except (TypeError, ValueError):
        return {"error": f"the result cannot be written as JSON: {wrong}"}


def _endpoint(url: str) -> Handler:
    path = url.split("?")[0].rstrip("/")
    if path.endswith("/v1/embeddings"):
        return lambda items: [each["embedding"] for each in _post(url, {"input": items, "model": ""})["data"]]
    if path.endswith("/v1/completions"):
        return lambda items: [each["text"] for each in _post(url, {"prompt": items, "model": ""})["choices"]]
    return lambda items: _post(url, {"items": items})["results"]


def _post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


if __name__ == "__main__":
    sys.exit(BatchRunner(os.environ).run())
