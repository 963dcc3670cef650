"""Small programs that run inside a task for a user outside: a connection to a port, a file out, a file in, an sshd.

Started by the supervisor by its own path, with the account and limits of the task. Standard library only.
"""

from __future__ import annotations

import os
import select
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_AT_ONCE = 1 << 16
_HOSTS = ("127.0.0.1", "::1")


def main(words: list[str]) -> int:
    verb, *rest = words
    try:
        if verb == "connect":
            return _connect(int(rest[0]))
        if verb in ("send", "receive"):
            return _copy(verb, rest)
        if verb == "sshd":
            _sshd(rest[0])
    except OSError as fault:
        name = f"{fault.filename}: " if fault.filename else ""
        print(f"{name}{fault.strerror or fault}", file=sys.stderr)
        return 1
    print(f"there is no program {verb}", file=sys.stderr)
    return 2


def _connect(port: int) -> int:
    there = None
    for host in (*_HOSTS, socket.gethostname()):
        try:
            there = socket.create_connection((host, port), 10)
            break
        except OSError:
            continue
    if there is None:
        print(f"no process of the job listens on port {port}", file=sys.stderr)
        return 1
    there.settimeout(None)
    is_open = True
    sources: list[Any]
    while True:
        sources = [there, 0] if is_open else [there]
        ready, _, _ = select.select(sources, [], [])
        if 0 in ready:
            data = os.read(0, _AT_ONCE)
            if data:
                there.sendall(data)
            else:
                is_open = False
                there.shutdown(socket.SHUT_WR)
        if there in ready:
            data = there.recv(_AT_ONCE)
            if not data:
                return 0
            while data:
                data = data[os.write(1, data) :]


def _copy(verb: str, rest: list[str]) -> int:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from copy_stream import BadArchive, pack, unpack  # type: ignore[import-not-found]

    path = os.path.expanduser(rest[0])
    try:
        if verb == "send":
            done = pack(path, sys.stdout.buffer)
        else:
            done = unpack(sys.stdin.buffer, path, rest[1])
    except BadArchive as wrong:
        print(wrong, file=sys.stderr)
        return 1
    print(f"sha256 {done.digest}", file=sys.stderr)
    return 0


def _sshd(public_key: str) -> NoReturn:
    """One ssh session over standard input and output. The key of the user is the only one that it accepts."""
    import shutil
    import subprocess
    import tempfile

    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    program, keygen = shutil.which("sshd", path=path), shutil.which("ssh-keygen", path=path)
    if program is None or keygen is None:
        raise OSError("there is no sshd on this node: install openssh-server there, or use corral shell")
    folder = tempfile.mkdtemp(prefix="sshd-")
    key = f"{folder}/host_key"
    subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", key], check=True, stdin=subprocess.DEVNULL)
    with open(f"{folder}/authorized_keys", "w") as file:
        file.write(public_key + "\n")
    shown = ("PATH", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
    marks = ("CORRAL_", "SLURM_", "CUDA_", "ROCR_", "NVIDIA_", "CONDA_")
    kept = {name: value for name, value in os.environ.items() if name in shown or name.startswith(marks)}
    env = [f'"{name}={value}"' for name, value in sorted(kept.items()) if value.isprintable() and '"' not in value]
    lines = [
        f"HostKey {key}", f"AuthorizedKeysFile {folder}/authorized_keys", "PidFile none", "StrictModes no",
        "UsePAM no", "PasswordAuthentication no", "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password", "AllowTcpForwarding yes", "PrintMotd no", "LogLevel ERROR",
        "Subsystem sftp internal-sftp",
        *([f"SetEnv {' '.join(env)}"] if env else []),
    ]  # fmt: skip
    with open(f"{folder}/config", "w") as file:
        file.write("\n".join(lines) + "\n")
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    os.execv(program, [program, "-i", "-e", "-f", f"{folder}/config"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
