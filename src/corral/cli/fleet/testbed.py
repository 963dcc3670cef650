"""``corral testbed``: a cluster on this machine, to try out what happens when a node fails."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.errors import FAULT, Complaint
from corral.cli.lazy import Noun
from corral.cli.option_types import Span
from corral.cli.render import print_line, print_note

if TYPE_CHECKING:
    from types import FrameType

    from corral.cli.fleet.testbed_parts import Testbed

_SOCKET = "testbed.sock"
_folder = click.option(
    "--folder",
    metavar="FOLDER",
    default="testbed",
    show_default=True,
    envvar="CORRAL_TESTBED",
    show_envvar=True,
    help="Folder for all its data.",
)


@click.group(cls=Noun, invoke_without_command=True)
@_folder
@click.option("--nodes", type=click.IntRange(1, 200), default=4, show_default=True, help="Number of nodes.")
@click.option("--gpus", metavar="8xH100", default="8xH100", show_default=True, help="Simulated GPUs per node.")
@click.option("--lease", type=Span(), metavar="TIME", default="8s", show_default=True, help="As --lease of corral up.")
@click.option("--netns", is_flag=True, help="Run each agent in its own network namespace (root only).")
@click.pass_context
def testbed(ctx: click.Context, folder: str, nodes: int, gpus: str, lease: int, netns: bool) -> int:
    """Run a test cluster on this machine: a server and agents with simulated GPUs. Ctrl-C ends it.

    While it runs, in another terminal: corral testbed partition n2, heal, slow, kill, start, freeze, thaw. Commands
    like corral node and corral submit work after the line that it prints.
    """
    if ctx.invoked_subcommand is not None:
        ctx.obj = folder
        return 0
    from corral.cli.fleet.testbed_parts import BedFailed, Testbed

    if netns and os.geteuid() != 0:
        raise Complaint("network namespaces need root", "leave out --netns: links are then proxies that can be cut")
    bed = Testbed(Path(folder), nodes, gpus, int(lease), netns)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        bed.start()
    except (BedFailed, OSError) as error:
        raise Complaint(f"the test cluster did not start: {error}", exit_code=FAULT) from None
    try:
        print_line(f"{nodes} nodes with {gpus} each are up; Ctrl-C ends them")
        print_note(f"  export XDG_CONFIG_HOME={bed.folder}/config CORRAL_TESTBED={bed.folder}", dim=True)
        _obey(bed)
    except KeyboardInterrupt:
        return 0
    finally:
        bed.stop()
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM ends the cluster as Ctrl-C does: no process of it stays."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _obey(bed: Testbed) -> None:
    """Commands such as ``partition n2`` arrive through a socket in the folder."""
    path = bed.folder / _SOCKET
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        os.chmod(path, 0o600)
        door.listen()
        while True:
            visitor, _ = door.accept()
            with visitor:
                words = visitor.recv(1000).decode("utf-8", "replace").split()
                visitor.sendall(_execute(bed, words).encode())


def _execute(bed: Testbed, words: list[str]) -> str:
    acts = {
        "partition": bed.partition,
        "heal": bed.heal,
        "kill": bed.kill,
        "freeze": bed.freeze,
        "thaw": bed.thaw,
        "start": bed.restart,
    }
    verb, name, *rest = [*words, "", ""]
    if name not in [*bed.nodes, "server"] or (name == "server" and verb in ("partition", "heal", "slow")):
        return f"there is no node {name!r}; there are: {', '.join(bed.nodes)}"
    if verb == "slow":
        bed.slow(name, int(rest[0]))
    else:
        acts[verb](name)
    return ""


def _send(folder: str, *words: str) -> None:
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(Path(folder).absolute() / _SOCKET))
            line.sendall(" ".join(words).encode())
            answer = line.recv(4000).decode()
    except OSError as error:
        what = f"there is no test cluster in {folder}: {(error.strerror or str(error)).lower()}"
        raise Complaint(what, "start one with: corral testbed; --folder names another", exit_code=FAULT) from None
    if answer:
        raise Complaint(answer, "list them with: corral node")
    print_line(f"done: {' '.join(words)}")


def _verb(name: str, about: str) -> None:
    @testbed.command(name, help=about)
    @click.argument("node")
    @click.pass_obj
    def command(folder: str, node: str) -> None:
        _send(folder, name, node)


for _name, _about in {
    "partition": "Cut the network of a node. Data in flight arrives after heal.",
    "heal": "Restore the network of a node.",
    "kill": "Kill the agent of a node, or the server, with SIGKILL. Tasks are not touched.",
    "start": "Start the agent of a node, or the server, again.",
    "freeze": "Freeze the agent of a node, or the server (SIGSTOP).",
    "thaw": "Continue a frozen agent or server.",
}.items():
    _verb(_name, _about)


@testbed.command()
@click.argument("node")
@click.argument("time", type=Span())
@click.pass_obj
def slow(folder: str, node: str, time: int) -> None:
    """Delay all traffic of a node by TIME; 0s: no delay."""
    _send(folder, "slow", node, str(time))
