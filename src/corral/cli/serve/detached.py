"""Start a server in the background, wait for it and announce it; keep the stored credentials up to date."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from corral.cli.errors import FAULT, TIMED_OUT, Complaint
from corral.cli.render import print_line, print_note
from corral.cli.serve.data_folder import LOG_FILE, Here, running_server

_LOOK_S = 0.02
_TAIL = 2000


def start_detached(folder: Path, words: Sequence[str], timeout_s: float) -> int:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = folder / LOG_FILE
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "corral", *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd="/",
            env=_environment(),
        )
    here = _until_up(folder, process, log, timeout_s)
    keep_address(here.url)
    print_line(f"corral is up at {here.url} (process {here.pid}, log {log})")
    print_note("  corral run -- hostname     a first job", dim=True)
    print_note("  corral down                stop it; running jobs continue", dim=True)
    return 0


def _environment() -> dict[str, str]:
    """The environment, with a module path that also works from another folder."""
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return dict(os.environ) | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})


def _until_up(folder: Path, process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> Here:
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        if process.poll() is not None:
            output = log.read_text(errors="replace")[-_TAIL:].strip()
            raise Complaint(f"the server did not start:\n{output}", f"the log is in {log}", exit_code=FAULT)
        here = running_server(folder)
        if here is not None and here.pid == process.pid and not here.waits_for:
            return here
        time.sleep(_LOOK_S)
    what = f"the server is not ready after {timeout_s:g} s (process {process.pid})"
    here = running_server(folder)
    if here is not None and here.waits_for:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        what += f"; it waits for {here.waits_for}:\n{''.join(last)[-_TAIL:]}"
    raise Complaint(what, f"it may still start; see {log}. stop it with: corral down", exit_code=TIMED_OUT)


def announce(folder: Path) -> None:
    """Announce the address as soon as the server is ready, in another thread: the server runs in this one."""

    def look() -> None:
        while True:
            here = running_server(folder)
            if here is not None and here.pid == os.getpid() and not here.waits_for:
                keep_address(here.url)
                print_note(
                    f"corral is up at {here.url}, with its data in {folder}; Ctrl-C stops it, running jobs continue"
                )
                return
            time.sleep(_LOOK_S)

    threading.Thread(target=look, name="announce", daemon=True).start()


def keep_address(url: str) -> None:
    """If the stored token was for another port of this machine and is valid here too, store the new port."""
    from corral.client.blocking import Client
    from corral.client.credentials import credentials_path, read_credentials, save_credentials
    from corral.client.errors import ClientError

    try:
        kept = read_credentials(credentials_path())
        if kept is None or kept.url == url or urlsplit(kept.url).hostname not in ("127.0.0.1", "localhost", "::1"):
            return
        with Client(url, kept.token, patience_s=0, ca=kept.ca) as client:
            client.whoami()
        save_credentials(url, kept.token, ca=kept.ca, allow_plain_http=kept.allow_plain_http)
    except (ClientError, OSError):
        return  # they belong to another server, or cannot be changed: the next command shows an error
