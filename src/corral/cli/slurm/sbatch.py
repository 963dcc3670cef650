"""``sbatch``: submit a script."""

from __future__ import annotations

import os
import sys

from corral.cli.slurm.shim_parts.arguments import FLAG, MAYBE, VALUE, OptionTable
from corral.cli.slurm.shim_parts.shim_session import ShimError, run_shim
from corral.cli.slurm.shim_parts.slurm_submission import read_script, submit_document

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.client.blocking import Client
    from corral.wire.job.job_files import Parsed

BAD_OPTION = 255
#: Of sbatch itself: they say nothing about the job.
_OWN = frozenset({"parsable", "test-only", "wait", "quiet", "verbose", "help", "usage", "version", "wrap", "clusters"})
#: Variables that stand for options of the command line, which override the script.
_INPUT = {
    "SBATCH_ACCOUNT": "account", "SBATCH_PARTITION": "partition", "SBATCH_QOS": "qos", "SBATCH_TIMELIMIT": "time",
    "SBATCH_JOB_NAME": "job-name", "SBATCH_EXPORT": "export", "SBATCH_GPUS": "gpus", "SBATCH_GRES": "gres",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node", "SBATCH_GPUS_PER_TASK": "gpus-per-task", "SBATCH_ARRAY_INX": "array",
    "SBATCH_CONSTRAINT": "constraint", "SBATCH_MEM_PER_NODE": "mem", "SBATCH_MEM_PER_CPU": "mem-per-cpu",
    "SBATCH_OUTPUT": "output", "SBATCH_ERROR": "error",
}  # fmt: skip
_WRAPPED = "#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{}\n"


def option_table() -> OptionTable:
    """All options of sbatch, as the directives know them."""
    from corral.wire.job.directives import ALIASES, BY_NAME, Takes

    kinds = {Takes.VALUE: VALUE, Takes.NOTHING: FLAG, Takes.MAYBE: MAYBE}
    words: dict[str, list[str]] = {VALUE: [], FLAG: [], MAYBE: []}
    for name, each in BY_NAME.items():
        words[kinds[each.takes]].append(f"{name}/{each.short}" if each.short else name)
    words[VALUE] += list(ALIASES)
    return OptionTable(" ".join(words[VALUE]), " ".join(words[FLAG]), " ".join(words[MAYBE]))


def main(words: list[str]) -> int:
    return run_shim("sbatch", option_table(), words, _submit, bad_option=BAD_OPTION)


def _submit(client: Client, options: list[tuple[str, str]], rest: list[str]) -> int:
    given = dict(options)

    def say(text: str) -> None:
        if "quiet" not in given and "parsable" not in given:
            print(f"sbatch: {text}", file=sys.stderr)

    parsed = _parsed(given, options, rest)
    job = sound(parsed, say)
    if "test-only" in given:
        return _test(client, job)
    answer = submit_document(client, job, say)
    if "parsable" in given:
        print(answer.id)
    elif "quiet" not in given:
        print(f"Submitted batch job {answer.id}")
    sys.stdout.flush()
    if "wait" not in given:
        return 0
    view = client.wait(answer.id)
    return 0 if view.state == "succeeded" else view.exit_code or 1


def _parsed(given: dict[str, str], options: list[tuple[str, str]], rest: list[str]) -> Parsed:
    words = [f"--{_INPUT[name]}={value}" for name, value in os.environ.items() if name in _INPUT and value]
    words += [f"--{name}={value}" if value else f"--{name}" for name, value in options if name not in _OWN]
    if "wrap" in given:
        if rest:
            raise ShimError("Script arguments not permitted with --wrap option")
        return read_script(_WRAPPED.format(given["wrap"]), "wrap", words, [])
    if not rest:
        return read_script(_shell_script(sys.stdin.read(), "stdin"), "sbatch", words, [])
    path = rest[0]
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
    except IsADirectoryError:
        raise ShimError(f"Unable to open file {path}: it is a directory") from None
    except OSError:
        raise ShimError(f"Unable to open file {path}") from None
    return read_script(_shell_script(text, path), os.path.basename(path), words, rest[1:])


def _shell_script(text: str, path: str) -> str:
    if not text.strip():
        raise ShimError("Batch script is empty!" if path != "stdin" else "Batch script contains only whitespace!")
    if not text.startswith("#!"):
        why = "This does not look like a batch script.  The first\nsbatch: error: line must start with #! followed by"
        raise ShimError(f"{why} the path to an interpreter.\nsbatch: error: For instance: #!/bin/sh")
    return text


def sound(parsed: Parsed, say: object) -> dict[str, object]:
    """Its document. Raises ``ShimError`` with all errors in it."""
    assert callable(say)
    for note in parsed.notes:
        if note.place.file != "command line" or "is specific to Slurm" not in note.why:
            say(f"note: {note}")
    if parsed.faults:
        lines = [f"{each.place}: {each.fault.why}" + _hint(each.fault.hint) for each in parsed.faults]
        raise ShimError("\nsbatch: error: ".join([*lines, "Batch job submission failed"]))
    return dict(parsed.document)


def _hint(text: str) -> str:
    return f" ({text})" if text else ""


def _test(client: Client, document: dict[str, object]) -> int:
    from corral.cli.slurm.shim_parts.slurm_formats import moment

    answer = client.dry_run(document, export="NONE")
    gang = answer.gangs[0]
    nodes = ",".join(dict.fromkeys(seat.node for seat in gang.seats)) or "nodes that become free"
    at = moment(gang.starts_ms or answer.at_ms)
    print(f"sbatch: Job 0 to start at {at} on {nodes}", file=sys.stderr)
    return 0
