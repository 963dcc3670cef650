"""Several processes of a task in one container: a small script for the shell of the image.

It is one container, not several, because ranks on one machine communicate through shared memory and CUDA IPC, which
containers do not share. Each process has its own variables. The first that fails writes its exit code to a file; the
supervisor reads it and ends the others. Knows the POSIX shell.
"""

from __future__ import annotations

from corral.runtime.local.task.records import read_start
from corral.runtime.local.task.start import LINE_FOR_SHELL

SHELL = "/bin/sh"
FAILED = "failed"  # in the task's private directory: exit codes, the first one first
#: Signals reach every process of the group, also the shells, which must survive them to report the exit code.
_KEEP = "trap : HUP INT TERM USR1 USR2 ALRM\n"
_BASH_OR_SH = 'command -v bash >/dev/null 2>&1 && exec bash -c "$1"; exec sh -c "$1"'
_END = """\
for pid in $pids; do
  wait "$pid"
  while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done
done
read -r code < "$CORRAL_FAILED_FILE" && exit "$code"
exit 0
"""


def in_any_shell(command: list[str]) -> list[str]:
    """A line for the shell runs with bash, or with sh if the image has no bash."""
    is_line = command[:2] == LINE_FOR_SHELL and len(command) == 3
    return [SHELL, "-c", _BASH_OR_SH, "sh", command[2]] if is_line else command


def command_of(command: list[str], processes: list[dict[str, str]]) -> list[str]:
    return [SHELL, "-c", _script(processes), "corral", *command]


def _script(processes: list[dict[str, str]]) -> str:
    parts = [_KEEP, ": > \"$CORRAL_FAILED_FILE\"\npids=''\n"]
    for env in processes:
        names = "".join(f"export {_quoted(f'{name}={value}')}\n" for name, value in env.items())
        parts.append(
            f'(\n{_KEEP}{names}"$@"\ncode=$?\n'
            '[ "$code" = 0 ] || echo "$code" >> "$CORRAL_FAILED_FILE"\nexit "$code"\n) &\npids="$pids $!"\n'
        )
    return "".join(parts) + _END


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def first_failure(folder: str) -> int:
    """The exit code of the first process that has failed, from the private directory of the task. 0: there is none. The
    task may have put anything there."""
    line, is_whole, _ = read_start(f"{folder}/{FAILED}", 16).partition(b"\n")
    return int(line) if is_whole and line.isdigit() else 0
