"""``corral port``: a port of a running job on this machine, over the connection to the server."""

from __future__ import annotations

import socket
import sys
import threading
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.errors import BAD_INPUT, Complaint
from corral.cli.render import print_note
from corral.cli.session import complaint_of
from corral.cli.steps.in_job import finder_of

if TYPE_CHECKING:
    from corral.runtime.steps.seat_link import SeatFinder

CONNECTIONS_MAX = 256


@click.command()
@click.option("--task", type=click.IntRange(0), default=0, help="Number of the task. Default: the first.")
@click.argument("job")
@click.argument("ports", nargs=-1, required=True, metavar="PORT[:LOCAL]...")
def port(job: str, ports: tuple[str, ...], task: int) -> None:
    """Forward ports of a running job to this machine until Ctrl-C: TensorBoard, Jupyter, debuggers.

    corral port 17 6006 8888:9999 makes port 8888 of the job port 9999 here. Only this machine can connect; LOCAL 0 is a
    free port.
    """
    pairs = [_pair(text) for text in ports]
    finder = checked_finder(job, task, "port")
    listeners = []
    for there, here in pairs:
        listener = listening(here)
        listeners.append(listener)
        print_note(f"127.0.0.1:{listener.getsockname()[1]} is port {there} of job {job}; Ctrl-C ends it")
        threading.Thread(target=serve, args=(finder, task, there, listener), daemon=True).start()
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print_note("")
    finally:
        for listener in listeners:
            listener.close()


def checked_finder(job: str, task: int, what: str) -> SeatFinder:
    """Raises ``Complaint`` if the task cannot be reached now."""
    from corral.client.errors import Problem
    from corral.runtime.steps.seat_link import NotReachable, StepRefused

    finder = finder_of(job, what)
    try:
        finder.find(task).close()
    except Problem as problem:
        raise complaint_of(problem) from None
    except (NotReachable, StepRefused) as lost:
        raise Complaint(str(lost), f"is it running? corral show {job}") from None
    return finder


def _pair(text: str) -> tuple[int, int]:
    there, colon, here = text.partition(":")
    here = here if colon else there
    if not (there.isdecimal() and here.isdecimal() and 0 < int(there) < 65536 and int(here) < 65536):
        raise Complaint(f"{text!r} is not a port", "write it like 8888, or 8888:9999 for port 9999 here", BAD_INPUT)
    return int(there), int(here)


def listening(here: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", here), backlog=64)
    except OSError as fault:
        why = fault.strerror or str(fault)
        raise Complaint(f"port {here} of this machine: {why}", "name another one: 8888:LOCAL, or :0 for any") from None


def serve(finder: SeatFinder, task: int, there: int, listener: socket.socket) -> None:
    room = threading.BoundedSemaphore(CONNECTIONS_MAX)
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        if not room.acquire(blocking=False):
            connection.close()
            continue
        threading.Thread(target=_forward, args=(finder, task, there, connection, room), daemon=True).start()


def _forward(
    finder: SeatFinder, task: int, there: int, connection: socket.socket, room: threading.BoundedSemaphore
) -> None:
    from corral.runtime.steps import step_frames as frames
    from corral.runtime.steps.seat_pipe import SeatPipe

    with connection:
        pipe = SeatPipe(finder, task, [frames.OWN_PROGRAM, "connect", str(there)])
        try:
            with connection.dup() as out:  # one descriptor for each direction
                pipe.run(connection.fileno(), out.fileno())
        except Exception as fault:  # one connection, which is closed; the next may work
            print(f"corral port: {fault}", file=sys.stderr)
        finally:
            room.release()
        if pipe.errors:
            print(f"corral port: {pipe.errors.decode(errors='replace').strip()[:500]}", file=sys.stderr, flush=True)
