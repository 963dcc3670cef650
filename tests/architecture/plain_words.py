"""Words that text for people does not contain, why, and what to say instead; and where the text is in a file.

Of Python it reads docstrings, comments and strings that contain a space; pages, SQL and YAML it reads whole. Knows
neither which files are checked nor which hits are allowed: that is in test_words.py. To see the hits of a folder:

    python -m tests.architecture.plain_words src/corral/cli docs README.md
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Banned:
    pattern: str
    why: str
    instead: str

    def matches(self, text: str) -> Iterator[re.Match[str]]:
        """Ignores case and line breaks; ``text`` is prose."""
        return re.finditer(rf"(?<!\w)(?:{self.pattern})\b".replace(" ", r"\s+"), text, re.IGNORECASE)


BANNED = (
    # --- who: name the user, the gang, the node or the process --------------------------------------------
    Banned(r"who(so)?ever", "names no subject", "the user who, the gang that, every server that"),
    Banned(r"(?<!`)(some|no|any|every)body('s)?", "names no subject", "a user, no gang, any process, every client"),
    Banned(r"whom", "stiff; names no object", "which gang, the user that"),
    Banned(
        r"(those|all|first|of|for|to|before|behind|beside|than|with) who",
        "a job, a node or a process is a thing, and a person has a role",
        "gangs that, the first gang that, users who",
    ),
    Banned(r"who (waits|sits|leaves|saves|goes|comes|stays|stands|borrows)", "a job is a thing", "the gang that waits"),
    Banned(r"founder", "a private name of an actor", "system"),
    # --- passive riddles: name the actor and the verb -----------------------------------------------------
    Banned(r"told(?! (from|apart)\b)", "who tells what to which?", "is notified, is shown, reports, gets"),
    Banned(r"hears?|heard|unheard", "messages are not sounds", "receives, has contacted, last report"),
    Banned(r"(is|are|was|were|be|been) said", "who says it?", "is given, is set, is configured, is reported"),
    Banned(r"without a word|(no|a) word from", "word for message", "without output, no message from"),
    Banned(r"met (a|an|no) (fault|error)", "faults are not acquaintances", "failed; retrying in N s"),
    Banned(r"think(s|ing)?|thought", "programs do not think", "plans, computes, assumes"),
    Banned(r"things? (is|are) wrong", "counts nothing", "2 errors"),
    Banned(r"fault of corral", "not English usage", "internal error"),
    # --- scheduling has words -----------------------------------------------------------------------------
    Banned(r"(asked|told) to leave", "preemption has a name", "is preempted, is warned"),
    Banned(
        r"(make|makes|made|making|ask|asks|asking|let|lets) (\w+ )?leave", "preemption has a name", "preempts the gang"
    ),
    Banned(r"(?<!`)promis(e|es|ed|ing)", "means three things", "claim, reservation, guarantee, or: states"),
    Banned(r"desks?", "a private metaphor", "bucket, context"),
    Banned(r"misfortunes?", "failures have a name", "failure, fault"),
    Banned(r"errands?", "a private metaphor", "probe, request, task"),
    Banned(r"tend(s|ed|ing)?(?! to\b)", "a private metaphor", "reconciles, keeps, maintains"),
    Banned(r"carr(y|ies|ied|ying)(?!( \w+){0,3} (out|over)\b)", "a private metaphor", "has, contains, transfers"),
    Banned(r"standing|stands? (in|over|there|beside|at|on)", "a metaphor", "is in, is written in, order, status"),
    Banned(r"engine's mind", "a private metaphor", "memory, state"),
    Banned(r"container engine", "the engine is the deciding core of Corral", "container runtime"),
    # --- numbers and times are given ----------------------------------------------------------------------
    Banned(r"so (many|long)(?! as)", "points at a number that is not there", "this many, N, for this time"),
    Banned(r"a moment", "how long is it?", "for N seconds, shortly, briefly"),
    # --- archaic, or not English --------------------------------------------------------------------------
    Banned(r"anew", "archaic", "again"),
    Banned(r"mend(s|ed|ing)?", "archaic", "repair, restore"),
    Banned(r"know(s|ing)? nothing of", "archaic", "does not know, has no record of"),
    Banned(r"for the sake of|'s sake", "archaic", "for, in favour of"),
    Banned(r"has the word", "not an English idiom", "applies, decides"),
    Banned(r"in vain", "archaic", "without effect"),
    Banned(r"but for|save for|for want of", "archaic", "except, for lack of, without"),
    Banned(r"shall", "archaic", "must, should, is to"),
    Banned(r"lest", "archaic", "so that ... not"),
    Banned(r"dear(er|est|ly)?", "archaic for price", "expensive, costs more"),
    Banned(r"at hand", "archaic", "available, present, stored here"),
    Banned(r"befall(s|en)?|befell", "archaic", "happens to, affects"),
    Banned(r"vouch(es|ed|ing)?", "archaic", "guarantees, confirms"),
    Banned(r"one's own|oneself", "stiff", "your own, its own"),
)


def hits(path: Path) -> list[str]:
    """Every banned word in the text of a file: where, what, why and what to say instead."""
    text = path.read_text(encoding="utf-8")
    parts = python_texts(text) if path.suffix == ".py" else [(1, text)]
    return [hit for line, part in parts for hit in hits_in(part, line)]


def hits_in(text: str, first_line: int = 1) -> list[str]:
    return [
        f"line {first_line + text.count(chr(10), 0, match.start())}: {match[0]!r}: {banned.why}; say: {banned.instead}"
        for banned in BANNED
        for match in banned.matches(text)
    ]


def python_texts(source: str) -> list[tuple[int, str]]:
    """What people read in a module, with line numbers: comments, docstrings and strings with a space in them."""
    return sorted([*_comments(source), *_strings(ast.parse(source))])


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments on consecutive lines are one text: a phrase may be broken between them."""
    first, block = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] != first + len(block):
            yield first, "\n".join(block)
            block = []
        if not block:
            first = token.start[0]
        block.append(token.string.lstrip("#: "))
    if block:
        yield first, "\n".join(block)


def _strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Strings of a syntax tree; fields of an f-string are left out of its text."""
    match node:
        case ast.Constant(value=str(text)) if " " in text:
            yield node.lineno, text
        case ast.JoinedStr(values=values):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "_" for part in values)
            if " " in text:
                yield node.lineno, text
            fields = [part for part in values if isinstance(part, ast.FormattedValue)]
            yield from (found for field in fields for found in _strings(field.value))
        case _:
            yield from (found for child in ast.iter_child_nodes(node) for found in _strings(child))


def files_with_text(place: Path) -> list[Path]:
    """A file itself; of a folder all files below it that hold text."""
    if place.is_file():
        return [place]
    return sorted(path for path in place.rglob("*") if path.suffix in {".py", ".md", ".sql", ".yaml"})


def main(places: list[str]) -> None:
    found = [f"{path}: {hit}" for place in places for path in files_with_text(Path(place)) for hit in hits(path)]
    print(*found, f"{len(found)} hits", sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
