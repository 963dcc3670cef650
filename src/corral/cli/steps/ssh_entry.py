"""``corral ssh-config`` and ``corral ssh-proxy``: ssh, scp, rsync and VS Code Remote into running jobs.

ssh speaks over a connection through the server to an sshd that is started in the job for this session alone, with the
account of the job. It accepts one key, which is made here.
"""

from __future__ import annotations

import os
import subprocess

import rich_click as click

from corral.cli.errors import BAD_INPUT, Complaint
from corral.cli.render import print_line

_PREFIX = "corral-"


@click.command("ssh-config")
def ssh_config() -> None:
    """Print what to add to ~/.ssh/config, so that ssh corral-17 enters job 17.

    corral ssh-config >> ~/.ssh/config; then ssh corral-17, scp, rsync, and VS Code Remote work. Task 2: corral-17.2.
    """
    key = _key()
    lines = [
        f"Host {_PREFIX}*",
        "  ProxyCommand corral ssh-proxy %h",
        f"  IdentityFile {key}",
        "  IdentitiesOnly yes",
        "  # the connection is made and checked by Corral; the host key is new for each session",
        "  StrictHostKeyChecking no",
        "  UserKnownHostsFile /dev/null",
        "  LogLevel ERROR",
    ]
    print_line("\n".join(lines))


@click.command("ssh-proxy", hidden=True)
@click.argument("host")
def ssh_proxy(host: str) -> int:
    """Connect ssh to the job that a host name means; ssh starts it by itself."""
    from corral.cli.steps.port import checked_finder
    from corral.runtime.steps import step_frames as frames
    from corral.runtime.steps.seat_link import StepRefused
    from corral.runtime.steps.seat_pipe import SeatPipe

    job, _, task = host.removeprefix(_PREFIX).partition(".")
    if not job.partition("[")[0].isdecimal() or (task and not task.isdecimal()):
        raise Complaint(
            f"{host!r} names no job", f"write it like {_PREFIX}17, or {_PREFIX}17.2 for its task 2", BAD_INPUT
        )
    with open(f"{_key()}.pub", encoding="utf-8") as file:
        public = file.read().strip()
    finder = checked_finder(job, int(task or 0), "ssh")
    pipe = SeatPipe(finder, int(task or 0), [frames.OWN_PROGRAM, "sshd", public])
    try:
        code = pipe.run(0, 1)
    except StepRefused as refused:
        raise Complaint(refused.why) from None
    if code and pipe.errors:
        raise Complaint(pipe.errors.decode(errors="replace").strip()[-500:], "see: corral shell")
    return code


def _key() -> str:
    """The key of this user, made when it is first needed."""
    from corral.client.credentials import credentials_path

    path = str(credentials_path().parent / "ssh_key")
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        try:
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "corral", "-f", path]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError) as fault:
            raise Complaint(f"a key cannot be made: {fault}", "install ssh (openssh-client)") from None
    return path
