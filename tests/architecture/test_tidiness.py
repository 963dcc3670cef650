"""The house rules hold in all of src/corral, but for the exceptions listed here with their reasons."""

import pytest

from tests.architecture.house_rules import RULES, Breach, Module, Rule, breaches, packages_are_small
from tests.architecture.repository import REQUIRED_PACKAGES, SOURCE, modules

# (rule, place) -> why breaking the rule there makes the code better. A place is a path below src/corral,
# with ::Class.function for a function. An exception that is no longer needed fails the tests too.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("module_is_short", "core/model.py"): "what is known of jobs, gangs, queues and nodes, in one place",
    ("module_is_short", "backends/local/task/supervisor.py"): "the life of one task; halves would share its state",
    ("module_is_short", "server/main.py"): "one list of options, and the life of the process by it",
    ("module_is_short", "backends/local/backend.py"): "one watcher owns all tasks; halves would share its state",
    ("module_is_short", "backends/fleet/backend.py"): (
        "one lock and what it guards: members, orders that are held back, who was given what. Parts of it would share "
        "its state"
    ),
    ("module_is_short", "policy/preemption.py"): "one search in one draft; parts would share what it remembers",
    ("module_is_short", "policy/standard.py"): "the cycle, to be read from top to bottom",
    ("module_is_short", "wire/config.py"): "one list of all keys of the file, beside what holds without them",
    ("module_opens_with_its_scope", "client/training.py"): "it shows the loop that training scripts are made of",
    ("module_is_short", "server/loop.py"): "one thread and the order of write, know, act: halves would share its state",
    ("module_is_short", "policy/reasons.py"): "a catalogue: one small class for each reason, to be read side by side",
}

PER_MODULE = list(RULES)
RULE_NAMES = [rule.__name__ for rule in PER_MODULE]


def parsed_source() -> list[Module]:
    places = {path: path.relative_to(SOURCE).as_posix() for path in modules()}
    return [Module.parse(place, path.read_text(encoding="utf-8")) for path, place in places.items()]


def unexcused(rule_name: str, found: list[Breach]) -> list[str]:
    return [
        f"src/corral/{breach.where} {breach.what} (line {breach.line})"
        for breach in found
        if (rule_name, breach.where) not in EXCEPTIONS
    ]


@pytest.mark.parametrize("package", REQUIRED_PACKAGES)
def test_there_is_something_to_check(package):
    assert modules(package), f"src/corral/{package} holds no module"


@pytest.mark.parametrize("rule", PER_MODULE, ids=RULE_NAMES)
def test_house_rule(rule: Rule):
    complaints = unexcused(rule.__name__, breaches(rule, parsed_source()))
    assert not complaints, "\n" + "\n".join(complaints)


def test_packages_are_small():
    complaints = unexcused("packages_are_small", list(packages_are_small(parsed_source())))
    assert not complaints, "\n" + "\n".join(complaints)


def test_exceptions_have_a_reason_and_are_still_needed():
    source = parsed_source()
    needed = {(rule.__name__, breach.where) for rule in PER_MODULE for breach in breaches(rule, source)}
    needed |= {("packages_are_small", breach.where) for breach in packages_are_small(source)}
    assert all(reason.strip() for reason in EXCEPTIONS.values())
    assert not EXCEPTIONS.keys() - needed


# --- every rule catches a planted breach -----------------------------------------------------------------

LONG_FUNCTION = '"""Scope."""\n\ndef f():\n' + "    x = 1\n" * 60
LONG_METHOD = '"""Scope."""\n\nclass C:\n    async def f(self):\n' + "        x = 1\n" * 60
UNFINISHED = '"""Scope."""\n\n# TO' + "DO: the rest\n"

PLANTED = {
    "a module without a docstring": ("module_opens_with_its_scope", "core/a.py", "x = 1\n"),
    "a docstring of 13 lines": ("module_opens_with_its_scope", "core/a.py", '"""' + "line\n" * 13 + '"""\n'),
    "a module of 401 lines": ("module_is_short", "sim/a.py", '"""Scope."""\n' + "\n" * 400),
    "a function of 61 lines": ("functions_are_short", "sim/a.py", LONG_FUNCTION),
    "a method of 61 lines": ("functions_are_short", "sim/a.py", LONG_METHOD),
    "a module named utils": ("names_say_something", "core/utils.py", ""),
    "a package named common": ("names_say_something", "common/__init__.py", ""),
    "an unfinished thing": ("nothing_is_left_unfinished", "core/a.py", UNFINISHED),
    "a print in the policy": ("deciding_does_nothing_else", "policy/a.py", "print(1)\n"),
    "a file opened in the core": ("deciding_does_nothing_else", "core/a.py", "open('x')\n"),
    "a float literal in the core": ("amounts_are_integers", "core/a.py", "x = 0.5\n"),
    "a true division in the core": ("amounts_are_integers", "core/a.py", "def f(a, b): return a / b\n"),
}


@pytest.mark.parametrize(("rule_name", "path", "text"), PLANTED.values(), ids=PLANTED.keys())
def test_rule_catches(rule_name, path, text):
    rule = PER_MODULE[RULE_NAMES.index(rule_name)]
    assert len(breaches(rule, [Module.parse(path, text)])) == 1


BORDERLINE = {
    "a function of 60 lines": ("functions_are_short", "sim/a.py", LONG_FUNCTION.removesuffix("    x = 1\n")),
    "a float literal in the policy": ("amounts_are_integers", "policy/a.py", "score = 0.5\n"),
    "an integer division in the core": ("amounts_are_integers", "core/a.py", "x = 7 // 2\n"),
    "a print in the command line": ("deciding_does_nothing_else", "cli/a.py", "print(1)\n"),
    "a module whose name only contains a vague one": ("names_say_something", "core/commonality.py", ""),
}


@pytest.mark.parametrize(("rule_name", "path", "text"), BORDERLINE.values(), ids=BORDERLINE.keys())
def test_rule_allows(rule_name, path, text):
    rule = PER_MODULE[RULE_NAMES.index(rule_name)]
    assert not breaches(rule, [Module.parse(path, text)])


def test_packages_are_small_catches_a_seventeenth_module():
    package = [Module.parse(f"core/m{number}.py", "") for number in range(17)]
    assert [breach.where for breach in packages_are_small(package)] == ["core"]
    assert not list(packages_are_small([*package[:16], Module.parse("core/__init__.py", "")]))
