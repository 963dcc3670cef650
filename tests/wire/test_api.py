"""The shapes of the interface: the words equal the engine's, answers survive a round trip, bodies refuse strangers."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import msgspec
import pytest

from corral.core.accounts.accounts import Role
from corral.core.model import Cause, FailureClass, GangState, Health
from corral.wire import api
from corral.wire.api.answers import Answer, Body

SHAPES = [shape for name in api.__all__ if isinstance(shape := getattr(api, name), type)]
ANSWERS = [shape for shape in SHAPES if issubclass(shape, Answer)]
BODIES = [shape for shape in SHAPES if issubclass(shape, Body)]


@pytest.mark.parametrize(
    ("words", "engine"),
    [(api.GANG_STATES, GangState), (api.FAILURES, FailureClass), (api.CAUSES, Cause), (api.HEALTHS, Health)],
)
def test_words_are_those_of_the_engine(words, engine):
    assert list(words) == [str(each) for each in engine]


def test_roles_are_those_of_the_engine():
    assert list(get_args(api.RoleWord)) == [str(each) for each in Role]


def test_every_shape_has_a_schema():
    _, components = msgspec.json.schema_components(SHAPES, ref_template="#/{name}")
    assert {"JobView", "ProblemView", "WhyView"} <= components.keys()


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_bodies_refuse_fields_they_do_not_know(body):
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({"no_such_field": 1}, body)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.__name__)
def test_answers_ignore_fields_they_do_not_know(answer):
    assert not answer.__struct_config__.forbid_unknown_fields


def test_importing_the_shapes_loads_no_engine():
    code = "import sys, corral.wire.api; print([name for name in sys.modules if name.startswith('corral.core')])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert printed.stdout.strip() == "[]"
