"""The commands of Slurm as small programs in a folder: each runs a module of Corral with this interpreter.

They start the interpreter isolated (-I) and without site packages (-S), because most of the time of a short command is
its start; a command that needs packages adds their folder. Light to import: the supervisor of every task needs it.
"""

from __future__ import annotations

import os
import sys

COMMANDS = (
    "sacct", "sacctmgr", "salloc", "sbatch", "sbcast", "scancel", "scontrol", "sinfo", "squeue", "srun",
)  # fmt: skip
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_LINE_MAX = 120  # of the first line of a script, in older kernels


def write_shims(folder: str) -> None:
    """Raises FileExistsError if one of them exists."""
    packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))] or _site_packages()
    for name in COMMANDS:
        body = (
            f"import sys\nsys.path[:0] = [{_ROOT!r}]\nsys.path += {packages!r}\n"
            f"from corral.cli.slurm.{name} import main\nsys.exit(main(sys.argv[1:]))\n"
        )
        first = f"#!{sys.executable} -IS\n"
        if len(first) > _LINE_MAX:
            first = f"#!/bin/sh\n'''exec' '{sys.executable}' -IS \"$0\" \"$@\"\n' '''\n"
        fd = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755)
        try:
            os.write(fd, (first + body).encode())
        finally:
            os.close(fd)


def _site_packages() -> list[str]:
    """Of the environment of this interpreter, which was started without them itself."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    folder = f"{os.path.dirname(os.path.dirname(os.path.abspath(sys.executable)))}/lib/{version}/site-packages"
    return [folder] if os.path.isdir(folder) else []
