"""The intake as a process: a broker, a server and the loop between them, until a signal or the end of its parent."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from functools import partial

import structlog

from corral.cli.errors import Complaint
from corral.cli.intake.server_port import ApiPort
from corral.cli.session import complaint_of
from corral.client.asynchronous import AsyncClient
from corral.client.errors import ClientError
from corral.integrations.broker_kinds import broker_of
from corral.integrations.event_relay import EventRelay, ItemRelay
from corral.integrations.intake_loop import IntakeLoop
from corral.wire.brokers.broker_names import shown_broker

#: Headers of a message may be nested as deep as a frame has room for, and the library reads them by recursion: deep
#: enough for all that fits. In this process nothing else reads documents of others.
_RECURSION = 200_000
_ANSWER_S = 60.0
_GRACE_S = 5.0  # after which it ends as if it were killed: the broker delivers again what was not acknowledged


def run_intake(url: str, prefetch: int, publishes: bool, name: str, *, ends_with_input: bool) -> int:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    for library in ("aio_pika", "aiormq"):  # what they report here is in the events of the loop
        logging.getLogger(library).setLevel(logging.CRITICAL + 1)
    sys.setrecursionlimit(_RECURSION)
    try:
        asyncio.run(_run(url, prefetch, publishes, name, ends_with_input))
    except ClientError as error:
        raise complaint_of(error) from None
    return 0


async def _run(url: str, prefetch: int, publishes: bool, name: str, ends_with_input: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, stop)
    if ends_with_input:
        loop.add_reader(0, partial(_read_input, loop, stop))
    try:
        broker = broker_of(url, held_max=prefetch)
    except ValueError as error:
        raise Complaint(f"{shown_broker(url)} is not a valid address: {error}", "see corral intake --help") from None
    async with AsyncClient(patience_s=0, answer_s=_ANSWER_S) as client:
        port = ApiPort(client)
        intake = IntakeLoop(broker, port, name or f"{socket.gethostname()}-{os.getpid()}", held_max=prefetch)
        more = (EventRelay(port, intake), ItemRelay(port)) if publishes else ()
        structlog.get_logger().info("intake_started", broker=shown_broker(url), server=client.url, pid=os.getpid())
        await intake.run(stop, *more)


def _read_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not os.read(0, 4096):
        loop.remove_reader(0)
        _end(stop)


def _end(stop: asyncio.Event) -> None:
    """In order; and in any case soon, whatever a library still waits for."""
    stop.set()
    last = threading.Timer(_GRACE_S, os._exit, (0,))
    last.daemon = True
    last.start()
