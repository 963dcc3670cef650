"""Connections to running tasks, for job steps: of users, and of agents for seats on other nodes.

Copies bytes between two ends and knows nothing about what they mean. A connection ends with either of its ends, with
the right to it, and with the server; both ends know how to continue on a new one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Protocol

import structlog
from starlette.types import Receive, Send

from corral.core.accounts.commands import node_user
from corral.core.gang_id import element_of, short_name
from corral.core.model import Gang
from corral.runtime.base import TaskKey
from corral.runtime.local.state_dir import name_of
from corral.runtime.steps import step_frames as frames
from corral.runtime.steps import unix_sockets as sockets
from corral.server.api.handlers.jobs import seen_job
from corral.server.api.handlers.logs import matching_gangs
from corral.server.api.http.contracts import DistantTasks, NearTasks
from corral.server.api.http.problems import ApiError, out_of_scope
from corral.server.api.http.request import ApiRequest, DuplexAnswer, Reply
from corral.server.auth import Verb

log = structlog.get_logger(__name__)

_CONNECT_S = 10.0
_AT_ONCE = 64 << 10
_CHECK_S = 5.0
#: What connections are for, as clients say it.
_SESSIONS = frozenset({"exec", "shell", "port", "cp", "run", "srun", "signal", "ssh", "notebook"})


class Pipe(Protocol):
    async def read(self) -> bytes:
        """Bytes; none: the end."""
        ...

    async def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...


class SocketPipe:
    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock

    async def read(self) -> bytes:
        try:
            return await asyncio.get_running_loop().sock_recv(self._sock, _AT_ONCE)
        except OSError:
            return b""

    async def write(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._sock, data)

    def close(self) -> None:
        self._sock.close()


class BodyPipe:
    """The body and the answer of one request."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.is_over = asyncio.Event()

    async def read(self) -> bytes:
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                return b""
            if message.get("body"):
                return bytes(message["body"])
            if not message.get("more_body"):
                return b""

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def close(self) -> None:
        self.is_over.set()


async def open_stream(request: ApiRequest) -> Reply:
    """A connection of a user to a task of a running job."""
    row = await seen_job(request, Verb.JOBS_CHANGE)
    request.require(Verb.JOBS_CHANGE, "job", row.id, row.queue, row.user)
    gang = _running(request, (await matching_gangs(request, row.id, request.query.gang))[0])
    key = TaskKey(gang.id, gang.attempt, request.query.task)
    what = request.query.what if request.query.what in _SESSIONS else "session"
    await request.audit_session(f"{what}: a process in job {row.id}, task {key.task}")
    log.info("task_stream", user=request.user, job=row.id, task=key.task, what=request.query.what)

    def holds() -> bool:
        return request.is_alive and request.may(Verb.JOBS_CHANGE, row.queue, row.user)

    return DuplexAnswer(lambda receive, send: _join(request, key, BodyPipe(receive, send), send, holds))


async def open_seat(request: ApiRequest) -> Reply:
    """A connection from one task of a gang to another, asked for by the agent of the first."""
    _check_fleet(request)
    if Verb.NODE_SYNC not in request.principal.scope:
        raise out_of_scope(Verb.NODE_SYNC)
    node, asked = _node_of(request), request.query
    gang = next(
        (
            gang
            for gang_id in request.service.state.tenants.get(node, ())
            for gang in (request.service.state.gangs[gang_id],)
            for task, seat in enumerate(gang.seats)
            if seat.node == node and name_of(TaskKey(gang.id, gang.attempt, task)) == asked.task
        ),
        None,
    )
    if gang is None or not 0 <= asked.seat < len(gang.seats):
        raise ApiError(404, "no_such_task", f"task {asked.task[:100]!r} does not run on {node}, or has no such seat")
    key = TaskKey(gang.id, gang.attempt, asked.seat)
    return DuplexAnswer(
        lambda receive, send: _join(request, key, BodyPipe(receive, send), send, lambda: request.is_alive)
    )


async def take_stream(request: ApiRequest) -> Reply:
    """An agent connects because it was asked to."""
    _check_fleet(request)
    if Verb.NODE_SYNC not in request.principal.scope:
        raise out_of_scope(Verb.NODE_SYNC)
    backend = request.service.backend
    found = backend.redeem(_node_of(request), request.path["ticket"]) if isinstance(backend, DistantTasks) else None
    if found is None or found.cancelled():
        raise ApiError(404, "no_such_ticket", "this connection is no longer wanted")

    async def run(receive: Receive, send: Send) -> None:
        await _begin(send)
        pipe = BodyPipe(receive, send)
        found.set_result(pipe)
        await pipe.is_over.wait()
        await _end(send)

    return DuplexAnswer(run)


def _check_fleet(request: ApiRequest) -> None:
    if request.service.fleet is None:
        raise ApiError(404, "no_fleet", "this server runs tasks only on its own machine")


def _node_of(request: ApiRequest) -> str:
    return request.user.removeprefix(node_user(""))


def _running(request: ApiRequest, gang_id: str) -> Gang:
    gang = request.service.state.gangs.get(gang_id)
    name = short_name(gang_id)
    if gang is None or not gang.holds_seats:
        raise ApiError(409, "not_running", f"job {name} does not run now", f"see: corral show {element_of(gang_id)}")
    if not 0 <= request.query.task < len(gang.seats):
        why = f"job {name} has tasks 0 to {len(gang.seats) - 1}"
        raise ApiError(404, "no_such_task", f"there is no task {request.query.task}: {why}")
    return gang


async def _join(request: ApiRequest, key: TaskKey, near: BodyPipe, send: Send, holds: Callable[[], bool]) -> None:
    far = await _connect(request, key)
    try:
        await _begin(send)
        await _copy_both(near, far, request.shared.closing, holds)
    finally:
        far.close()
    await _end(send)


async def _connect(request: ApiRequest, key: TaskKey) -> Pipe:
    backend: Any = request.service.backend
    try:
        async with asyncio.timeout(_CONNECT_S):
            if isinstance(backend, DistantTasks):
                asked = backend.ask_stream(key)
                if asked is None:
                    raise OSError("its node is lost")
                pipe: Pipe = await asyncio.wrap_future(asked)
                return pipe
            if isinstance(backend, NearTasks):
                sock = await request.shared.look_at_logs(sockets.connect, backend.step_socket(key), _CONNECT_S)
                sock.sendall(frames.frame(frames.RELAYED))
                return SocketPipe(sock)
    except (OSError, TimeoutError, asyncio.CancelledError) as lost:
        why = f"task {key.task} of {key.gang} cannot be reached: {str(lost) or 'no answer in time'}"
        raise ApiError(503, "not_reachable", why, "try again", headers={"Retry-After": "1"}) from None
    raise ApiError(409, "no_steps", "tasks of this server cannot be reached")


async def _copy_both(near: Pipe, far: Pipe, closing: asyncio.Event, holds: Callable[[], bool]) -> None:
    async def checks() -> None:
        while holds():
            await asyncio.sleep(_CHECK_S)

    ends = [asyncio.ensure_future(each) for each in (_copy(near, far), _copy(far, near), closing.wait(), checks())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        end.cancel()
    await asyncio.gather(*ends, return_exceptions=True)


async def _copy(source: Pipe, sink: Pipe) -> None:
    while data := await source.read():
        await sink.write(data)


async def _begin(send: Send) -> None:
    headers = [(b"content-type", b"application/octet-stream"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": True})


async def _end(send: Send) -> None:
    await send({"type": "http.response.body", "body": b""})
