"""The house rules that a reader of the source can check: each is a function from source to breaches.

Knows Python's syntax and the limits of STYLE; knows neither where the source lies nor which breaches are
allowed, so that test_tidiness.py can try every rule on a planted breach as well as on the real code.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

# Sizes advise: they count lines with code, and a reasoned exception is listed in test_tidiness.py.
FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 400
PACKAGE_MODULES_MAX = 16
DOCSTRING_LINES_MAX = 12

VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "info"}
DOING_BUILTINS = {"print", "open", "input", "exec", "eval", "__import__", "breakpoint"}

_UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")


@dataclass(frozen=True)
class Module:
    """One source file: its path below src/corral, its text and its syntax tree."""

    path: PurePosixPath
    text: str
    tree: ast.Module

    @classmethod
    def parse(cls, path: str, text: str) -> "Module":
        return cls(PurePosixPath(path), text, ast.parse(text, path))

    @property
    def package(self) -> str:
        """The folder directly below src/corral, or "" for a module at the top."""
        return self.path.parts[0] if len(self.path.parts) > 1 else ""

    @cached_property
    def code_lines(self) -> frozenset[int]:
        """Numbers of the lines with code: docstrings, comments and blank lines do not count."""
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in _NO_CODE:
                lines.update(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(self.tree):
            if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
                docstring = node.body[0]
                lines.difference_update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
        return frozenset(lines)

    def lines_of_code(self, first: int, last: int) -> int:
        return sum(1 for line in self.code_lines if first <= line <= last)


_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Breach:
    """`where` names the place without a line number, so that an exception for it survives edits."""

    where: str
    what: str
    line: int = 1


def module_opens_with_its_scope(module: Module) -> Iterator[Breach]:
    docstring = ast.get_docstring(module.tree)
    if docstring is None or not docstring.strip():
        yield Breach(str(module.path), "has no docstring saying what it knows and what it must not know")
    elif (lines := len(docstring.strip().splitlines())) > DOCSTRING_LINES_MAX:
        yield Breach(str(module.path), f"opens with {lines} lines of docstring, over {DOCSTRING_LINES_MAX}")


def module_is_short(module: Module) -> Iterator[Breach]:
    lines = len(module.code_lines)
    if lines > MODULE_LINES_MAX:
        yield Breach(str(module.path), f"has {lines} lines of code, over {MODULE_LINES_MAX}")


def functions_are_short(module: Module) -> Iterator[Breach]:
    for name, function in _functions(module.tree):
        lines = module.lines_of_code(function.lineno, function.end_lineno or function.lineno)
        if lines > FUNCTION_LINES_MAX:
            what = f"has {lines} lines of code, over {FUNCTION_LINES_MAX}"
            yield Breach(f"{module.path}::{name}", what, function.lineno)


def values_are_assigned_one_by_one(module: Module) -> Iterator[Breach]:
    """`a, b, c = x, y, z` saves lines and costs the reader; swaps and pairs are fine."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple) and len(node.value.elts) >= 3:
            if any(isinstance(target, ast.Tuple) for target in node.targets):
                yield Breach(str(module.path), f"assigns {len(node.value.elts)} values at once", node.lineno)


def names_say_something(module: Module) -> Iterator[Breach]:
    for part in module.path.with_suffix("").parts:
        if part in VAGUE_NAMES:
            yield Breach(str(module.path), f"is named {part!r}, which could hold anything")


def nothing_is_left_unfinished(module: Module) -> Iterator[Breach]:
    for number, line in enumerate(module.text.splitlines(), start=1):
        if found := _UNFINISHED.search(line):
            yield Breach(str(module.path), f"says {found[0]}", number)


def deciding_does_nothing_else(module: Module) -> Iterator[Breach]:
    """Import-linter sees what is imported; the builtins that act need no import."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DOING_BUILTINS:
            yield Breach(str(module.path), f"calls {node.func.id}()", node.lineno)


def amounts_are_integers(module: Module) -> Iterator[Breach]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, float | complex):
            yield Breach(str(module.path), f"holds the literal {node.value!r}", node.lineno)
        elif isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
            yield Breach(str(module.path), "divides with /, which gives a float", node.lineno)


def packages_are_small(modules: list[Module]) -> Iterator[Breach]:
    sizes = Counter(module.path.parent for module in modules if module.path.name != "__init__.py")
    for package, size in sorted(sizes.items()):
        if size > PACKAGE_MODULES_MAX:
            yield Breach(str(package), f"has {size} modules, over {PACKAGE_MODULES_MAX}")


def classes_have_one_meaning(modules: list[Module]) -> Iterator[Breach]:
    """No two public classes of one name, wherever they are: a reader who searches for a class finds one."""
    places: dict[str, list[Module]] = {}
    for module in modules:
        for name in sorted(_public_classes(module.tree)):
            places.setdefault(name, []).append(module)
    for name, found in places.items():
        if len(found) > 1:
            yield Breach(name, "is a class of " + ", ".join(str(module.path) for module in found))


def modules_have_one_meaning(modules: list[Module], groups: Iterable[Iterable[str]]) -> Iterator[Breach]:
    """No two modules of one name, unless all are in one of ``groups`` of packages, each in another of these packages.

    A package stands for the packages below it, too, unless the group names these themselves.
    """
    places: dict[str, list[PurePosixPath]] = {}
    for module in modules:
        if module.path.name != "__init__.py":
            places.setdefault(module.path.stem, []).append(module.path)
    for name, found in places.items():
        if len(found) > 1 and not any(_are_apart(found, tuple(group)) for group in groups):
            yield Breach(name, "is the name of " + ", ".join(map(str, found)))


def _are_apart(paths: list[PurePosixPath], group: tuple[str, ...]) -> bool:
    owners = [max((each for each in group if path.is_relative_to(each)), key=len, default="") for path in paths]
    return all(owners) and len(set(owners)) == len(owners)


def _public_classes(tree: ast.AST) -> Iterator[str]:
    """Classes of a module or of its classes; one within a function is seen by nothing else."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
        if isinstance(node, ast.ClassDef | ast.If):
            yield from _public_classes(node)


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{node.name}"
            if not isinstance(node, ast.ClassDef):
                yield name, node
            yield from _functions(node, f"{name}.")
        else:
            yield from _functions(node, prefix)


Rule = Callable[[Module], Iterator[Breach]]

# Each rule with the packages it speaks about; None means all of corral.
RULES: dict[Rule, tuple[str, ...] | None] = {
    module_opens_with_its_scope: None,
    module_is_short: None,
    functions_are_short: None,
    values_are_assigned_one_by_one: None,
    names_say_something: None,
    nothing_is_left_unfinished: None,
    deciding_does_nothing_else: ("core", "policy", "batching"),
    amounts_are_integers: ("core",),
}


def breaches(rule: Rule, modules: list[Module]) -> list[Breach]:
    packages = RULES[rule]
    return [breach for module in modules if packages is None or module.package in packages for breach in rule(module)]
