"""The page of all options of sbatch, made from the table of directives: used, or noted and why.

Knows the directives only; what is refused within an option is listed here, because it is a matter of its value.
"""

from __future__ import annotations

from corral.wire.job.directives import ALIASES, DIRECTIVES, Takes

_HEAD = """# The options of sbatch

Made from the table of directives by `make accept`. *Used*: the option has its effect, as
[coming from Slurm](coming-from-slurm.md) describes. *Noted*: it is accepted and reported at submission, with
the reason below. Any other option is refused, with the one that may be
meant. Abbreviations are read as getopt reads them.

| option | | why it has no effect |
|---|---|---|
"""
#: Values and lines that are refused although their option is used.
_REFUSED = (
    ("`#SBATCH hetjob`", "use `gangs` in a [job file](job-file.md)"),
    ("`--dependency=after:…`, `aftercorr:…`, `afterburstbuffer:…`", "a job can wait for the end of another one only"),
    ("`--dependency=…?…`", "a job waits for all that it names"),
    ("`--dependency=afterok:35_7`", "a job can wait for a whole array only"),
    ("`--gpus=a100:2,h100:2`", "the GPUs of a job have one model"),
)


def sbatch_page() -> str:
    lines = []
    for each in sorted(DIRECTIVES, key=lambda directive: directive.name):
        value = {Takes.VALUE: "=…", Takes.MAYBE: "[=…]", Takes.NOTHING: ""}[each.takes]
        names = [f"--{each.name}{value}"] + ([f"-{each.short}"] if each.short else [])
        names += [f"--{alias}{value}" for alias, name in ALIASES.items() if name == each.name]
        lines.append(
            f"| {', '.join(f'`{name}`' for name in names)} | {'noted' if each.note else 'used'} | {each.note} |"
        )
    used = sum(not each.note for each in DIRECTIVES)
    refused = "\n".join(f"| {what} | {why} |" for what, why in _REFUSED)
    count = f"\n{len(DIRECTIVES)} options: {used} used, {len(DIRECTIVES) - used} noted.\n"
    return (
        _HEAD + "\n".join(lines) + "\n" + count + f"\n## Refused values\n\n| what | instead |\n|---|---|\n{refused}\n"
    )
