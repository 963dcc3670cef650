"""The house rules hold in all of src/corral, except for those listed here with their reasons."""

from functools import cache

import pytest

from tests.architecture import house_rules
from tests.architecture.house_rules import RULES, Breach, Module, Rule, breaches, packages_are_small
from tests.architecture.repository import REQUIRED_PACKAGES, SOURCE, modules

# (rule, place) -> why breaking the rule there makes the code better. A place is a path below src/corral,
# with ::Class.function for a function. An exception that is no longer needed fails the tests too.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("module_is_short", "runtime/local/task/supervisor.py"): (
        "the life of one task from start to result, in one loop; its runner, steps, streams and records are elsewhere"
    ),
    ("module_is_short", "runtime/steps/seat_host.py"): (
        "one loop of a supervisor: connections, processes and their streams share descriptors and their ends"
    ),
    ("module_is_short", "runtime/local/backend.py"): "one watcher owns all tasks; halves would share its state",
    ("module_is_short", "kubernetes/pod_backend.py"): (
        "one lock and what it guards: a task is created, watched and ended by different threads, and each step depends "
        "on what the others have seen"
    ),
    ("module_is_short", "wire/config.py"): "one table: every key of the configuration file, in the order of the page",
    ("module_is_short", "remote/backend.py"): (
        "one lock and what it guards: nodes, orders that are held back, what each node was given; parts would share "
        "its state"
    ),
    ("module_opens_with_its_scope", "client/training.py"): "it shows the loop that training scripts are made of",
    ("packages_are_small", "core"): "the nouns and verbs of the engine, one module each; its subjects are sub-packages",
}

# Packages that repeat each other's names of modules, because these are the same thing. Any other two modules have two
# names: that of the main type, or one with the subject in it (``end_history``, not a second ``history``).
SAME_NOUN = {
    "one noun on its way from the engine through the API to the command that users type": (
        "core",
        "wire",
        "server/api/handlers",
        "client",
        "cli",
    ),
    "one interface and its databases": ("store", "store/sql", "store/sqlite", "store/postgres"),
    "one interface, its providers and their options": (
        "providers",
        "providers/ray",
        "providers/slurm",
        "providers/ssh",
        "cli/fleet/providers",
    ),
    "one interface and the ways to run a task": ("runtime/local", "runtime/container", "remote"),
}

# module name -> why it may be there more than once.
SAME_MODULE: dict[str, str] = {
    "agent": "the program, and the command that runs it",
    "base": "the interface that a package implements",
    "catalog": "what a package offers, by name",
    "commands": "commands on one part of the core, each beside what they change",
    "errors": "the errors that a package raises",
    "fake": "the implementation of the interface in `base` for tests",
    "generate": "the command, and what it runs",
    "logs": "logs of tasks, all of them: stored, copied, answered, shown",
    "main": "where a program begins",
    "options": "options that the commands of one folder share",
    "process": "a child process of the server: the package says which one",
    "run": "two commands, and what one of them runs",
    "settings": "settings of a package",
}

PER_MODULE = list(RULES)
RULE_NAMES = [rule.__name__ for rule in PER_MODULE]


@cache
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


@pytest.mark.parametrize(
    ("text", "count"), [("a, b, c = 1, 2, 3\n", 1), ("a, b = b, a\n", 0), ("a, b, c = f()\n", 0), ("a = 1, 2, 3\n", 0)]
)
def test_assignments_of_three_values_at_once_are_found(text: str, count: int):
    assert len(list(house_rules.values_are_assigned_one_by_one(Module.parse("sim/a.py", text)))) == count


def test_packages_are_small():
    complaints = unexcused("packages_are_small", list(packages_are_small(parsed_source())))
    assert not complaints, "\n" + "\n".join(complaints)


def test_classes_have_one_meaning():
    assert not [f"{found.where} {found.what}" for found in house_rules.classes_have_one_meaning(parsed_source())]


def test_modules_have_one_meaning():
    found = list(house_rules.modules_have_one_meaning(parsed_source(), SAME_NOUN.values()))
    assert not [f"{each.where} {each.what}" for each in found if each.where not in SAME_MODULE]
    assert not SAME_MODULE.keys() - {each.where for each in found}, "remove what is no longer needed from SAME_MODULE"


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
    "a module of 401 lines": ("module_is_short", "sim/a.py", '"""Scope."""\n' + "x = 1\n" * 401),
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
    "a module of 400 lines with comments and blank lines": (
        "module_is_short",
        "sim/a.py",
        '"""Scope.\n\nMore.\n"""\n# why\n\n' + "x = 1  # why\n" * 400,
    ),
    "a function with a long docstring": (
        "functions_are_short",
        "sim/a.py",
        'def f():\n    """' + "line\n" * 30 + '"""\n' + "    x = 1\n" * 59,
    ),
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


def test_a_second_class_of_one_name_is_found():
    first = Module.parse("core/a.py", "class Box: ...\nclass _Own: ...\n")
    second = Module.parse("sim/b.py", "class Lid:\n    class Box: ...\ndef f():\n    class Box: ...\nclass _Own: ...\n")
    assert [breach.where for breach in house_rules.classes_have_one_meaning([first, second])] == ["Box"]
    assert not list(house_rules.classes_have_one_meaning([first]))


@pytest.mark.parametrize(
    ("paths", "count"),
    [
        (["core/queues/jobs.py", "client/jobs.py", "cli/jobs/jobs.py"], 0),
        (["cli/a/place.py", "cli/b/place.py"], 1),
        (["store/journal.py", "store/sql/journal.py"], 0),
        (["store/journal.py", "core/journal.py"], 1),
        (["sim/__init__.py", "core/__init__.py"], 0),
    ],
)
def test_modules_of_one_name_are_found(paths: list[str], count: int):
    source = [Module.parse(path, "") for path in paths]
    assert len(list(house_rules.modules_have_one_meaning(source, SAME_NOUN.values()))) == count
