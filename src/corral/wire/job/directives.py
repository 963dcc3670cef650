"""The options of ``sbatch``: what each means here, or that it means nothing here and why.

One table of names; ``sbatch_translate`` uses those without a note. Facts from the manual pages of sbatch 22.05 to
24.11.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Takes(StrEnum):
    """Whether an option has a value."""

    VALUE = "value"
    NOTHING = "nothing"
    MAYBE = "maybe"  # only with =


class Directive(Struct, frozen=True):
    """``note``: why an option has no meaning here; an option without a note is used."""

    name: str
    takes: Takes = Takes.VALUE
    short: str = ""
    note: str = ""


def _used(words: str, takes: Takes = Takes.VALUE) -> list[Directive]:
    """``name`` or ``name/s`` with its letter."""
    pairs = [word.partition("/") for word in words.split()]
    return [Directive(name, takes, short) for name, _, short in pairs]


def _noted(note: str, words: str, takes: Takes = Takes.VALUE) -> list[Directive]:
    return [Directive(each.name, each.takes, each.short, note) for each in _used(words, takes)]


_SEATS = "tasks are placed by their resources, and share nodes with others"
_PINNING = "Corral does not pin processes"
_CLI = "use the options of corral submit instead"
_SITE = "it is specific to Slurm"

DIRECTIVES: tuple[Directive, ...] = (
    *_used("job-name/J nodes/N ntasks/n ntasks-per-node ntasks-per-gpu gpus/G gpus-per-node gpus-per-task gres"),
    *_used("cpus-per-task/c"),
    *_used("cpus-per-gpu mem mem-per-gpu mem-per-cpu tmp time/t partition/p account/A qos/q array/a dependency/d"),
    *_used("output/o error/e signal switches begin/b deadline comment export chdir/D workdir wrap"),
    *_used("container-image container-mounts container-workdir"),
    *_used("requeue no-requeue hold/H", Takes.NOTHING),
    *_used("nice", Takes.MAYBE),
    *_noted("a job is always cancelled when its dependency can no longer be satisfied", "kill-on-invalid-dep"),
    *_noted(_SEATS, "exclusive", Takes.MAYBE),
    *_noted(_SEATS, "nodelist/w exclude/x nodefile/F distribution/m ntasks-per-core ntasks-per-socket mincpus"),
    *_noted(_SEATS, "gpus-per-socket sockets-per-node cores-per-socket threads-per-core core-spec/S"),
    *_noted(_SEATS, "extra-node-info/B thread-spec cluster-constraint"),
    *_noted(_SEATS, "overcommit/O oversubscribe/s contiguous use-min-nodes spread-job", Takes.NOTHING),
    *_noted("request GPUs by model instead: --gpus=h100:8", "constraint/C prefer"),
    *_noted(_PINNING, "cpu-bind gpu-bind mem-bind hint cpu-freq gpu-freq"),
    *_noted("no mail is sent; use corral events", "mail-type mail-user"),
    *_noted("seats of a gang start together", "wait-all-nodes", Takes.MAYBE),
    *_noted("a job is placed within one domain: use the key within", "segment"),
    *_noted("use --gpus-per-task and --cpus-per-task", "tres-per-task"),
    *_noted(_CLI, "help usage version/V", Takes.NOTHING),
    *_noted(_CLI, "parsable test-only wait/W quiet/Q verbose/v", Takes.NOTHING),
    *_noted("use --qos=high or the key priority", "priority"),
    *_noted("there are no named reservations", "reservation"),
    *_noted("licences are resources of nodes: use the key resources", "licenses/L"),
    *_noted("a job always gets its whole time limit", "time-min"),
    *_noted("each server has one cluster", "clusters/M"),
    *_noted("output files are always appended to", "open-mode"),
    *_noted("tasks have no standard input; for a terminal in a running job: corral shell JOB", "input/i"),
    *_noted("a job gets only the variables that it names: use --export or the key env", "get-user-env", Takes.MAYBE),
    *_noted("a job gets only the variables that it names: use --export or the key env", "export-file propagate"),
    *_noted("a job always runs as the account of its user", "uid gid"),
    *_noted("after the loss of a node, it is replaced or the job is requeued", "no-kill/k", Takes.MAYBE),
    *_noted(
        _SITE,
        "acctg-freq bb bbf delay-boot mcs-label network power profile wckey container tres-bind extra "
        "gres-flags container-id consolidate-segments resv-ports spread-segments",
    ),
    *_noted(_SITE, "reboot ignore-pbs stepmgr", Takes.NOTHING),
    *_noted("use the key mounts, or --container-mounts", "container-mount-home no-container-mount-home", Takes.NOTHING),
    *_noted(
        "the root file system of a container is its own",
        "container-writable container-readonly "
        "container-remap-root no-container-remap-root no-container-entrypoint container-entrypoint",
        Takes.NOTHING,
    ),
    *_noted("containers are not kept", "container-name container-save container-env"),
)

BY_NAME = {directive.name: directive for directive in DIRECTIVES}
#: Other names of an option.
ALIASES = {"tasks-per-node": "ntasks-per-node"}


def full_name(name: str) -> str:
    """The option that a name or an unambiguous abbreviation means, as getopt reads it; empty: none."""
    if name in BY_NAME:
        return name
    if name in ALIASES and ALIASES[name] in BY_NAME:
        return ALIASES[name]
    close = {ALIASES.get(each, each) for each in (*BY_NAME, *ALIASES) if each.startswith(name)}
    return close.pop() if len(close) == 1 and name else ""


BY_SHORT = {directive.short: directive for directive in DIRECTIVES if directive.short}
