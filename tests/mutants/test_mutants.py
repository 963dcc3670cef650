"""The list of planted bugs does not rot: every text is there once, every named test exists."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "tests" / "scenarios"


@cache
def functions_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_there_are_enough_and_each_has_a_name_of_its_own():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 70


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_bug_can_be_planted_and_who_catches_it_exists(mutant: Mutant):
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert source.count(mutant.old) == 1, f"found {source.count(mutant.old)} times: {mutant.old!r}"
    assert mutant.new != mutant.old
    assert mutant.bug.endswith(".")
    assert mutant.killers
    for killer in mutant.killers:
        path, _, test = killer.partition("::")
        name, _, case = test.partition("[")
        assert name in functions_of(ROOT / path), f"there is no test {killer}"
        if path.startswith("tests/scenarios/"):
            assert (SCENARIOS / f"{case.removesuffix(']')}.txt").exists(), f"there is no scenario {case}"
