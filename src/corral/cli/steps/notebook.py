"""``corral notebook``: Jupyter in a job, with its page on this machine."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import rich_click as click

from corral.cli.errors import Complaint
from corral.cli.jobs.options import COMMAND, JobCommand, stated
from corral.cli.option_types import Span
from corral.cli.render import print_line, print_note
from corral.cli.sbatch_options import SBATCH
from corral.cli.session import connected

_LOOK_S = 0.5
_OPEN_S = 180.0
_FIRST, _COUNT = 20_000, 12_000  # ports of the job; not those that systems give out themselves


@click.command(cls=JobCommand)
@click.argument("words", nargs=-1, metavar="")
@click.option(
    "--local-port", type=click.IntRange(0, 65535), default=0, help="Port of this machine. Default: a free one."
)
@click.option("--max-wait", type=Span(), metavar="TIME", help="Cancel the job if it has not started by then.")
@click.option("--keep", is_flag=True, help="Let the job run when this command ends.")
@click.pass_context
def notebook(ctx: click.RichContext, /, words: tuple[str, ...], **given: Any) -> int:
    """Run Jupyter in a job and forward its page to this machine, with a token of its own.

    Takes the options of corral run; the Python environment needs jupyterlab or notebook. Words after -- go to Jupyter.
    For example: corral notebook --gpus 1 --time 8h --venv
    """
    from corral.cli.jobs.documents import job_documents
    from corral.cli.jobs.submit import send
    from corral.cli.steps.interactive import until_running
    from corral.client.errors import Problem

    if words:
        raise Complaint(f"unexpected: {words[0]}", "options of Jupyter stand after --")
    token, port = secrets.token_urlsafe(24), _FIRST + secrets.randbelow(_COUNT)
    options = ["--no-browser", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"]
    command = ("jupyter", "lab", *options, *(ctx.meta.get(COMMAND) or ()))
    over = stated(given)
    over["env"] = {**over.get("env", {}), "JUPYTER_TOKEN": token}
    over.setdefault("name", "notebook")
    jobs = job_documents((), command, over, given["venv"], slurms=ctx.meta[SBATCH])
    with connected(patience_s=60.0) as client:
        (answer,) = send(client, jobs)
        try:
            until_running(client, answer.id, given["max_wait"])
            return _forwarded(client, answer.id, port, given["local_port"], token)
        except KeyboardInterrupt:
            print_note("")
            return 0
        finally:
            if not given["keep"]:
                with suppress(Problem):  # it may have ended
                    client.cancel(answer.id)


def _forwarded(client: Any, job: str, there: int, here: int, token: str) -> int:
    from corral.cli.jobs.wait import ending, exit_code
    from corral.cli.steps.port import checked_finder, listening, serve

    finder = checked_finder(job, 0, "notebook")
    with listening(here) as listener:
        threading.Thread(target=serve, args=(finder, 0, there, listener), daemon=True).start()
        local = listener.getsockname()[1]
        said, end = False, time.monotonic() + _OPEN_S
        while True:
            view = client.job(job)
            if view.ended_ms is not None:
                from corral.cli.jobs.logs import show_end_of_log

                show_end_of_log(client, view)
                print_note(ending(view))
                return exit_code(view)
            if not said and _answers(local):
                said = True
                print_line(f"http://127.0.0.1:{local}/lab?token={token}")
                print_note(f"  Ctrl-C ends job {job} and its kernels", dim=True)
            if not said and time.monotonic() > end:
                raise Complaint(f"Jupyter does not answer in job {job}", f"see: corral logs {job}")
            time.sleep(_LOOK_S if not said else 4 * _LOOK_S)


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.settimeout(5)
            connection.sendall(b"GET /api HTTP/1.0\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False
