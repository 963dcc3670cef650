"""What the commands of Slurm share that ask the server: the connection, ids of jobs, and errors as Slurm prints them.

Knows how an id is written on both sides (``35_7`` and ``35[7]``), not what any command prints.
"""

from __future__ import annotations

import os
import re
import sys

from corral.cli.slurm.shim_parts.arguments import OptionTable, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.client.blocking import Client

    Body = Callable[[Client, list[tuple[str, str]], list[str]], int]

VERSION = "slurm 24.11.0 (Corral)"
INTERRUPTED = 130
_PATIENCE_S = 20.0
_JOB = re.compile(r"(\d{1,15})(?:\+\d+)?(?:_(\d{1,9}|\*|\[[\d,:%-]+\]))?(?:\.(\w+))?")


class ShimError(Exception):
    """A request that fails: what Slurm's command would print, and its exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


class ShimJob:
    """A job, an element of an array or a step, as Slurm's users name it."""

    def __init__(self, number: str, element: str = "", step: str = "") -> None:
        self.number, self.element = number, element
        self.step = step

    @property
    def selector(self) -> str:
        """As the API takes it."""
        if not self.element or self.element == "*":
            return self.number
        return f"{self.number}[{self.element.strip('[]').partition('%')[0]}]"


def job_of(text: str, complaint: str) -> ShimJob:
    """``complaint``: what the command prints about a text that is no id."""
    found = _JOB.fullmatch(text.strip())
    if found is None:
        raise ShimError(complaint)
    return ShimJob(found[1], found[2] or "", found[3] or "")


def jobs_of(text: str, complaint: str = "Invalid job id: {}") -> list[ShimJob]:
    """Ids with commas between them; those within brackets belong to one id."""
    words = re.findall(r"[^,\[]+(?:\[[^\]]*\])?[^,\[]*", text)
    if not words:
        raise ShimError(complaint.format(text))
    return [job_of(word, complaint.format(word)) for word in words]


def run_shim(name: str, table: OptionTable, words: list[str], body: Body, *, bad_option: int = 1) -> int:
    """Read the command line and let ``body`` answer it, with a client."""
    try:
        options, rest = table.read(words, mixed=name not in ("sbatch", "salloc"))
    except UsageError as wrong:
        return usage(name, str(wrong), bad_option)
    given = dict(options)
    if "version" in given:
        print(VERSION)
        return 0
    if "help" in given or "usage" in given:
        print(f"Usage: {name} [OPTIONS...]\nof Corral, as Slurm's; what each option does: docs/coming-from-slurm.md")
        return 0
    return guarded(name, lambda: with_client(lambda client: body(client, options, rest)))


def usage(name: str, why: str, code: int) -> int:
    print(f'{name}: {why}\nTry "{name} --help" for more information', file=sys.stderr)
    return code


def with_client(act: Callable[[Client], int]) -> int:
    from corral.client.blocking import Client

    with Client(patience_s=_PATIENCE_S, first_patience_s=0) as client:
        return act(client)


def guarded(name: str, act: Callable[[], int]) -> int:
    """Run it; what goes wrong is one line on standard error, and an exit code."""
    try:
        code = act()
        sys.stdout.flush()
        return code
    except ShimError as wrong:
        print(f"{name}: error: {wrong}", file=sys.stderr)
        return wrong.code
    except UsageError as wrong:
        print(f"{name}: {wrong}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        from corral.client.errors import ClientError

        if not isinstance(error, ClientError) and os.environ.get("CORRAL_DEBUG"):
            raise
        hint = getattr(error, "hint", "")
        print(f"{name}: error: {error}" + (f" ({hint})" if hint else ""), file=sys.stderr)
        return 1


def own_name() -> str:
    """Of the account that this process runs as: what tools write after ``-u``."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return os.environ.get("USER", "")


def users_of(client: Client, text: str) -> list[str]:
    """Users as the server knows them: the account that this runs as, by name or number, is the user of the token."""
    own = {own_name(), str(os.geteuid()), os.environ.get("USER", ""), ""}
    me = client.whoami().user if any(word in own for word in text.split(",")) else ""
    return list(dict.fromkeys(me if word in own else word for word in text.split(",")))
