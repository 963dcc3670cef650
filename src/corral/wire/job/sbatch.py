"""Scripts for ``sbatch`` as job documents: options from ``#SBATCH`` lines and a command line, and the script itself.

The script is part of the job. It runs on the first node, as a file in the private directory of the task, and starts
its tasks with ``srun``. Options without a meaning here become notes with their line, errors become faults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, tzinfo
from typing import Any

from msgspec import Struct, field

from corral.core.model import JobSpec
from corral.wire.document.errors import Fault, Path, nearest, show
from corral.wire.document.yaml import Marked, PlacedFault, TextPlace
from corral.wire.environment.export import with_environment
from corral.wire.job.directives import BY_NAME, BY_SHORT, Directive, Takes, full_name
from corral.wire.job.document_limits import LIMITS, DocumentLimits
from corral.wire.job.job_files import Exporter, Note, Parsed, overlaid, rooted
from corral.wire.job.parse import DEFAULT_QUEUE, parse_job
from corral.wire.job.sbatch_translate import Meaning, meaning_of

COMMAND_LINE = "command line"
_WORD = re.compile(r"""(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+|["'].*""")


class Typed(Struct, frozen=True):
    """An option as it was written, and where."""

    directive: Directive
    value: str
    place: TextPlace


class SbatchScript(Struct):
    """The options of a script and a command line, before translation."""

    typed: dict[str, Typed] = field(default_factory=dict)  # the last of each; the command line overrides the script
    faults: list[PlacedFault] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def fault(self, place: TextPlace, code: str, why: str, hint: str = "", path: Path = ()) -> None:
        self.faults.append(PlacedFault(place, Fault(path, code, why, hint)))


def read_sbatch(
    text: str,
    name: str,
    *,
    options: Sequence[str] = (),
    arguments: Sequence[str] = (),
    now_ms: int = 0,
    queue: str = DEFAULT_QUEUE,
    defaults: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    exporter: Exporter | None = None,
    zone: tzinfo = UTC,
    limits: DocumentLimits = LIMITS,
) -> Parsed:
    """A script as a job. ``options`` are those of sbatch's command line (``--gpus=2``); ``arguments`` are the script's.

    ``exporter``: adds the variables that ``--export`` selects. ``overrides`` are keys of the document, as in job files.
    """
    script = SbatchScript()
    if len(text) > limits.file_bytes:
        script.fault(TextPlace(name, 1, 1), "too_long", f"the file has more than {limits.file_bytes} bytes")
        return Parsed({}, faults=tuple(script.faults))
    _read_lines(text, name, script)
    _read_words([(word, TextPlace(COMMAND_LINE, 1, n + 1)) for n, word in enumerate(options)], script)
    meaning = meaning_of(_meaningful(script), now_ms, zone)
    script.faults += [PlacedFault(script.typed[each].place, fault) for each, fault in meaning.faults]
    script.notes += [Note(script.typed[each].place, f"--{each}", why) for each, why in meaning.notes]
    document = {"name": _name(name)} | meaning.document | _program(text, name, meaning, arguments, script)
    document = rooted(overlaid(overlaid(dict(defaults or {}), document), overrides or {}), defaults or {})
    marks = _marks(name, script, meaning)
    document, said = exporter(document) if exporter is not None else with_environment(document, {})
    script.notes += [Note(marks.place(("export",)), "--export", each) for each in said]
    spec = parse_job(document, now_ms=now_ms, queue=queue, limits=limits)
    if not isinstance(spec, JobSpec):
        script.faults += [marks.placed(each) for each in spec]
    script.faults.sort(key=lambda each: (each.place.file, each.place.line, each.place.column))
    sound = spec if isinstance(spec, JobSpec) and not script.faults else None
    return Parsed(document, sound, tuple(script.faults), tuple(script.notes), marks)


class SbatchOptions(Struct, frozen=True):
    """Options without a script, as keys of a job document. ``wrap``: a command line."""

    document: dict[str, Any]
    wrap: str = ""
    faults: tuple[Fault, ...] = ()
    notes: tuple[Note, ...] = ()


def read_options(words: Sequence[str], *, now_ms: int = 0, zone: tzinfo = UTC) -> SbatchOptions:
    """Options of sbatch beside those of Corral: without what only Slurm's programs need."""
    script = SbatchScript()
    _read_words([(word, TextPlace(COMMAND_LINE, 1, n + 1)) for n, word in enumerate(words)], script)
    meaning = meaning_of(_meaningful(script), now_ms, zone)
    notes = [Note(script.typed[name].place, f"--{name}", why) for name, why in meaning.notes]
    document = {key: value for key, value in meaning.document.items() if key not in ("compat", "env")}
    faults = [placed.fault for placed in script.faults] + [fault for _, fault in meaning.faults]
    return SbatchOptions(document, meaning.wrap, tuple(faults), (*script.notes, *notes))


# --- lines and words -------------------------------------------------------------------------------------------------


def _read_lines(text: str, name: str, script: SbatchScript) -> None:
    """Directives end where the first command begins, as in Slurm; later ones are noted."""
    begun = False
    for number, line in enumerate(text.split("\n"), start=1):
        if line.endswith("\r"):
            hint = "convert it: sed -i 's/\\r$//' " + name
            why = "the line has a Windows line ending (CRLF)"
            script.fault(TextPlace(name, number, len(line)), "bad_script", why, hint)
            return
        if line.startswith("#SBATCH") and line[7:8] in ("", " ", "\t"):
            if begun:
                why = "it is after the first command, where sbatch ignores it too"
                script.notes.append(Note(TextPlace(name, number, 1), line[:60], why))
            else:
                _read_words(list(_words(line, name, number, script)), script)
        elif line.strip() and not line.startswith("#"):
            begun = True


def _words(line: str, name: str, number: int, script: SbatchScript) -> Iterator[tuple[str, TextPlace]]:
    for match in _WORD.finditer(line, 7):
        if match[0].startswith("#"):
            return  # a comment
        place = TextPlace(name, number, match.start() + 1)
        word = _unquoted(match[0])
        if word is None:
            script.fault(place, "bad_script", "a quote is not closed", "close it on this line")
            return
        yield word, place


def _unquoted(word: str) -> str | None:
    import shlex  # shlex handles quotes, which are rare

    if not set(word) & set("\"'\\"):
        return word
    try:
        return "".join(shlex.split(word, posix=True))
    except ValueError:
        return None


def _read_words(words: list[tuple[str, TextPlace]], script: SbatchScript) -> None:
    at = 0
    while at < len(words):
        word, place = words[at]
        at += 1
        found = _option(word, place, script)
        if found is None:
            if word.startswith("-"):
                return  # what follows may be its value
            continue
        directive, value = found
        if value is None and directive.takes is Takes.VALUE:
            if at == len(words):
                script.fault(place, "missing_value", f"--{directive.name} needs a value", f"--{directive.name}=VALUE")
                return
            value, at = words[at][0], at + 1
        if value is not None and directive.takes is Takes.NOTHING:
            script.fault(place, "bad_option", f"--{directive.name} takes no value", f"write --{directive.name}")
        if directive.note:
            script.notes.append(Note(place, f"--{directive.name}", directive.note))
        script.typed[directive.name] = Typed(directive, value or "", place)


def _option(word: str, place: TextPlace, script: SbatchScript) -> tuple[Directive, str | None] | None:
    """The option of a word, and the value in the same word."""
    if word in ("hetjob", "packjob"):
        script.fault(place, "unsupported", f"{word}: use gangs for the parts of a job", "see docs/job-file.md: gangs")
    elif word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        directive = BY_NAME.get(full_name(name))
        if directive is not None:
            return directive, value if equals else None
        close = nearest(name, [each.replace("-", "_") for each in BY_NAME]).replace("_", "-")
        hint = f"did you mean --{close}?" if close else "see docs/coming-from-slurm.md"
        script.fault(place, "unknown_option", f"there is no option --{show(name)[1:-1]}", hint)
    elif word.startswith("-") and len(word) > 1:
        directive = BY_SHORT.get(word[1])
        if directive is not None:
            return directive, word[2:].removeprefix("=") or None
        script.fault(place, "unknown_option", f"there is no option {show(word)[1:3]}", "see docs/coming-from-slurm.md")
    else:
        script.fault(place, "bad_option", f"{show(word)} is not an option", "options begin with --")
    return None


def _meaningful(script: SbatchScript) -> dict[str, str]:
    return {name: typed.value for name, typed in script.typed.items() if not typed.directive.note}


# --- the script itself -----------------------------------------------------------------------------------------------


def _program(text: str, name: str, meaning: Meaning, arguments: Sequence[str], script: SbatchScript) -> dict[str, Any]:
    if meaning.wrap:
        text, name = f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{meaning.wrap}\n", "wrap"
    elif not text.startswith("#!"):
        why = "the first line does not name an interpreter"
        script.fault(TextPlace(name, 1, 1), "bad_script", why, "begin it with #!/bin/bash")
        text = "#!/bin/sh\n"
    return {"command": [name, *arguments], "script": text, "launch": "first"}


def _name(file: str) -> str:
    """Slurm names a job after its script."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", file.rpartition("/")[2])[:100].lstrip("._-") or "script"


def _marks(name: str, script: SbatchScript, meaning: Meaning) -> Marked:
    """The directives that keys of the document come from, so that errors lead to the directive."""
    places: dict[Path, tuple[int, int]] = {}
    for key, directive in meaning.origin.items():
        typed = script.typed.get(directive)
        if typed is not None and typed.place.file == name:
            places[(key,)] = (typed.place.line, typed.place.column)
    return Marked(name, None, dict(places), {(): (1, 1), **places}, [])
