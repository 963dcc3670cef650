"""Rules by which a site names the class of failures that Corral does not know: by the last output, or the exit code.

Keys and defaults only; `corral.runtime.local.task.classify` has the table that is always used, and applies both.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from corral.core.model import DEFAULT_RETRIES, FailureClass
from corral.wire.document.errors import Path, Reading, Wrong
from corral.wire.document.key_table import Key, KeyTable
from corral.wire.document.kinds import ValueKind, choice, listing, number, text

#: Classes that an exit can have; the others follow from what Corral itself does.
_NAMED = sorted(
    {str(each) for each in DEFAULT_RETRIES} - {FailureClass.NODE_LOST, FailureClass.TIME_LIMIT, FailureClass.STALLED}
)


class FailureRule(Struct, frozen=True, gc=False, kw_only=True):
    """``says``: in the last output; ``exit_code`` None: any. If both are given, both must hold."""

    failure: str
    says: str = ""
    exit_code: int | None = None
    why: str = ""


FAILURE_KEYS = KeyTable(
    "failures",
    [
        Key("says", text("words of the output", most="name_chars"), "Words in the last 16 KiB of the standard error.",
            "ibv_poll_cq: transport retry counter exceeded", default="any output", into="says"),
        Key("exit_code", number("an exit code", 1, 255), "Exit code; 128 + n for signal n.", 134, default="any",
            into="exit_code"),
        Key("class", choice(_NAMED), "Failure class, which decides about retries.", "network", into="failure",
            required=True),
        Key("why", text("a reason", most="name_chars"), "What users read about it.", "the InfiniBand link failed",
            default="the words that were found", into="why"),
    ],
)  # fmt: skip


def _read(value: Any, path: Path, reading: Reading) -> FailureRule | None:
    faults = len(reading.faults)
    found = FAILURE_KEYS.fields(FAILURE_KEYS.read(value, path, reading))
    if len(reading.faults) > faults:
        return None
    if not found.keys() & {"says", "exit_code"}:
        raise Wrong("missing", "the rule would apply to every failure", "give says, exit_code or both")
    return FailureRule(**found)


def _written(rule: FailureRule) -> dict[str, Any]:
    stated = {"says": rule.says, "exit_code": rule.exit_code, "class": rule.failure, "why": rule.why}
    return {key: value for key, value in stated.items() if value not in ("", None)}


FAILURES = listing(ValueKind(_read, FAILURE_KEYS.schema, "a rule", _written), "a list of rules", "labels")
