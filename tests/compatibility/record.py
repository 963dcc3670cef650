"""Records what a version of Corral writes, sends and accepts, by running it:

    unshare --uts sh -c "hostname n1; python -m tests.compatibility.record CHECKOUT FOLDER"

CHECKOUT is a work tree of that version; it runs with the Python of this program, on a machine called n1. Later versions
are held to what is in FOLDER; what was recorded by one version is never recorded again by another.

FOLDER gets: ``config.yaml`` (every key), ``jobs/`` (job files) and ``specs.json`` (what the version reads in them),
``cli.json`` (every command with its options), ``image.json`` (a state with everything in it), ``exchange.json`` (what
was typed, the requests and answers that this caused), ``credentials.json`` and ``data.tar.gz`` (the folder of the
server after all that).
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

#: Typed one after the other. ``@ended N`` waits for the end of a job, and is not recorded.
TYPED = """
whoami --json
queue set lab --guarantee gpus=4 --limit gpus=8 --weight 2 --max-jobs 100 --priority-ceiling 50 --grace-max 1m
queue set lab/vision --user-limit gpus=2 --budget 1000h/30d
queue set vision
queue list --json
queue show lab --json
user set ann --account nobody
user grant ann member lab
token make laptop --user ann --json
token list --json
user list --json
secret set hub --queue lab
secret list --json
node list --json
submit --parsable --hold jobs/hello.yaml
submit --parsable --hold jobs/small.sbatch
submit --parsable --name quick --queue lab --gpus 1 --label for=record -- echo hello
@ended 3
logs 3
submit --parsable --hold --name kept --gpus 2 --priority 7 -- sleep 600
submit --parsable --array 0-3%2 --hold -- true
submit --dry-run --gpus 1 -- true
submit --parsable --gpus 4 --hold --after 4 -- true
why 4 --json
why 4
hold 5
priority 3 4
ps --all --json
ps --all --over --json --limit 3
ps --all
show 3 --json
show 3
requeue 4
cancel 4
events --job 4 --type JobCancelled --json
show 4 --json
show 4
events --since 0 --limit 20 --json
events --since 0 --limit 5
usage --json
node list
fleet list --json
cancel 99999
show 99999
queue remove nowhere
"""

_CLI = """
import json, click
from corral.cli.main import corral
def walk(command, path):
    found = {" ".join(path): sorted(o for p in command.params if isinstance(p, click.Option)
                                    for o in (*p.opts, *p.secondary_opts))}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found |= walk(command.get_command(context, name), (*path, name))
    return found
print(json.dumps(walk(corral, ()), indent=1))
"""
_CONFIG = """
import json
from corral.wire.config import CONFIG_KEYS, Config, parse_config
def example(schema):
    inner = schema.get("properties")
    if inner:
        return {key: example(each) for key, each in inner.items()}
    return bool(schema["examples"][0]) if schema.get("type") == "boolean" else schema["examples"][0]
found = example(CONFIG_KEYS.schema)
found["default_queue"] = next(iter(found["queues"]))
assert isinstance(parse_config(found), Config), parse_config(found)
print(json.dumps(found))
"""
_JOBS = """
import json, sys
from corral.wire.job.parse import JOB_FILE
print(json.dumps({key.name: key.example for key in JOB_FILE.keys}))
"""
_SPECS = """
import json, sys, msgspec
from corral.wire.job import read_job_file, read_sbatch
found = {}
for name in sys.argv[1:]:
    text = open(name).read()
    read = read_sbatch if name.endswith(".sbatch") else read_job_file
    parsed = read(text, name, now_ms=NOW)
    parsed = parsed if isinstance(parsed, list) else [parsed]
    assert not any(each.faults for each in parsed), [str(fault) for each in parsed for fault in each.faults]
    found[name] = [msgspec.to_builtins(each.spec) for each in parsed]
print(json.dumps(found, indent=1))
"""
_IMAGE = """
import msgspec
from corral.core.image import take_image
try:
    from tests.simulation.changing_cluster import ChangingDriver
except ImportError:
    from tests.simulation.upheaval import Upheaval as ChangingDriver
driver = ChangingDriver(11, "conservative")
image = take_image(driver.run(400))
while not (image.promises and image.orders["claimants"] and image.orders["stopping"]):
    image = take_image(driver.run(1))
print(msgspec.json.encode(image).decode())
"""
_SBATCH = """#!/bin/bash
#SBATCH --job-name=small --partition=vision
#SBATCH --gres=gpu:1
#SBATCH --time=00:10:00 --array=0-1%1
echo "$SLURM_ARRAY_TASK_ID"
"""
#: What a key of a job needs beside it.
_BESIDE: dict[str, dict[str, Any]] = {
    "gangs": {},
    "singleton": {"command": "true", "name": "one"},
    "tp": {"command": "true", "gpus": 8},
}
#: Where the version keeps its files while it is recorded. Jobs have / as their directory, which is everywhere.
HOME = Path("/tmp/corral-record")
#: When the job files are read: some have times relative to it.
NOW_MS = 1_700_000_000_000


class Version:
    """A version of Corral that can be run."""

    def __init__(self, checkout: Path, home: Path) -> None:
        self._checkout = checkout
        self.home = home

    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CORRAL_", "XDG_"))}
        return kept | {
            "PYTHONPATH": f"{self._checkout / 'src'}:{self._checkout}",
            "HOME": str(self.home),
            "COLUMNS": "120",
            "NO_COLOR": "1",
        }

    def python(self, program: str, *words: str, cwd: Path | None = None) -> Any:
        """What a program prints, as JSON."""
        command = [sys.executable, "-c", program, *words]
        done = subprocess.run(command, env=self.env(), cwd=cwd, capture_output=True, check=False, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def corral(self, *words: str, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "corral", *words]
        env = self.env() | more
        return subprocess.run(command, env=env, cwd=cwd, input="s3cret", capture_output=True, check=False, text=True)


class Recorder:
    """Forwards requests to a server, and keeps them with their answers."""

    def __init__(self, port: int) -> None:
        self.seen: list[dict[str, Any]] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                sent = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
                server.request(self.command, self.path, body, sent)
                answer = server.getresponse()
                found = answer.read()
                kept = {k: v for k, v in sent.items() if k.lower() in ("content-type", "accept", "idempotency-key")}
                recorder.seen.append(
                    {
                        "method": self.command,
                        "path": self.path,
                        "headers": kept,
                        "body": body.decode(),
                        "status": answer.status,
                        "type": answer.headers.get("Content-Type", ""),
                        "answer": found.decode(),
                    }
                )
                self.send_response(answer.status)
                for name in ("Content-Type", "X-Request-Id"):
                    if value := answer.headers.get(name):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(found)))
                self.end_headers()
                self.wfile.write(found)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _any  # noqa: N815 - named by http.server

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


def main(checkout: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "jobs").mkdir(parents=True)
    shutil.rmtree(HOME, ignore_errors=True)
    version = Version(checkout, HOME)
    _write(folder / "cli.json", version.python(_CLI))
    _write(folder / "config.yaml", version.python(_CONFIG))
    _write(folder / "image.json", version.python(_IMAGE, cwd=checkout), indent=None)
    _record_jobs(version, checkout, folder)
    shutil.copytree(folder / "jobs", HOME / "jobs")
    _record_server(version, folder)
    shutil.rmtree(HOME)


def _record_jobs(version: Version, checkout: Path, folder: Path) -> None:
    for path in sorted((checkout / "examples" / "jobs").iterdir()):
        shutil.copy(path, folder / "jobs")
    documents = [
        json.dumps(_BESIDE.get(key, {"command": "true"}) | {key: example})
        for key, example in version.python(_JOBS).items()
    ]
    (folder / "jobs" / "every_key.yaml").write_text("\n---\n".join(documents) + "\n", encoding="utf-8")
    (folder / "jobs" / "small.sbatch").write_text(_SBATCH, encoding="utf-8")
    names = sorted(f"jobs/{path.name}" for path in (folder / "jobs").iterdir())
    _write(folder / "specs.json", version.python(_SPECS.replace("NOW", str(NOW_MS)), *names, cwd=folder))


def _record_server(version: Version, folder: Path) -> None:
    data, port = version.home / "data", _free_port()
    more = ("--account", "nobody") if os.geteuid() == 0 else ()
    started = version.corral(
        "up", "--detach", "--data", str(data), "--listen", f"127.0.0.1:{port}", "--fake-gpus", "8xH100", *more
    )
    assert started.returncode == 0, started.stderr
    stored = json.loads((version.home / ".config/corral/credentials.json").read_text())
    recorder, typed = Recorder(port), []
    try:
        for line in TYPED.split("\n")[1:-1]:
            if line.startswith("@ended "):
                _wait(port, stored["token"], line.split()[1])
                continue
            recorder.seen.clear()
            words = [str(HOME / word) if word.startswith("jobs/") else word for word in line.split()]
            done = version.corral(*words, cwd=Path("/"), CORRAL_URL=recorder.url, CORRAL_TOKEN=stored["token"])
            print(done.returncode, line, done.stderr if done.returncode else "")
            typed.append({"typed": line, "code": done.returncode, "out": done.stdout, "requests": [*recorder.seen]})
    finally:
        version.corral("down", "--data", str(data))
    _write(folder / "exchange.json", typed)
    _write(folder / "credentials.json", stored)
    with tarfile.open(folder / "data.tar.gz", "w:gz") as archive:
        archive.add(data, "data", filter=_kept)


def _kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Not the log, nor the reserve, which every server makes that lacks it, nor sockets."""
    is_left_out = member.name in ("data/journal.reserve", "data/server.log") or member.type not in _KINDS
    return None if is_left_out else member


_KINDS = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE)


def _wait(port: int, token: str, job: str) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        server = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        server.request("GET", f"/v1/jobs/{job}", headers={"Authorization": f"Bearer {token}"})
        if json.loads(server.getresponse().read())["state"] == "succeeded":
            return
        time.sleep(0.1)
    raise AssertionError(f"job {job} has not ended")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _write(path: Path, value: Any, indent: int | None = 1) -> None:
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())
